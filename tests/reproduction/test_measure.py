"""What is measured on a run: only what was asked for, on splits that exist; probes fitted once."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from equiav.build import build_bank, build_dataset, build_model, present_splits, with_data
from equiav.checkpoint import CHECKPOINTS, save_model
from equiav.config import ShardsConfig
from equiav.data import META, labels_of, multi_hot, vocabulary
from equiav.errors import DataError
from equiav.evaluation import Retrieval, ZeroShot, linear_probe, read_tokens
from equiav.inference import LoadedModel
from equiav.io import write_json
from equiav.models import mean_pool
from equiav.reproduction import RetrievalSet, load_table, measure, plan, runner
from tests.data.test_paired import make_collection
from tests.reproduction.small import ROOT
from tests.training.small import small_config

OTHER = RetrievalSet(data="elsewhere")
META_OF_TRAINING = {
    "format": 1, "modalities": ["audio", "video"], "splits": {"train": 5}, "frames": 10, "sample_rate": 16000,
    "spectrogram": {"mean": -4.0, "std": 4.0},
}  # fmt: skip


def loaded_of(config):
    model = build_model(config).eval()
    return LoadedModel(model, config, {m: build_bank(config, m) for m in model.modalities}, {"step": 0})


@pytest.fixture
def training_only(tmp_path, monkeypatch):
    """A run on a prepared set without held-out clips, as AudioSet-2M is."""
    (tmp_path / META).write_text(json.dumps(META_OF_TRAINING))
    config = small_config()
    test = build_dataset(config, "test")
    loaded = loaded_of(config.model_copy(update={"data": ShardsConfig(path=str(tmp_path))}))

    def clips(config, split):
        if config.data.path != "elsewhere":
            raise DataError(f"holds no clips for {split}")
        return test

    monkeypatch.setattr(measure, "build_dataset", clips)
    return loaded


def test_a_set_for_training_only(training_only):
    assert present_splits(training_only.config) == {"train"}
    said = []
    assert measure.measure_own(training_only, frozenset({"transfer.other"}), said.append) == {}
    assert not said
    found = measure.measure_own(training_only, frozenset({"similarity"}), said.append, OTHER)
    assert set(found["test"]["similarity"]) == {"audio", "visual"}
    assert said == ["measuring the predictor's similarity on elsewhere"]
    assert measure.measure_own(training_only, frozenset({"similarity", "probe"}), said.append) == {}
    assert said[-1] == "not measured, the data hold training clips only: probe, similarity"


def test_held_out_splits_that_exist(monkeypatch):
    loaded = loaded_of(small_config("data.count=16", "data.validation=8", "data.test=8"))
    monkeypatch.setattr(measure, "present_splits", lambda config: {"train", "test"})
    said = []
    found = measure.measure_own(loaded, frozenset({"similarity", "probe"}), said.append)
    assert {split: set(values) for split, values in found.items()} == {"test": {"similarity"}}
    assert "no validation split" in said[-1]


@pytest.mark.parametrize("paired", [False, True])
def test_each_probe_is_fitted_once(tmp_path, monkeypatch, paired):
    config = small_config("data.count=16", "data.validation=8", "data.test=8")
    if paired:
        config = with_data(config, make_collection(tmp_path / "made", classes=3, sounds=8, images=10))
    fitted = []
    whole = measure.linear_probes

    def counted(*parts, single):
        fitted.append(single)
        return whole(*parts, single=single)

    monkeypatch.setattr(measure, "linear_probes", counted)
    found = measure.measure_own(loaded_of(config), frozenset({"probe"}), lambda line: None)
    views = {"audio", "visual"} if paired else {"audio", "visual", "audiovisual"}
    assert fitted == [paired] * len(views)
    assert {split: set(values["probe"]) for split, values in found.items()} == {"validation": views, "test": views}


def test_each_split_is_judged_as_by_a_probe_of_its_own():
    """One probe serves all splits; their mean APs are those of a probe judged on each alone."""
    loaded = loaded_of(small_config("data.count=40", "data.validation=12", "data.test=10"))
    found = measure.measure_own(loaded, frozenset({"probe"}), lambda line: None)
    clips = {split: build_dataset(loaded.config, split) for split in ("train", "validation", "test")}
    classes = vocabulary(clips["train"])
    parts = {
        split: (read_tokens(loaded, part, lambda m, h: [mean_pool(h)])["audio"][0], multi_hot(labels_of(part), classes))
        for split, part in clips.items()
    }
    for split in ("validation", "test"):
        alone = linear_probe(parts["train"], parts["validation"], parts[split])
        assert found[split]["probe"]["audio"] == pytest.approx(alone.mean_average_precision, abs=1e-6)


def test_a_bank_of_s_is_measured_beside_the_stored_one():
    """S is that of training: one where a single equivariant embedding was contrasted."""
    tasks = frozenset({"retrieval", "retrieval_bank_s"})
    for change, size in (("objective.representations=4", 4), ("objective.inter=equivariant", 1)):
        loaded = loaded_of(small_config("data.count=16", "data.validation=8", "data.test=8", change, "bank.size=9"))
        said = []
        found = measure.measure_own(loaded, tasks, said.append)
        assert said == ["measuring retrieval", f"measuring retrieval with a bank of {size}"]
        test = build_dataset(loaded.config, "test")
        small = loaded.config.model_copy(update={"bank": loaded.config.bank.model_copy(update={"size": size})})
        banks = {m: build_bank(small, m) for m in ("audio", "visual")}
        assert banks["audio"].shape[0] == size
        with_bank = Retrieval()(replace(loaded, banks=banks), test)["retrieval"]
        assert found["test"]["retrieval_bank_s"] == with_bank
        assert found["test"]["retrieval"] == measure.measure_retrieval(loaded, test)
        assert set(found["validation"]) == tasks


def test_zero_shot_classification_is_measured():
    loaded = loaded_of(small_config(
        "data.count=16", "data.validation=8", "data.test=8", "modalities={text: {kind: text, options: {words: 24}}}"
    ))  # fmt: skip
    found = measure.measure_own(loaded, frozenset({"zeroshot"}), lambda line: None)
    test = build_dataset(loaded.config, "test")
    assert found["test"] == {"zeroshot": ZeroShot()(loaded, test)["zeroshot"]}
    assert found["test"]["zeroshot"]["audio"].keys() >= {"mAP", "chance"}


def test_last_and_best_checkpoint(tmp_path):
    """All kept checkpoints are judged on validation; the one with the greatest mean reciprocal rank goes to test."""
    config = small_config("data.validation=12", "data.test=8", "data.count=16")
    models = [loaded_of(config.model_copy(update={"seed": seed})) for seed in (0, 1, 2)]
    for step, model in enumerate(models, 1):
        save_model(tmp_path / CHECKPOINTS / f"step-{step}", config, model.model.state_dict(), {"step": step})
    kept = [(step, tmp_path / CHECKPOINTS / f"step-{step}") for step in (1, 2, 3)]
    scores = []
    for model in models:
        ways = Retrieval(examples=0)(model, build_dataset(config, "validation"))["retrieval"].values()
        scores.append(sum(way["MRR"] for way in ways))
    best = max(range(3), key=lambda i: scores[i])
    assert len({round(score, 6) for score in scores}) == 3, "these weights do not differ"
    found = measure.measure_best(models[2], kept, lambda line: None)
    assert found["validation"].pop("step") == found["test"].pop("step") == best + 1
    assert found["test"] == measure.measure_retrieval(models[best], build_dataset(config, "test"))


def test_clips_of_a_list_are_counted(tmp_path, monkeypatch):
    loaded = loaded_of(small_config("data.test=8"))
    monkeypatch.setattr(measure, "with_data", lambda config, path: config)
    clips = build_dataset(loaded.config, "test")
    ids = [clips.clip(i).source for i in (3, 5)]
    (tmp_path / "list.json").write_text(json.dumps({"data": [{"video_id": name} for name in (*ids, "gone")]}))
    chosen = RetrievalSet(data="elsewhere", list=str(tmp_path / "list.json"))
    found, counts = measure.set_clips(loaded, chosen)
    assert [found.clip(i).source for i in range(len(found))] == ids
    assert counts == {"clips": {"found": 2, "listed": 3}}
    assert measure.set_clips(loaded, OTHER)[1] == {}


def test_sets_of_several_published_splits_give_the_mean_over_them(tmp_path, monkeypatch):
    """Table 3: UCF101 and HMDB51 by `finetune --folds`, Kinetics-400 by its one split."""
    (run,) = plan([load_table(ROOT / "configs/ablation/single_visual.yaml")], "paper")
    asked = []

    def finetune(arguments, *, processes, say):
        asked.append("--folds" in arguments)
        folder = Path(arguments[arguments.index("--out") + 1])
        write_json(folder / "results.json", {"mean": {"accuracy": 70.0}, "metrics": {"accuracy": 60.0}})

    monkeypatch.setattr(runner, "run_on_cores", finetune)
    found = {
        name: runner._finetuned(run, tmp_path, name, "visual", str) for name in ("ucf101", "hmdb51", "kinetics400")
    }
    assert found == {"ucf101": 70.0, "hmdb51": 70.0, "kinetics400": 60.0}
    assert asked == [True, True, False]
