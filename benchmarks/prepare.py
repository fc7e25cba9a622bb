"""Clips per second and core of `equiav prepare` beside FFmpeg command-line calls that write the same outputs.

    python benchmarks/prepare.py FOLDER_OF_VIDEOS        # needs ffmpeg on the PATH; writes results/prepare.json

Both cut every file into 10 s clips and write for each a FLAC file (mono, 16 kHz) and ten JPEG pictures, short side 256.
FFmpeg gets one call per clip that writes both; a second way, one call for the sound and one for the pictures, is what
published preparation scripts do. CPU time of all processes, one worker, medians of three turns taken alternately. What
Python and torch need to start (measured with a single small file) is taken off equiav's time: it is paid once, not per
clip, and is stated in the results.
"""

from __future__ import annotations

import ctypes
import os
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from equiav.data import ShardDataset, find_sources
from equiav.io import provenance, write_json

RESULTS = Path(__file__).parent / "results" / "prepare.json"
TURNS = 3
PR_SET_CHILD_SUBREAPER = 36
SCALE = "scale='if(gt(iw,ih),-2,256)':'if(gt(iw,ih),256,-2)'"


def children_cpu() -> float:
    """CPU seconds of all processes that were started and are gone."""
    while True:  # a server of worker processes may outlive the process that started it by a moment
        try:
            os.waitpid(-1, 0)
        except ChildProcessError:
            break
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def with_equiav(source: Path, out: Path) -> None:
    code = "import sys; from pathlib import Path; from equiav.data import find_sources, prepare; "
    code += "prepare(find_sources(Path(sys.argv[1])), Path(sys.argv[2]), workers=1)"
    subprocess.run([sys.executable, "-c", code, str(source), str(out)], check=True)


def clips_of(folder: Path, root: Path) -> list[tuple[Path, float, float]]:
    """File, start and length of every clip that `prepare` made, so that FFmpeg does the same work."""
    found = []
    for split in ("train", "validation"):
        data = ShardDataset(folder, split)
        for i in range(len(data)):
            info = data.info(i)
            found.append((root / info["name"], float(info["start"]), float(info["seconds"])))
    return found


def ffmpeg(arguments: list[str]) -> None:
    subprocess.run(["ffmpeg", "-v", "error", "-nostdin", "-y", "-threads", "1", *arguments], check=True)


def with_ffmpeg(clips: list[tuple[Path, float, float]], out: Path, calls: int) -> None:
    for number, (path, start, seconds) in enumerate(clips):
        source = ["-ss", str(start), "-t", str(seconds), "-i", str(path)]
        sound = ["-vn", "-ac", "1", "-ar", "16000", str(out / f"{number}.flac")]
        rate = f"fps={10 / seconds:.6f},{SCALE}"
        pictures = ["-an", "-vf", rate, "-frames:v", "10", "-q:v", "3", str(out / f"{number}.%d.jpg")]
        if calls == 1:
            ffmpeg([*source, *sound, *pictures])
        else:
            ffmpeg([*source, *sound])
            ffmpeg([*source, *pictures])


def main() -> None:
    if shutil.which("ffmpeg") is None:
        sys.exit("benchmarks/prepare.py compares with ffmpeg; it is not on the PATH")
    root = Path(sys.argv[1])
    # Orphaned descendants come to this process, so that their CPU time is counted.
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    smallest = min((s.path for s in find_sources(root)), key=lambda path: path.stat().st_size)
    times: dict[str, list[float]] = {"start-up": [], "equiav": [], "ffmpeg, one call": [], "ffmpeg, two calls": []}
    walls: dict[str, list[float]] = {name: [] for name in times}
    clips: list[tuple[Path, float, float]] = []
    for turn in range(TURNS):
        with tempfile.TemporaryDirectory() as folder:
            for name in times:
                out = Path(folder) / name.replace(" ", "_")
                out.mkdir()
                start, begin = children_cpu(), time.perf_counter()
                if name == "start-up":
                    lone = Path(folder) / "lone.txt"
                    lone.write_text(str(smallest))
                    with_equiav(lone, out)
                elif name == "equiav":
                    with_equiav(root, out)
                else:
                    with_ffmpeg(clips, out, 1 if "one" in name else 2)
                times[name].append(children_cpu() - start)
                walls[name].append(time.perf_counter() - begin)
                if name == "equiav" and not clips:
                    clips = clips_of(out, root)
                print(f"turn {turn + 1}: {name}: {times[name][-1]:.1f} CPU-s for {len(clips)} clips", flush=True)
    medians = {name: statistics.median(values) for name, values in times.items()}
    medians["equiav"] -= medians.pop("start-up")
    ours = medians["equiav"]
    record = {
        "clips": len(clips),
        "cpu_seconds": times,
        "start_up_cpu_seconds": statistics.median(times["start-up"]),
        "wall_seconds": walls,
        "clips_per_cpu_second": {name: len(clips) / value for name, value in medians.items()},
        "times_as_fast": {name: value / ours for name, value in medians.items()},
        "provenance": provenance(),
    }
    write_json(RESULTS, record)
    print(record["clips_per_cpu_second"], record["times_as_fast"])


if __name__ == "__main__":
    main()
