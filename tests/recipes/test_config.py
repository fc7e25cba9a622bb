"""The recipe as a file: old names, names of your own, hostile YAML, absurd numbers, dumps that stay as they were."""

import json
import logging
import sys
from pathlib import Path
from types import ModuleType

import pytest
import torch
import yaml
from torch import nn

from equiav import config as configs
from equiav.build import build_dataset, build_model, build_predictor
from equiav.checkpoint import load_checkpoint, save_model
from equiav.config import (
    CHANGED,
    RENAMED,
    Config,
    PredictorConfig,
    canonical_dump,
    dump_config,
    load_config,
    parse_config,
    resolve_name,
    with_earlier_defaults,
)
from equiav.data import World, WorldDataset
from equiav.errors import CheckpointError, ConfigError
from equiav.reproduction import load_tables, plan, portable, run_key, training_recipe
from equiav.types import SPLITS
from tests.inference.models import MICRO

ROOT = Path(__file__).parents[2]
SHIPPED = sorted((ROOT / "configs").rglob("*.yaml"))
TUNE = {"loss": "ce", "metric": "accuracy"}
OLD = {"optim": {"rate": 0.5, "start_rate": 0.25, "final_rate": 0.125}, "finetune": {**TUNE, "head_rate": 3}}
OLD["data"] = {"kind": "world", "max_things": 4}
NEW = {"optim": {"lr": 0.5, "start_lr": 0.25, "final_lr": 0.125}, "finetune": {**TUNE, "head_lr_scale": 3}}
NEW["data"] = {"kind": "world", "max_objects": 4}


@pytest.fixture
def written(tmp_path, monkeypatch):
    """Writes a recipe; nothing was said about old names before."""
    monkeypatch.setattr(configs, "_said", set())

    def write(tree):
        path = tmp_path / "recipe.yaml"
        path.write_text(tree if isinstance(tree, str) else yaml.safe_dump(tree))
        return path

    return write


def test_old_names_mean_the_new_ones_and_are_said_once(written, caplog):
    with caplog.at_level(logging.WARNING):
        assert load_config(written(OLD)) == parse_config(NEW, "new")
        load_config(written(OLD))
        parse_config(OLD, "a stored recipe")
    assert len(caplog.messages) == 1
    assert all(f"{old} (now {new})" in caplog.text for old, new in RENAMED.items())
    assert not {"rate", "start_rate", "final_rate", "head_rate"} & set(dump_config(parse_config(OLD, "old")).split(":"))


def test_old_and_new_names_mix_between_file_and_overrides(written, caplog):
    assert load_config(written(NEW), ("optim.rate=0.75",)).optim.lr == 0.75
    assert "optim.rate (now optim.lr)" in caplog.text
    assert load_config(written(OLD), ("optim.lr=0.75",)).optim.lr == 0.75
    assert load_config(written({}), ("optim={rate: 0.75}",)).optim.lr == 0.75
    with pytest.raises(ConfigError, match=r"optim.rate is the old name of optim.lr; give one of them, not both"):
        load_config(written({"optim": {"lr": 0.5, "rate": 0.5}}))
    with pytest.raises(ConfigError, match="not both"):
        load_config(written({}), ("optim.lr=0.5", "optim.rate=0.5"))
    with pytest.raises(ConfigError, match=r"optim.tempo: unknown key"):
        load_config(written({}), ("optim.tempo=0.5",))


def test_old_names_of_data(monkeypatch, caplog):
    monkeypatch.setattr(configs, "_said", set())
    paired = {"data": {"kind": "paired", "path": "p", "anchor": "sound"}}
    config = parse_config(paired, "old")
    assert config.data.anchor == "audio"
    assert "data.anchor: sound (now audio)" in caplog.text
    assert canonical_dump(config)["data"]["anchor"] == "sound", "hashes outlive the new name"
    assert parse_config({"data": {**paired["data"], "anchor": "image"}}, "old").data.anchor == "visual"
    world = parse_config({"data": {"kind": "world", "max_things": 4}}, "old")
    assert world.data.max_objects == 4
    assert "data.max_things (now data.max_objects)" in caplog.text
    assert canonical_dump(world, exclude_defaults=True)["data"] == {"max_things": 4}
    caplog.clear()
    parse_config(paired, "again")
    assert not caplog.messages, "said once"


