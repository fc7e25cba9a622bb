"""`equiav benchmark`: a whole run on a small model, the advice it gives, and two ranks under torchrun."""

import copy
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

from equiav import benchmark
from equiav.benchmark import advice, benchmark_config, benchmark_device, run_benchmark, table
from equiav.cli import app
from equiav.errors import EquiAVError
from tests.training.small import small_config

RECORD = {
    "device": "cuda:0",
    "precision": "bfloat16",
    "ranks": 1,
    "machine": {"cores": 8, "threads": 8, "memory_gb": 64.0, "gpus": [{"name": "GPU", "memory_gb": 24.0}],
                "bfloat16": True, "mps": False},
    "matrix": {"side": 8192, "gflops": 100_000.0},
    "step": {"batch": 64, "parameters_million": 200.0, "seconds": 1.0, "clips_per_second": 64.0, "gflop": 50_000.0,
             "gflops": 50_000.0, "peak_gb": 12.0, "share_of_matrix": 0.5},
    "gather": None,
    "disk": {"megabytes": 256.0, "write_mb_per_second": 100.0, "read_mb_per_second": 500.0},
    "loader": {"clips": 16, "clip_megabytes": 0.5, "workers": 8, "clips_per_second": 160.0,
               "one_worker_clips_per_second": 20.0},
    "provenance": {"cpu": "CPU"},
}  # fmt: skip


def advised(**changes):
    record = copy.deepcopy(RECORD)
    for path, value in changes.items():
        section, _, key = path.partition("__")
        if key:
            record[section][key] = value
        else:
            record[section] = value
    return " ".join(advice(record))


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({}, "The step limits: a step takes 64 clips/s, 8 workers give 160. train.workers=4 is enough."),
        ({"loader__clips_per_second": 40.0, "loader__workers": 2}, "The loader limits: .* Set train.workers=4."),
        ({"loader__clips_per_second": 32.0, "loader__one_worker_clips_per_second": 4.0}, "20 workers would be needed"),
        ({"loader__clips_per_second": 60.0, "machine__cores": 16}, "The loader limits: .* Set train.workers=11."),
        ({"step__share_of_matrix": 0.1}, "reaches 10% of a plain matrix product: raise train.batch"),
        ({"precision": "float32"}, "set train.precision=bfloat16"),
        ({"step__peak_gb": 23.0}, "nearly full .23.0 of 24.0 GB.: set train.micro_batch"),
        ({"gather": {"rows": 64, "width": 512, "seconds": 0.3}, "ranks": 2}, "gather takes 30% of a step"),
        ({"disk__read_mb_per_second": 10.0}, "The disk limits: steps read 32 MB/s, it gives 10"),
        ({}, "100,000 clips takes about 26 min 2 s"),
    ],
)
def test_advice(changes, said, monkeypatch):
    monkeypatch.delenv("LOCAL_WORLD_SIZE", raising=False)
    assert re.search(said, advised(**changes)), advised(**changes)


def test_no_advice_that_nothing_calls_for():
    assert len(advice(RECORD)) == 2
    assert "one rank: none" in "\n".join(table(RECORD))


def test_a_run(tmp_path, monkeypatch):
    monkeypatch.setattr(benchmark, "DISK_MB", 4)
    monkeypatch.setattr(benchmark, "MATRIX", {"cpu": 128})
    config = small_config("train.batch=4", "train.workers=1")
    record = run_benchmark(config, device=torch.device("cpu"), steps=2, folder=tmp_path)
    assert record == json.loads(json.dumps(record))
    assert record["loader"]["clips"] == 16
    step = record["step"]
    assert step["clips_per_second"] == pytest.approx(4 / step["seconds"])
    assert step["share_of_matrix"] == pytest.approx(step["gflop"] / step["seconds"] / record["matrix"]["gflops"])
    assert min(record["disk"].values()) > 0
    assert step["peak_gb"] > 0.05
    assert len(table(record)) == 11
    assert list(tmp_path.iterdir()) == []


def test_operations_of_a_step_are_three_times_those_of_its_forward_pass():
    """Twice as many in the gradient as before it; that of the input of the first layer is not needed."""
    from torch.utils.flop_counter import FlopCounterMode

    from equiav.build import build_model, build_objective

    config = small_config("train.batch=4", "model.encoder.width=64")
    objective = build_objective(config, build_model(config))
    with FlopCounterMode(display=False) as counter:
        objective(benchmark.noise(config, 4), objective.draw(4, 0, 0))
    whole = benchmark.training_step(config, torch.device("cpu"), None, 1)["gflop"] * 1e9
    assert 2.5 < whole / counter.get_total_flops() < 3.1


def test_refusals(tmp_path):
    if not torch.cuda.is_available():
        with pytest.raises(EquiAVError, match="--device cuda: torch finds none here; there is "):
            benchmark_device("cuda")
    assert benchmark_device("cpu").type == "cpu"
    config = benchmark_config(torch.device("cpu"), size="micro")
    assert config.train.batch == 4
    with pytest.raises(EquiAVError, match="--folder gone: no such folder"):
        run_benchmark(config, device=torch.device("cpu"), steps=1, folder=Path("gone"))
    with pytest.raises(EquiAVError, match="gone"):
        run_benchmark(config, device=torch.device("cpu"), steps=1, folder=tmp_path, data=tmp_path / "gone")
    assert CliRunner().invoke(app, ["benchmark", "--workers", "2000"]).exit_code == 2


@pytest.mark.process
def test_two_ranks(tmp_path):
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    command += ["-m", "equiav.cli", "benchmark", "--size", "micro", "--batch", "2", "--steps", "1", "--workers", "1"]
    out = tmp_path / "benchmark.json"
    done = subprocess.run(
        [*command, "--folder", str(tmp_path), "--out", str(out)],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    record = json.loads(out.read_text())
    assert record["ranks"] == 2
    assert record["gather"]["rows"] == 2
    assert record["gather"]["seconds"] > 0
    assert done.stdout.count("An epoch of") == 1
