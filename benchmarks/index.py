"""`equiav index` on one core and on two, and its CPU time beside that of `equiav prepare`, on the same videos.

    python benchmarks/index.py FOLDER_OF_VIDEOS [--model RUN]     # nothing else may run; writes results/index.json

An untrained micro model with the inputs of the recipe `pretrain/world` (hears 1.44 s) makes the vectors. Every command
is a process of its own: on one core with one worker, then on two with two, in alternate turns; medians. What Python and
torch need to start (the same command on the smallest video) is taken off and stated. Both indexes must hold the same
entries; torch adds in another order on two threads, so their vectors agree to rounding, and the largest difference is
stated. Seconds are by the clock; CPU seconds are those of all processes.

With a trained model: what it costs that windows this short are seen by two frames a second and not by ten a window.
"""

from __future__ import annotations

import argparse
import ctypes
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import numpy as np
from benchmarks.prepare import PR_SET_CHILD_SUBREAPER, children_cpu

from equiav.build import build_model
from equiav.checkpoint import save_model
from equiav.config import load_config
from equiav.inference import Embedder, load_model
from equiav.io import provenance, write_json
from equiav.media import Cut, open_media, read_clips, stacked
from equiav.search import SIDES, Index
from equiav.types import Clip

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks" / "results" / "index.json"
CLI = [sys.executable, "-m", "equiav.cli"]


def timed(command: list[str], cores: int) -> tuple[float, float]:
    """Seconds by the clock and CPU seconds of a command and all its processes, on the first `cores` cores."""
    before, began = children_cpu(), time.perf_counter()
    environment = {**os.environ, "OMP_NUM_THREADS": str(cores)}
    subprocess.run(
        command,
        check=True,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        env=environment,
        preexec_fn=lambda: os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:cores]),
    )
    clock = time.perf_counter() - began
    return clock, children_cpu() - before


def content(folder: Path) -> tuple[list[Clip], dict[str, Any]]:
    """All of an index: clips in order, and vectors by modality."""
    index = Index.open(folder)
    clips, vectors = list(index.clips()), {side: index.vectors(side) for side in SIDES}
    index.close()
    return clips, vectors


def fewer_frames(run: Path, videos: Path, seconds: float) -> dict[str, Any]:
    """Visual vectors of windows as they are embedded, beside those of ten frames each."""
    embedder, few, ten = Embedder(load_model(run)), [], []
    for path in sorted(p for p in videos.rglob("*") if p.is_file()):
        windows = [w for w in embedder.windows(path, seconds=seconds) if w.visual is not None]
        cuts = [Cut(w.start, w.end - w.start) for w in windows]
        clips = read_clips(path, cuts, open_media(path), short_side=256, audio=False) if cuts else ()
        ten += [vector for _, vector in embedder.clips([(None, stacked(clip.frames)) for clip in clips])]
        few += [w.visual for w in windows]
    one, other = np.stack(few), np.stack(ten)

    def nearest(queries: Any) -> Any:
        scores = queries @ other.T
        np.fill_diagonal(scores, -2)  # itself
        return np.argsort(-scores, axis=1)[:, :10]

    cosines, pairs = (one * other).sum(axis=1), zip(nearest(one), nearest(other), strict=True)
    return {
        "windows": len(one), "seconds": seconds, "cosine": float(cosines.mean()), "cosine_least": float(cosines.min()),
        "same_among_first_ten": statistics.mean(len({*a} & {*b}) / 10 for a, b in pairs),
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("videos", type=Path)
    parser.add_argument("--model", type=Path, help="a trained model that hears 1.44 s at least")
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--dry", action="store_true", help="print, write nothing")
    args = parser.parse_args()
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)  # orphaned descendants come here and are counted
    config = load_config(ROOT / "configs" / "pretrain" / "world.yaml", ("model.encoder={size: micro}",))
    runs: dict[str, list[tuple[float, float]]] = {}
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        save_model(folder / "model", config, build_model(config).state_dict(), {"kind": "pretrained"})
        (folder / "short").mkdir()
        smallest = min((p for p in args.videos.rglob("*") if p.is_file()), key=lambda p: p.stat().st_size)
        shutil.copy(smallest, folder / "short")

        def run(name: str, source: Path, cores: int, *command: str) -> None:
            shutil.rmtree(folder / name, ignore_errors=True)
            options = [*command, str(source), str(folder / name), "--workers", str(cores)]
            if command[0] == "index":
                options += ["--model", str(folder / "model")]
            runs.setdefault(name, []).append(timed([*CLI, *options], cores))
            print(name, *(f"{x:.2f}" for x in runs[name][-1]), flush=True)

        for _ in range(args.turns):
            for cores in (1, 2):
                run(f"start {cores}", folder / "short", cores, "index")
                run(f"index {cores}", args.videos, cores, "index")
            run("prepare start", folder / "short", 1, "prepare")
            run("prepare", args.videos, 1, "prepare")
        (clips, one), (again, two) = content(folder / "index 1"), content(folder / "index 2")
    middle = {name: [statistics.median(column) for column in zip(*times, strict=True)] for name, times in runs.items()}
    starts = {"index 1": "start 1", "index 2": "start 2", "prepare": "prepare start"}
    work = {n: [a - b for a, b in zip(middle[n], middle[start], strict=True)] for n, start in starts.items()}
    record = {
        "videos": len({clip.source for clip in clips}), "windows": len(clips), "same_entries": clips == again,
        "largest_difference_of_vectors": max(float(abs(one[s][1] - two[s][1]).max()) for s in SIDES),
        "turns": args.turns, "seconds_and_cpu_seconds": middle, "without_the_start": work,
        "times_as_fast_on_two_cores": work["index 1"][0] / work["index 2"][0],
        "times_as_fast_on_two_cores_with_the_start": middle["index 1"][0] / middle["index 2"][0],
        "cpu_ms_per_window": 1000 * work["index 1"][1] / len(clips),
        "cpu_against_prepare": work["index 1"][1] / work["prepare"][1],
    }  # fmt: skip
    if args.model:
        record["fewer_frames"] = fewer_frames(args.model, args.videos, 1.44)
    print(record)
    if not args.dry:
        write_json(RESULTS, {**record, "provenance": provenance()})


if __name__ == "__main__":
    main()