def test_a_checkpoint_with_old_names_opens(tmp_path):
    config = parse_config({**MICRO, "optim": {"lr": 0.5}}, "test")
    save_model(tmp_path / "model", config, build_model(config).state_dict(), {})
    path = tmp_path / "model/config.yaml"
    (tmp_path / "model/SHA256SUMS").unlink()
    stored = canonical_dump(config)  # as the first format wrote it
    assert "rate" in stored["optim"]
    assert "lr" not in stored["optim"]
    path.write_text(yaml.safe_dump(stored))
    assert load_checkpoint(tmp_path / "model").config == config


def test_shipped_files_use_the_new_names(monkeypatch, caplog):
    monkeypatch.setattr(configs, "_said", set())
    load_tables([path for path in SHIPPED if path.parent.name == "ablation"])
    for path in SHIPPED:
        if path.parent.name != "ablation":
            load_config(path)
        assert not any(old in path.read_text() for old in RENAMED)
    assert not caplog.messages


def test_results_of_finished_runs_are_still_found():
    """Keys of runs are hashes of recipes: renamed and added keys of recipes must not change them."""
    tables = load_tables([path for path in SHIPPED if path.parent.name == "ablation"])
    former = tuple(f"{key}={json.dumps(value)}" for key, value in CHANGED.items())
    plans = [
        (scale, run)
        for scale in ("world", "real", "paper")
        for e in ((), former)
        for run in plan(tables, scale, extra=e)
    ]
    known = {
        (scale, run.key): training_recipe(run.config) if run.trained else portable(with_earlier_defaults(run.config))
        for scale, run in plans
    }
    records = [p for p in (ROOT / "results/ablation").rglob("*.json") if "tasks" in json.loads(p.read_text())]
    assert len(records) >= 110
    for path in records:
        assert json.loads(path.read_text())["config"] == known[path.parent.name, path.stem]


def test_a_changed_default_makes_other_runs_and_keeps_the_meaning_of_old_checkpoints():
    now, before = Config(), with_earlier_defaults(Config())
    assert now.augment.audio.crop_aspect == (0.667, 1.25)
    assert before.augment.audio.crop_aspect == (0.8, 1.5)
    assert "augment" not in canonical_dump(before, exclude_defaults=True), "as the first format: at its default"
    assert canonical_dump(now, exclude_defaults=True)["augment"] == {"audio": {"crop_aspect": [0.667, 1.25]}}
    assert run_key(now, trained=True) != run_key(before, trained=True)
    for path in sorted((ROOT / "configs/pretrain").glob("*.yaml")):
        assert load_config(path).augment.audio.crop_aspect == (0.667, 1.25), path
    own = parse_config({"augment": {"audio": {"crop_aspect": [0.5, 2.0]}}}, "own")
    assert with_earlier_defaults(own) == own
    assert load_checkpoint(ROOT / "tests/frozen/format1/pretrained").config.augment.audio.crop_aspect == (0.8, 1.5)


def test_the_canonical_dump_has_the_first_formats_keys():
    first = json.loads((ROOT / "tests/reproduction/defaults.json").read_text())["ablation_world"]
    dump = canonical_dump(load_config(ROOT / "configs/pretrain/ablation_world.yaml"))
    assert set(dump) == {*first, "seed", "weights", "classifier", "finetune", "data"} | set(first)
    for section in ("objective", "optim", "train", "audio", "visual", "bank"):
        assert set(dump[section]) == set(first[section])
    assert set(dump["model"]) == {"encoder", "predictor", "heads"}
    assert "kind" not in dump["model"]["encoder"]
    other = parse_config({"objective": {"kind": "mine:Own", "options": {"a": 1}}}, "test")
    assert canonical_dump(other)["objective"]["kind"] == "mine:Own"


