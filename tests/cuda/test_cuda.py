"""What only a GPU can show: the same training, embeddings and memory savings as on the CPU, and bfloat16.

`make test-cuda` runs these. Elsewhere they are skipped; EQUIAV_GPU=cpu runs them there all the same, to try them out.
"""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import jaxtyping
import pytest
import torch
from torch._dynamo.utils import counters

from equiav.benchmark import run_benchmark
from equiav.build import build_inputs, build_model, build_objective, build_pipelines
from equiav.inference import Embedder, load_model
from equiav.randomness import generator
from equiav.training import Step, Trainer, prefetch
from equiav.types import Batch
from tests.training.small import SMOKE, small_config

DEVICE = torch.device(os.environ.get("EQUIAV_GPU", "cuda"))
pytestmark = [
    pytest.mark.cuda,
    pytest.mark.skipif(DEVICE.type == "cuda" and not torch.cuda.is_available(), reason="no CUDA GPU here"),
]
SHORT = ("train.steps=6", "train.log_every=1", "train.workers=0", "train.report_to=[]")
needs_compiler = pytest.mark.skipif(not any(map(shutil.which, ("cc", "gcc", "clang"))), reason="no C compiler here")
needs_two = pytest.mark.skipif(torch.cuda.device_count() < 2, reason="fewer than two CUDA GPUs here")


@pytest.fixture(autouse=True)
def exact():
    """Products of float32 in float32, as on the CPU."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("highest")
    yield
    torch.set_float32_matmul_precision(before)


def losses(out: Path) -> torch.Tensor:
    records = [json.loads(line) for line in (out / "log.jsonl").read_text().splitlines()]
    return torch.tensor([r["loss"] for r in records if r["kind"] == "train"])


def trained(out: Path, *overrides: str) -> torch.Tensor:
    Trainer(small_config(*SHORT, *overrides), out, lambda line: None).run()
    return losses(out)


@pytest.fixture(scope="module")
def reference(tmp_path_factory) -> torch.Tensor:
    """Losses of the same run on the CPU."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch.cuda, "is_available", lambda: False)
        return trained(tmp_path_factory.mktemp("cpu") / "run", "train.precision=float32")


@pytest.mark.parametrize(
    ("overrides", "tolerance"),
    [
        (["train.precision=float32"], 1e-3),
        (["train.precision=float32", "train.checkpoint_activations=true"], 1e-3),
        (["train.precision=float32", "train.micro_batch=2"], 1e-3),
        (["train.precision=float32", "train.workers=2"], 1e-3),
        (["train.precision=bfloat16"], 5e-2),
    ],
    ids=["float32", "activations computed again", "gradient cache", "workers and copies ahead", "bfloat16"],
)
def test_training_follows_the_cpu(reference, tmp_path, overrides, tolerance):
    torch.testing.assert_close(trained(tmp_path / "run", *overrides), reference, rtol=tolerance, atol=0)


@needs_compiler
def test_compiled_blocks_follow_the_cpu(reference, tmp_path, monkeypatch):
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)  # checked shapes would break the graphs
    torch._dynamo.reset()
    counters.clear()
    compiled = trained(tmp_path / "run", "train.precision=float32", "train.compile=true")
    assert counters["stats"]["unique_graphs"] > 1  # the first is a trial
    torch.testing.assert_close(compiled, reference, rtol=1e-3, atol=0)


def test_an_interrupted_run_goes_on_as_if_nothing_had_been(tmp_path):
    overrides = ("train.precision=float32", "train.checkpoint_every=3")
    whole = trained(tmp_path / "whole", *overrides)
    trainer = Trainer(small_config(*SHORT, *overrides), tmp_path / "parts", lambda line: None)
    trainer._evaluate = lambda journal: setattr(trainer, "_stop", trainer.step == 3)
    assert trainer.run().interrupted
    # The order of sums in a GPU's kernels differs from run to run.
    torch.testing.assert_close(trained(tmp_path / "parts", *overrides), whole, rtol=1e-3, atol=0)


