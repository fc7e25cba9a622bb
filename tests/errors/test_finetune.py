"""Bad input to fine-tuning and to classifiers is refused by name; what is good is told apart."""

from pathlib import Path

import pytest
from typer.testing import CliRunner

from equiav.cli import app
from equiav.errors import EquiAVError

ROOT = Path(__file__).parents[2]
SMOKE = ROOT / "configs/finetune/smoke.yaml"


def equiav(*arguments):
    return CliRunner().invoke(app, [str(a) for a in arguments])


def refused(run, message):
    assert isinstance(run.exception, EquiAVError), run.output
    assert message in str(run.exception)
    assert "\n" not in str(run.exception)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([ROOT / "configs/pretrain/smoke.yaml"], "classifier: a fine-tuning recipe has this section"),
        ([SMOKE, "finetune.loss=hinge"], "finetune.loss: Input should be 'ce' or 'bce'"),
        ([SMOKE, "weights=nowhere"], "nowhere: no such checkpoint folder"),
        ([SMOKE, "finetune.test_split=validation"], "finetune.test_split=validation is for prepared folders"),
        ([SMOKE, "--folds"], "--folds needs a prepared folder"),
        ([SMOKE, "data={kind: shards, path: nowhere}", "--folds"], "nowhere: no such folder"),
    ],
)
def test_one_clear_line(tmp_path, arguments, message):
    refused(equiav("finetune", *arguments, "--out", tmp_path), message)


def test_classifiers_and_models_are_not_confused(tmp_path):
    done = equiav("finetune", SMOKE, "train.steps=1", "--out", tmp_path / "fine")
    assert done.exit_code == 0, done.output
    assert "test, 19 clips: mAP" in done.output
    assert "audiovisual, 8 classes: disc, square" in equiav("info", tmp_path / "fine").output
    judged = equiav("evaluate", "classification", tmp_path / "fine", "--split", "validation")
    assert "validation, 17 clips: mAP" in judged.output
    assert (tmp_path / "fine/evaluation/classification/report.html").is_file()
    refused(
        equiav("evaluate", "classification", tmp_path / "fine", "--split", "all"), "choose train, validation or test"
    )
    names = tmp_path / "names.txt"
    names.write_text("a\nb\n")
    refused(equiav("evaluate", "classification", tmp_path / "fine", "--classes", names), "2 names were given for")
    refused(equiav("evaluate", "retrieval", tmp_path / "fine"), "holds a classifier")
    pre = equiav("pretrain", ROOT / "configs/pretrain/smoke.yaml", "train.steps=1", "--out", tmp_path / "pre")
    assert pre.exit_code == 0, pre.output
    refused(equiav("evaluate", "classification", tmp_path / "pre"), "holds no classifier; fine-tune it first")
