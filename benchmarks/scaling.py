"""Time per clip and memory of prepare, merge, embed and index, from a thousand clips to a hundred thousand.

    python benchmarks/scaling.py       # 25 minutes on two idle cores, 6 GB of disk; results/scaling.json, a plot

Media are films of half a second and 32 x 32 pixels, each a file of its own content; what is prepared is shared out
among two parts for merge; embedding uses the smoke recipe's model, the index gets synthetic vectors of 512, in portions
as `equiav index` adds them. What is measured is the book-keeping about the work, which is where time per clip and
memory would grow. Each step runs in a process of its own, with one thread and one worker. Of merge, embed and index the
CPU time of the work itself counts; of prepare, which starts processes, that of all of them less that of the same step
on a single clip (starting Python and torch). Memory is the most that the process of the step held, and, of prepare, its
worker; beside it stands how many times that at the smallest size it is.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import shutil
import statistics
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).parents[1]
RESULTS = Path(__file__).parent / "results" / "scaling.json"
PLOT = ROOT / "docs" / "images" / "scaling.png"
STAGES = ("prepare", "merge", "embed", "index")
WIDTH, PORTION, RATE, SECONDS, FPS, SIDE = 512, 1024, 16000, 0.52, 2, 32
SHARD_BYTES = 4 << 20  # small, so that also a thousand clips fill some
TURNS = 3  # of starting up
PR_SET_CHILD_SUBREAPER = 36


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", type=int, nargs="+", default=[1000, 10000, 100000])
    parser.add_argument("--folder", type=Path, help="where there is room for the media and what is made of them")
    parser.add_argument("--results", type=Path, default=RESULTS)
    parser.add_argument("--plot", type=Path, default=PLOT)
    parser.add_argument("--stage", choices=STAGES, help=argparse.SUPPRESS)  # what the processes are started with
    parser.add_argument("--count", type=int, help=argparse.SUPPRESS)
    return parser.parse_args()


def tiny_film(path: Path) -> None:
    """A tone and a grey frame, in formats that cost least to decode."""
    import av

    tone = 1e4 * np.sin(2 * np.pi * 440 * np.arange(round(SECONDS * RATE)) / RATE)
    with av.open(str(path), "w") as container:
        video, audio = container.add_stream("mjpeg", rate=Fraction(FPS)), container.add_stream("pcm_s16le", rate=RATE)
        video.width = video.height = SIDE
        video.pix_fmt, audio.layout = "yuvj420p", "mono"
        grey = av.VideoFrame.from_ndarray(np.full((SIDE, SIDE, 3), 100, np.uint8), format="rgb24")
        container.mux(video.encode(grey))
        sound = av.AudioFrame.from_ndarray(tone.astype(np.int16)[None], format="s16", layout="mono")
        sound.sample_rate = RATE
        container.mux([*audio.encode(sound), *video.encode(), *audio.encode()])


def media(folder: Path, count: int) -> Path:
    """So many films; an empty box at the end, which readers skip, tells each from the others."""
    place = folder / f"media-{count}"
    place.mkdir(parents=True)
    tiny_film(folder / "film.mov")
    content = (folder / "film.mov").read_bytes()
    for number in range(count):
        (place / f"{number:06d}.mov").write_bytes(content + struct.pack(">I4sQ", 16, b"free", number))
    return place


def prepare_stage(folder: Path, count: int) -> int:
    from equiav.data import find_sources, prepare

    sources = find_sources(folder / f"media-{count}")
    out = folder / f"shards-{count}"
    return prepare(sources, out, workers=1, short_side=SIDE, frames=1, shard_bytes=SHARD_BYTES).clips


def share_out(folder: Path, count: int) -> None:
    """What was prepared, every other shard of it in either of two parts, as two machines would have made them."""
    from equiav.data import META, SHARDS, IndexWriter, PreparedIndex, read_meta
    from equiav.io import write_json

    whole = folder / f"shards-{count}"
    meta, prepared = read_meta(whole), PreparedIndex(whole)
    del meta["checksums"]  # merge then takes those of the shards itself
    for k in (0, 1):
        part = folder / f"part{k + 1}-{count}"
        shards = prepared.shards[k::2]
        held = frozenset(shards)
        (part / SHARDS).mkdir(parents=True)
        for shard in shards:
            (part / SHARDS / shard).hardlink_to(whole / SHARDS / shard)
        with IndexWriter(part, shards) as index:
            for row in prepared.rows():
                if row.shard in held:
                    index.add(row)
        write_json(part / META, {**meta, "part": [k + 1, 2]})


def merge_stage(folder: Path, count: int) -> int:
    from equiav.data import merge

    return merge([folder / f"part{k}-{count}" for k in (1, 2)], folder / f"merged-{count}").clips


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
    "prepare": prepare_stage, "merge": merge_stage, "embed": embed_stage, "index": index_stage,
}  # fmt: skip


def in_this_process(stage: str, folder: Path, count: int) -> dict[str, Any]:
    import equiav.data  # noqa: F401  starting up does not count

    begin = time.process_time()
    done = WORK[stage](folder, count)
    cpu = time.process_time() - begin
    assert done == count, f"{stage}: {done} of {count} clips"
    # Not getrusage: it would count what the process that started this one held.
    most = int(Path("/proc/self/status").read_text().split("VmHWM:")[1].split()[0])
    return {"own_cpu_seconds": cpu, "peak_mb": most * 1024 / 1e6}


def measured(stage: str, folder: Path, count: int) -> dict[str, Any]:
    """The step in a process of its own; `others_mb` is the most that any process it started held."""
    command = [sys.executable, __file__, "--stage", stage, "--count", str(count), "--folder", str(folder)]
    begin, cpu, others = time.perf_counter(), 0.0, 0
    with subprocess.Popen(command, env={**os.environ, "OMP_NUM_THREADS": "1"}, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        out = process.stdout.read()
        with suppress(ChildProcessError):  # until there are no more: those it left behind come here
            while True:
                number, status, used = os.wait4(-1, 0)
                cpu += used.ru_utime + used.ru_stime
                if number == process.pid:
                    process.returncode = os.waitstatus_to_exitcode(status)
                else:
                    others = max(others, used.ru_maxrss)
    if process.returncode:
        raise SystemExit(f"{stage} of {count} clips failed")
    seconds = time.perf_counter() - begin
    return {"cpu_seconds": cpu, "seconds": seconds, "others_mb": others * 1024 / 1e6, **json.loads(out)}


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


def all_stages(folder: Path, count: int) -> Iterator[tuple[str, dict[str, Any]]]:
    """Every step on so many clips; what was made goes when it is done with."""
    media(folder, count)
    for stage in STAGES:
        if stage == "merge":
            share_out(folder, count)
        yield stage, measured(stage, folder, count)
    for made in folder.glob(f"*-{count}"):
        shutil.rmtree(made)


def all_sizes(folder: Path, sizes: list[int], results: Path) -> dict[str, Any]:
    """Every step at every size; the file is written after each step."""
    from equiav.io import provenance, write_json

    media(folder, 1)
    lone = []
    for _ in range(TURNS):
        lone.append(measured("prepare", folder, 1)["cpu_seconds"])
        shutil.rmtree(folder / "shards-1")
    starting = statistics.median(lone)
    record: dict[str, Any] = {"sizes": sizes, "start_up_cpu_seconds": starting, "stages": {s: {} for s in STAGES}}
    for count in sizes:
        for stage, run in all_stages(folder, count):
            cpu = run["cpu_seconds"] - starting if stage == "prepare" else run["own_cpu_seconds"]
            runs = record["stages"][stage]
            runs[str(count)] = run
            run["cpu_ms_per_clip"] = each = cpu / count * 1000
            run["times_the_memory"] = grown = run["peak_mb"] / runs[str(sizes[0])]["peak_mb"]
            line = f"{each:.2f} CPU-ms each, {run['peak_mb']:.0f} MB, {grown:.3f} times that of {sizes[0]:,}"
            print(f"{stage}, {count:,} clips: {line}", flush=True)
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