@pytest.fixture
def mine(monkeypatch):
    """A module of the user's own."""

    class Shift(nn.Module):
        def __init__(self, width, d_t, gain=1.0):
            super().__init__()
            self.gain = gain

    class Clips(WorldDataset):
        def __init__(self, config, split, count):
            super().__init__(World(0, 32, 1.0), SPLITS.index(split) * count, count)

    module = ModuleType("mine")
    module.Shift, module.Clips, module.function = Shift, Clips, lambda split: None
    monkeypatch.setitem(sys.modules, "mine", module)
    return module


def test_names_of_ones_own(mine):
    predictor = build_predictor(PredictorConfig(kind="mine:Shift", options={"gain": 3.0}), 8, 4, 1e-6)
    assert (type(predictor), predictor.gain) == (mine.Shift, 3.0)
    config = parse_config({**MICRO, "data": {"kind": "mine:Clips", "options": {"count": 2}}}, "test")
    clips = build_dataset(config, "test")
    assert (type(clips), len(clips)) == (mine.Clips, 2)
    assert parse_config(yaml.safe_load(dump_config(config)), "again") == config
    with pytest.raises(ConfigError, match=r"mine:function: must be a class derived from"):
        build_dataset(parse_config({"data": {"kind": "mine:function"}}, "test"), "test")


def test_a_modality_may_have_an_encoder_of_its_own_size():
    own = {"size": None, "width": 16, "depth": 2, "heads": 2}
    config = parse_config({**MICRO, "model": {**MICRO["model"], "visual": {"encoder": own}}}, "test")
    model = build_model(config)
    assert (model.audio.f.width, model.visual.f.width) == (32, 16)
    assert model.embed("visual", torch.zeros(2, 3, 32, 32), torch.zeros(4, 18)).shape == (2, 16)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("nowhere_to_be_found:Own", r"import it first \(`import nowhere_to_be_found`, or `equiav --import nowhere_to"),
        ("mine:Nothing", "module mine has no such class or function"),
        ("mine:function", "must be a class derived from torch.nn"),
        ("os:system", "standard library"),
        ("subprocess:Popen", "standard library"),
        ("builtins:exec", "standard library"),
    ],
)
def test_names_that_are_not_followed(mine, name, message):
    before = set(sys.modules)
    with pytest.raises(ConfigError, match=message):
        resolve_name(name, nn.Module)
    assert set(sys.modules) == before


