"""`equiav evaluate retrieval` and `equiav evaluate probe`: what they print and leave behind."""

import json

import pytest
from typer.testing import CliRunner

from equiav.build import build_model
from equiav.checkpoint import save_model
from equiav.cli import app
from tests.training.small import small_config


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    config = small_config("data.count=30", "data.validation=30", "data.test=30")
    path = tmp_path_factory.mktemp("commands") / "model"
    save_model(path, config, build_model(config).state_dict(), {"step": 0})
    return path


def test_retrieval(model):
    said = CliRunner().invoke(app, ["evaluate", "retrieval", str(model), "--banks", "1"], catch_exceptions=False)
    assert said.exit_code == 0
    assert "audio_to_video: R@1" in said.output
    record = json.loads((model / "evaluation/retrieval/results.json").read_text())
    assert (record["split"], record["frames"], record["further_bank_seeds"]) == ("test", "middle", [1])
    assert record["provenance"]["commit"]
    assert (model / "evaluation/retrieval/report.html").exists()


def test_probe(model, tmp_path):
    command = ["evaluate", "probe", str(model), "--limit", "20", "--out", str(tmp_path / "out")]
    said = CliRunner().invoke(app, command, catch_exceptions=False)
    assert said.exit_code == 0
    assert "audiovisual, linear probe: mAP" in said.output
    record = json.loads((tmp_path / "out/results.json").read_text())
    assert record["counts"]["train"] == {"audio": 20, "visual": 20, "labelled": 30}
    assert (tmp_path / "out/report.html").exists()
