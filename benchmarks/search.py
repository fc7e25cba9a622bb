"""A million vectors of 512 in the local index: time to build, memory, latency and recall, on one core.

    python benchmarks/search.py [--folder FOLDER] [--count 1000000]
    # writes results/search.json and docs/images/search.png; about 15 minutes and 2.3 GB of disk
    # with another --count results/search_large.json alone: 5,000,000 take about half an hour a noise level (--noise
    # 1.5 for one of them) and 12 GB of disk

Vectors are drawn from clusters of about 100: a unit centre plus Gaussian noise of stated length, brought back to length
1. With noise 1.0 two members of a cluster have a cosine of about 0.5, with 1.5 of about 0.3, while strangers among a
million reach 0.2. Queries are fresh draws of the same clusters, and not those that the defaults were chosen with. The
index is filled on all cores, through the same call as `equiav index` uses, and searched on one core, in a fresh process
with the files in the page cache; a search includes reading what is known of the results.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from equiav.search import Entry, LocalStore, lists_for, vectors
from equiav.types import Clip

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks" / "results" / "search.json"
LARGE = RESULTS.with_stem("search_large")
MILLION = 1_000_000
PICTURE = ROOT / "docs" / "images" / "search.png"
WIDTH, PER_CLUSTER, K, SEED = 512, 100, 10, 0
QUERIES = 10**6 + 1  # the purpose of draws that nothing was tuned on
NOISES = (1.0, 1.5)
PROBES = (16, 64, 256, 512, 1024, 2048)
CANDIDATES = (50, 160, 640)
SIZES = (10_000, 30_000, 100_000)  # compared in both ways, to see from where on the compressed index is worth it


def draws(count: int, noise: float, clusters: int, purpose: int) -> NDArray[np.float32]:
    """Members of clusters; the centres are the same whatever the purpose."""
    centres = unit(np.random.default_rng(SEED).standard_normal((clusters, WIDTH), np.float32))
    rng = np.random.default_rng((SEED, purpose))
    around = rng.standard_normal((count, WIDTH), np.float32) * (noise / np.sqrt(WIDTH))
    return unit(centres[rng.integers(clusters, size=count)] + around)


def unit(x: NDArray[Any]) -> NDArray[np.float32]:
    return (x / np.linalg.norm(x, axis=1, keepdims=True)).astype(np.float32)


def anonymous_mb() -> float:
    """Memory of this process that no file stands behind, in 10^6 bytes."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("RssAnon"):
            return int(line.split()[1]) * 1024 / 1e6
    raise RuntimeError("no RssAnon here")


