"""Clips per second and core of `equiav prepare` beside FFmpeg command-line calls that write the same outputs.

    python benchmarks/prepare.py FOLDER_OF_VIDEOS        # needs ffmpeg on the PATH; writes results/prepare.json

Both cut every file into 10 s clips and write for each a FLAC file (mono, 16 kHz) and ten JPEG pictures, short side 256.
FFmpeg gets one call per clip that writes both; a second way, one call for the sound and one for the pictures, is what
published preparation scripts do. CPU time of all processes, one worker, medians of three turns taken alternately.
"""

from __future__ import annotations

import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from equiav.data.prepare import find_sources, prepare
from equiav.data.shards import ShardDataset
from equiav.provenance import provenance, write_json

RESULTS = Path(__file__).parent / "results" / "prepare.json"
TURNS = 3
SCALE = "scale='if(gt(iw,ih),-2,256)':'if(gt(iw,ih),256,-2)'"


def cpu() -> float:
    used = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(u.ru_utime + u.ru_stime for u in used)


def clips_of(folder: Path) -> list[tuple[Path, float, float]]:
    """File, start and length of every clip that `prepare` made, so that FFmpeg does the same work."""
    found = []
    for split in ("train", "validation"):
        data = ShardDataset(folder, split)
        for i in range(len(data)):
            info = data.info(i)
            found.append((Path(info["path"]), float(info["start"]), float(info["seconds"])))
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
    sources = find_sources(Path(sys.argv[1]))
    times: dict[str, list[float]] = {"equiav": [], "ffmpeg, one call": [], "ffmpeg, two calls": []}
    walls: dict[str, list[float]] = {name: [] for name in times}
    clips: list[tuple[Path, float, float]] = []
    for turn in range(TURNS):
        with tempfile.TemporaryDirectory() as folder:
            for name in times:
                out = Path(folder) / name.replace(" ", "_")
                out.mkdir()
                start, begin = cpu(), time.perf_counter()
                if name == "equiav":
                    prepare(sources, out, workers=1)
                else:
                    with_ffmpeg(clips, out, 1 if "one" in name else 2)
                times[name].append(cpu() - start)
                walls[name].append(time.perf_counter() - begin)
                if name == "equiav" and not clips:
                    clips = clips_of(out)
                print(f"turn {turn + 1}: {name}: {times[name][-1]:.1f} CPU-s for {len(clips)} clips", flush=True)
    medians = {name: statistics.median(values) for name, values in times.items()}
    ours = medians["equiav"]
    record = {
        "clips": len(clips),
        "cpu_seconds": times,
        "wall_seconds": walls,
        "clips_per_cpu_second": {name: len(clips) / value for name, value in medians.items()},
        "times_as_fast": {name: value / ours for name, value in medians.items()},
        "provenance": provenance(),
    }
    write_json(RESULTS, record)
    print(record["clips_per_cpu_second"], record["times_as_fast"])


if __name__ == "__main__":
    main()
