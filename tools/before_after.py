"""Speed of this checkout beside an earlier one, by each checkout's own benchmarks, in turns.

    git worktree add /tmp/before COMMIT
    python tools/before_after.py /tmp/before FOLDER_OF_VIDEOS [--turns 2]

Writes benchmarks/results/before_after.json: CPU time after over CPU time before, of `prepare`, the loader, search among
100,000 vectors, a step of the base model and a short run of the ablation tables' model. Run it on a machine with
nothing else to do, about half an hour.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections import defaultdict
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from benchmarks.prepare import PR_SET_CHILD_SUBREAPER, children_cpu  # noqa: E402

from equiav.io import provenance, write_json  # noqa: E402

PARTS = ("prepare", "loader", "search", "step", "ablation")
RESULTS = ROOT / "benchmarks" / "results" / "before_after.json"


def run(checkout: Path, *arguments: str, threads: int = 1) -> float:
    """CPU seconds of a command of a checkout and of all processes that it started."""
    environment = {**os.environ, "PYTHONPATH": str(checkout / "src"), "OMP_NUM_THREADS": str(threads)}
    before = children_cpu()
    subprocess.run([sys.executable, *arguments], check=True, env=environment, cwd=checkout, stdout=subprocess.DEVNULL)
    return children_cpu() - before


def result(checkout: Path, name: str) -> dict[str, dict[str, dict[str, dict[str, float]]]]:
    """What a benchmark wrote; the checkout gets its own file back."""
    path = checkout / "benchmarks" / "results" / f"{name}.json"
    found = json.loads(path.read_text())
    subprocess.run(["git", "-C", str(checkout), "checkout", "--quiet", "--", "benchmarks", "docs"], check=True)
    return found  # type: ignore[no-any-return]


def measure(checkout: Path, videos: Path, parts: set[str]) -> dict[str, float]:
    """CPU time of the parts that are compared, once."""
    found: dict[str, float] = {}
    with tempfile.TemporaryDirectory() as folder:
        prepared = Path(folder) / "prepared"
        if parts & {"prepare", "loader"}:
            prepare = ("prepare", str(videos), str(prepared), "--workers", "1")
            found["prepare, s"] = run(checkout, "-m", "equiav.cli", *prepare)
        if "loader" in parts:
            run(checkout, "benchmarks/loader.py", str(prepared))
            found["loader, ms a sample"] = result(checkout, "loader")["total"]  # type: ignore[assignment]
        if "ablation" in parts:
            recipe = ("pretrain", "configs/pretrain/ablation_world.yaml", "train.steps=300")
            kept = ("train.keep_spectrograms=true",) if checkout == ROOT else ()  # as its tables do
            found["ablation run, s"] = run(checkout, "-m", "equiav.cli", *recipe, *kept, "--out", f"{folder}/run")
        if "search" in parts:
            run(checkout, "benchmarks/search.py", "--count", "100000", "--folder", str(Path(folder) / "search"))
            for noise, of in result(checkout, "search")["noise"].items():
                found[f"search at noise {noise}, p50 ms"] = of["search"]["default"]["p50_cpu_ms"]  # type: ignore[index, assignment]
    if "step" in parts:
        run(checkout, "benchmarks/training_step.py", "1", threads=os.cpu_count() or 1)
        found["training step, s"] = result(checkout, "training_step")["cpu_seconds"]["16"]  # type: ignore[assignment]
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("before", type=Path)
    parser.add_argument("videos", type=Path)
    parser.add_argument("--turns", type=int, default=2)
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=list(PARTS), help="the others stay as they are")
    chosen = parser.parse_args()
    made = provenance()
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)  # workers that outlive a command are counted too
    commit = ["git", "-C", str(chosen.before), "rev-parse", "--short=12", "HEAD"]
    parts = set(chosen.parts)
    values: dict[str, dict[str, list[float]]] = defaultdict(lambda: {"before": [], "after": []})
    for turn in range(chosen.turns):
        for side, checkout in (("before", chosen.before.resolve()), ("after", ROOT)):
            for name, value in measure(
                checkout, chosen.videos.resolve(), parts - ({"step"} if turn else set())
            ).items():
                values[name][side].append(value)
                print(f"{name}: {side} {value:.3f}", flush=True)
    ratios = {name: statistics.median(v["after"]) / statistics.median(v["before"]) for name, v in values.items()}
    for name, ratio in ratios.items():
        print(f"{name}: after / before {ratio:.3f}")
    earlier = subprocess.run(commit, capture_output=True, text=True, check=True).stdout.strip()
    kept = json.loads(RESULTS.read_text())["compared"] if RESULTS.exists() else {}
    new = {
        name: {"before": earlier, "ratio": ratio, "values": values[name], "provenance": made}
        for name, ratio in ratios.items()
    }
    write_json(RESULTS, {"compared": {**kept, **new}})


if __name__ == "__main__":
    main()
