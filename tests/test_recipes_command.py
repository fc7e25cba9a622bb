"""Recipes by name: listed, shown, copied, and trained from any folder."""

import pytest
from typer.testing import CliRunner

from equiav import config as configs
from equiav.cli import app
from equiav.config import find_recipe, load_config, shipped_recipes
from equiav.errors import ConfigError, EquiAVError

SMALL = ("train.steps=1", "train.batch=4", "data.count=8", "data.validation=4", "train.evaluate_every=null")


def equiav(*arguments):
    return CliRunner().invoke(app, [str(a) for a in arguments])


@pytest.fixture
def elsewhere(tmp_path, monkeypatch):
    """An empty folder to work in."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_every_recipe_has_a_line(elsewhere):
    result = equiav("recipes")
    assert result.exit_code == 0
    lines = dict(line.split(maxsplit=1) for line in result.output.splitlines())
    assert lines.keys() == shipped_recipes().keys()
    assert {"pretrain/world", "finetune/world", "ablation/variants"} <= lines.keys()
    assert all(len(text) > 20 for text in lines.values())


def test_show_prints_the_file(elsewhere):
    assert equiav("recipes", "show", "pretrain/world").output == shipped_recipes()["pretrain/world"].read_text()
    assert equiav("recipes", "show", "esc50").output == shipped_recipes()["finetune/esc50"].read_text()


def test_a_copy_is_trained(elsewhere):
    assert equiav("recipes", "copy", "pretrain/smoke", "my.yaml").exit_code == 0
    assert load_config(elsewhere / "my.yaml") == load_config(shipped_recipes()["pretrain/smoke"])
    assert equiav("pretrain", "my.yaml", *SMALL).exit_code == 0
    assert (elsewhere / "runs/my/checkpoints").is_dir()
    refused = equiav("recipes", "copy", "pretrain/smoke", "my.yaml")
    assert isinstance(refused.exception, EquiAVError)
    assert "is there already" in str(refused.exception)
    assert "equiav ablate" in str(equiav("recipes", "copy", "variants", "table.yaml").exception)


def test_training_by_name_from_any_folder(elsewhere):
    (elsewhere / "smoke").mkdir()  # a folder of that name is no recipe
    assert equiav("pretrain", "smoke", *SMALL).exit_code == 0
    assert (elsewhere / "runs/smoke/checkpoints").is_dir()


def test_a_file_goes_before_a_name(elsewhere):
    (elsewhere / "world").write_text("seed: 7\n")
    assert load_config(find_recipe("world", "pretrain")).seed == 7


@pytest.mark.parametrize(
    ("name", "kind", "message"),
    [
        ("wrld", "pretrain", "wrld: no such file, and no recipe of this name; near names: world"),
        ("esc50", "pretrain", "no such file, and no recipe of this name"),
        ("world", None, "there are pretrain/world and finetune/world; name one of them"),
        ("qqqq", None, "`equiav recipes` lists those there are"),
    ],
)
def test_unknown_names(elsewhere, name, kind, message):
    with pytest.raises(ConfigError, match=message):
        find_recipe(name, kind)


def test_paths_of_the_source_tree_name_what_is_installed(elsewhere):
    assert find_recipe("configs/pretrain/world.yaml", "pretrain") == shipped_recipes()["pretrain/world"]


def test_an_installation_carries_them_inside(elsewhere, monkeypatch):
    """The wheel has configs/ inside the package."""
    inside = elsewhere / "site/equiav"
    (inside / "configs/pretrain").mkdir(parents=True)
    (inside / "configs/pretrain/mine.yaml").write_text("# Mine.\n")
    monkeypatch.setattr(configs, "__file__", str(inside / "config.py"))
    assert list(shipped_recipes()) == ["pretrain/mine"]
