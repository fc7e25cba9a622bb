"""Killed at arbitrary moments, also while a checkpoint is being written, and resumed: bit for bit the same weights."""

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from equiav.checkpoint import checkpoints_of, load_checkpoint, load_state

pytestmark = pytest.mark.process
ROOT = Path(__file__).parents[2]


DECODER = "decoder: {width: 16, depth: 1, heads: 2}"
SHORT = ("train.steps=20", "train.workers=0")
METHODS = {
    "equiav": ("train.steps=40", "train.workers=2"),
    "masked": (f"objective={{kind: masked, masked: {{{DECODER}, flip: 0.5}}}}", *SHORT),
    "cavmae": (f"objective={{kind: cavmae, masked: {{{DECODER}}}}}", *SHORT),
}


def start(out, *more):
    command = [sys.executable, "-m", "equiav.cli", "pretrain", str(ROOT / "configs/pretrain/smoke.yaml")]
    overrides = [
        "train.checkpoint_every=2",
        "train.evaluate_every=20",
        "train.ema=0.9",
    ]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.Popen(
        [*command, *overrides, *more, "--out", str(out)],
        env=environment,
        stderr=subprocess.PIPE,
        start_new_session=True,
    )


def wait_for_step(process, out, step):
    while process.poll() is None and not any(s >= step for s, _ in checkpoints_of(out)):
        time.sleep(0.01)


def wait_for_draft(process, out):
    """Until a checkpoint is half-written."""
    folder = out / "checkpoints"
    while process.poll() is None:
        try:
            if any(item.name.startswith(".step-") for item in folder.iterdir()):
                return
        except FileNotFoundError:
            pass
        time.sleep(0.0002)


def kill(process):
    os.killpg(process.pid, signal.SIGKILL)  # the loader's workers go with it
    process.wait()


@pytest.mark.parametrize("method", METHODS)
def test_killed_and_resumed_is_bit_identical(tmp_path, method):
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    run = start(whole, *METHODS[method])
    assert run.wait() == 0, run.stderr.read().decode()

    # What all methods share is tried with one of them; of the others, what they store.
    moments = ("step", "draft", "anywhere", "draft", "step") if method == "equiav" else ("draft", "step")
    delays, kills = random.Random(0), 0
    for moment in moments:
        process = start(parts, *METHODS[method])
        found = checkpoints_of(parts)
        if moment == "step":
            wait_for_step(process, parts, (found[-1][0] if found else 0) + 5)
        elif moment == "draft":
            wait_for_draft(process, parts)
        else:
            wait_for_step(process, parts, (found[-1][0] if found else 0) + 1)
            time.sleep(delays.uniform(0, 0.5))
        if process.poll() is None:
            kill(process)
            kills += 1
    assert kills >= len(moments) - 1
    finish = start(parts, *METHODS[method])
    assert finish.wait() == 0, finish.stderr.read().decode()

    a, b = (checkpoints_of(out)[-1] for out in (whole, parts))
    assert a[0] == b[0] == (40 if method == "equiav" else 20)
    for read in (lambda p: load_checkpoint(p).weights, load_state):
        x, y = read(a[1]), read(b[1])
        assert x.keys() == y.keys()
        assert all(torch.equal(x[k], y[k]) for k in x)
    logs = [(out / "log.jsonl").read_text() for out in (whole, parts)]
    assert logs[0] == logs[1]
    assert not [p for p in (parts / "checkpoints").iterdir() if p.name.startswith(".")]


def test_sigterm_saves_and_exits_with_143(tmp_path):
    process = start(tmp_path, *METHODS["equiav"])
    wait_for_step(process, tmp_path, 3)
    os.killpg(process.pid, signal.SIGTERM)  # as schedulers do: the loader's workers get it too
    assert process.wait() == 143
    step = checkpoints_of(tmp_path)[-1][0]
    assert f"stopped at step {step}" in process.stderr.read().decode()
