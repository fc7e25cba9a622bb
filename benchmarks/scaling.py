"""Time per clip and memory of prepare, embed and index, from a thousand clips to thirty thousand: both stay flat.

    python benchmarks/scaling.py       # 20 minutes on two idle cores, 3 GB of disk; results/scaling.json, a plot

Media are films of 2 s and 64 x 48 pixels, each a file of its own content; embedding uses the smoke recipe's model, the
index gets synthetic vectors of 512, in portions as `equiav index` adds them. What is measured is the book-keeping about
the work, which is where time per clip would grow. Each step runs in a process of its own, with one thread and one
worker. Of embed and index the CPU time of the work itself counts; of prepare, which starts processes, that of all of
them less that of the same step on a single clip (starting Python and torch). Memory is the most that any one process
held.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import resource
import shutil
import statistics
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np

from prepare import children_cpu

ROOT = Path(__file__).parents[1]
RESULTS = Path(__file__).parent / "results" / "scaling.json"
PLOT = ROOT / "docs" / "images" / "scaling.png"
STAGES = ("prepare", "embed", "index")
WIDTH, PORTION, RATE, SECONDS, FPS = 512, 1024, 16000, 2.2, 5
TURNS = 3  # of starting up
PR_SET_CHILD_SUBREAPER = 36


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", type=int, nargs="+", default=[1000, 3000, 10000, 30000])
    parser.add_argument("--folder", type=Path, help="where there is room for the media and what is made of them")
    parser.add_argument("--results", type=Path, default=RESULTS)
    parser.add_argument("--plot", type=Path, default=PLOT)
    parser.add_argument("--stage", choices=STAGES, help=argparse.SUPPRESS)  # what the processes are started with
    parser.add_argument("--count", type=int, help=argparse.SUPPRESS)
    return parser.parse_args()


def tiny_film(path: Path) -> None:
    """A tone and a few grey pictures."""
    import av

    tone = 0.3 * np.sin(2 * np.pi * 440 * np.arange(round(SECONDS * RATE)) / RATE)
    with av.open(str(path), "w") as container:
        film, track = container.add_stream("mpeg4", rate=Fraction(FPS)), container.add_stream("aac", rate=RATE)
        film.width, film.height, film.pix_fmt = 64, 48, "yuv420p"
        track.layout = "mono"
        for number in range(round(SECONDS * FPS)):
            picture = np.full((48, 64, 3), 40 + 10 * number, np.uint8)
            container.mux(film.encode(av.VideoFrame.from_ndarray(picture, format="rgb24")))
        sound = av.AudioFrame.from_ndarray(tone.astype(np.float32)[None], format="fltp", layout="mono")
        sound.sample_rate = RATE
        container.mux(track.encode(sound))
        container.mux([*film.encode(), *track.encode()])


def media(folder: Path, count: int) -> Path:
    """So many films; an empty box at the end, which readers skip, tells each from the others."""
    place = folder / f"media-{count}"
    place.mkdir(parents=True)
    tiny_film(folder / "film.mp4")
    content = (folder / "film.mp4").read_bytes()
    for number in range(count):
        (place / f"{number:06d}.mp4").write_bytes(content + struct.pack(">I4sQ", 16, b"free", number))
    return place


def prepare_stage(folder: Path, count: int) -> int:
    from equiav.data import find_sources, prepare

    sources = find_sources(folder / f"media-{count}")
    return prepare(sources, folder / f"shards-{count}", workers=1, short_side=48, frames=2).clips


def embed_stage(folder: Path, count: int) -> int:
    from equiav.build import build_model
    from equiav.config import load_config
    from equiav.data import ShardDataset
    from equiav.evaluation import embed_dataset
    from equiav.inference import with_banks

    config = load_config(ROOT / "configs/pretrain/smoke.yaml")
    clips = ShardDataset(folder / f"shards-{count}", None, size=config.visual.size)
    return len(embed_dataset(with_banks(build_model(config), config), clips).ids)


def index_stage(folder: Path, count: int) -> int:
    from equiav.search import Entry, LocalStore
    from equiav.types import Clip

    place = folder / f"index-{count}"
    LocalStore.create(place)
    store = LocalStore(place, WIDTH)
    for start in range(0, count, PORTION):
        numbers = range(start, min(start + PORTION, count))
        x = np.random.default_rng(start).standard_normal((2, len(numbers), WIDTH), np.float32)
        x /= np.linalg.norm(x, axis=-1, keepdims=True)
        store.add([
            Entry(
                Clip(f"clip-{i}", f"{i // 10}.mp4", None, 10.0 * (i % 10), 10.0, (f"kind {i % 50}",)),
                {"audio": a, "visual": v},
            )
            for i, a, v in zip(numbers, *x, strict=True)
        ])  # fmt: skip
    return len(store)


WORK: dict[str, Callable[[Path, int], int]] = {
    "prepare": prepare_stage, "embed": embed_stage, "index": index_stage,
}  # fmt: skip


def in_this_process(stage: str, folder: Path, count: int) -> dict[str, Any]:
    begin = time.process_time()
    done = WORK[stage](folder, count)
    cpu = time.process_time() - begin
    assert done == count, f"{stage}: {done} of {count} clips"
    # Not getrusage for this process: it would count what the one that started it held.
    own = int(Path("/proc/self/status").read_text().split("VmHWM:")[1].split()[0])
    most = max(own, resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)
    return {"own_cpu_seconds": cpu, "peak_mb": most * 1024 / 1e6}


def measured(stage: str, folder: Path, count: int) -> dict[str, Any]:
    """The step in a process of its own."""
    command = [sys.executable, __file__, "--stage", stage, "--count", str(count), "--folder", str(folder)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    before, begin = children_cpu(), time.perf_counter()
    out = subprocess.run(command, check=True, env=environment, stdout=subprocess.PIPE, text=True).stdout
    return {"cpu_seconds": children_cpu() - before, "seconds": time.perf_counter() - begin, **json.loads(out)}


def plot(record: dict[str, Any], path: Path) -> None:
    from equiav.report import curves, new_figure, save

    figure = new_figure(9, 3.4)
    left, right = figure.subplots(1, 2)
    for axis, key, label in ((left, "cpu_ms_per_clip", "CPU-ms per clip"), (right, "peak_mb", "peak memory, MB")):
        series = {
            stage: ([int(n) for n in runs], [run[key] for run in runs.values()])
            for stage, runs in record["stages"].items()
        }
        curves(axis, series, "clips", label)
        axis.set_xscale("log")
        axis.set_ylim(bottom=0)
        axis.set_xticks(record["sizes"], [f"{n:,}" for n in record["sizes"]], minor=False)
        axis.minorticks_off()
    save(figure, path)


def all_stages(folder: Path, count: int) -> dict[str, dict[str, Any]]:
    """Every step on so many clips; what was made goes when it is done with."""
    media(folder, count)
    runs = {stage: measured(stage, folder, count) for stage in STAGES}
    for made in folder.glob(f"*-{count}"):
        shutil.rmtree(made)
    return runs


def all_sizes(folder: Path, sizes: list[int], results: Path) -> dict[str, Any]:
    """Every step at every size; the file is written after each size."""
    from equiav.io import provenance, write_json

    lone = [all_stages(folder, 1) for _ in range(TURNS)]
    starting = {stage: statistics.median(run[stage]["cpu_seconds"] for run in lone) for stage in STAGES}
    record: dict[str, Any] = {"sizes": sizes, "start_up_cpu_seconds": starting, "stages": {s: {} for s in STAGES}}
    for count in sizes:
        for stage, run in all_stages(folder, count).items():
            cpu = run["cpu_seconds"] - starting[stage] if stage == "prepare" else run["own_cpu_seconds"]
            each = cpu / count * 1000
            record["stages"][stage][str(count)] = {**run, "cpu_ms_per_clip": each}
            print(f"{stage}, {count:,} clips: {each:.2f} CPU-ms each, {run['peak_mb']:.0f} MB", flush=True)
        write_json(results, {**record, "provenance": provenance()})
    return record


def main() -> None:
    args = arguments()
    if args.stage:
        print(json.dumps(in_this_process(args.stage, args.folder, args.count)))
        return
    # Orphaned descendants come to this process, so that their CPU time is counted.
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    with tempfile.TemporaryDirectory(dir=args.folder) as folder:
        record = all_sizes(Path(folder), args.sizes, args.results)
    plot(record, args.plot)


if __name__ == "__main__":
    main()
