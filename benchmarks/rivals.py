"""The local index beside hnswlib, usearch and FAISS HNSW at matched recall: build, memory, latency, one core.

    pip install 'equiav[rivals]'
    python benchmarks/rivals.py [--count 1000000] [--folder FOLDER]
    # nothing else may run; writes results/rivals.json after every library, and measures those that are not there yet

Vectors are those of benchmarks/search.py. Every library builds on all cores and searches on one, in processes of their
own. Graphs are built with the settings that each library's documentation begins with; where FAISS does not reach the
recall with those, also with the effort of hnswlib's. How far a library looks (probes, ef) is the least that reaches the
wanted recall@10 on tuning queries; what is stated is measured on other queries, drawn after them. Memory is what
searching holds that no file stands behind, beyond that of an empty process; a graph that was built here is saved and
loaded again first. A search of ours includes reading what is known of the results; the others return numbers.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.search import NOISES, PER_CLUSTER, WIDTH, K, Peak, anonymous_mb, build, draws

RESULTS = Path(__file__).parent / "results" / "rivals.json"
WANTED = 0.95
GRAPHS = {  # links and effort of building
    "hnswlib": (16, 200), "usearch": (16, 128), "FAISS HNSW": (32, 40), "FAISS HNSW, more effort": (32, 200),
    "usearch i8": (16, 128),
}  # fmt: skip
THREADS = os.cpu_count() or 1  # of building
EFFORTS = (16, 32, 64, 128, 256, 512, 1024, 2048)
PROBES = (8, 16, 32, 64, 128, 256, 512, 1024, 2048)
TUNING, HELD_OUT = 10**6, 10**6 + 1  # purposes of draws
LIBRARIES = ("equiav", *GRAPHS)
# Up to here FAISS reaches the wanted recall without more effort; usearch i8 does not even here, however far it looks.
SMALL = 100_000

Vectors = NDArray[np.float32]
Search = Callable[[NDArray[np.float32], int], list[int]]  # one vector, how far to look: rows


def drawn(count: int, noise: float, portion: int) -> Vectors:
    """The vectors that benchmarks/search.py puts into the index, in the same order."""
    starts = range(0, count, portion)
    parts = [draws(min(portion, count - s), noise, count // PER_CLUSTER, n + 1) for n, s in enumerate(starts)]
    return np.concatenate(parts)


def made(library: str, place: Path, args: argparse.Namespace) -> dict[str, float]:
    """Builds the index of a library and saves it."""
    links, effort = GRAPHS.get(library, (0, 0))
    if library == "equiav":
        record = build(place, args.count, args.noise, args.portion)
        return {name: record[name] for name in ("seconds", "cpu_seconds", "peak_anonymous_mb", "disk_mb")}
    vectors = drawn(args.count, args.noise, args.portion)
    peak, began, cpu = Peak(), time.perf_counter(), time.process_time()
    if library == "hnswlib":
        import hnswlib  # type: ignore[import-not-found,unused-ignore]

        graph = hnswlib.Index("ip", WIDTH)
        graph.init_index(len(vectors), M=links, ef_construction=effort)
        graph.add_items(vectors, num_threads=THREADS)
        graph.save_index(str(place))
    elif library.startswith("usearch"):
        from usearch.index import Index  # type: ignore[import-not-found,unused-ignore]

        kind = "i8" if library.endswith("i8") else "f32"
        graph = Index(ndim=WIDTH, metric="cos", dtype=kind, connectivity=links, expansion_add=effort)
        graph.add(np.arange(len(vectors)), vectors, threads=THREADS)
        graph.save(str(place))
    else:
        import faiss

        graph = faiss.IndexHNSWFlat(WIDTH, links, faiss.METRIC_INNER_PRODUCT)
        graph.hnsw.efConstruction = effort
        graph.add(vectors)
        faiss.write_index(graph, str(place))
    peak.done.set()
    used = {"seconds": time.perf_counter() - began, "cpu_seconds": time.process_time() - cpu}
    return {**used, "peak_anonymous_mb": peak.mb, "disk_mb": place.stat().st_size / 1e6}


def opened(library: str, place: Path) -> Search:
    """A function that searches what was saved."""
    if library == "equiav":
        from equiav.search import LocalStore

        store = LocalStore(place, WIDTH)

        def ours(vector: Vectors, far: int) -> list[int]:
            store.probes = far
            return [int(clip.id.removeprefix("clip-")) for clip, _ in store.search(vector, "visual", K, ())]

        return ours
    if library == "hnswlib":
        import hnswlib

        graph = hnswlib.Index("ip", WIDTH)
        graph.load_index(str(place))

        def nearest(vector: Vectors, far: int) -> list[int]:
            graph.set_ef(max(far, K))
            return [int(row) for row in graph.knn_query(vector, K, num_threads=1)[0][0]]

        return nearest
    if library.startswith("usearch"):
        from usearch.index import Index

        index = Index.restore(str(place))

        def keys(vector: Vectors, far: int) -> list[int]:
            index.expansion_search = far
            return [int(row) for row in index.search(vector, K, threads=1).keys]

        return keys
    import faiss

    graph = faiss.read_index(str(place))

    def rows(vector: Vectors, far: int) -> list[int]:
        graph.hnsw.efSearch = far
        return [int(row) for row in graph.search(vector[None], K)[1][0]]

    return rows


def figures(search: Search, asked: Vectors, truth: NDArray[Any], far: int) -> dict[str, float]:
    """Latency by the clock and of the processor, and recall; a first pass brings files into memory."""
    for vector in asked:
        search(vector, far)
    clock, cpu, found = [], [], []
    for vector in asked:
        began, began_cpu = time.perf_counter(), time.process_time()
        found.append(search(vector, far))
        clock.append((time.perf_counter() - began) * 1000)
        cpu.append((time.process_time() - began_cpu) * 1000)
    recall = np.mean([len(set(rows) & set(true)) / K for rows, true in zip(found, truth.tolist(), strict=True)])
    times = {
        f"p{q}_{what}ms": float(np.percentile(ms, q)) for q in (50, 95) for what, ms in (("", clock), ("cpu_", cpu))
    }
    return {"looked": far, **times, "recall_at_10": float(recall)}


def measured(library: str, place: Path, truths: Path, args: argparse.Namespace) -> dict[str, Any]:
    """Tuned on some queries, measured on others; ours also at its defaults."""
    clusters = args.count // PER_CLUSTER
    tuning, asked = (draws(args.queries, args.noise, clusters, purpose) for purpose in (TUNING, HELD_OUT))
    truth = np.load(truths)
    before = anonymous_mb()
    search = opened(library, place)
    record: dict[str, Any] = {}
    if library == "equiav":
        from equiav.search import vectors

        record["default"] = figures(search, asked, truth[1], vectors.PROBES)
    for far in PROBES if library == "equiav" else EFFORTS:
        tuned = figures(search, tuning, truth[0], far)
        if tuned["recall_at_10"] >= WANTED:
            break
    return {
        **record, "tuning": tuned, "reached": tuned["recall_at_10"] >= WANTED,
        "held_out": figures(search, asked, truth[1], far), "memory_mb": anonymous_mb() - before,
    }  # fmt: skip


def nearest_rows(place: Path, args: argparse.Namespace) -> None:
    """The true nearest to both sets of queries, by comparing with every vector."""
    import faiss

    vectors, clusters = drawn(args.count, args.noise, args.portion), args.count // PER_CLUSTER
    asked = [draws(args.queries, args.noise, clusters, purpose) for purpose in (TUNING, HELD_OUT)]
    np.save(place, np.stack([faiss.knn(a, vectors, K, faiss.METRIC_INNER_PRODUCT)[1] for a in asked]))


def step(name: str, library: str, args: argparse.Namespace, noise: float) -> Any:
    """One step in a process of its own, so that its memory is its own."""
    run = [sys.executable, __file__, "--step", name, "--library", library, "--folder", str(args.folder)]
    run += ["--noise", str(noise), "--count", str(args.count), "--queries", str(args.queries)]
    run += ["--portion", str(args.portion)]
    threads = {**os.environ, "OMP_NUM_THREADS": str(1 if name == "measure" else THREADS)}
    out = subprocess.run(run, check=True, stdout=subprocess.PIPE, text=True, env=threads).stdout
    return json.loads(out.splitlines()[-1])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir()) / "equiav-rivals")
    parser.add_argument("--count", type=int, default=1_000_000)
    parser.add_argument("--queries", type=int, default=300)
    parser.add_argument("--portion", type=int, default=20_000)
    parser.add_argument("--noise", type=float)
    parser.add_argument("--library", choices=LIBRARIES)
    parser.add_argument("--step", choices=("truth", "build", "measure"))
    parser.add_argument("--dry", action="store_true", help="print, write nothing")
    args = parser.parse_args()
    truths, place = args.folder / "truth.npy", args.folder / str(args.library).replace(" ", "-")
    if args.step == "truth":
        nearest_rows(truths, args)
        print("{}")
    elif args.step == "build":
        print(json.dumps(made(args.library, place, args)))
    elif args.step == "measure":
        print(json.dumps(measured(args.library, place, truths, args)))
    else:
        compare(args)


def compare(args: argparse.Namespace) -> None:
    from importlib.metadata import version

    from equiav.io import provenance, write_json

    versions = {name: version(name) for name in ("faiss-cpu", "hnswlib", "usearch")}
    whole: dict[str, Any] = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    record = whole.setdefault(str(args.count), {
        "count": args.count, "width": WIDTH, "queries": args.queries, "k": K, "wanted_recall": WANTED,
        "raw_mb": args.count * WIDTH * 4 / 1e6, "noise": {},
    })  # fmt: skip
    left_out = "FAISS HNSW, more effort" if args.count <= SMALL else "usearch i8"
    for noise in NOISES if args.noise is None else (args.noise,):
        found = record["noise"].setdefault(str(noise), {})
        missing = [library for library in LIBRARIES if library not in found and library != left_out]
        shutil.rmtree(args.folder, ignore_errors=True)
        args.folder.mkdir(parents=True)
        if missing:
            step("truth", "equiav", args, noise)
        for library in missing:
            made = step("build", library, args, noise)
            row = {"build": made, **step("measure", library, args, noise), "graph": GRAPHS.get(library)}
            found[library] = {**row, "provenance": provenance(**versions)}
            print(noise, library, json.dumps(found[library]), flush=True)
            place = args.folder / library.replace(" ", "-")
            shutil.rmtree(place) if place.is_dir() else place.unlink()
            if not args.dry:
                write_json(RESULTS, whole)
    shutil.rmtree(args.folder)


if __name__ == "__main__":
    main()