@pytest.mark.parametrize(
    ("tree", "message"),
    [
        (
            {"objective": {"loss": "triplet"}},
            "objective.loss: unknown name 'triplet'; known are nt_xent, equimod",
        ),
        (
            {"objective": {"kind": "simclr"}},
            "objective.kind: unknown name 'simclr'; known are equiav, masked, cavmae, module:",
        ),
        ({"model": {"predictor": {"kind": "rnn"}}}, "known are attention, linear, hypernetwork, module:attribute"),
        (
            {"model": {"encoder": {"kind": "cnn"}}},
            "model.encoder.kind: unknown name 'cnn'; known are vit, transformers, m",
        ),
        ({"data": {"kind": "cinema"}}, "data: kind is one of world, shards, paired, cavmae, or module:attribute"),
        ({"data": {"count": 3}}, "data: kind is one of world"),
        ({"objective": {"kind": "a b:c"}}, "unknown name 'a b:c'"),
        ({"objective": {"options": {"a": 1}}}, "options are for a kind of your own"),
        ({"modalities": {"depth": {"kind": "radar"}}}, "modalities.depth.kind: unknown name 'radar'"),
        ({"modalities": {"audio": {"kind": "a:b"}}}, "modalities: 'audio' is taken"),
        ({"modalities": {"no.dots": {"kind": "a:b"}}}, "modalities: 'no.dots' is taken or no name"),
        ({"model": {"encoder": {"size": None, "width": 10**6, "depth": 1, "heads": 1}}}, "model.encoder.width: Input"),
        ({"model": {"encoder": {"size": None, "width": 64, "depth": 10**5, "heads": 1}}}, "model.encoder.depth: Input"),
        ({"model": {"heads": {"hidden": 10**9}}}, "model.heads.hidden: Input should be less than"),
        ({"audio": {"frames": 2**40}}, "audio.frames: Input should be less than"),
        ({"audio": {"bins": 2**20}}, "audio.bins: Input should be less than"),
        ({"audio": {"frames": 65536, "bins": 1024, "patch": 1}}, "67108864 patches are too many"),
        ({"visual": {"size": 2**20}}, "visual.size: Input should be less than"),
        ({"visual": {"size": 4096, "patch": 1}}, "16777216 patches are too many"),
        ({"bank": {"size": 10**12}}, "bank.size: Input should be less than"),
        ({"seed": 10**40}, "seed: Input should be"),
        ({"train": {"steps": 10**30}}, "train.steps: Input should be"),
        ({"optim": {"lr": float("nan")}}, "optim.lr: Input should be"),
    ],
)
def test_refusals_are_one_line(tree, message):
    with pytest.raises(ConfigError) as caught:
        parse_config(tree, "r.yaml")
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_off_is_a_key_and_not_false(written):
    config = load_config(written("augment: {visual: {off: [flip]}}\ntrain: {steps: 1, compile: off}\n"))
    assert config.augment.visual.off == ("flip",)
    assert config.train.compile is False


BOMB = "a: &a [x, x, x, x]\n" + "".join(
    f"{name}: &{name} [{', '.join([f'*{before}'] * 9)}]\n" for before, name in zip("abcdefgh", "bcdefghi", strict=True)
)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("audio: &one {frames: 64}\n", "anchors and aliases are not allowed"),
        ("seed: &one 1\n", "anchors and aliases are not allowed"),
        ("seed: *one\n", "anchors and aliases are not allowed"),
        (BOMB, "anchors and aliases are not allowed"),
        ("optim:\n  <<: {lr: 1}\n", "merge keys (<<) are not allowed"),
        ("seed: " + "[" * 10_000, "nested too deeply"),
        ("seed: " + "9" * 5000, "not YAML"),
        ("seed: 2001-99-99\n", "not YAML"),
        ("seed: 1" + ":59" * 300 + ".0\n", "not YAML"),
        ("seed: !!int ''\n", "not YAML"),
        ("seed: !!bool perhaps\n", "not YAML"),
        ("seed: !!timestamp tomorrow\n", "not YAML"),
        ("seed: !!python/object/apply:os.system [true]\n", "not YAML"),
        ("# " + "x" * (1 << 16) + "\n", "too long for a recipe"),
        ("- a list\n", "a recipe is a mapping of sections"),
    ],
)
def test_hostile_yaml_is_refused_in_one_line(written, text, message, tmp_path):
    with pytest.raises(ConfigError) as caught:
        load_config(written(text))
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)
    config = parse_config(MICRO, "test")
    save_model(tmp_path / "model", config, build_model(config).state_dict(), {})
    (tmp_path / "model/config.yaml").write_text(text)
    (tmp_path / "model/SHA256SUMS").unlink()
    with pytest.raises((CheckpointError, ConfigError)) as caught:
        load_checkpoint(tmp_path / "model")
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_overrides_are_plain_values_too(written):
    with pytest.raises(ConfigError, match="is not a YAML value"):
        load_config(written({}), ("seed=&a 1",))
    assert load_config(written("")) == Config()
