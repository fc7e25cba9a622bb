"""Kills what writes, at random moments, and looks whether anything was lost, doubled or left half-written.

    python tools/kills.py [--kills 10] [--only prepare index-add ...] [--seed 0]

Each operation is run once undisturbed, which gives its result and its time. Then it is started again and again, each
time in a forked process group that is sent SIGKILL at a random moment of that time, on the same output; what is on the
disk is checked after every kill; at last it runs to its end, and must give what the undisturbed one gave. Run it from
the root of the source tree: it uses the small recipes and media of the tests. Exit code 1: something was found.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import os
import random
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import torch

from equiav.build import build_model, build_splits, resolve_finetuning
from equiav.checkpoint import checkpoints_of, load_checkpoint, save_model, verify_checkpoint
from equiav.config import load_config
from equiav.convert import convert
from equiav.data import ShardDataset, find_sources, prepare
from equiav.export import export
from equiav.search import LocalStore
from equiav.training import Finetuner, Trainer
from tests.errors.test_weights import SIZES_TINY as SIZES
from tests.media.making import write_media
from tests.paper import golden_recipe
from tests.search.format1 import unpack
from tests.search.making import WIDTH, entries
from tests.training.small import small_config

ROOT = Path(__file__).resolve().parents[1]
ENTRIES = 600


@dataclass(frozen=True)
class Operation:
    """Something that writes into a folder: how it begins, what it does, what must hold at any time, what it gives."""

    run: Callable[[Path], object]
    result: Callable[[Path], Any]
    check: Callable[[Path], list[str]] = lambda folder: []
    before: Callable[[Path], object] = lambda folder: None


def weights(path: Path) -> str:
    """Hash of a checkpoint's tensors."""
    digest = hashlib.sha256()
    for name, value in sorted(load_checkpoint(path).weights.items()):
        digest.update(name.encode() + value.numpy().tobytes())
    return digest.hexdigest()


def damaged_run(folder: Path) -> list[str]:
    """Every checkpoint that can be seen is whole."""
    return verify_checkpoint(folder / "run") if checkpoints_of(folder / "run") else []


def damaged_out(folder: Path) -> list[str]:
    """The output is not there, or whole."""
    return verify_checkpoint(folder / "out") if (folder / "out").exists() else []


def known(folder: Path) -> tuple[int, list[str]]:
    """How many entries an index counts, and which it finds; an old one is migrated by being opened."""
    with contextlib.closing(LocalStore(folder / "index", WIDTH)) as store:
        names = [f"clip-{number}" for number in range(ENTRIES)]
        return len(store), [name for name in names if store.get(name) is not None]


def doubled(folder: Path) -> list[str]:
    """Whether the count and the entries found agree."""
    count, found = known(folder)
    return [] if count == len(found) else [f"{count} entries are counted, {len(found)} are there"]


def add(folder: Path) -> None:
    """Adds what is not there yet, in portions, as `equiav index` does."""
    with contextlib.closing(LocalStore(folder / "index", WIDTH)) as store:
        for first in range(0, ENTRIES, 20):
            new = [e for e in entries(20, first=first, seed=first) if store.get(e.clip.id) is None]
            if new:
                store.add(new)


def remove(folder: Path) -> None:
    with contextlib.closing(LocalStore(folder / "index", WIDTH)) as store:
        for first in range(0, ENTRIES, 20):
            store.remove([e.clip.id for e in entries(20, first=first, seed=first)][:10])


def create(folder: Path) -> None:
    LocalStore.create(folder / "index")


def filled(folder: Path) -> None:
    create(folder)
    add(folder)


def media(folder: Path) -> None:
    for number in range(6):
        write_media(folder / f"media/{number}.mkv", seconds=1.5)


def pretrain(folder: Path) -> None:
    config = small_config("train.steps=12", "train.checkpoint_every=1", "train.workers=0", "train.evaluate_every=null")
    Trainer(config, folder / "run", lambda line: None).run()


def finetune(folder: Path) -> None:
    small = ("data.count=24", "train.batch=8", "train.steps=9", "train.checkpoint_every=1", "train.workers=0")
    config = load_config(ROOT / "configs/finetune/smoke.yaml", small)
    splits = build_splits(config)
    Finetuner(resolve_finetuning(config, splits, 1)[0], splits, folder / "run", lambda line: None).run()


