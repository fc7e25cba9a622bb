"""Parameters, multiply-adds and milliseconds of generating S representations: the paper's Table B.

Counting convention (the one that gives the paper's figures): one multiply-add counts as 1; batch of one; both views
pass through the encoder; attention products count; the baseline holds the three head passes (z_hat, z' and the
inter-modal embedding) and one pass of the predictor (z_hat). A row "S" adds one more pass of the predictor with S
vectors. Norms, activations and additions are not counted.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import asdict, dataclass

import torch
from torch.utils.flop_counter import FlopCounterMode
from typing_extensions import assert_never

from equiav.build import build_branch, build_vector_source
from equiav.config import Config
from equiav.errors import ConfigError
from equiav.evaluation.base import Results
from equiav.io import provenance
from equiav.models import initialise
from equiav.randomness import generator
from equiav.types import AUDIO, VISUAL, Modality

REPRESENTATIONS = (1, 4, 8, 16)
# Table B of the paper, GFLOPs: the baseline, then the increase for S = 1, 4, 8, 16.
PAPER_BASELINE = {AUDIO: 97.80, VISUAL: 35.20}
PAPER_INCREASE = {
    AUDIO: {1: 0.41, 4: 0.43, 8: 0.45, 16: 0.50},
    VISUAL: {1: 0.16, 4: 0.18, 8: 0.20, 16: 0.24},
}


@dataclass(frozen=True)
class Cost:
    """Cost of one modality: baseline and what S representations add, in 10^9 multiply-adds and milliseconds."""

    modality: str
    parameters: int
    baseline_gmac: float
    increase_gmac: dict[int, float]
    baseline_three_channels_gmac: float
    encoder_ms: float
    predictor_ms: dict[int, float]


def multiply_adds(run: Callable[[], object]) -> float:
    """10^9 multiply-adds of matrix products, attention included, in one call."""
    with FlopCounterMode(display=False) as counter:
        run()
    return float(counter.get_total_flops()) / 2e9


def encoder_passes(config: Config) -> int:
    """How many views of a clip each encoder sees in one step of pre-training; most of what a step costs."""
    objective = config.objective
    if objective.kind in ("masked", "cavmae"):
        return 1  # of which an encoder sees the visible patches only
    match objective.intra:
        case "none":
            return 1
        case "equivariant":
            return 2  # the original and the augmented view, Eq. (3)
        case "invariant":
            return 3 if objective.inter == "original" else 2
        case never:
            assert_never(never)


def cost_of(config: Config, modality: Modality, *, repeats: int = 5) -> Cost:
    """Counts on the meta device, then measures the median of `repeats` runs on the CPU (none for 0)."""
    if not config.objective.has_predictor:
        raise ConfigError(f"the cost of S representations: objective.kind {config.objective.kind} has no predictor")
    is_audio = modality == AUDIO
    shape = (1, config.audio.frames, config.audio.bins) if is_audio else (3, config.visual.size, config.visual.size)
    with torch.device("meta"):
        branch = build_branch(config, modality)
        x, t = torch.zeros(1, *shape), torch.zeros(1, len(build_vector_source(config, modality).slots))
        h = branch.encode(x)

    def baseline() -> None:
        h, h_aug = branch.f.views(x, x)
        branch.equivariant(h, t)
        branch.augmented(h_aug)
        branch.inter_pooled(h)

    gmac = multiply_adds(baseline)
    increase = {s: multiply_adds(lambda s=s: branch.u(h, t.expand(1, s, -1))) for s in REPRESENTATIONS}  # type: ignore[misc]
    # Three equal channels would enlarge the patch product threefold; the paper counts them for audio as well.
    patches = h.shape[1] * branch.f.width * config.audio.patch**2 / 1e9
    extra = 2 * 2 * patches if is_audio else 0.0
    encoder_ms, predictor_ms = _milliseconds(config, modality, shape, repeats) if repeats else (0.0, {})
    parameters = sum(p.numel() for p in branch.parameters())
    return Cost(modality, parameters, gmac, increase, gmac + extra, encoder_ms, predictor_ms)


@torch.inference_mode()
def _milliseconds(
    config: Config, modality: Modality, shape: tuple[int, ...], repeats: int
) -> tuple[float, dict[int, float]]:
    """Medians of the encoder and of the predictor with S vectors, each after one run that does not count."""
    branch = build_branch(config, modality).eval()
    initialise(branch, generator(config.seed, 0, "weights"))
    x, t = torch.zeros(1, *shape), torch.zeros(1, 1, len(build_vector_source(config, modality).slots))
    h = branch.encode(x)

    def median(run: Callable[[], object]) -> float:
        run()
        times = []
        for _ in range(repeats):
            start = time.perf_counter()
            run()
            times.append(time.perf_counter() - start)
        return sorted(times)[len(times) // 2] * 1000

    predictor = {s: median(lambda s=s: branch.u(h, t.expand(1, s, -1))) for s in REPRESENTATIONS}  # type: ignore[misc]
    return median(lambda: branch.encode(x)), predictor


def cost_table(costs: list[Cost]) -> str:
    """Markdown: ours beside the paper's."""
    lines = [
        "| modality | row | multiply-adds, 10^9 | increase | paper | paper's increase | ms (1 sample, CPU) |",
        "|---|---|---|---|---|---|---|",
    ]

    def ms(value: float) -> str:
        return f"{value:.1f}" if value else ""

    for cost in costs:
        m = cost.modality
        paper = f"{PAPER_BASELINE[m]:.2f}"
        lines.append(f"| {m} | baseline | {cost.baseline_gmac:.2f} | | {paper} | | {ms(cost.encoder_ms)} |")
        if m == AUDIO:
            three = f"{cost.baseline_three_channels_gmac:.2f}"
            lines.append(f"| {m} | baseline, three-channel patches | {three} | | {paper} | | |")
        for s, increase in cost.increase_gmac.items():
            more = PAPER_INCREASE[m][s]
            lines.append(
                f"| {m} | S = {s} | {cost.baseline_gmac + increase:.2f} | +{increase:.2f} | "
                f"{PAPER_BASELINE[m] + more:.2f} | +{more:.2f} | +{ms(cost.predictor_ms.get(s, 0.0))} |"
            )
    return "\n".join(lines)


def cost_results(config: Config, *, repeats: int = 5) -> Results:
    """What both modalities of a recipe cost, beside the paper's; `repeats=0` only counts."""
    costs = [cost_of(config, m, repeats=repeats) for m in (AUDIO, VISUAL)]
    record = {
        "convention": "one multiply-add = 1; batch 1; two encoder passes; attention products counted",
        "paper": {"baseline": PAPER_BASELINE, "increase": PAPER_INCREASE},
        "modalities": [asdict(cost) for cost in costs],
        "provenance": provenance(),
    }
    parameters = sum(c.parameters for c in costs) / 1e6
    said = f"Parameters: {parameters:.1f} M. Convention: {record['convention']}."
    return Results(record, primary="modalities", lines=(cost_table(costs), "", said))
