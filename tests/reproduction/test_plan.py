"""Which runs there are: equal recipes share one, different ones never do; seed by seed."""

import pytest
import yaml

from equiav.build import build_model
from equiav.config import load_config
from equiav.errors import ConfigError
from equiav.evaluation import encoder_passes
from equiav.reproduction import finetune_recipe, load_tables, plan, portable, row_run, run_key, split_rows, task_facts
from equiav.training import Trainer
from tests.reproduction.small import PLAIN, ROOT, SMOKE, loaded, table, write
from tests.training.small import small_config


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
    first = loaded(tmp_path, name="first")
    rows = [
        {"name": "the same", "overrides": {"objective.loss": "nt_xent"}},
        {"name": "S = 2", "overrides": {"objective.representations": 2}},
    ]
    second = loaded(tmp_path, table(rows=rows, reference=None), name="second")
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


def test_names_of_rows_may_hold_commas(tmp_path):
    names = ["plain", "plain, equal compute", "full"]
    rows = [{"name": name, "overrides": {"seed": number}} for number, name in enumerate(names)]
    tables = [loaded(tmp_path, table(rows=rows))]
    assert split_rows("plain, equal compute", tables) == ("plain, equal compute",)
    assert split_rows("full,plain,equal compute, plain", tables) == ("full", "plain, equal compute", "plain")
    assert split_rows("plain,full", tables) == ("plain", "full")
    with pytest.raises(ConfigError, match="--rows: no row 'equal compute'"):
        plan(tables, "world", rows=split_rows("full, equal compute", tables))


def test_every_row_of_the_shipped_tables_can_be_named():
    for path in sorted((ROOT / "configs/ablation").glob("*.yaml")):
        tables = load_tables([path])
        names = tuple(row.name for row in tables[0].rows)
        assert [split_rows(name, tables) for name in names] == [(name,) for name in names]


def test_a_shared_run_measures_what_any_table_wants(tmp_path):
    def measuring(*measure):
        scales = {"world": {"base": str(SMOKE), "seeds": [0], "measure": list(measure)}}
        return table(scales=scales, columns=["A"], rows=[{"name": "full"}])

    both = [loaded(tmp_path, measuring("probe"), "a"), loaded(tmp_path, measuring("retrieval"), "b")]
    assert [run.tasks for run in plan(both, "world")] == [frozenset({"probe", "retrieval"})]


def test_rows_on_data_that_only_share_a_name_are_refused(tmp_path):
    """They would train in one folder and share results."""
    rows = [{"name": n, "overrides": {"data": f"{{kind: paired, path: {n}/digits.tar}}"}} for n in ("one", "two")]
    with pytest.raises(ConfigError, match=r"small: one, seed 0 and small: two, seed 0: .* in two places; rename one"):
        plan([loaded(tmp_path, table(rows=rows, reference=None))], "world")

    def with_set(name, data):
        scales = {"world": {"base": str(SMOKE), "seeds": [0], "sets": {"other": {"data": data}}}}
        return loaded(tmp_path, table(scales=scales), name)

    with pytest.raises(ConfigError, match="rename one"):
        plan([with_set("a", "here"), with_set("b", "there")], "world")
    assert plan([with_set("a", "here"), with_set("b", "here")], "world")


def test_untrained_predictors_are_not_measured(tmp_path):
    rows = [{"name": "full"}, {"name": "plain", "overrides": PLAIN}]
    full, plain = plan([loaded(tmp_path, table(rows=rows))], "world", seeds=(0,))
    assert full.tasks - plain.tasks == {"similarity"}


def test_refusals(tmp_path):
    found = loaded(tmp_path)
    with pytest.raises(ConfigError, match="no row 'nobody'"):
        plan([found], "world", rows=("nobody",))
    (tmp_path / "more").mkdir()
    other = loaded(tmp_path / "more")
    with pytest.raises(ConfigError, match="two tables of this name"):
        load_tables([found.path, other.path])
    columns = [{"name": "x", "world": "transfer.mars.audio_to_video.R@1"}]
    with pytest.raises(ConfigError, match="wants the set 'mars'"):
        plan([loaded(tmp_path, table(columns=columns, rows=[{"name": "full"}]))], "world")


EQUAL = {"equal_compute_to": "full"}


@pytest.mark.parametrize(
    ("changes", "passes", "steps"),
    [
        (PLAIN, 1, 8),
        ({"objective.intra": "invariant", "objective.inter": "original"}, 3, 3),  # of 2 * 4 / 3
        ({"objective.intra": "invariant", "objective.inter": "augmented"}, 2, 4),
        ({"objective.inter": "original"}, 2, 4),
    ],
)
def test_rows_at_equal_compute_train_for_as_many_encoder_passes(tmp_path, changes, passes, steps):
    rows = [{"name": "full"}, {"name": "equal", "overrides": changes, "steps": EQUAL}]
    found = loaded(tmp_path, table(rows=rows))
    equal = row_run(found, found.row("equal"), "world", 0)
    assert encoder_passes(equal.config) == passes
    assert equal.config.train.steps == steps
    longer = row_run(found, found.row("equal"), "world", 0, ("train.steps=300",))
    assert longer.config.train.steps == round(300 * 2 / passes)
    assert row_run(found, found.row("full"), "world", 0).config.train.steps == 4


