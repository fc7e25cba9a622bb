"""Whether two loader workers keep training fed: how long a step of the base model waits for its batch.

    python benchmarks/feeding.py PREPARED_FOLDER       # 5 minutes on two idle cores; writes results/feeding.json

The workers read shards, decode sound and picture and collate, as in training, while steps are taken; the first batch,
for which every run waits, is not counted. The second part asks the same workers for batches without taking steps: how
many clips a second they deliver, and so how short a step may become before it waits.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

from base_step import SIZES, Stepper, config_of
from equiav.data import Schedule, ShardDataset, training_batches
from equiav.provenance import provenance, write_json
from equiav.types import Batch

RESULTS = Path(__file__).parent / "results" / "feeding.json"


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--size", choices=SIZES, default="base")
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--delivered", type=int, default=2000, help="clips of the second part")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--results", type=Path, default=RESULTS)
    return parser.parse_args()


def batches(clips: ShardDataset, batch: int, steps: int, workers: int) -> Iterator[Batch]:
    """Batches as training gets them."""
    schedule = Schedule(len(clips), clips.frames, batch, seed=0)
    loader = training_batches(clips, schedule, start=0, stop=steps, rank=0, world_size=1, workers=workers)
    return iter(cast(Iterator[Batch], loader))


def fed(args: argparse.Namespace, clips: ShardDataset) -> dict[str, Any]:
    """Seconds of waiting and of work, step by step."""
    stepper = Stepper(config_of(args.size), args.batch)
    source = batches(clips, args.batch, args.steps + 1, args.workers)
    waits, works = [], []
    for number in range(args.steps + 1):
        start = time.perf_counter()
        batch = next(source)
        arrived = time.perf_counter()
        stepper.take(stepper.draws(number), batch)
        waits.append(arrived - start)
        works.append(time.perf_counter() - arrived)
        print(f"step {number}: waited {waits[-1] * 1000:.1f} ms, worked {works[-1]:.2f} s", flush=True)
    first, *waits = waits
    return {
        "first_batch_seconds": first, "wait_seconds": waits, "work_seconds": works[1:],
        "median_wait_ms": statistics.median(waits) * 1000, "median_step_seconds": statistics.median(works[1:]),
        "share_waiting": sum(waits) / (sum(waits) + sum(works[1:])),
    }  # fmt: skip


def delivered(args: argparse.Namespace, clips: ShardDataset) -> dict[str, Any]:
    """Clips a second that the workers deliver when nothing else is done."""
    size = min(32, len(clips))
    source = batches(clips, size, max(3, args.delivered // size), args.workers)
    next(source)
    start, count = time.perf_counter(), 0
    for batch in source:
        count += len(batch)
    return {"clips": count, "batch": size, "clips_per_second": count / (time.perf_counter() - start)}


def main() -> None:
    args = arguments()
    clips = ShardDataset(args.folder, "train")
    record = {
        "size": args.size, "batch": args.batch, "workers": args.workers, "clips": len(clips),
        **fed(args, clips), "delivered": delivered(args, clips), "provenance": provenance(),
    }  # fmt: skip
    write_json(args.results, record)
    print({k: record[k] for k in ("median_wait_ms", "median_step_seconds", "share_waiting", "delivered")})


if __name__ == "__main__":
    main()
