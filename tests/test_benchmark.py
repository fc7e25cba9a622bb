"""`equiav benchmark`: a whole run on a small model, the advice it gives, and two ranks under torchrun."""

import copy
import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import jaxtyping
import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode
from typer.testing import CliRunner

from equiav import benchmark, losses
from equiav.benchmark import advice, benchmark_config, benchmark_device, run_benchmark, table
from equiav.build import build_model, build_objective
from equiav.cli import app
from equiav.errors import EquiAVError
from equiav.training import optim
from tests.training.small import small_config

RECORD = {
    "device": "cuda:0",
    "training_device": "cuda",
    "precision": "bfloat16",
    "ranks": 1,
    "ranks_here": 1,
    "machine": {"cores": 8, "threads": 8, "memory_gb": 64.0, "gpus": [{"name": "GPU", "memory_gb": 24.0}],
                "bfloat16": True, "mps": False},
    "matrix": {"side": 8192, "gflops": 100_000.0},
    "step": {"batch": 64, "parameters_million": 200.0, "seconds": 1.0, "clips_per_second": 64.0, "gflop": 50_000.0,
             "gflops": 50_000.0, "peak_gb": 12.0, "allocated_gb": None, "share_of_matrix": 0.5},
    "compiled": False,
    "gather": None,
    "all_reduce": None,
    "disk": {"write_mb_per_second": 100.0, "read_mb_per_second": 500.0, "read_from_cache": False},
    "loader": {"clips": 16, "clip_megabytes": 0.5, "workers": 8, "clips_per_second": 160.0,
               "one_worker_clips_per_second": 20.0},
    "provenance": {"cpu": "CPU"},
}  # fmt: skip
CPU = {"device": "cpu", "training_device": "cpu"}


def changed(**changes):
    record = copy.deepcopy(RECORD)
    for path, value in changes.items():
        section, _, key = path.partition("__")
        if key:
            record[section][key] = value
        else:
            record[section] = value
    return record


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        (
            {},
            "limits: a step takes 64 clips/s, the loader gives 160 with 8 workers. train.workers=4 is enough.$",
        ),
        ({"loader__clips_per_second": 40.0, "loader__workers": 2}, "The loader limits: .* Set train.workers=4."),
        (
            {"loader__clips_per_second": 32.0, "loader__one_worker_clips_per_second": 4.0},
            "20 workers would be needed, and the machine has 8 cores",
        ),
        ({"loader__clips_per_second": 60.0, "machine__cores": 16}, "The loader limits: .* Set train.workers=11."),
        ({"step__share_of_matrix": 0.1}, "reaches 10% of a plain matrix product: raise train.batch"),
        # What all loaders of a machine give is compared with what all its ranks take; the advice is for each rank.
        (
            {"ranks": 8, "ranks_here": 8, "loader__workers": 32, "machine__cores": 64},
            "step limits: .*, the loader gives 160 with 32 workers of 8 ranks. train.workers=1 is enough.$",
        ),
        (
            {"ranks": 16, "ranks_here": 8, "loader__clips_per_second": 16.0, "machine__cores": 64},
            "loader limits: a step takes 32 clips/s, the loader gives 16 with 8 workers .*. Set train.workers=3.",
        ),
        (
            {"ranks": 16, "ranks_here": 8, "loader__clips_per_second": 16.0},
            "100,000 clips takes about 52 min 5 s",
        ),
        ({"precision": "float32"}, "set train.precision=bfloat16"),
        ({"step__peak_gb": 23.0}, "nearly full .23.0 of 24.0 GB.: set train.micro_batch"),
        (CPU, "train.workers=4 is enough. On a CPU, workers take cores from the step"),
        (CPU, "compare with torchrun --nproc-per-node 8 -m equiav.cli benchmark"),
        ({**CPU, "step__peak_gb": 30.0, "ranks": 2, "ranks_here": 2}, "nearly full .60.0 of 64.0 GB."),
        ({"device": "mps", "step__peak_gb": None, "step__allocated_gb": 60.0}, "nearly full .60.0 of 64.0 GB."),
        ({"device": "mps", "training_device": "cpu"}, "^Training takes cpu here, not mps"),
        ({"gather": {"rows": 64, "widths": [512], "seconds": 0.3}, "ranks": 2}, "gather takes 30% of a step"),
        (
            {"all_reduce": {"megabytes": 800.0, "seconds": 0.4}, "ranks": 2},
            "all-reduce of gradients alone takes 40% of",
        ),
        ({"disk__read_mb_per_second": 10.0}, "The disk limits: steps read 32 MB/s, it gives 10"),
        ({}, "100,000 clips takes about 26 min 2 s"),
    ],
)
def test_advice(changes, said):
    assert any(re.search(said, line) for line in advice(changed(**changes))), advice(changed(**changes))


