"""What checksums and isolated decoding cost whoever has nothing to hide: each path with and without, turn by turn.

    python benchmarks/protections.py        # five minutes on an idle machine; writes results/protections.json

Checkpoints are saved and loaded with and without SHA-256; a prepared folder is opened and read with and without; an
index is opened and searched for the first time with and without; videos are embedded in worker processes, which are
used again, and in the process itself. Whole is what a command does: loading the model and embedding the videos, with
all protections and with none.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import torch

from equiav.build import build_model
from equiav.checkpoint import load_checkpoint, save_model
from equiav.config import Config, parse_config
from equiav.data import ShardDataset, find_sources, prepare
from equiav.inference import Embedder, load_model
from equiav.io import provenance, write_json
from equiav.media import Workers
from equiav.search import Entry, Index, Query
from equiav.types import Clip
from equiav.web import write_film

RESULTS = Path(__file__).parent / "results" / "protections.json"
TURNS = 5


def config_of(size: str) -> Config:
    """A model of one of the sizes of ViT; `tiny` is for trying this out."""
    return parse_config({"model": {"encoder": {"size": size}}, "bank": {"size": 4}}, "benchmark")


@contextmanager
def without_checksums() -> Iterator[None]:
    """Nothing is compared, and no sums of checkpoints are written."""
    with ExitStack() as stack:
        for name, instead in {
            "equiav.checkpoint.check_sums": lambda *_: [],
            "equiav.checkpoint.write_sums": lambda *_: None,
            "equiav.search.database.check_database": lambda *_: None,
            "equiav.search.store._damaged": lambda *_: np.zeros(0, np.int64),
        }.items():
            stack.enter_context(patch(name, instead))
        yield


class Memory:
    """The most that this process and those it started have held since, in MB."""

    def __enter__(self) -> Memory:
        Path("/proc/self/clear_refs").write_text("5")  # forgets the peak
        self.before, self.children, self._over = self._peak(), 0.0, threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()
        self.grown = self._peak() - self.before + self.children

    @staticmethod
    def _peak() -> float:
        lines = Path("/proc/self/status").read_text().splitlines()
        return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM")) / 1000

    def _watch(self) -> None:
        while not self._over.wait(0.05):
            held = 0
            for children in Path(f"/proc/{os.getpid()}/task").glob("*/children"):
                for child in children.read_text().split():
                    held += _resident(child)
            self.children = max(self.children, held / 1e6)


def cpu_seconds() -> float:
    """CPU time of this process and of those it started that still run."""
    ticks, waiting = 0, [str(os.getpid())]
    while waiting:
        pid = waiting.pop()
        with suppress(OSError):  # ended by now
            ticks += sum(map(int, Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[11:13]))
            waiting += [c for f in Path(f"/proc/{pid}/task").glob("*/children") for c in f.read_text().split()]
    return ticks / os.sysconf("SC_CLK_TCK")


def _resident(pid: str) -> int:
    """Bytes that a process and those it started hold for themselves alone."""
    try:
        pages = Path(f"/proc/{pid}/statm").read_text().split()
        inner = [c for f in Path(f"/proc/{pid}/task").glob("*/children") for c in f.read_text().split()]
        own = (int(pages[1]) - int(pages[2])) * os.sysconf("SC_PAGE_SIZE")
        return own + sum(map(_resident, inner))
    except OSError:  # ended by now
        return 0


def compared(name: str, turns: int, ways: dict[str, Callable[[], object]]) -> dict[str, Any]:
    """Time and memory of two ways of doing something, taken in turns; the second is the reference."""
    seconds: dict[str, list[float]] = {way: [] for way in ways}
    cpu: dict[str, list[float]] = {way: [] for way in ways}
    memory: dict[str, list[float]] = {way: [] for way in ways}
    for turn in range(turns + 1):
        for way, run in ways.items():
            with Memory() as held:
                begun, begun_cpu = time.perf_counter(), cpu_seconds()
                run()
                took, took_cpu = time.perf_counter() - begun, cpu_seconds() - begun_cpu
            if turn:  # the first fills the caches
                seconds[way].append(took)
                cpu[way].append(took_cpu)
                memory[way].append(held.grown)
    taken = {"seconds": seconds, "cpu_seconds": cpu, "memory_mb": memory}
    record = {way: {what: statistics.median(of[way]) for what, of in taken.items()} for way in ways}
    one, other = (record[way] for way in ways)
    more = {f"more_{what}": one[what] / max(other[what], 1e-9) - 1 for what in ("seconds", "cpu_seconds")}
    print(f"{name}: {record}, {more}", flush=True)
    return {**record, **more}


def make_films(folder: Path, count: int) -> Path:
    """Films of ten seconds."""
    folder.mkdir()
    dice = np.random.default_rng(0)
    for number in range(count):
        small = dice.integers(0, 255, (20, 15, 20, 3)).astype(np.uint8)
        sound = (0.3 * np.sin(np.arange(160_000) * (number + 5) / 97)).astype(np.float32)
        write_film(folder / f"{number}.mp4", small.repeat(16, 1).repeat(16, 2), sound, rate=16000, seconds=10)
    return folder


def unprotected(run: Callable[[], object]) -> Callable[[], object]:
    def plain() -> object:
        with without_checksums():
            return run()

    return plain


def measured(size: str, turns: int, count: int, home: Path) -> dict[str, Any]:
    """All comparisons."""
    config, found = config_of(size), {}
    weights = build_model(config).state_dict()

    def save() -> None:
        save_model(home / "model", config, weights, {"kind": "pretrained"})

    def load() -> object:
        return load_checkpoint(home / "model")

    for name, run in (("save_checkpoint", save), ("load_checkpoint", load)):
        save()  # with sums, whatever was measured before
        found[name] = compared(name, turns, {"checked": run, "unchecked": unprotected(run)})
    found["load_checkpoint"]["megabytes"] = (home / "model/weights.safetensors").stat().st_size / 1e6

    films = make_films(home / "films", count)
    prepare(find_sources(films), home / "prepared", workers=1)

    def read(verify: bool) -> Callable[[], object]:
        def run() -> None:
            clips = ShardDataset(home / "prepared", None, size=224, verify=verify)
            for number in range(len(clips)):
                clips.sample(number, 0)

        return run

    found["read_prepared"] = compared("read_prepared", turns, {"checked": read(True), "unchecked": read(False)})

    model = load_model(home / "model")
    width = len(Embedder(model).audio((np.sin(np.arange(16000) / 7).astype(np.float32), 16000)))
    index = Index.create(home / "index", model)
    vectors = np.random.default_rng(0).standard_normal((20_000, width)).astype(np.float32)
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    for first in range(0, len(vectors), 2000):
        rows = range(first, first + 2000)
        index.add([Entry(Clip(f"c{i}"), {"audio": vectors[i]}) for i in rows], made_by=index.digest)
    index.close()

    def search() -> None:
        opened = Index.open(home / "index")
        opened.search(Query(vectors[5], "visual", opened.digest), k=10)
        opened.search(Query(vectors[5], "audio", opened.digest), k=10)
        opened.close()

    found["first_search"] = compared("first_search", turns, {"checked": search, "unchecked": unprotected(search)})

    paths = sorted(films.iterdir())
    with Workers(1) as workers:

        def embed(workers: Workers | None) -> Callable[[], object]:
            def run() -> None:
                embedder = Embedder(model, workers=workers)
                for path in paths:
                    list(embedder.windows(path))

            return run

        found["embed"] = compared("embed", turns, {"isolated": embed(workers), "in_process": embed(None)})

        def whole(workers: Workers | None) -> Callable[[], object]:
            def run() -> None:
                embedder = Embedder(load_model(home / "model"), workers=workers)
                for path in paths:
                    list(embedder.windows(path))

            return run

        ways = {"protected": whole(workers), "unprotected": unprotected(whole(None))}
        found["whole"] = compared("whole", turns, ways)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", default="base", help="tiny, small or base")
    parser.add_argument("--turns", type=int, default=TURNS)
    parser.add_argument("--films", type=int, default=10)
    parser.add_argument("--results", type=Path, default=RESULTS)
    given = parser.parse_args()
    torch.manual_seed(0)
    with tempfile.TemporaryDirectory() as home:
        found = measured(given.size, given.turns, given.films, Path(home).resolve())
    settings = {"size": given.size, "turns": given.turns, "films": given.films}
    write_json(given.results, {**settings, "paths": found, "provenance": provenance()})


if __name__ == "__main__":
    main()