class Peak(threading.Thread):
    """The most anonymous memory seen, looked at every 20 ms."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.mb, self.done = 0.0, threading.Event()
        self.start()

    def run(self) -> None:
        """Looks until told to stop."""
        while not self.done.wait(0.02):
            self.mb = max(self.mb, anonymous_mb())


def build(folder: Path, count: int, noise: float, portion: int) -> dict[str, Any]:
    LocalStore.create(folder)
    store = LocalStore(folder, WIDTH)
    peak, seconds, cpu = Peak(), 0.0, 0.0
    for number, start in enumerate(range(0, count, portion)):
        drawn = draws(min(portion, count - start), noise, count // PER_CLUSTER, number + 1)
        entries = [
            Entry(
                Clip(f"clip-{start + i:07d}", f"video-{(start + i) // 20:06d}.mp4", None, 10.0 * (i % 20), 10.0,
                     labels=(f"kind {i % 100}",)),
                {"visual": v},
            )
            for i, v in enumerate(drawn)
        ]  # fmt: skip
        began, began_cpu = time.perf_counter(), time.process_time()
        store.add(entries)
        seconds, cpu = seconds + time.perf_counter() - began, cpu + time.process_time() - began_cpu
        print(f"noise {noise}: {start + len(drawn):,} added, {seconds:.0f} s", file=sys.stderr, flush=True)
    peak.done.set()
    part = store.state.parts["visual"]
    disk = sum(f.stat().st_size for f in folder.iterdir())
    return {
        "seconds": seconds, "cpu_seconds": cpu, "peak_anonymous_mb": peak.mb,
        "lists": lists_for(part.trained) if part.file else 0, "trained_at": part.trained, "covered": part.covered,
        "disk_mb": disk / 1e6, "compressed_mb": (folder / part.file).stat().st_size / 1e6 if part.file else 0.0,
    }  # fmt: skip


def measure(folder: Path, count: int, noise: float, queries: int) -> dict[str, Any]:
    before = anonymous_mb()  # before the queries are drawn: what that frees would be used again, and not be counted
    asked = draws(queries, noise, count // PER_CLUSTER, QUERIES)
    store = LocalStore(folder, WIDTH)
    default = timed(store, asked)
    memory = {"anonymous_mb": anonymous_mb(), "before_opening_mb": before}
    truth = exact(store, asked)
    curve = []
    for store.candidates in CANDIDATES:
        for store.probes in PROBES:
            curve.append(
                {"candidates": store.candidates, "probes": store.probes, **figures(timed(store, asked), truth)}
            )
    return {**memory, "default": figures(default, truth), "curve": curve}


def both_ways(folder: Path, count: int, queries: int) -> dict[str, dict[str, float]]:
    """A search that compares every vector, and one through the compressed index, in a collection of this size."""
    noise, found = NOISES[-1], {}
    asked, drawn = (draws(n, noise, count // PER_CLUSTER, purpose) for n, purpose in ((queries, QUERIES), (count, 1)))
    for name, limit in (("exact", count + 1), ("compressed", count)):
        shutil.rmtree(folder, ignore_errors=True)
        LocalStore.create(folder)
        store = LocalStore(folder, WIDTH, limit=limit)
        store.add([Entry(Clip(f"clip-{i:07d}"), {"visual": v}) for i, v in enumerate(drawn)])
        found[name] = figures(timed(store, asked), exact(store, asked))
    shutil.rmtree(folder, ignore_errors=True)
    return found


Timed = tuple[list[float], list[float], list[list[str]]]


def timed(store: LocalStore, asked: NDArray[np.float32]) -> Timed:
    """Milliseconds by the clock and of the processor, and answers; a first pass brings files into memory."""
    for vector in asked:
        store.search(vector, "visual", K, ())
    clock, cpu, answers = [], [], []
    for vector in asked:
        began, began_cpu = time.perf_counter(), time.process_time()
        found = store.search(vector, "visual", K, ())
        clock.append((time.perf_counter() - began) * 1000)
        cpu.append((time.process_time() - began_cpu) * 1000)
        answers.append([clip.id for clip, _ in found])
    return clock, cpu, answers


def exact(store: LocalStore, asked: NDArray[np.float32]) -> list[set[str]]:
    """The true nearest, by comparing with every vector."""
    import faiss

    _, rows = faiss.knn(asked, store.state.parts["visual"].vectors, K, faiss.METRIC_INNER_PRODUCT)
    return [{f"clip-{row:07d}" for row in line} for line in rows]


def figures(run: Timed, truth: list[set[str]]) -> dict[str, float]:
    clock, cpu, answers = run
    recall = np.mean([len(set(a) & t) / K for a, t in zip(answers, truth, strict=True)])
    found = {f"p{q}_{what}ms": float(np.percentile(times, q))
             for q in (50, 95) for what, times in (("", clock), ("cpu_", cpu))}  # fmt: skip
    return {**found, "recall_at_10": float(recall)}


def step(name: str, folder: Path, args: argparse.Namespace, noise: float, count: int) -> dict[str, Any]:
    """One step in a process of its own, so that its memory is its own."""
    run = [sys.executable, __file__, "--step", name, "--folder", str(folder), "--noise", str(noise)]
    run += ["--count", str(count), "--queries", str(args.queries), "--portion", str(args.portion)]
    threads = {**os.environ, "OMP_NUM_THREADS": str(os.cpu_count() if name == "build" else 1)}
    out = subprocess.run(run, check=True, stdout=subprocess.PIPE, text=True, env=threads).stdout
    result: dict[str, Any] = json.loads(out)
    return result


def draw_curve(record: dict[str, Any]) -> None:
    """Recall against the processor's time, which other work on the machine does not change."""
    from equiav.report import new_figure, save

    figure = new_figure(9.0, 3.6)
    axes = figure.subplots(1, len(record["noise"]), sharey=True, squeeze=False)[0]
    for axis, (noise, run) in zip(axes, record["noise"].items(), strict=True):
        for candidates in CANDIDATES:
            points = [p for p in run["search"]["curve"] if p["candidates"] == candidates]
            axis.plot([p["p50_cpu_ms"] for p in points], [p["recall_at_10"] for p in points], marker="o", markersize=3,
                      linewidth=1.2, label=f"{candidates} re-ranked")  # fmt: skip
        default = run["search"]["default"]
        axis.plot(default["p50_cpu_ms"], default["recall_at_10"], "k*", markersize=12, label="default")
        axis.axhline(0.95, color="#999", linewidth=0.8, linestyle="--")
        axis.set_xscale("log")
        axis.set_xlabel("median CPU-milliseconds of a search")
        axis.set_title(f"noise {noise}", fontsize=9)
        axis.grid(alpha=0.25)
    axes[0].set_ylabel("recall@10 against exact search")
    axes[-1].legend(frameon=False, fontsize=7)
    save(figure, PICTURE)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir()) / "equiav-search")
    parser.add_argument("--count", type=int, default=MILLION)
    parser.add_argument("--queries", type=int, default=300)
    parser.add_argument("--portion", type=int, default=20_000)
    parser.add_argument("--noise", type=float)
    parser.add_argument("--step", choices=("build", "measure", "both_ways"))
    parser.add_argument("--dry", action="store_true", help="print, write nothing")
    args = parser.parse_args()
    if args.step == "build":
        print(json.dumps(build(args.folder, args.count, args.noise, args.portion)))
    elif args.step == "measure":
        print(json.dumps(measure(args.folder, args.count, args.noise, args.queries)))
    elif args.step == "both_ways":
        print(json.dumps(both_ways(args.folder, args.count, args.queries)))
    else:
        compare(args)


