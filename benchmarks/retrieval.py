"""Ranks of 1,722 x 1,722 stored embeddings in both directions, beside one pair at a time, in seconds.

    python benchmarks/retrieval.py          # under a minute; writes benchmarks/results/retrieval.json

The reference fills the matrix of similarities one pair at a time and sorts every row, in the same run, on fewer clips;
its time for all of them follows from the number of pairs. That is how the authors' released metric works.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from equiav.evaluation import retrieval_metrics
from equiav.io import provenance, write_json
from equiav.types import Embeddings

CLIPS, WIDTH, FEWER, REPEATS = 1722, 512, 200, 15
RESULTS = Path(__file__).parent / "results" / "retrieval.json"
# What the authors' released code needs for both directions, CPU-seconds on one thread.
RELEASED = 326.0


def stored(clips: int) -> Embeddings:
    """Embeddings that are related, but not closely."""
    rng = torch.Generator().manual_seed(0)
    audio = torch.randn(clips, WIDTH, generator=rng)
    visual = 0.1 * audio + torch.randn(clips, WIDTH, generator=rng)
    return Embeddings(tuple(map(str, range(clips))), {"audio": audio, "visual": visual})


def one_by_one(queries: NDArray[np.float32], gallery: NDArray[np.float32]) -> dict[int, float]:
    """R@k in per cent."""
    similarity = np.empty((len(queries), len(gallery)))
    for i, q in enumerate(queries):
        for j, g in enumerate(gallery):
            similarity[i, j] = np.dot(q, g) / (np.linalg.norm(q) * np.linalg.norm(g))
    ordered = np.sort(-similarity, axis=1)
    place = np.argmin(np.abs(ordered + np.diag(similarity)[:, None]), axis=1)
    return {k: 100 * float((place < k).mean()) for k in (1, 5, 10)}


def seconds(run: Callable[[], object], repeats: int) -> tuple[float, float]:
    """Wall seconds of the quickest run (others may be at work on the machine) and median CPU seconds."""
    run()
    wall, cpu = [], []
    for _ in range(repeats):
        start, used = time.perf_counter(), time.process_time()
        run()
        wall.append(time.perf_counter() - start)
        cpu.append(time.process_time() - used)
    return min(wall), statistics.median(cpu)


def main() -> None:
    torch.set_num_threads(1)
    embeddings = stored(CLIPS)
    wall, cpu = seconds(lambda: retrieval_metrics(embeddings), REPEATS)
    few = stored(FEWER)
    a, v = few["audio"].numpy(), few["visual"].numpy()
    start = time.process_time()
    slow = [one_by_one(a, v), one_by_one(v, a)]
    measured = time.process_time() - start
    quick = retrieval_metrics(few)
    for way, expected in zip(("audio_to_video", "video_to_audio"), slow, strict=True):
        assert [quick[way][f"R@{k}"] for k in (1, 5, 10)] == [expected[k] for k in (1, 5, 10)]
    reference = measured * (CLIPS / FEWER) ** 2
    record = {
        "clips": CLIPS, "width": WIDTH, "unit": "seconds for both directions, one thread",
        "wall": wall, "cpu": cpu,
        "one_by_one": {"clips": FEWER, "cpu": measured, "scaled_to_all": reference, "ratio": reference / cpu},
        "released": RELEASED, "ratio_to_released": RELEASED / cpu,
        "provenance": provenance(),
    }  # fmt: skip
    write_json(RESULTS, record)
    print(f"{cpu:.3f} CPU-s, {wall:.3f} s; one pair at a time {reference:.0f} CPU-s ({reference / cpu:.0f} times)")
    print(f"released {RELEASED:.0f} CPU-s ({RELEASED / cpu:.0f} times) -> {RESULTS}")


if __name__ == "__main__":
    main()
