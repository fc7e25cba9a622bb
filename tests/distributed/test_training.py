"""The same recipe under torchrun with two processes and on one follows the same loss curve, whatever the variant."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch.distributed as dist

from equiav.cli import app
from tests.text.small import TEXT_OPTIONS

pytestmark = pytest.mark.process
ROOT = Path(__file__).parents[2]
SMOKE = ROOT / "configs/pretrain/smoke.yaml"
STEPS = 30
DECODER = "decoder: {width: 16, depth: 1, heads: 2}"
TEXT = TEXT_OPTIONS % 0.3  # with batches of which a process has no text at all
VARIANTS = {
    "joint": (),
    "gradient cache": ("train.micro_batch=3",),
    "alternating": ("objective.strategy=alternating",),
    "two stages": ("objective.strategy=two_stage",),
    "few tokens, little memory": (
        "objective.keep_tokens=0.5",
        "train.checkpoint_activations=true",
        "train.micro_batch=3",
    ),
    "plain contrast": ("objective.intra=none", "objective.inter=original"),
    "adapters": ("optim.lora={rank: 2, alpha: 4}", "optim.freeze={visual.encoder: 1}"),
    "token store": ("optim.freeze={encoder: all}", "train.views={count: 2, store: OUT-store}"),
    "masked": (f"objective={{kind: masked, masked: {{{DECODER}, flip: 0.5}}}}", "train.micro_batch=3"),
    "cavmae": (f"objective={{kind: cavmae, masked: {{{DECODER}}}}}", "train.micro_batch=3"),
    "text": (TEXT,),
    "text, gradient cache": (TEXT, "train.micro_batch=3"),
}


def arguments(out, overrides, steps=STEPS):
    common = ["train.workers=0", f"train.steps={steps}", "train.evaluate_every=15", "optim.lr=3.0e-4", "seed=1"]
    overrides = [text.replace("OUT", str(out)) for text in overrides]  # a store is each run's own
    return ["pretrain", str(SMOKE), "--out", str(out), *common, *overrides]


def train(folder):
    """All variants one after the other: torch is imported once for all of them, and one group serves them."""
    if "RANK" in os.environ:
        dist.init_process_group("gloo")
        dist.init_process_group = dist.destroy_process_group = lambda *args, **options: None
    for variant, overrides in VARIANTS.items():
        app(arguments(folder / variant, overrides), standalone_mode=False)


def started(processes, *command):
    launcher = [sys.executable]
    if processes > 1:
        launcher += ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(processes)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    run = subprocess.run([*launcher, *map(str, command)], env=environment, cwd=ROOT, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr


def losses(out):
    records = [json.loads(line) for line in (out / "log.jsonl").read_text().splitlines()]
    train = [r for r in records if r["kind"] == "train"]
    terms = [k for k in train[0] if k.startswith(("inter", "intra", "reconstruction", "contrast", "loss"))]
    return [[r[k] for k in terms] for r in train], records


def largest_difference(one, two):
    return max(abs(a - b) / max(1.0, abs(a)) for x, y in zip(one, two, strict=True) for a, b in zip(x, y, strict=True))


@pytest.mark.skipif(shutil.which("c++") is None, reason="needs a C++ compiler")
def test_compiled_processes_equal_a_plain_one(tmp_path, monkeypatch):
    """Few steps: compiled code adds in another order, and rounding grows with every step."""
    # Spectrograms of as many patches as frames: one shape to compile, not two.
    overrides = ("train.checkpoint_activations=true", "audio.frames=128", "train.evaluate_every=null")
    started(1, "-m", "equiav.cli", *arguments(tmp_path / "plain", overrides, steps=6))
    plain, _ = losses(tmp_path / "plain")
    assert len(plain) == 6
    traces = tmp_path / "traces"
    monkeypatch.setenv("TORCH_TRACE", str(traces))
    started(2, "-m", "equiav.cli", *arguments(tmp_path / "two", (*overrides, "train.compile=true"), steps=6))
    assert largest_difference(plain, losses(tmp_path / "two")[0]) < 1e-5
    # Every process compiled blocks: attention is nowhere else in what it gave to the compiler.
    assert ["scaled_dot_product_attention" in trace.read_text() for trace in traces.iterdir()] == [True, True]


def test_two_processes_equal_one(tmp_path):
    for name, processes in (("one", 1), ("two", 2)):
        started(processes, "-m", "tests.distributed.test_training", tmp_path / name)
    differences = {}
    for variant in VARIANTS:
        (one, first), (two, second) = (losses(tmp_path / name / variant) for name in ("one", "two"))
        assert len(one) == len(two) == STEPS
        differences[variant] = largest_difference(one, two)
        if "text" in variant:
            assert {"inter_audio_text", "intra_text"} <= first[0].keys()
        checks = [[r for r in records if r["kind"] == "validation"] for records in (first, second)]
        if variant == "masked":
            found = [[r["total"] for r in of] for of in checks]
            assert found[0] == pytest.approx(found[1], rel=1e-4)
        else:
            ranks = [[r["audio_to_video/pool"] for r in of] for of in checks]
            assert ranks[0] == ranks[1] == [16, 16], variant  # nothing dropped or padded
    assert max(differences.values()) < 1e-4, differences


if __name__ == "__main__":
    train(Path(sys.argv[1]))
    os._exit(0)  # as the command line ends under torchrun
