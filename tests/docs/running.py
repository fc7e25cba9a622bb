"""Which commands of the documentation are run, and what the tests change so that they end in seconds."""

from __future__ import annotations

import contextlib
import re
import shlex
import sys
from pathlib import Path

from equiav.cli import app
from equiav.search import Index

# Only read by the program they name, and why. Everything else is run; what no page says any more must go from here.
ONLY_READ = {
    r"make [\w-]+": "makes an environment, or starts all tests, this one among them",
    r"pip install .*": "fetches packages",
    r"torchrun .*": "AudioSet on eight GPUs a machine; tests/distributed starts torchrun on two processes",
    r"ray start .*": "starts a cluster",
    r"sbatch .*": "wants a cluster with SLURM; tests/docs/test_blocks.py runs the scripts with another srun",
    r"equiav convert mae_pretrain_vit_base.pth .*": "a file of 330 MB; tests/errors/test_weights.py has a small one",
    r"equiav prepare .* --engine ray": "wants that cluster; tests/data/test_prepare.py runs the engine",
    r"hf download .*": "fetches weights",
    r"equiav pretrain .*own_videos_frozen.yaml .*": "fetches weights; tests/training/test_tokens.py has small encoders",
    r"equiav evaluate retrieval runs/own_videos_frozen .*": "a run of that recipe",
    r"equiav demo": "five minutes; tests/test_demo.py runs it with few steps",
    r"equiav bridge .* --with openai/.*": "fetches weights; tests/text/test_bridge.py has a small CLIP and SigLIP",
    r"equiav pretrain .* data.path=https://.*": "asks a server; tests/data/test_remote.py runs it with one of its own",
    r"equiav push .*": "wants the Hub; tests/integrations/test_hub.py pushes to a stand-in",
    r"equiav serve library.index --api-only": "serves until it is stopped; tests/browser/test_api.py starts it",
    r"curl .*": "asks that server; tests/browser/test_api.py runs all of them",
    r"equiav serve": "serves until it is stopped; tests/web and tests/browser start it",
}
# What stands for something that is not here. Absolute paths begin at `root/` of the reader's folder.
STANDS_FOR = {"milvus://milvus-host:19530/library": "library.db"}  # milvus-lite, the same on one machine
CLIP = "CLIP-ID"  # an entry of the page's index

# Two steps of the smoke recipe's model.
SMALL = [
    "audio.frames=64", "audio.bins=32", "visual.size=32", "visual.patch=8", "train.epochs=null", "train.steps=2",
    "train.batch=4", "train.workers=0", "model.encoder.size=null", "model.encoder.width=32", "model.encoder.depth=2",
    "model.encoder.heads=4",
]  # fmt: skip
WORLD = ["data.count=24", "data.validation=8", "data.test=8", "data.seconds=0.7"]


def only_read(command: str) -> str | None:
    """Why a command is not run; None if it is."""
    return next((reason for pattern, reason in ONLY_READ.items() if re.fullmatch(pattern, command)), None)


def run(command: str) -> None:
    """Runs a command in this process, in the current folder; a refusal, or another exit code than 0, is a failure."""
    for name, other in STANDS_FOR.items():
        command = command.replace(name, other)
    command = re.sub(r"(?<=\s)/(?=\w)", f"{Path.cwd()}/root/", command)
    command, _, target = command.partition(" > ")
    words = shlex.split(command)
    assert words[0] == "equiav", f"{words}: only our own commands are run"
    words = [first_clip() if word == CLIP else word for word in words[1:]]
    with (
        Path(target).open("w") if target else contextlib.nullcontext(sys.stdout) as out,
        contextlib.redirect_stdout(out),
    ):
        code = app([*words, *added(words)], standalone_mode=False)
    assert not code, f"{command}: ended with exit code {code}"


def added(words: list[str]) -> list[str]:
    """What the test adds; the reader's command is the one on the page."""
    match words[2:4] if words[0] == "--import" else words[:2]:
        case ["pretrain" | "finetune", recipe]:
            return [*SMALL, *(WORLD if "world" in recipe else [])]
        case ["ablate", _] if "--list" not in words:  # its runs take hours; tests/reproduction trains a small table
            return ["--list"]
        case ["evaluate", "cost"]:  # counts, and does not time
            return ["--repeats", "0"]
        case ["benchmark", *_]:
            return ["--batch", "2", "--steps", "1", "--workers", "1"]
        case ["prepare", _]:
            return ["--workers", "1"]
        case _:
            return []


def first_clip() -> str:
    return next(Index.open("library.index").clips()).id
