"""Kills what writes, cuts its power, and looks whether anything was lost, doubled or left half-written.

    python tools/kills.py [--kills 50] [--cuts 50] [--only prepare index-add ...] [--seed 0] [--results kills.json]

Each operation is run once undisturbed, which gives its result and its time. Then it is started again and again, each
time in a forked process group that is sent SIGKILL at a random moment of that time, on the same output; what is on the
disk is checked after every kill; at last it runs to its end, and must give what the undisturbed one gave.

Power is cut at a random write, sync or rename, or after the end. What was not synced is dropped: contents of files and
names in folders go back to their last sync, all of them, the contents alone, or each by the toss of a coin. What is
left is checked, the operation runs again, and must give what the undisturbed one gave. This needs Linux and a C
compiler. Run it from the root of the source tree: it uses the small recipes and media of the tests. Exit code 1:
something was found.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import hashlib
import json
import mmap
import multiprocessing
import os
import random
import shutil
import signal
import struct
import subprocess
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
from equiav.errors import EquiAVError
from equiav.export import export
from equiav.inference import Embedder, load_model
from equiav.io import provenance, write_json
from equiav.search import LocalStore, embed_files
from equiav.training import Finetuner, Trainer
from tests.errors.test_weights import SIZES_TINY as SIZES
from tests.media.making import write_media
from tests.paper import golden_recipe
from tests.search.format1 import unpack
from tests.search.making import WIDTH, entries
from tests.training.small import small_config

ROOT = Path(__file__).resolve().parents[1]
ENTRIES = 300
LIBRARY = "interposed.so"
SHARED = mmap.mmap(
    -1, 16
)  # what a forked process tells even if it is killed: disk operations, and what it has finished


@dataclass(frozen=True)
class Operation:
    """Something that writes into a folder: how it begins, what it does, what must hold at any time, what it gives.

    `finished` counts what of it is on the disk, at least what `acknowledge` was told.
    """

    run: Callable[[Path], object]
    result: Callable[[Path], Any]
    check: Callable[[Path], list[str]] = lambda folder: []
    before: Callable[[Path], object] = lambda folder: None
    finished: Callable[[Path], int] | None = None


def acknowledge(count: int) -> None:
    """Says that this much is done, as a command would say to its user."""
    SHARED[8:] = struct.pack("q", count)


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
            acknowledge(len(store))


def remove(folder: Path) -> None:
    with contextlib.closing(LocalStore(folder / "index", WIDTH)) as store:
        for first in range(0, ENTRIES, 20):
            store.remove([e.clip.id for e in entries(20, first=first, seed=first)][:10])
            acknowledge(ENTRIES - len(store))


def create(folder: Path) -> None:
    LocalStore.create(folder / "index")


def filled(folder: Path) -> None:
    create(folder)
    add(folder)


FILES, ROWS = 3, 3 * 3 * 2  # files of media; windows of half a second of them, with audio and frames


def media(folder: Path) -> None:
    for number in range(FILES):
        write_media(folder / f"media/{number}.mkv", seconds=1.5)


def pretrain(folder: Path) -> None:
    config = small_config("train.steps=6", "train.checkpoint_every=1", "train.workers=0", "train.evaluate_every=null")
    Trainer(config, folder / "run", lambda line: None).run()


def finetune(folder: Path) -> None:
    small = ("data.count=24", "train.batch=8", "train.steps=6", "train.checkpoint_every=1", "train.workers=0")
    config = load_config(ROOT / "configs/finetune/smoke.yaml", small)
    splits = build_splits(config)
    Finetuner(resolve_finetuning(config, splits, 1)[0], splits, folder / "run", lambda line: None).run()


def model(folder: Path) -> None:
    config = small_config()
    save_model(folder / "model", config, build_model(config).state_dict(), {"kind": "pretrained"})


def once(write: Callable[[Path, Path], object]) -> Callable[[Path], None]:
    """For what refuses an output that is there: a finished one stays."""
    return lambda folder: None if (folder / "out").exists() else write(folder / "model", folder / "out") and None


def embed(folder: Path) -> None:
    embedder = Embedder(load_model(folder / "model"))
    embed_files(embedder, [folder / "media"], folder / "out.jsonl", seconds=0.5, workers=1)


def rows(folder: Path) -> list[tuple[str, float, str, list[float]]]:
    """Vectors to the third digit: how many are embedded at a time may change the seventh."""
    lines = [json.loads(line) for line in (folder / "out.jsonl").read_text().splitlines()]
    return [(row["source"], row["start"], row["modality"], [round(x, 3) for x in row["vector"]]) for row in lines]


def halved(folder: Path) -> list[str]:
    """The vectors are not there, or all of them."""
    count = len(rows(folder)) if (folder / "out.jsonl").exists() else ROWS
    return [] if count == ROWS else [f"{count} rows of {ROWS}"]


def last(folder: Path) -> tuple[int, str]:
    step, path = checkpoints_of(folder / "run")[-1]
    return step, weights(path)


def media_and_model(folder: Path) -> None:
    media(folder)
    model(folder)


def clips(folder: Path) -> list[str]:
    dataset = ShardDataset(folder / "out", None)
    return [dataset.clip(i).id for i in range(len(dataset)) if dataset.sample(i, 0)]


OPERATIONS = {
    "prepare": Operation(
        lambda folder: prepare(find_sources(folder / "media"), folder / "out", workers=1, clip_seconds=0.5),
        clips,
        before=media,
    ),
    "index-add": Operation(add, known, doubled, create, lambda folder: known(folder)[0]),
    "index-remove": Operation(remove, known, doubled, filled, lambda folder: ENTRIES - known(folder)[0]),
    "index-migrate": Operation(known, known, before=lambda folder: unpack(folder / "index")),
    "pretrain": Operation(pretrain, last, damaged_run),
    "finetune": Operation(finetune, lambda folder: (last(folder), weights(folder / "run/best")), damaged_run),
    "embed": Operation(embed, rows, halved, media_and_model),
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


class Disk:
    """A folder as a power cut would leave it, by what `tools/interposed.c` kept of every sync."""

    def __init__(self, root: Path) -> None:
        self.root, self.library = root, ctypes.CDLL(None)
        self.kept = Path(os.environ["DISK_KEPT"])

    def settle(self) -> None:
        """All that is there now is on the disk."""
        for path in [self.root, *self.root.rglob("*")]:
            self.library.disk_keep(os.fsencode(path))

    def identity(self, path: Path) -> str:
        """Names a file or folder for good, as the library does."""
        name = ctypes.create_string_buffer(64)
        self.library.disk_identity(-100, os.fsencode(path), name, 64)
        return name.value.decode()

    def cut(self, how: str, coin: random.Random) -> None:
        """Power is lost: what was not synced goes, of `contents` alone, of `names` too, or of each by a coin."""
        here = {self.identity(path): path for path in [self.root, *self.root.rglob("*")]}
        lost = self.root.with_name("lost")

        def old(what: str) -> bool:
            return how == "names" or how == what or (how == "coin" and coin.random() < 0.5)

        def rebuild(name: str, target: Path) -> None:
            synced, path = self.kept / name, here.get(name)
            if name.startswith("d"):
                target.mkdir()
                if path is not None and not old("names"):
                    items = [(self.identity(item), item.name) for item in path.iterdir()]
                else:
                    words = synced.read_bytes().split(b"\0")[:-1] if synced.exists() else []
                    items = [(os.fsdecode(a), os.fsdecode(b)) for a, b in zip(words[::2], words[1::2], strict=True)]
                for inner, called in items:
                    rebuild(inner, target / called)
            else:
                content = synced.read_bytes() if synced.exists() else b""
                if path is not None and (not old("contents") or path.read_bytes() == content):
                    shutil.copy2(path, target)
                else:
                    target.write_bytes(content)

        rebuild(self.identity(self.root), lost)
        shutil.rmtree(self.root)
        lost.rename(self.root)


def start(run: Callable[[Path], object], folder: Path, *, at: int = 0) -> int:
    """The operation in a process group of its own, killed at a disk operation; what it says is not heard."""
    SHARED[:] = bytes(16)
    pid = os.fork()
    with contextlib.suppress(OSError):  # by both: whoever comes first
        os.setpgid(pid, pid)
    if pid:
        return pid
    silence = os.open(os.devnull, os.O_WRONLY)
    os.dup2(silence, 1)
    # Worker processes at once, not after seconds of imports: the kill shall come while they write.
    forked = multiprocessing.get_context("fork")
    multiprocessing.get_context = lambda method=None: forked  # type: ignore[assignment]
    code = 1
    counted = LIBRARY in os.environ.get("LD_PRELOAD", "")
    library = ctypes.CDLL(None)
    try:
        before = library.disk_ticks() if counted else 0
        if at:
            library.arm(at)
        run(folder)
        if at:
            library.arm(0)
        SHARED[:8] = struct.pack("q", library.disk_ticks() - before if counted else 0)
        code = 0
    except BaseException as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
    finally:
        sys.stderr.flush()
        os._exit(code)


def finish(pid: int) -> int:
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def end(pid: int) -> int:
    """Kills a process group and waits until all of it is gone; the exit code of the first process."""
    os.killpg(pid, signal.SIGKILL)
    code, until = finish(pid), time.monotonic() + 2.0
    with contextlib.suppress(ProcessLookupError):
        while time.monotonic() < until:  # the dead may stay in the list where nobody asks for their exit codes
            os.killpg(pid, signal.SIGKILL)
            time.sleep(0.01)
    return code


def faults_of(operation: Operation, folder: Path) -> list[str]:
    """What is wrong with what an interrupted operation left."""
    told = struct.unpack("q", SHARED[8:])[0]
    try:
        faults = operation.check(folder)
        if operation.finished is not None and (there := operation.finished(folder)) < told:
            faults.append(f"{told} were acknowledged, {there} are there")
        return faults
    except EquiAVError as error:
        return [f"refused: {error}"]


def given(operation: Operation, folder: Path) -> Any:
    """The result, or why there is none."""
    try:
        return operation.result(folder)
    except (EquiAVError, LookupError, OSError) as error:
        return f"{type(error).__name__}: {error}"


def renewed(folder: Path) -> None:
    """The folder as it is before the operation."""
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(folder.with_name("before"), folder)


def ended(operation: Operation, folder: Path, wanted: Any) -> list[str]:
    """Runs the operation to its end; what differs from the undisturbed one."""
    if finish(start(operation.run, folder)):
        return ["the run afterwards failed"]
    result = given(operation, folder)
    faults = [] if result == wanted else [f"the result differs from the undisturbed one: {str(result)[:200]}"]
    left = [path for path in folder.rglob(".*") if path.suffix in (".tmp", ".old", ".draft", ".partial")]
    return faults + [f"left behind: {path.name}" for path in left]


def tried(operation: Operation, kills: int, cuts: int, moments: random.Random, place: Path) -> dict[str, Any]:
    """How often it was interrupted while at work, and what was found wrong."""
    before, whole, parts = place / "before", place / "whole", place / "parts"
    before.mkdir()
    operation.before(before)
    renewed(whole)
    begun = time.monotonic()
    if finish(start(operation.run, whole)):
        return {"faults": ["the undisturbed run failed"]}
    seconds, operations = time.monotonic() - begun, struct.unpack("q", SHARED[:8])[0]
    wanted, faults, killed, cut = operation.result(whole), [], 0, 0
    done = True
    for number in range(10 * kills):  # until so many were killed before they had ended
        if done or number % 3 == 0:  # now and then from the beginning: later kills would find everything done
            renewed(parts)
        pid = start(operation.run, parts)
        time.sleep(moments.uniform(0, seconds))
        code = end(pid)
        done, killed = code == 0, killed + (code == -signal.SIGKILL)
        faults += ["a run failed"] * (code > 0) + faults_of(operation, parts)
        if killed == kills:
            break
    if kills:
        faults += ended(operation, parts, wanted)
    for number in range(cuts):
        renewed(parts)
        disk = Disk(parts)
        disk.settle()
        at = 10**9 if number < 3 else moments.randint(1, operations)  # the first three after the end
        pid = start(operation.run, parts, at=at)
        os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
        code = end(pid)
        cut += code == -signal.SIGKILL
        how = ("names", "contents", "coin")[number % 3]
        disk.cut(how, moments)
        found = faults_of(operation, parts)
        if code == 0 and (result := given(operation, parts)) != wanted:
            found.append(f"what was finished is lost: {str(result)[:200]}")
        elif code > 0:
            found.append("the run failed")
        found += ended(operation, parts, wanted)
        faults += [f"{fault} (power cut at {at} of {operations}, {how})" for fault in found]
        for file in disk.kept.iterdir():
            file.unlink()
    counts = {"kills": killed, "power_cuts": cuts, "power_cuts_at_work": cut, "disk_operations": operations}
    return {"seconds": round(seconds, 2), **counts, "faults": faults}


def preloaded() -> None:
    """Starts this program again with the library that keeps what was synced."""
    compiler = shutil.which("cc")
    if compiler is None or not sys.platform.startswith("linux"):
        sys.exit("cutting the power needs Linux and a C compiler; --cuts 0 leaves it out")
    with tempfile.TemporaryDirectory() as place:
        library, kept = Path(place) / LIBRARY, Path(place) / "kept"
        kept.mkdir()
        source = Path(__file__).with_name("interposed.c")
        subprocess.run([compiler, "-shared", "-fPIC", "-o", library, source, "-ldl"], check=True)
        environment = {**os.environ, "LD_PRELOAD": str(library), "DISK_KEPT": str(kept)}
        sys.exit(subprocess.run([sys.executable, *sys.argv], env=environment, check=False).returncode)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=10)
    parser.add_argument("--cuts", type=int, default=10, help="power cuts")
    parser.add_argument("--only", nargs="*", choices=OPERATIONS, default=list(OPERATIONS))
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--results", type=Path, help="a JSON file to write; other operations in it stay")
    arguments = parser.parse_args()
    if arguments.cuts and "DISK_KEPT" not in os.environ:
        preloaded()
    torch.set_num_threads(1)
    record = {"operations": {}}
    if arguments.results and arguments.results.exists():
        record = json.loads(arguments.results.read_text())
    found = {}
    for name in arguments.only:
        with tempfile.TemporaryDirectory() as place:
            moments = random.Random(f"{arguments.seed} {name}")
            found[name] = tried(OPERATIONS[name], arguments.kills, arguments.cuts, moments, Path(place).resolve())
        print(f"{name}: {found[name]}", flush=True)
        if arguments.results:
            operations = record["operations"] | found
            write_json(
                arguments.results, {"seed": arguments.seed, "operations": operations, "provenance": provenance()}
            )
    faults = [f"{name}: {fault}" for name, one in found.items() for fault in one["faults"]]
    print("\n".join(faults) or "nothing lost, nothing doubled, nothing left half-written")
    sys.exit(bool(faults))


if __name__ == "__main__":
    main()
