"""A worker of the loader or a rank that is killed or stopped ends the run in one line; its checkpoint stays."""

import contextlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from equiav.checkpoint import checkpoints_of, verify_checkpoint
from equiav.errors import TrainingError
from equiav.training.step import worker_failures

pytestmark = pytest.mark.process
SMOKE = Path(__file__).parents[2] / "configs/pretrain/smoke.yaml"
DEADLINE = 300.0  # seconds until the run must have ended; before there were time-outs it never did
RESUME = "the newest checkpoint is kept: run the same command again to resume"


@contextlib.contextmanager
def running(out, *overrides, processes=1):
    """A run that does not end by itself, after its first checkpoint."""
    launcher = [sys.executable]
    if processes > 1:
        launcher += ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(processes)]
    small = ["data.count=24", "train.batch=8", "train.steps=100000", "train.checkpoint_every=2", "train.keep=1"]
    command = [*launcher, "-m", "equiav.cli", "pretrain", str(SMOKE), *small, "train.evaluate_every=null", *overrides]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    with (out / "stderr").open("w") as errors:
        run = subprocess.Popen(
            [*command, "--out", str(out / "run")], env=environment, stderr=errors, start_new_session=True
        )
    try:
        end = time.monotonic() + DEADLINE
        while not checkpoints_of(out / "run"):
            assert run.poll() is None, (out / "stderr").read_text()
            assert time.monotonic() < end
            time.sleep(0.1)
        yield run
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(run.pid, signal.SIGKILL)


def children(pid):
    return [int(p) for p in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def lines(out):
    return [line for line in (out / "stderr").read_text().splitlines() if line.startswith("equiav: ")]


@pytest.mark.parametrize("error", [ConnectionResetError(104, "Connection reset by peer"), EOFError()])
def test_a_worker_that_dies_while_it_hands_a_tensor_over(error, monkeypatch):
    monkeypatch.setattr("equiav.training.step.multiprocessing.active_children", list)
    with pytest.raises(TrainingError, match="the loader lost a worker"), worker_failures():
        raise error


def test_other_errors_pass():
    with pytest.raises(RuntimeError, match="something else"), worker_failures():
        raise RuntimeError("something else")


@pytest.mark.parametrize(
    ("sent", "what"),
    [
        (signal.SIGSTOP, "gave no batch for 10 s (train.timeout)"),
        (signal.SIGKILL, "lost a worker, killed perhaps for want of memory"),
    ],
)
def test_a_worker_of_the_loader(tmp_path, sent, what):
    with running(tmp_path, "train.workers=2", "train.timeout=10") as run:
        workers = children(run.pid)
        os.kill(workers[0], sent)
        assert run.wait(DEADLINE) == 2
    assert lines(tmp_path) == [f"equiav: rank 0: the loader {what}; {RESUME}"]
    assert "Traceback" not in (tmp_path / "stderr").read_text()
    assert not [pid for pid in workers if Path(f"/proc/{pid}").exists()]
    assert verify_checkpoint(tmp_path / "run") == []


@pytest.mark.parametrize(
    ("sent", "number", "what"),
    [
        (signal.SIGSTOP, 1, "rank 1 has not answered for 20 s (twice train.timeout)"),
        (signal.SIGSTOP, 0, "rank 0 has not answered for 20 s (twice train.timeout)"),
        (signal.SIGKILL, 1, "rank 1 has ended without a word"),
    ],
)
def test_a_rank(tmp_path, sent, number, what):
    with running(tmp_path, "train.workers=0", "train.timeout=10", processes=2) as run:
        ranks = {}
        for pid in children(run.pid):
            variables = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
            ranks |= {int(v.partition(b"=")[2]): pid for v in variables if v.startswith(b"RANK=")}
        os.kill(ranks[number], sent)
        assert run.wait(DEADLINE) != 0
    other = "" if number else "process 1: "
    if sent == signal.SIGKILL and not lines(tmp_path):  # torchrun may end the other one first, and says which it was
        assert "rank      : 1 (local_rank: 1)\n  exitcode  : -9" in (tmp_path / "stderr").read_text()
    else:
        assert lines(tmp_path) == [f"equiav: {other}{what}; {RESUME}"]
    assert verify_checkpoint(tmp_path / "run") == []
