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
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from equiav.build import D_T, build_branch, encoder_size
from equiav.config import Config
from equiav.models import Branch, initialise
from equiav.randomness import stream
from equiav.types import Modality

REPRESENTATIONS = (1, 4, 8, 16)
# Table B of the paper, GFLOPs: the baseline, then the increase for S = 1, 4, 8, 16.
PAPER_BASELINE = {Modality.AUDIO: 97.80, Modality.VISUAL: 35.20}
PAPER_INCREASE = {
    Modality.AUDIO: {1: 0.41, 4: 0.43, 8: 0.45, 16: 0.50},
    Modality.VISUAL: {1: 0.16, 4: 0.18, 8: 0.20, 16: 0.24},
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


def _inputs(config: Config, modality: Modality, device: str) -> Tensor:
    if modality is Modality.AUDIO:
        return torch.zeros(1, 1, config.audio.frames, config.audio.bins, device=device)
    return torch.zeros(1, 3, config.visual.size, config.visual.size, device=device)


def _baseline(branch: Branch, x: Tensor, t: Tensor) -> None:
    h, h_aug = branch.encode_views(x, x)
    branch.equivariant(h, t)
    branch.augmented(h_aug)
    branch.inter_pooled(h)


def cost_of(config: Config, modality: Modality, *, repeats: int = 5) -> Cost:
    """Counts on the meta device, then measures the median of `repeats` runs on the CPU (none for 0)."""
    with torch.device("meta"):
        branch = build_branch(config, modality)
        x, t = _inputs(config, modality, "meta"), torch.zeros(1, D_T[modality], device="meta")
        h = branch.encode(x)
    baseline = multiply_adds(lambda: _baseline(branch, x, t))
    increase = {s: multiply_adds(lambda s=s: branch.u(h, t.expand(1, s, -1))) for s in REPRESENTATIONS}  # type: ignore[misc]
    # Three equal channels would enlarge the patch product threefold; the paper counts them for sound as well.
    patches = h.shape[1] * encoder_size(config.model.encoder).width * branch.f.patch_embed.patch**2 / 1e9
    extra = 2 * 2 * patches if modality is Modality.AUDIO else 0.0
    encoder_ms, predictor_ms = _milliseconds(config, modality, repeats) if repeats else (0.0, {})
    parameters = sum(p.numel() for p in branch.parameters())
    return Cost(modality.value, parameters, baseline, increase, baseline + extra, encoder_ms, predictor_ms)


@torch.inference_mode()
def _milliseconds(config: Config, modality: Modality, repeats: int) -> tuple[float, dict[int, float]]:
    branch = build_branch(config, modality).eval()
    initialise(branch, stream(config.seed, 0, "weights"))
    x, t = _inputs(config, modality, "cpu"), torch.zeros(1, 1, D_T[modality])
    h = branch.encode(x)
    encoder = _median(lambda: branch.encode(x), repeats)
    predictor = {s: _median(lambda s=s: branch.u(h, t.expand(1, s, -1)), repeats) for s in REPRESENTATIONS}  # type: ignore[misc]
    return encoder, predictor


def _median(run: Callable[[], object], repeats: int) -> float:
    """Median wall milliseconds, after one run that does not count."""
    run()
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        run()
        times.append(time.perf_counter() - start)
    return sorted(times)[len(times) // 2] * 1000


def cost_table(costs: list[Cost]) -> str:
    """Markdown: ours beside the paper's."""
    lines = [
        "| modality | row | multiply-adds, 10^9 | increase | paper | paper's increase | ms (1 sample, CPU) |",
        "|---|---|---|---|---|---|---|",
    ]
    for cost in costs:
        m = Modality(cost.modality)
        paper, ms = f"{PAPER_BASELINE[m]:.2f}", _ms(cost.encoder_ms)
        lines.append(f"| {m.value} | baseline | {cost.baseline_gmac:.2f} | | {paper} | | {ms} |")
        if m is Modality.AUDIO:
            three = f"{cost.baseline_three_channels_gmac:.2f}"
            lines.append(f"| {m.value} | baseline, three-channel patches | {three} | | {paper} | | |")
        for s, increase in cost.increase_gmac.items():
            more = PAPER_INCREASE[m][s]
            lines.append(
                f"| {m.value} | S = {s} | {cost.baseline_gmac + increase:.2f} | +{increase:.2f} | "
                f"{PAPER_BASELINE[m] + more:.2f} | +{more:.2f} | +{_ms(cost.predictor_ms.get(s, 0.0))} |"
            )
    return "\n".join(lines)


def _ms(value: float) -> str:
    return f"{value:.1f}" if value else ""


def cost_record(costs: list[Cost]) -> dict[str, object]:
    """The costs as plain data."""
    return {
        "convention": "one multiply-add = 1; batch 1; two encoder passes; attention products counted",
        "paper": {
            "baseline": {m.value: v for m, v in PAPER_BASELINE.items()},
            "increase": {m.value: v for m, v in PAPER_INCREASE.items()},
        },
        "modalities": [asdict(cost) for cost in costs],
    }
