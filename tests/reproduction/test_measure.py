"""What is measured on a run: only what was asked for, on splits that exist; probes fitted once."""

import json
from dataclasses import replace

import pytest

from equiav.build import build_bank, build_dataset, build_model, present_splits, with_data
from equiav.config import ShardsConfig
from equiav.data import META, labels_of, multi_hot, vocabulary
from equiav.errors import DataError
from equiav.evaluation import Retrieval, linear_probe, read_tokens
from equiav.inference import LoadedModel
from equiav.models import mean_pool
from equiav.reproduction import RetrievalSet, measure
from tests.data.test_paired import make_collection
from tests.training.small import small_config

OTHER = RetrievalSet(data="elsewhere")


def loaded_of(config):
    banks = {m: build_bank(config, m) for m in ("audio", "visual")}
    return LoadedModel(build_model(config).eval(), config, banks, {"step": 0})


@pytest.fixture
def training_only(tmp_path, monkeypatch):
    """A run on a prepared set without held-out clips, as AudioSet-2M is."""
    (tmp_path / META).write_text(json.dumps({"format": 1, "splits": {"train": 5}}))
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
    whole = measure.linear_probe

    def counted(*parts, single):
        fitted.append(single)
        return whole(*parts, single=single)

    monkeypatch.setattr(measure, "linear_probe", counted)
    found = measure.measure_own(loaded_of(config), frozenset({"probe"}), lambda line: None)
    views = {"audio", "visual"} if paired else {"audio", "visual", "audiovisual"}
    assert fitted == [paired] * len(views)
    assert {split: set(values["probe"]) for split, values in found.items()} == {"validation": views, "test": views}


def test_each_split_is_judged_as_by_a_probe_of_its_own():
    """Splits are scored together; their mean APs are those of a probe judged on each alone."""
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
