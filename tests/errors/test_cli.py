"""Bad input on the command line: one line, exit code 2, nothing lost."""

import os
import resource
import subprocess
import sys
from pathlib import Path

import pytest

from equiav.cli import main

ROOT = Path(__file__).parents[2]
SMOKE = str(ROOT / "configs/pretrain/smoke.yaml")


def equiav(*arguments, cwd=None, limit=None):
    def before():
        if limit:
            resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))

    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "equiav.cli", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, cwd=cwd, env=environment, preexec_fn=before)


@pytest.fixture
def called(monkeypatch, capsys):
    """The same in this process, without the seconds that a start takes."""

    def call(*arguments):
        monkeypatch.setattr(sys, "argv", ["equiav", *map(str, arguments)])
        with pytest.raises(SystemExit) as end:
            main()
        return subprocess.CompletedProcess(arguments, end.value.code, *capsys.readouterr())

    return call


def refused(run, message):
    assert run.returncode == 2, run.stderr
    assert "Traceback" not in run.stderr
    said = [line for line in run.stderr.splitlines() if line.startswith("equiav: ")]
    assert len(said) == 1
    assert message in said[0]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("cli")


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["train.stepz=3"], "train.stepz: unknown key"),
        (["train.steps=-3"], "train.steps: Input should be greater than 0"),
        (["train.epochs=1"], "give epochs or steps, one of them"),
        (["train.batch=65"], "64 clips do not fill one batch of 65"),
        (["objective.intra=none"], "inter centroid needs the predictor"),
        (["nonsense"], "an override is key=value"),
        (["data.kind=cinema"], "data"),
        (["weights=nowhere"], "nowhere: no such checkpoint folder"),
        (["data.kind=shards", "data.path=nowhere"], "data"),
    ],
)
def test_recipes(folder, called, overrides, message):
    run = called("pretrain", SMOKE, *overrides, "--out", folder / "run")
    refused(run, message)


@pytest.mark.parametrize(
    "command",
    [
        ["pretrain", SMOKE, "train.compile=true"],
        ["finetune", str(ROOT / "configs/finetune/smoke.yaml"), "train.compile=true"],
        ["benchmark", "--size", "micro", "--batch", "2", "--device", "cpu", "--compile"],
    ],
    ids=lambda command: command[0],
)
def test_no_compiler(tmp_path, monkeypatch, command):
    monkeypatch.setenv("CXX", "/nonexistent")
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "cache"))
    run = equiav(*command, "--out", tmp_path / "out")
    refused(
        run, "train.compile: torch.compile fails on this machine (InvalidCxxCompiler: No working C++ compiler found"
    )
    refused(run, "install a C++ compiler such as g++")
    assert not (tmp_path / "out").exists()


def test_no_such_recipe(folder, called):
    refused(called("pretrain", folder / "no.yaml"), "no.yaml: no such file, and no recipe of this name")


def test_unwritable_folder(folder, called):
    (folder / "file").write_text("in the way")
    refused(called("pretrain", SMOKE, "--out", folder / "file" / "run"), "cannot be written")


def test_full_disk_loses_nothing(folder):
    """A file limit stands for a full disk: the run stops in one line, the checkpoint before it stays whole."""
    out = folder / "full"
    small = ("train.steps=4", "train.checkpoint_every=2", "train.evaluate_every=null", "--out", out)
    assert equiav("pretrain", SMOKE, "train.steps=4", *small[1:]).returncode == 0
    kept = sorted(p.name for p in (out / "checkpoints").iterdir())
    again = folder / "again"
    run = equiav("pretrain", SMOKE, *small[:-1], again, limit=200_000)
    refused(run, "cannot be written")
    assert list((again / "checkpoints").iterdir()) == []
    assert kept == ["step-00000002", "step-00000004"]
    changed = equiav("pretrain", SMOKE, *small[:-2], "seed=9", "--out", out)
    refused(changed, "seed was 0, now 9")


def test_info_and_convert(folder, called):
    refused(called("info", folder / "nothing"), "no such checkpoint folder")
    refused(called("convert", folder / "nothing.pth", folder / "x"), "nothing.pth: no such file")
    refused(called("augment", folder / "nothing.mp4"), "nothing.mp4: no such file")
    (folder / "text.mp4").write_text("not a video")
    refused(called("augment", folder / "text.mp4"), "cannot be opened as media")


def test_help_explains_every_command(called):
    text = called("--help").stdout
    for command in ("demo", "pretrain", "info", "augment", "convert", "evaluate", "world"):
        assert command in text
    assert "key=value" in called("pretrain", "--help").stdout
    assert called("--version").stdout.startswith("equiav ")
