"""Every table of configs/ablation is valid and every row resolves at every scale; bad files are refused in one line."""

import json
import re

import pytest

from equiav.build import build_dataset
from equiav.config import canonical_dump, load_config, with_earlier_defaults
from equiav.errors import ConfigError
from equiav.reproduction import finetune_recipe, load_table, load_tables, plan, row_run
from tests.reproduction.small import ROOT, loaded, table, write

TABLES = sorted((ROOT / "configs/ablation").glob("*.yaml"))


@pytest.mark.parametrize("path", TABLES, ids=lambda p: p.stem)
def test_every_row_resolves_at_every_scale(path):
    found = load_tables([path])[0]
    assert f"equiav ablate configs/ablation/{path.name}" in path.read_text(), "the header gives the command"
    assert {"world", "real"} & set(found.scales)
    for scale, settings in found.scales.items():
        runs = plan([found], scale)
        assert runs
        own = [row for row in found.rows if row.runs_at(scale)]
        for row in own:
            for seed in settings.seeds:
                run = row_run(found, row, scale, seed)
                assert run.config.seed == seed
                for task in run.tasks:
                    kind, *parts = task.split(".")
                    if kind == "finetune":
                        recipe, overrides = finetune_recipe(run, parts[0])
                        tune = load_config(recipe, (*overrides, f"classifier.mode={parts[1]}"))
                        assert tune.finetune is not None
        distinct = {r.key for r in runs if r.seed == settings.seeds[0]}
        if path.stem not in ("retrieval", "cost"):  # there, rows are parts of one record
            assert len(distinct) == len(own), "two rows of a table are the same run"


def test_seeds_asked_for():
    """Five where the main claim is at stake, three elsewhere."""
    found = load_tables([ROOT / "configs/ablation/variants.yaml"])[0]
    seeds = {}
    for run in plan([found], "world"):
        seeds.setdefault(run.wanted_by[0].split(": ")[1], []).append(run.seed)
    assert sorted(map(len, seeds.values())) == [3, 3, 3, 3, 5, 5, 5, 5, 5]
    for path in TABLES:
        for scale in set(load_table(path).scales) - {"paper"}:
            found = load_table(path).scales[scale]
            assert len(found.seeds) >= 3 or not found.trained


def test_the_papers_choice_is_one_run_everywhere():
    """Tables 5 to 9, A and C hold the same EquiAV: its runs are shared."""
    names = ("variants", "representations", "predictor", "strategy", "intra_loss", "weights", "data_size")
    runs = plan(load_tables([ROOT / f"configs/ablation/{n}.yaml" for n in names]), "world", seeds=(0,))
    shared = max(runs, key=lambda run: len(run.wanted_by))
    assert {label.split(": ")[0] for label in shared.wanted_by} == set(names)
    values = set()
    for name in names:
        rows = load_table(ROOT / f"configs/ablation/{name}.yaml").rows
        chosen = next(r for r in rows if f"{name}: {r.name}" in shared.wanted_by)
        values.add(tuple(chosen.paper[c] for c in ("A", "V", "A-V")))
    assert values == {(42.4, 25.7, 46.6)}


@pytest.mark.parametrize("order", [1, -1])
def test_at_the_papers_scale_the_similarity_is_that_of_one_set(order):
    """Whichever tables are run together, and in which order."""
    paths = [p for p in TABLES if "paper" in load_table(p).scales and p.stem != "cost"][::order]
    measured = [run for run in plan(load_tables(paths), "paper") if "similarity" in run.tasks]
    assert len(measured) == 3, "the predictors of Table 7 and no others"
    assert {run.similarity_on for run in measured} == {"audioset"}
    assert all("audioset" in run.sets for run in measured)