@pytest.mark.parametrize(
    ("changes", "lines"),
    [
        ({}, 2),
        ({"all_reduce": {"megabytes": 800.0, "seconds": 0.1}, "ranks": 2}, 2),  # the step hides it
        ({**CPU, "machine__threads": 1}, 2),
        ({**CPU, "precision": "float32", "machine__threads": 1}, 2),  # the GPU is not what was measured
        ({"ranks": 2, "ranks_here": 2}, 2),  # memory of ranks on one GPU each is not added up
    ],
)
def test_no_advice_that_nothing_calls_for(changes, lines):
    assert len(advice(changed(**changes))) == lines


ALONE = [
    "devices CPU, 8 cores, GPU (24 GB)",
    "used cuda:0, bfloat16, 1 rank, 8 threads",
    "matrix product 1e+05 GFLOP/s (8192 x same)",
    "model 200.0 M parameters",
    "step 1 s for 64 clips: 64 clips/s",
    "5e+04 GFLOP/s, 50% of the matrix product",
    "memory 12.00 GB at the peak",
    "loader 160 clips/s, 8 workers",
    "20 clips/s, 1 worker",
    "gather one rank: none",
    "all-reduce one rank: none",
    "disk 500 MB/s read, 100 MB/s written",
]


@pytest.mark.parametrize(
    ("changes", "lines"),
    [
        ({}, {}),
        (
            {
                "ranks": 2,
                "ranks_here": 2,
                "machine__threads": 1,
                "disk__read_from_cache": True,
                "gather": {"rows": 64, "widths": [512], "seconds": 0.001},
                "all_reduce": {"megabytes": 800.0, "seconds": 0.1},
            },
            {
                1: "used cuda:0, bfloat16, 2 ranks, 1 thread per rank",
                2: "matrix product 1e+05 GFLOP/s per rank (8192 x same)",
                4: "step 1 s for 64 clips of all ranks: 64 clips/s",
                5: "5e+04 GFLOP/s per rank, 50% of the matrix product",
                6: "memory 12.00 GB at the peak per rank",
                7: "loader 160 clips/s, 8 workers of this machine's ranks",
                9: "gather 1 ms for the embeddings of 64 clips",
                10: "all-reduce 100 ms for 800 MB of gradients",
                11: "disk 500 MB/s read (from the system's cache), 100 MB/s written",
            },
        ),
        (
            {
                "device": "mps",
                "compiled": True,
                "machine__gpus": [],
                "machine__mps": True,
                "step__peak_gb": None,
                "step__allocated_gb": 3.0,
            },
            {
                0: "devices CPU, 8 cores, GPU of this Mac (mps)",
                1: "used mps, bfloat16, compiled, 1 rank, 8 threads",
                6: "memory 3.00 GB after the steps; the peak is not known here",
            },
        ),
    ],
)
def test_table(changes, lines):
    found = [" ".join(line.split()) for line in table(changed(**changes))]
    assert found == [lines.get(number, line) for number, line in enumerate(ALONE)]


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
    assert min(record["disk"][f"{done}_mb_per_second"] for done in ("write", "read")) > 0
    assert step["peak_gb"] > 0.05
    assert len(table(record)) == len(ALONE)
    assert list(tmp_path.iterdir()) == []


def test_the_disk_that_is_read_is_that_of_the_data(tmp_path, monkeypatch):
    monkeypatch.setattr(benchmark, "DISK_MB", 1)
    read = []
    monkeypatch.setattr(benchmark, "_read", lambda files: read.append([file.name for file in files]) or 7.0)
    (tmp_path / "shards").mkdir()
    (tmp_path / "shards/000.tar").touch()
    benchmark.disk(tmp_path)
    assert read[0][0].startswith(".benchmark-")
    assert benchmark.disk(tmp_path, tmp_path)["read_mb_per_second"] == 7.0
    assert read[-1] == ["000.tar"]
    monkeypatch.delattr(os, "posix_fadvise", raising=False)
    assert benchmark.disk(tmp_path)["read_from_cache"]


def test_the_peak_is_not_that_of_the_parent(monkeypatch):
    resource = pytest.importorskip("resource")
    if not Path("/proc/self/status").exists():
        pytest.skip("needs /proc")
    monkeypatch.setattr(resource, "getrusage", lambda who: SimpleNamespace(ru_maxrss=1 << 40))
    assert 0.05 < benchmark._peak_gb(torch.device("cpu")) < 1000


def test_the_device_is_that_of_training(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: True)
    assert benchmark_device().type == "cpu"
    assert benchmark_device("mps").type == "mps"
    monkeypatch.setattr(benchmark, "world_size", lambda: 2)
    with pytest.raises(EquiAVError, match="--device mps: several processes exchange by cpu here"):
        benchmark_device("mps")


def test_emulated_bfloat16_does_not_count(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation=True: including_emulation)
    assert not benchmark.machine()["bfloat16"]


def test_ranks_share_the_cores_of_their_machine(monkeypatch):
    monkeypatch.setattr(benchmark, "cores", lambda: 64)
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "8")
    assert benchmark_config(torch.device("cpu"), size="micro").train.workers == 8


def objective_of(config):
    return build_objective(config, build_model(config))


