"""`equiav evaluate`: what commands print and leave behind is what a call in Python returns."""

import json

import pytest
from typer.testing import CliRunner

from equiav.build import build_dataset, build_model
from equiav.checkpoint import save_model
from equiav.cli import app
from equiav.evaluation import Probe, Results, Retrieval, probe_splits
from equiav.inference import load_model
from tests.training.small import small_config


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    config = small_config("data.count=30", "data.validation=30", "data.test=30")
    path = tmp_path_factory.mktemp("commands") / "model"
    save_model(path, config, build_model(config).state_dict(), {"step": 0})
    return path


def same_as_in_python(record, results, said):
    assert {k: v for k, v in record.items() if k != "provenance"} == json.loads(json.dumps(results.record))
    assert all(line in said.output for line in results.lines)


def test_retrieval(model):
    said = CliRunner().invoke(app, ["evaluate", "retrieval", str(model), "--banks", "1"], catch_exceptions=False)
    assert said.exit_code == 0
    assert "audio_to_video: R@1" in said.output
    record = json.loads((model / "evaluation/retrieval/results.json").read_text())
    assert (record["split"], record["frames"], record["further_bank_seeds"]) == ("test", "middle", [1])
    assert record["provenance"]["commit"]
    assert (model / "evaluation/retrieval/report.html").exists()
    loaded = load_model(model)
    results = Retrieval(banks=1, split="test")(loaded, build_dataset(loaded.config, "test"))
    same_as_in_python(record, results, said)


def test_probe(model, tmp_path):
    command = ["evaluate", "probe", str(model), "--limit", "20", "--out", str(tmp_path / "out")]
    said = CliRunner().invoke(app, command, catch_exceptions=False)
    assert said.exit_code == 0
    assert "audiovisual, linear probe: mAP" in said.output
    record = json.loads((tmp_path / "out/results.json").read_text())
    assert record["counts"]["train"] == {"audio": 20, "visual": 20, "labelled": 30}
    assert (tmp_path / "out/report.html").exists()
    loaded = load_model(model)
    splits, _ = probe_splits(loaded.config)
    same_as_in_python(record, Probe(splits["train"], splits["validation"], limit=20)(loaded, splits["test"]), said)


def test_results_of_an_evaluator_of_ones_own(tmp_path):
    """Without a template of its own, every number stands on the page by its place."""
    results = Results({"task": "mine", "found": {"a": {"R@50": 12.5}, "clips": 3}}, primary="found/a/R@50")
    assert results.value == results["found/a/R@50"] == 12.5
    assert results.headline() == "a R@50 12.5"
    assert results.scalars() == {"found/a/R@50": 12.5, "found/clips": 3.0}
    html = results.write(tmp_path).read_text()
    assert "<td>found / a / R@50</td><td>12.500</td>" in html
    assert "<td>found / clips</td><td>3</td>" in html
    assert json.loads((tmp_path / "results.json").read_text())["provenance"]["commit"]
