"""Drawing 16 vectors per sample and applying both augmentations, beside one sample at a time, in CPU-ms per sample.

    python benchmarks/augment.py            # about a minute; writes benchmarks/results/augment.json

The reference draws and applies the same augmentations one sample (one vector) at a time, in the same run.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from pathlib import Path

import torch

from equiav.augment import Pipeline, audio_pipeline, visual_pipeline
from equiav.provenance import provenance, write_json

BATCH, VECTORS, REPEATS = 64, 16, 7
RESULTS = Path(__file__).parent / "results" / "augment.json"
# What the authors' released code needs on one thread, CPU-ms per sample.
RELEASED = {"draw": 99.5, "apply": 52.3}


def cpu_ms(run: Callable[[], object], samples: int, repeats: int = REPEATS) -> float:
    """Median CPU milliseconds per sample, after one run that does not count."""
    run()
    times = []
    for _ in range(repeats):
        start = time.process_time()
        run()
        times.append((time.process_time() - start) * 1000 / samples)
    return statistics.median(times)


def draw_one_by_one(pipeline: Pipeline, samples: int, rng: torch.Generator) -> torch.Tensor:
    rows = [pipeline.encode(pipeline.sample(1, rng)) for _ in range(samples * VECTORS)]
    return torch.cat(rows).view(samples, VECTORS, -1)


def apply_one_by_one(pipeline: Pipeline, x: torch.Tensor, rng: torch.Generator) -> torch.Tensor:
    return torch.cat([pipeline.apply(one[None], pipeline.sample(1, rng)) for one in x])


def main() -> None:
    torch.set_num_threads(1)
    rng = torch.Generator().manual_seed(0)
    pipelines = {"audio": audio_pipeline(), "visual": visual_pipeline()}
    inputs = {
        "audio": torch.randn(BATCH, 1, 1024, 128, generator=rng),
        "visual": torch.rand(BATCH, 3, 224, 224, generator=rng),
    }
    record: dict[str, object] = {"batch": BATCH, "vectors": VECTORS, "unit": "CPU-ms per sample, one thread"}
    draw = sum(cpu_ms(lambda p=p: p.vectors(BATCH, VECTORS, rng), BATCH, 21) for p in pipelines.values())
    slow = sum(cpu_ms(lambda p=p: draw_one_by_one(p, 4, rng), 4, 3) for p in pipelines.values())
    record["draw"] = {
        "batched": draw, "one_by_one": slow, "ratio": slow / draw,
        "released": RELEASED["draw"], "ratio_to_released": RELEASED["draw"] / draw,
    }  # fmt: skip
    apply, one = {}, {}
    for name, p in pipelines.items():
        x = inputs[name]
        apply[name] = cpu_ms(lambda p=p, x=x: p.apply(x, p.sample(BATCH, rng)), BATCH)
        one[name] = cpu_ms(lambda p=p, x=x: apply_one_by_one(p, x, rng), BATCH, 3)
    total, total_one = sum(apply.values()), sum(one.values())
    record["apply"] = {
        "batched": apply, "one_by_one": one, "ratio": total_one / total,
        "released": RELEASED["apply"], "ratio_to_released": RELEASED["apply"] / total,
    }  # fmt: skip
    record["provenance"] = provenance()
    write_json(RESULTS, record)
    for what, ours, reference in (("draw", draw, slow), ("apply", total, total_one)):
        ratio = reference / ours
        print(f"{what} {ours:.4f} ms; one by one {reference:.2f} ms ({ratio:.2f} times); released {RELEASED[what]} ms")
    print({k: round(v, 2) for k, v in apply.items()}, f"-> {RESULTS}")


if __name__ == "__main__":
    main()