def compare(args: argparse.Namespace) -> None:
    import faiss

    from equiav.io import provenance, write_json

    record: dict[str, Any] = {
        "count": args.count, "width": WIDTH, "per_cluster": PER_CLUSTER, "queries": args.queries, "k": K,
        "raw_mb": args.count * WIDTH * 4 / 1e6,
        "defaults": {"probes": vectors.PROBES, "candidates": vectors.CANDIDATES + 4 * K}, "noise": {},
        "sizes": {},
    }  # fmt: skip
    for noise in NOISES if args.noise is None else (args.noise,):
        shutil.rmtree(args.folder, ignore_errors=True)
        made, found = (step(name, args.folder, args, noise, args.count) for name in ("build", "measure"))
        record["noise"][str(noise)] = {"build": made, "search": found}
        print(noise, made, {k: v for k, v in record["noise"][str(noise)]["search"].items() if k != "curve"}, flush=True)
    for count in SIZES if args.count == MILLION else ():
        record["sizes"][str(count)] = step("both_ways", args.folder, args, NOISES[-1], count)
        print(count, record["sizes"][str(count)], flush=True)
    shutil.rmtree(args.folder, ignore_errors=True)
    if args.dry:
        return
    record["provenance"] = provenance(faiss=faiss.__version__)
    write_json(RESULTS if args.count == MILLION else LARGE, record)
    if args.count == MILLION:
        draw_curve(record)


if __name__ == "__main__":
    main()