def model(folder: Path) -> None:
    config = small_config()
    save_model(folder / "model", config, build_model(config).state_dict(), {"kind": "pretrained"})


def once(write: Callable[[Path, Path], object]) -> Callable[[Path], None]:
    """For what refuses an output that is there: a finished one stays."""
    return lambda folder: None if (folder / "out").exists() else write(folder / "model", folder / "out") and None


def last(folder: Path) -> tuple[int, str]:
    step, path = checkpoints_of(folder / "run")[-1]
    return step, weights(path)


def clips(folder: Path) -> list[str]:
    dataset = ShardDataset(folder / "out", None)
    return [dataset.clip(i).id for i in range(len(dataset)) if dataset.sample(i, 0)]


OPERATIONS = {
    "prepare": Operation(
        lambda folder: prepare(find_sources(folder / "media"), folder / "out", workers=1, clip_seconds=0.5),
        clips,
        before=media,
    ),
    "index-add": Operation(add, known, doubled, create),
    "index-remove": Operation(remove, known, doubled, filled),
    "index-migrate": Operation(known, known, before=lambda folder: unpack(folder / "index")),
    "pretrain": Operation(pretrain, last, damaged_run),
    "finetune": Operation(finetune, lambda folder: (last(folder), weights(folder / "run/best")), damaged_run),
    "convert": Operation(
        once(lambda source, out: convert(source, out, heads=4)),
        lambda folder: weights(folder / "out"),
        damaged_out,
        lambda folder: torch.save(
            golden_recipe.state(golden_recipe.pretrain_shapes(SIZES), SIZES, 0.15), folder / "model"
        ),
    ),
    "export": Operation(
        once(lambda source, out: export(source, out, onnx=False)),
        lambda folder: weights(folder / "out"),
        damaged_out,
        model,
    ),
}


def start(run: Callable[[Path], object], folder: Path) -> int:
    """The operation in a process group of its own; what it says is not heard."""
    pid = os.fork()
    if pid:
        return pid
    os.setsid()
    silence = os.open(os.devnull, os.O_WRONLY)
    os.dup2(silence, 1)
    code = 1
    try:
        run(folder)
        code = 0
    except BaseException as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
    finally:
        sys.stderr.flush()
        os._exit(code)


def finish(pid: int) -> int:
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def tried(name: str, operation: Operation, kills: int, moments: random.Random, place: Path) -> list[str]:
    """What was found wrong."""
    whole, parts = place / "whole", place / "parts"
    for folder in (whole, parts):
        folder.mkdir(parents=True)
        operation.before(folder)
    begun = time.monotonic()
    if finish(start(operation.run, whole)):
        return ["the undisturbed run failed"]
    seconds = time.monotonic() - begun
    wanted, faults, killed = operation.result(whole), [], 0
    for number in range(kills):
        if number % 3 == 2:  # now and then from the beginning: later kills would find everything done
            shutil.rmtree(parts)
            parts.mkdir()
            operation.before(parts)
        pid = start(operation.run, parts)
        time.sleep(moments.uniform(0, seconds))
        with contextlib.suppress(ProcessLookupError):
            os.killpg(pid, signal.SIGKILL)
        killed += finish(pid) == -signal.SIGKILL
        faults += operation.check(parts)
    if finish(start(operation.run, parts)):
        return [*faults, "the run after the kills failed"]
    if operation.result(parts) != wanted:
        faults.append("the result after kills differs from the undisturbed one")
    left = [path for path in parts.rglob(".*") if path.suffix in (".tmp", ".old", ".draft")]
    faults += [f"left behind: {path.name}" for path in left]
    print(f"{name}: {killed} of {kills} killed while at work ({seconds:.1f} s), {len(faults)} faults", flush=True)
    return faults


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=10)
    parser.add_argument("--only", nargs="*", choices=OPERATIONS, default=list(OPERATIONS))
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    found = []
    for name in arguments.only:
        with tempfile.TemporaryDirectory() as place:
            moments = random.Random(f"{arguments.seed} {name}")
            found += [
                f"{name}: {fault}" for fault in tried(name, OPERATIONS[name], arguments.kills, moments, Path(place))
            ]
    print("\n".join(found) or "nothing lost, nothing doubled, nothing left half-written")
    sys.exit(bool(found))


if __name__ == "__main__":
    main()