def test_equal_compute_counts_epochs_where_the_recipe_does(tmp_path):
    rows = [{"name": "full"}, {"name": "equal", "overrides": PLAIN, "steps": EQUAL}]
    scales = {"world": {"base": str(SMOKE), "seeds": [0], "overrides": {"train.steps": None, "train.epochs": 2.5}}}
    found = loaded(tmp_path, table(rows=rows, scales=scales))
    assert row_run(found, found.row("equal"), "world", 0).config.train.epochs == 5


@pytest.mark.parametrize(
    ("intra", "inter"),
    [("equivariant", "centroid"), ("none", "original"), ("invariant", "original"), ("invariant", "augmented")],
)
def test_encoder_passes_are_what_training_does(tmp_path, monkeypatch, intra, inter):
    """Counted on a step of training itself."""
    objective = f"objective.intra={intra}", f"objective.inter={inter}"
    config = small_config("train.steps=1", "train.evaluate_every=null", *objective)
    patches = type(build_model(config).visual.f.patch_embed)
    images, forward = [], patches.forward

    def counted(self, x, *tokens):
        images.append(len(x) if x.shape[1] == 3 else 0)
        return forward(self, x, *tokens)

    monkeypatch.setattr(patches, "forward", counted)
    Trainer(config, tmp_path, lambda line: None).run()
    assert sum(images) == config.train.batch * encoder_passes(config)


def test_renamed_keys_of_recipes_do_not_make_other_runs():
    """Runs are found under the key that the first name of `optim.lr` gave them."""
    assert key("optim.rate=0.003") == key("optim.lr=0.003")
    assert portable(load_config(SMOKE, ("optim.lr=0.003",)))["optim"]["rate"] == 0.003


def finetuned(tmp_path, **encoder):
    """A table with a column of fine-tuning, beside a fine-tuning recipe of the smoke recipe's encoders."""
    for kind in ("pretrain", "finetune", "ablation"):
        (tmp_path / kind).mkdir(exist_ok=True)
    (tmp_path / "pretrain/base.yaml").write_text(SMOKE.read_text())
    tree = load_config(ROOT / "configs/finetune/world.yaml").model_dump(mode="json", exclude_defaults=True)
    smoke = load_config(SMOKE)
    tree["model"] = {"encoder": {**smoke.model.encoder.model_dump(), **encoder}}
    tree |= {k: smoke.model_dump(mode="json")[k] for k in ("audio", "visual", "data")}
    write(tmp_path / "finetune/tiny.yaml", tree)
    scales = {"world": {"base": "../pretrain/base.yaml", "seeds": [0], "measure": []}}
    columns = [{"name": "tuned", "world": "finetune.tiny.audio"}]
    return loaded(tmp_path / "ablation", table(rows=[{"name": "full"}], scales=scales, columns=columns))


def test_what_is_set_in_the_model_reaches_fine_tuning(tmp_path):
    found = finetuned(tmp_path)
    (plain,) = plan([found], "world")
    (deep,) = plan([found], "world", extra=("model.encoder.depth=3", "train.steps=3"))
    recipe, overrides = finetune_recipe(deep, "tiny")
    assert overrides == ("model.encoder.depth=3",), "and what concerns pre-training alone does not"
    assert load_config(recipe, overrides).model.encoder.depth == 3
    (task,) = deep.tasks
    assert task_facts(deep, task)["model"]["encoder"]["depth"] == 3
    assert task_facts(deep, task) != task_facts(plain, task)


def test_fine_tuning_of_other_encoders_is_refused_before_training(tmp_path):
    found = finetuned(tmp_path, depth=3)
    with pytest.raises(ConfigError, match=r"small: full, seed 0: tiny.yaml fine-tunes other encoders"):
        plan([found], "world")
    assert plan([found], "world", extra=("model.encoder.depth=3",))
    with pytest.raises(ConfigError, match=r"model.encoder.colour: unknown key"):
        plan([found], "world", extra=("model.encoder.colour=3",))
    write(tmp_path / "finetune/tiny.yaml", {})
    with pytest.raises(ConfigError, match="fine-tun"):
        plan([found], "world")


def test_an_encoder_of_one_modality_counts_where_that_is_fine_tuned(tmp_path):
    """The pre-training recipe itself gives one modality its own encoder, which no override carries over."""
    encoder = {**load_config(SMOKE).model.encoder.model_dump(mode="json"), "depth": 3}
    found = finetuned(tmp_path)
    for modality, refused in (("visual", False), ("audio", True)):
        tree = yaml.safe_load(SMOKE.read_text())
        tree["model"][modality] = {"encoder": encoder}
        write(tmp_path / "pretrain/base.yaml", tree)
        if refused:
            with pytest.raises(ConfigError, match=r"tiny.yaml fine-tunes other encoders"):
                plan([found], "world")
        else:
            assert plan([found], "world")