def test_operations_of_a_step_include_attention():
    """As many as with attention in plain matrix products, and its scores again in the gradient of a fused kernel."""
    config = small_config("train.batch=4", "model.encoder.width=64")
    objective = objective_of(config)
    with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
        outputs = objective(benchmark.noise(config, 4), objective.draw(4, 0, 0))
        objective.losses(outputs, 1, 1)["total"].backward()
    whole = benchmark.training_step(config, torch.device("cpu"), None, 1)["gflop"] * 1e9
    assert 1 < whole / counter.get_total_flops() < 1.1


def test_a_compiled_step_counts_as_many_operations(monkeypatch):
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)  # checked shapes would break the graphs
    torch._dynamo.reset()
    graphs = []
    monkeypatch.setattr(optim, "BACKEND", lambda graph, inputs: graphs.append(graph.code) or graph)
    plain, compiled = (
        benchmark.training_step(small_config(f"train.compile={compiled}"), torch.device("cpu"), None, 1)["gflop"]
        for compiled in ("false", "true")
    )
    assert plain == compiled
    assert any("scaled_dot_product_attention" in graph for graph in graphs)
    torch._dynamo.reset()


def test_refusals(tmp_path, monkeypatch):
    if not torch.cuda.is_available():
        with pytest.raises(EquiAVError, match="--device cuda: torch finds none here; there is "):
            benchmark_device("cuda")
    assert benchmark_device("cpu").type == "cpu"
    config = benchmark_config(torch.device("cpu"), size="micro")
    assert config.train.batch == 4
    with pytest.raises(EquiAVError, match="--folder gone: no such folder"):
        run_benchmark(config, device=torch.device("cpu"), steps=1, folder=Path("gone"))
    (file := tmp_path / "file").write_text("in the way")
    said = []

    def refused(match, **options):
        with pytest.raises(EquiAVError, match=match):
            run_benchmark(config, device=torch.device("cpu"), report=said.append, **{"folder": tmp_path, **options})

    refused("gone: no such folder; give one that `equiav prepare` wrote$", data=tmp_path / "gone")
    refused("file is a file; give the folder that `equiav prepare` wrote$", data=file)
    refused("file: is a file, not a folder", folder=file)
    refused("^--folder /proc: cannot be written .*; name one with room", folder=Path("/proc"))
    monkeypatch.setattr(benchmark, "world_size", lambda: 3)
    refused("a batch of 4 cannot be shared by 3 processes; make it a multiple")
    assert not said  # nothing was measured
    for out in (tmp_path, file / "out.json"):
        run = CliRunner().invoke(app, ["benchmark", "--size", "micro", "--device", "cpu", "--out", str(out)])
        assert re.fullmatch(rf"{out}: cannot be written \(.+\)", str(run.exception))
        assert not run.output
    assert CliRunner().invoke(app, ["benchmark", "--workers", "2000"]).exit_code == 2
    assert "--folder is empty" in str(CliRunner().invoke(app, ["benchmark", "--folder", ""]).exception)


@pytest.mark.skipif(not hasattr(os, "sched_getaffinity"), reason="needs Linux")
def test_a_full_disk_is_one_line(tmp_path):
    """A file limit stands for a full disk."""
    resource = pytest.importorskip("resource")
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, before[1]))
    try:
        with pytest.raises(
            EquiAVError, match=r"^--folder .*: cannot be written \(File too large\); name one with room"
        ):
            benchmark.disk(tmp_path)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert not list(tmp_path.iterdir())


@pytest.mark.process
@pytest.mark.parametrize(("number", "said"), [(signal.SIGTERM, ""), (signal.SIGINT, "equiav: interrupted\n")])
def test_a_signal_leaves_nothing(tmp_path, number, said):
    command = [sys.executable, "-m", "equiav.cli", "benchmark", "--size", "micro", "--batch", "2", "--workers", "1"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    with subprocess.Popen([*command, "--folder", str(tmp_path)], env=environment, stderr=-1, text=True) as process:
        for line in process.stderr:
            if line == "loader\n":
                break
        assert list(tmp_path.iterdir())
        time.sleep(0.5)  # it generates clips, or loads them
        process.send_signal(number)
        assert process.communicate()[1] == said
    assert process.returncode == 128 + number
    assert not list(tmp_path.iterdir())


def gathered(config):
    """Widths of the embeddings that the losses of a step gather."""
    found = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(losses, "gather", lambda x: found.append(x.shape[1]) or x)
        objective = objective_of(config)
        objective.losses(objective(benchmark.noise(config, 2), objective.draw(2, 0, 0)), 1, 1)
    return found


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
    assert record["ranks"] == record["ranks_here"] == record["loader"]["workers"] == 2
    assert record["gather"]["rows"] == 2
    config = benchmark_config(torch.device("cpu"), size="micro", batch=2)
    assert sorted(record["gather"]["widths"]) == sorted(gathered(config))
    assert record["all_reduce"]["megabytes"] == pytest.approx(4 * record["step"]["parameters_million"], rel=1e-6)
    assert record["all_reduce"]["seconds"] > 0
    assert record["gather"]["seconds"] > 0
    assert done.stdout.count("An epoch of") == 1
