"""`equiav demo`: a few training steps on random clips."""

from __future__ import annotations

import logging

import torch

from equiav.build import build_filter_bank, build_model, build_pipelines
from equiav.config import Config, parse_config
from equiav.losses.equiav import LossWeights
from equiav.randomness import stream
from equiav.training.objectives import Inputs, Objective, draw_step
from equiav.types import Batch

log = logging.getLogger(__name__)

RECIPE = {
    "model": {
        "encoder": {"size": "micro"},
        "predictor": {"query_width": 64, "heads": 4, "head_width": 24},
        "heads": {"hidden": 128, "inter": 64, "intra": 64},
    },
    "audio": {"frames": 64, "bins": 64},
    "visual": {"size": 48, "patch": 8},
}


def random_batch(config: Config, size: int, step: int) -> Batch:
    """Noise in the shape of clips."""
    rng = stream(config.seed, step, "noise")
    samples = config.audio.sample_rate
    frames = torch.randint(256, (size, 3, config.visual.size, config.visual.size), generator=rng, dtype=torch.uint8)
    waveforms = torch.randn(size, samples, generator=rng) * 0.1
    return Batch(tuple(f"noise-{i}" for i in range(size)), waveforms, torch.full((size,), samples), frames)


def run_demo(steps: int = 5, size: int = 16) -> list[float]:
    """Trains on random clips and logs the losses."""
    config = parse_config(RECIPE, "demo")
    inputs = Inputs(build_filter_bank(config.audio), config.audio.mean, config.audio.std)
    objective = Objective(build_model(config), build_pipelines(config.augment), inputs)
    optimiser = torch.optim.AdamW(objective.parameters(), lr=1e-3)
    totals = []
    for step in range(steps):
        draws = draw_step(objective.augment, size, config.objective.representations, config.seed, step)
        terms = objective.losses(objective(random_batch(config, size, step), draws), LossWeights())
        optimiser.zero_grad()
        terms.total.backward()  # type: ignore[no-untyped-call]
        optimiser.step()
        totals.append(terms.total.item())
        parts = f"inter {terms.inter:.3f}  intra audio {terms.intra_audio:.3f}  intra visual {terms.intra_visual:.3f}"
        log.info("step %d  loss %.3f  %s", step + 1, totals[-1], parts)
    return totals
