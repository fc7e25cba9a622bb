"""Fine-tuning under torchrun with two processes follows one process, mixup and drop path included; metrics agree."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from equiav.checkpoint import load_checkpoint

pytestmark = pytest.mark.process
ROOT = Path(__file__).parents[2]


def run(out, processes):
    launcher = [sys.executable]
    if processes > 1:
        launcher += ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(processes)]
    command = ["-m", "equiav.cli", "finetune", str(ROOT / "configs/finetune/smoke.yaml"), "--out", str(out)]
    overrides = ["train.steps=12", "finetune.mixup=0.8", "optim.lr=3.0e-4", "data.balanced=true"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run([*launcher, *command, *overrides], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in (out / "log.jsonl").read_text().splitlines()]


def test_two_processes_equal_one(tmp_path):
    one, two = run(tmp_path / "one", 1), run(tmp_path / "two", 2)
    losses = [torch.tensor([r["loss"] for r in records if r["kind"] == "train"]) for records in (one, two)]
    assert len(losses[0]) == 12
    torch.testing.assert_close(losses[0], losses[1], rtol=1e-4, atol=0)
    # 17 and 19 clips are no multiple of two: nothing is dropped or padded.
    for a, b in zip(*([r for r in x if r["kind"] == "validation"] for x in (one, two)), strict=True):
        assert a["clips"] == b["clips"] == 17
        assert a["mAP"] == pytest.approx(b["mAP"], abs=1e-6)
        assert a["d_prime"] == pytest.approx(b["d_prime"], abs=1e-6)
    results = [json.loads((tmp_path / name / "results.json").read_text()) for name in ("one", "two")]
    assert results[0]["metrics"]["clips"] == 19
    for key, value in results[0]["metrics"].items():
        assert results[1]["metrics"][key] == pytest.approx(value, abs=1e-6)
    assert (
        load_checkpoint(tmp_path / "one").meta["best"]["step"] == load_checkpoint(tmp_path / "two").meta["best"]["step"]
    )