def test_defaults_of_the_tables_recipes_are_as_they_were():
    """Results are known by what a recipe changes: a changed default would give old results to a new recipe.

    A new key may be added freely. A changed default is written into CHANGED of config.py: then runs get other keys, and
    results taken before say so.
    """
    known = json.loads((ROOT / "tests/reproduction/defaults.json").read_text())
    assert set(known) == {"ablation_world", "av_mnist", "audioset2m"}
    for name, before in known.items():
        now = canonical_dump(with_earlier_defaults(load_config(ROOT / f"configs/pretrain/{name}.yaml")))
        for section, values in before.items():
            for key, value in values.items() if isinstance(values, dict) else [(None, values)]:
                found = now[section] if key is None else now[section][key]
                assert found == value, f"{name}: {section}.{key}"


def test_sizes_of_data_share_their_held_out_scenes():
    found = load_tables([ROOT / "configs/ablation/data_size.yaml"])[0]
    configs = [row_run(found, row, "world", 0).config for row in found.rows]
    sizes = [len(build_dataset(c, "train")) for c in configs]
    assert sizes == sorted(set(sizes))
    for split in ("validation", "test"):
        assert len({build_dataset(c, split).clip(0).id for c in configs}) == 1


def note(scale="world", **claim):
    return {"notes": [{"scale": scale, "claims": [claim], "text": "x"}]}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"columns": ["V2B"]}, "no column 'V2B'"),
        ({"reference": "nobody"}, "no row 'nobody'"),
        ({"rows": [{"name": "a"}, {"name": "a"}], "reference": None}, "'a' is there twice"),
        ({"rows": [{"name": "full", "paper": {"V2B": 1}}]}, "'V2B', which is no column"),
        ({"rows": [{"name": "full", "colour": 1}]}, "colour: unknown key"),
        ({"scales": {"galaxy": {}}}, "scales.galaxy"),
        ({"rows": []}, "rows"),
        ({"notes": "As in the paper."}, "notes"),
        ({"notes": [{"scale": "world", "claims": [], "text": "x"}]}, "notes.0.claims"),
        (note(better="full", than="nobody", metric="A"), "'nobody', which is no row or column"),
        (note(better="full", than="plain", metric="B"), "'B', which is no row or column"),
        (note(better="full", metric="A"), "a claim is {better: ROW, than: ROW}"),
        (note(better="full", worse="plain", than="plain", metric="A"), "a claim is {better: ROW, than: ROW}"),
        (note(scale="real", better="full", than="plain", metric="A"), "the scale real, which this table does not have"),
        ({"rows": [{"name": "full", "steps": {"equal_compute_to": "x"}}]}, "'x' is no row with a length of its own"),
    ],
)
def test_bad_tables(tmp_path, changes, message):
    path = write(tmp_path / "bad.yaml", table(**changes))
    with pytest.raises(ConfigError, match=re.escape(message)) as caught:
        load_table(path)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_not_a_table(tmp_path):
    with pytest.raises(ConfigError, match="cannot be read"):
        load_table(tmp_path / "nothing.yaml")
    with pytest.raises(ConfigError, match="not a table"):
        load_table(ROOT / "configs/pretrain/smoke.yaml")


def test_impossible_row_is_named(tmp_path):
    rows = [{"name": "full"}, {"name": "odd", "overrides": {"objective.intra": "none"}}]
    with pytest.raises(ConfigError, match=r"row 'odd' at scale world.*inter centroid needs"):
        plan([loaded(tmp_path, table(rows=rows))], "world")


def test_both_splits_of_msrvtt_can_be_chosen():
    """Table 4 measures the full test split and 1k-A, each as prepared under the reader's own name."""
    found = load_table(ROOT / "configs/ablation/retrieval.yaml")
    run, rival = plan([found], "paper")  # EquiAV and CAV-MAE
    assert rival.config.objective.kind == "cavmae"
    assert {"transfer.msrvtt", "transfer.msrvtt-1ka"} <= run.tasks
    for name in ("msrvtt", "msrvtt-1ka"):
        assert (
            f"equiav prepare {name} /datasets/msrvtt data/{name}\n" in (ROOT / "docs/reproduction/index.md").read_text()
        )
        assert run.sets[name].data == f"data/{name}"
        assert any(row.key == name for row in found.rows)
    assert all(said in found.caption for said in ("1,722", "1,545", "2,990", "1k-A", "CAV-MAE"))
