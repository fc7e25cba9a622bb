"""The base model's training step at batch 4 on a CPU: seconds, memory, where the time goes, what S = 16 costs.

    python benchmarks/training_step.py [pairs]     # a minute per pair; writes benchmarks/results/training_step.json

S = 1 and S = 16 take turns, and medians of CPU time are compared, so that a busy machine disturbs both alike: once over
whole steps, which vary by more than the difference, once over the inter-modal branch alone, as a share of a step. Near
them a plain matrix product (2048 x 768 x 3072) is timed in the same run. One more step is taken under torch's
profiler, and one forward pass counts the bytes that the graph keeps for the gradient.
"""

from __future__ import annotations

import resource
import statistics
import sys
import time
from pathlib import Path

import torch
from torch.profiler import ProfilerActivity, profile

from base_step import Stepper, config_of, saved_gb
from equiav.io import provenance, write_json
from equiav.objectives import EquiAVObjective
from equiav.randomness import generator

BATCH, COUNTS, PART_TURNS = 4, (1, 16), 21
RESULTS = Path(__file__).parent / "results" / "training_step.json"
# The authors' released code on two shared cores: CPU-seconds, GB of memory, share of a matrix product's speed.
RELEASED = {"cpu_seconds": [46.6, 55.0], "peak_gb": 7.5}
# Parts of a step by the beginnings of the operators' names; what fits none is the rest.
PARTS = {
    "matrix products": ("aten::mm", "aten::addmm", "aten::bmm", "aten::baddbmm"),
    "attention": ("aten::_scaled_dot_product", "aten::scaled_dot_product"),
    "optimiser": ("aten::_fused_adamw",),
    "GELU": ("aten::gelu",),
    "norms": ("aten::native_layer_norm",),
    "copies": ("aten::copy_", "aten::cat", "aten::clone", "aten::contiguous"),
}


def gemm_gflops() -> float:
    """10^9 operations per CPU-second of a plain product."""
    a, b = torch.randn(2048, 768), torch.randn(768, 3072)
    a @ b
    start = time.process_time()
    for _ in range(20):
        a @ b
    return 20 * 2 * 2048 * 768 * 3072 / (time.process_time() - start) / 1e9


def peak_gb() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e9


def where_time_goes(stepper: Stepper) -> dict[str, float]:
    """Shares of a step by kind of work, largest first; each operator's own time, without what it calls."""
    with profile(activities=[ProfilerActivity.CPU]) as seen:
        stepper.take(stepper.draws(0))
    own = {event.key: event.self_cpu_time_total for event in seen.key_averages()}
    shares = {part: sum(t for key, t in own.items() if key.startswith(names)) for part, names in PARTS.items()}
    shares["all else"] = sum(own.values()) - sum(shares.values())
    return {part: t / sum(own.values()) for part, t in sorted(shares.items(), key=lambda item: -item[1])}


def centroid_cpu(objective: EquiAVObjective, count: int) -> float:
    """CPU seconds of the inter-modal branch alone, forward and backward, both modalities, for `count` vectors."""
    total = 0.0
    for m, tokens in (("audio", 512), ("visual", 196)):
        branch = objective.model[m]
        h = torch.randn(BATCH, tokens, branch.f.width, requires_grad=True)
        t = objective.augment[m].vectors(BATCH, count, generator(0, 0, "benchmark"))
        start = time.process_time()
        branch.inter_centroid(h, t).sum().backward()
        total += time.process_time() - start
    return total


def main() -> None:
    pairs = int(sys.argv[1]) if len(sys.argv) > 1 else 5
    stepper = Stepper(config_of(), BATCH)
    objective = stepper.objective

    def one(count: int, number: int) -> tuple[float, float]:
        return stepper.timed(stepper.draws(number, count=count))

    one(16, 0)
    times: dict[int, list[tuple[float, float]]] = {count: [] for count in COUNTS}
    products = [gemm_gflops()]
    for pair in range(pairs):
        for count in COUNTS if pair % 2 else COUNTS[::-1]:
            times[count].append(one(count, pair))
        products.append(gemm_gflops())
        print(f"pair {pair + 1}/{pairs}:", {c: f"{t[-1][0]:.1f} CPU-s" for c, t in times.items()}, flush=True)
    parts: dict[int, list[float]] = {count: [] for count in COUNTS}
    for turn in range(PART_TURNS):
        for count in COUNTS if turn % 2 else COUNTS[::-1]:
            parts[count].append(centroid_cpu(objective, count))
    part = {c: statistics.median(values) for c, values in parts.items()}
    cpu = {c: statistics.median(t[0] for t in values) for c, values in times.items()}
    wall = {c: statistics.median(t[1] for t in values) for c, values in times.items()}
    gflop = 3 * BATCH * 2 * (97.76 + 35.37)  # forward and twice that backward, 2 per multiply-add (evaluate cost)
    product, peak = statistics.median(products), peak_gb()
    record = {
        "batch": BATCH,
        "pairs": pairs,
        "cpu_seconds": cpu,
        "wall_seconds": wall,
        "cost_of_s16_percent_whole_steps": 100 * (cpu[16] / cpu[1] - 1),
        "inter_branch_cpu_seconds": part,
        "cost_of_s16_percent": 100 * (part[16] - part[1]) / cpu[1],
        "all": times,
        "gflop_per_step": gflop,
        "gflops_per_cpu_second": gflop / cpu[16],
        "gemm_gflops_per_cpu_second": product,
        "share_of_gemm": gflop / cpu[16] / product,
        "peak_gb": peak,
        "state_gb": stepper.state_gb,
        "activations_gb": saved_gb(stepper),
        "where_time_goes": where_time_goes(stepper),
        "released": RELEASED,
        "provenance": provenance(),
    }
    write_json(RESULTS, record)
    shown = ("cpu_seconds", "cost_of_s16_percent", "share_of_gemm", "peak_gb", "activations_gb", "where_time_goes")
    print({k: record[k] for k in shown})


if __name__ == "__main__":
    main()
