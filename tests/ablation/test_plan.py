"""Which runs there are: equal recipes share one, different ones never do; seed by seed."""

import pytest

from equiav.ablation import load_experiments, plan, portable, run_key
from equiav.config import load_config
from equiav.errors import ConfigError
from tests.ablation.small import PLAIN, SMOKE, experiment, table


def key(*overrides):
    return run_key(load_config(SMOKE, overrides), trained=True)


def test_only_what_matters_makes_another_run():
    assert key("train.log_every=7", "train.keep=1", "train.workers=3", "train.checkpoint_every=9") == key()
    assert key("objective.strategy=joint") == key()  # written out or not
    others = [key(o) for o in ("seed=1", "objective.representations=5", "train.steps=31", "data.used=32")]
    assert len({key(), *others}) == 5
    assert run_key(load_config(SMOKE), trained=False) != key()


def test_a_set_is_the_same_wherever_it_lies():
    here, there, other = (
        key(f"data={{kind: paired, path: {p}}}") for p in ("a/digits.tar", "/b/c/digits.tar", "a/dogs.tar")
    )  # fmt: skip
    assert here == there != other
    config = load_config(SMOKE, ("data={kind: paired, path: /home/me/digits.tar}", "weights=/home/me/mae"))
    assert "/home" not in str(portable(config))


def test_tables_share_runs_and_go_seed_by_seed(tmp_path):
    first = experiment(tmp_path, name="first")
    rows = [
        {"name": "the same", "overrides": {"objective.loss": "nt_xent"}},
        {"name": "S = 2", "overrides": {"objective.representations": 2}},
    ]
    second = experiment(tmp_path, table(rows=rows, reference=None), name="second")
    runs = plan([first, second], "world")
    assert [run.seed for run in runs] == [0, 0, 0, 1, 1, 1, 2, 2, 2]
    assert len({run.key for run in runs}) == 9
    assert [run.wanted_by for run in runs[:3]] == [
        ("first: plain",),
        ("first: full", "second: the same"),
        ("second: S = 2",),
    ]
    assert [run.seed for run in plan([first], "world", seeds=(2, 5))] == [2, 2]
    assert [run.wanted_by for run in plan([first], "world", seeds=(0,), rows=("full",))] == [("first: full",)]
    assert plan([first], "paper") == []


def test_a_shared_run_measures_what_any_table_wants(tmp_path):
    def measuring(*measure):
        scales = {"world": {"base": str(SMOKE), "seeds": [0], "measure": list(measure)}}
        return table(scales=scales, columns=["A"], rows=[{"name": "full"}])

    both = [experiment(tmp_path, measuring("probe"), "a"), experiment(tmp_path, measuring("retrieval"), "b")]
    assert [run.tasks for run in plan(both, "world")] == [frozenset({"probe", "retrieval"})]


def test_rows_on_data_that_only_share_a_name_are_refused(tmp_path):
    """They would train in one folder and share results."""
    rows = [{"name": n, "overrides": {"data": f"{{kind: paired, path: {n}/digits.tar}}"}} for n in ("one", "two")]
    with pytest.raises(ConfigError, match=r"small: one, seed 0 and small: two, seed 0: .* in two places; rename one"):
        plan([experiment(tmp_path, table(rows=rows, reference=None))], "world")

    def with_set(name, data):
        scales = {"world": {"base": str(SMOKE), "seeds": [0], "sets": {"other": {"data": data}}}}
        return experiment(tmp_path, table(scales=scales), name)

    with pytest.raises(ConfigError, match="rename one"):
        plan([with_set("a", "here"), with_set("b", "there")], "world")
    assert plan([with_set("a", "here"), with_set("b", "here")], "world")


def test_untrained_predictors_are_not_measured(tmp_path):
    rows = [{"name": "full"}, {"name": "plain", "overrides": PLAIN}]
    full, plain = plan([experiment(tmp_path, table(rows=rows))], "world", seeds=(0,))
    assert full.tasks - plain.tasks == {"similarity"}


def test_refusals(tmp_path):
    found = experiment(tmp_path)
    with pytest.raises(ConfigError, match="no row 'nobody'"):
        plan([found], "world", rows=("nobody",))
    (tmp_path / "more").mkdir()
    other = experiment(tmp_path / "more")
    with pytest.raises(ConfigError, match="two tables of this name"):
        load_experiments([found.path, other.path])
    columns = [{"name": "x", "world": "transfer.mars.audio_to_video.R@1"}]
    with pytest.raises(ConfigError, match="wants the set 'mars'"):
        plan([experiment(tmp_path, table(columns=columns, rows=[{"name": "full"}]))], "world")