def test_embeddings_equal_those_of_the_cpu(tmp_path):
    trained(tmp_path / "run")
    wave, frame = torch.randn(16000) / 10, torch.randint(256, (48, 64, 3), dtype=torch.uint8).numpy()
    cpu, gpu = (Embedder(load_model(tmp_path / "run", device)) for device in ("cpu", str(DEVICE)))
    ours, theirs = (torch.tensor([e.audio(wave.numpy(), sample_rate=16000), e.image(frame)]) for e in (cpu, gpu))
    torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-4)


@pytest.mark.parametrize("modality", ["audio", "visual"])
def test_augmentations_equal_those_of_the_cpu(modality):
    config = small_config()
    pipeline = build_pipelines(config)[modality]
    x = torch.rand(8, 1, 64, 32) if modality == "audio" else torch.rand(8, 3, 32, 32)
    draw = pipeline.sample(8, generator(0, 0, "test"))
    moved = draw.to(DEVICE) if hasattr(draw, "to") else draw
    torch.testing.assert_close(pipeline.apply(x.to(DEVICE), moved).cpu(), pipeline.apply(x, draw), rtol=0, atol=1e-4)


def test_batches_arrive_whole_and_in_order():
    given = [Batch((str(i),), {"audio": torch.full((1, 1000), float(i))}) for i in range(8)]
    pinned = [b.pin_memory() for b in given] if DEVICE.type == "cuda" else given
    for one, batch in zip(prefetch(pinned, DEVICE), given, strict=True):
        assert one.device.type == DEVICE.type
        assert one.ids == batch.ids
        torch.testing.assert_close(one.inputs["audio"].cpu(), batch.inputs["audio"], rtol=0, atol=0)


def test_micro_batches_need_less_memory():
    if DEVICE.type != "cuda":
        pytest.skip("only a GPU counts its bytes")
    peaks = []
    for micro in (None, 4):
        config = small_config("train.batch=32", "model.encoder.depth=6")
        objective = build_objective(config, build_model(config)).to(DEVICE)
        inputs = {"audio": torch.randn(32, 16000), "visual": torch.randint(256, (32, 3, 32, 32), dtype=torch.uint8)}
        batch = Batch(tuple(map(str, range(32))), inputs, {"audio": torch.full((32,), 16000)}).to(DEVICE)
        torch.cuda.reset_peak_memory_stats()
        Step(objective, objective, micro, None)(batch, objective.draw(32, 0, 0), 1, 1)
        peaks.append(torch.cuda.max_memory_allocated())
    assert peaks[1] < 0.6 * peaks[0]


def test_inputs_are_made_on_the_device():
    for modality, transform in build_inputs(small_config()).items():
        raw = torch.randn(2, 16000) if modality == "audio" else torch.randint(256, (2, 3, 32, 32), dtype=torch.uint8)
        cpu = transform.finish(transform.prepare(raw))
        gpu = transform.finish(transform.prepare(raw.to(DEVICE)))
        assert gpu.device.type == DEVICE.type
        torch.testing.assert_close(gpu.cpu(), cpu, rtol=0, atol=1e-3)


def test_benchmark(tmp_path):
    record = run_benchmark(small_config("train.batch=4"), device=DEVICE, steps=2, folder=tmp_path)
    assert record["step"]["peak_gb"] > 0
    assert record["matrix"]["gflops"] > 0


@needs_two
def test_two_gpus_follow_one(reference, tmp_path):
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    overrides = ["data.count=24", "train.batch=8", "train.steps=6", "train.log_every=1", "train.precision=float32"]
    command += ["-m", "equiav.cli", "pretrain", str(SMOKE), "--out", str(tmp_path / "run"), *overrides]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    torch.testing.assert_close(losses(tmp_path / "run"), reference, rtol=1e-3, atol=0)
