"""What is measured on a run: only what was asked for, on splits that exist; probes fitted once."""

import json

import pytest

from equiav.ablation import RetrievalSet, measure
from equiav.build import build_bank, build_model
from equiav.build_data import build_clips, present_splits, with_data
from equiav.config import ShardsConfig
from equiav.data import META
from equiav.errors import DataError
from equiav.inference import LoadedModel
from equiav.types import Modality
from tests.data.test_paired import make_collection
from tests.training.small import small_config

OTHER = RetrievalSet(data="elsewhere")


def loaded_of(config):
    banks = {m: build_bank(config, m) for m in Modality}
    return LoadedModel(build_model(config).eval(), config, banks, {"step": 0})


@pytest.fixture
def training_only(tmp_path, monkeypatch):
    """A run on a prepared set without held-out clips, as AudioSet-2M is."""
    (tmp_path / META).write_text(json.dumps({"format": 1, "splits": {"train": 5}}))
    config = small_config()
    test = build_clips(config, "test")
    loaded = loaded_of(config.model_copy(update={"data": ShardsConfig(path=str(tmp_path))}))

    def clips(config, split):
        if config.data.path != "elsewhere":
            raise DataError(f"holds no clips for {split}")
        return test

    monkeypatch.setattr(measure, "build_clips", clips)
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
    whole = measure.fit_probes

    def counted(train, *, single):
        fitted.append(single)
        return whole(train, single=single)

    monkeypatch.setattr(measure, "fit_probes", counted)
    found = measure.measure_own(loaded_of(config), frozenset({"probe"}), lambda line: None)
    views = {"audio", "visual"} if paired else {"audio", "visual", "audiovisual"}
    assert fitted == [paired] * len(views)
    assert {split: set(values["probe"]) for split, values in found.items()} == {"validation": views, "test": views}
