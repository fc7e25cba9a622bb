"""A run folder has one writer: a second run is refused in one line, and a killed one leaves no lock behind."""

import contextlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from equiav.checkpoint import checkpoints_of
from equiav.errors import Busy, TrainingError
from equiav.training import run_lock, run_on_cores

pytestmark = pytest.mark.process
CONFIGS = Path(__file__).parents[2] / "configs"
SMALL = ["data.count=24", "train.batch=8"]
COMMANDS = {
    "pretrain": ["pretrain", str(CONFIGS / "pretrain/smoke.yaml"), *SMALL, "train.steps=1"],
    "finetune": ["finetune", str(CONFIGS / "finetune/smoke.yaml"), *SMALL, "train.steps=1"],
    "folds": ["finetune", str(CONFIGS / "finetune/esc50.yaml"), "data.path=nowhere", "--folds"],
}


@pytest.mark.parametrize("name", COMMANDS)
def test_a_second_run_is_refused_in_one_line(tmp_path, name):
    command = [sys.executable, "-m", "equiav.cli", *COMMANDS[name], "--out", str(tmp_path)]
    with run_lock(tmp_path):
        second = subprocess.run(command, capture_output=True, text=True, timeout=300)
        lines = [line for line in second.stderr.splitlines() if not line.startswith("note: ")]
        assert second.returncode == 2
        assert lines == [
            f"equiav: {tmp_path}: is being written by process {os.getpid()} on {os.uname().nodename}; "
            "wait for it, or choose another --out"
        ]
        assert {path.name for path in tmp_path.iterdir()} == {".training.lock", "checkpoints"}
        assert not list((tmp_path / "checkpoints").iterdir())


def test_processes_of_one_run_share_the_lock(tmp_path):
    arguments = [*COMMANDS["pretrain"], "--out", str(tmp_path)]
    with run_lock(tmp_path), pytest.raises(TrainingError, match="is being written by process"):
        run_on_cores(arguments, processes=2, say=str)
    assert not checkpoints_of(tmp_path)
    run_on_cores(arguments, processes=2, say=str)
    assert [step for step, _ in checkpoints_of(tmp_path)] == [1]


def test_a_killed_run_leaves_no_lock(tmp_path):
    """Only the run itself is killed: its loader's workers, forked from it, live on for some seconds."""
    steps = ["train.steps=100000", "train.workers=2", "train.checkpoint_every=1", "train.evaluate_every=null"]
    command = [sys.executable, "-m", "equiav.cli", *COMMANDS["pretrain"][:-1], *steps, "--out", str(tmp_path)]
    run = subprocess.Popen(command, stderr=subprocess.DEVNULL, start_new_session=True)
    try:
        while not checkpoints_of(tmp_path):
            assert run.poll() is None
            time.sleep(0.05)
        with pytest.raises(Busy), run_lock(tmp_path):
            pass
        run.send_signal(signal.SIGKILL)
        run.wait()
        with run_lock(tmp_path):
            pass
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(run.pid, signal.SIGKILL)
