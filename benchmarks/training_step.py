"""The base model's training step at batch 4 on a CPU: seconds, memory, and what S = 16 costs beside S = 1.

    python benchmarks/training_step.py [pairs]     # a minute per pair; writes benchmarks/results/training_step.json

S = 1 and S = 16 take turns, and medians of CPU time are compared, so that a busy machine disturbs both alike: once over
whole steps, which vary by more than the difference, once over the inter-modal branch alone, as a share of a step. Near
them a plain matrix product (2048 x 768 x 3072) is timed in the same run.
"""

from __future__ import annotations

import resource
import statistics
import sys
import time
from pathlib import Path

import torch

from equiav.build import build_inputs, build_model, build_pipelines
from equiav.config import Config
from equiav.losses.equiav import LossWeights
from equiav.provenance import provenance, write_json
from equiav.randomness import stream
from equiav.training.objectives import Objective, draw_step
from equiav.training.optim import adamw
from equiav.training.step import Step
from equiav.types import Batch, Modality

BATCH, COUNTS, PART_TURNS = 4, (1, 16), 21
RESULTS = Path(__file__).parent / "results" / "training_step.json"
# The authors' released code on two shared cores: CPU-seconds, GB of memory, share of a matrix product's speed.
RELEASED = {"cpu_seconds": [46.6, 55.0], "peak_gb": 7.5, "share_of_gemm": [0.56, 0.59]}


def random_batch(config: Config) -> Batch:
    """Ten seconds of noise and a noisy picture per clip."""
    rng = stream(0, 0, "benchmark")
    samples = 10 * config.audio.sample_rate
    side = config.visual.size
    frames = torch.randint(256, (BATCH, 3, side, side), generator=rng, dtype=torch.uint8)
    waveforms = torch.randn(BATCH, samples, generator=rng) * 0.1
    return Batch(tuple(map(str, range(BATCH))), waveforms, torch.full((BATCH,), samples), frames)


def gemm_gflops() -> float:
    """10^9 operations per CPU-second of a plain product."""
    a, b = torch.randn(2048, 768), torch.randn(768, 3072)
    a @ b
    start = time.process_time()
    for _ in range(20):
        a @ b
    return 20 * 2 * 2048 * 768 * 3072 / (time.process_time() - start) / 1e9


def peak_gb() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20


def centroid_cpu(objective: Objective, config: Config, count: int) -> float:
    """CPU seconds of the inter-modal branch alone, forward and backward, both modalities, for `count` vectors."""
    total = 0.0
    for m, tokens in ((Modality.AUDIO, 512), (Modality.VISUAL, 196)):
        branch = objective.model[m]
        h = torch.randn(BATCH, tokens, branch.f.width, requires_grad=True)
        t = objective.augment[m].vectors(BATCH, count, stream(0, 0, "benchmark"))
        start = time.process_time()
        branch.inter_centroid(h, t).sum().backward()
        total += time.process_time() - start
    return total


def main() -> None:
    pairs = int(sys.argv[1]) if len(sys.argv) > 1 else 5
    config = Config()
    objective = Objective(build_model(config), build_pipelines(config.augment), build_inputs(config.audio))
    optimiser = adamw(objective, rate=1e-5, weight_decay=1e-5, betas=(0.9, 0.95))
    step = Step(objective, objective, None, None)
    batch = random_batch(config)

    def one(count: int, number: int) -> tuple[float, float]:
        draws = draw_step(objective.augment, BATCH, count, 0, number)
        cpu, wall = time.process_time(), time.perf_counter()
        optimiser.zero_grad(set_to_none=True)
        step(batch, draws, LossWeights())
        optimiser.step()
        return time.process_time() - cpu, time.perf_counter() - wall

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
            parts[count].append(centroid_cpu(objective, config, count))
    part = {c: statistics.median(values) for c, values in parts.items()}
    cpu = {c: statistics.median(t[0] for t in values) for c, values in times.items()}
    wall = {c: statistics.median(t[1] for t in values) for c, values in times.items()}
    gflop = 3 * BATCH * 2 * (97.76 + 35.37)  # forward and twice that backward, 2 per multiply-add (evaluate cost)
    product = statistics.median(products)
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
        "peak_gb": peak_gb(),
        "released": RELEASED,
        "provenance": provenance(),
    }
    write_json(RESULTS, record)
    print(
        {
            k: record[k]
            for k in (
                "cpu_seconds",
                "cost_of_s16_percent",
                "cost_of_s16_percent_whole_steps",
                "share_of_gemm",
                "peak_gb",
            )
        }
    )


if __name__ == "__main__":
    main()
