"""A training step of a whole model on noise: what several benchmarks take and time."""

from __future__ import annotations

import time
from typing import Any

import torch

from equiav.build import build_inputs, build_model, build_pipelines
from equiav.config import Config
from equiav.objectives import EquiAVObjective, StepDraws
from equiav.randomness import generator
from equiav.training import Step, adamw
from equiav.types import Batch

SIZES = ("base", "small", "tiny", "micro")
SECONDS = 10


def config_of(size: str = "base", **train: Any) -> Config:
    """The default recipe with encoders of this size."""
    return Config.model_validate({"model": {"encoder": {"size": size}}, "train": {"steps": 1, **train}})


def noise(config: Config, clips: int) -> Batch:
    """Ten seconds of noise and a noisy picture per clip."""
    rng = generator(0, 0, "benchmark")
    samples, side = SECONDS * config.audio.sample_rate, config.visual.size
    frames = torch.randint(256, (clips, 3, side, side), generator=rng, dtype=torch.uint8)
    waveforms = torch.randn(clips, samples, generator=rng) * 0.1
    lengths = {"audio": torch.full((clips,), samples)}
    return Batch(tuple(map(str, range(clips))), {"audio": waveforms, "visual": frames}, lengths)


class Stepper:
    """Model, objective and optimiser of a recipe, taking steps on one batch of noise or on batches given."""

    def __init__(self, config: Config, clips: int) -> None:
        self.config, self.batch = config, noise(config, clips)
        self.objective = EquiAVObjective(build_model(config), build_pipelines(config), build_inputs(config))
        self.optimiser = adamw(self.objective, lr=1e-5, weight_decay=1e-5, betas=(0.9, 0.95))
        self.step = Step(self.objective, self.objective, config.train.micro_batch, None)

    def draws(self, number: int, *, count: int = 16, keep: float = 1.0) -> StepDraws:
        """What is drawn for step `number`, with S = `count` and this share of the tokens."""
        self.objective.representations, self.objective.keep_tokens = count, keep
        return self.objective.draw(len(self.batch), 0, number)

    def take(self, draws: StepDraws, batch: Batch | None = None) -> None:
        """Gradient and update."""
        self.optimiser.zero_grad(set_to_none=True)
        self.step(batch or self.batch, draws, 1, 10)
        self.optimiser.step()

    def timed(self, draws: StepDraws) -> tuple[float, float]:
        """CPU seconds and seconds of one step."""
        cpu, wall = time.process_time(), time.perf_counter()
        self.take(draws)
        return time.process_time() - cpu, time.perf_counter() - wall

    @property
    def state_gb(self) -> float:
        """Parameters, gradients and AdamW's two moments, in 10^9 bytes."""
        return 4 * sum(p.numel() * p.element_size() for p in self.objective.parameters() if p.requires_grad) / 1e9

    def allocate_moments(self) -> None:
        """AdamW's memory as after a first step, without the work of one; weights stay as they are."""
        for group in self.optimiser.param_groups:
            group["lr"] = 0.0
        for p in self.objective.parameters():
            p.grad = torch.zeros_like(p)
        self.optimiser.step()
        self.optimiser.zero_grad(set_to_none=True)


def saved_gb(stepper: Stepper) -> float:
    """10^9 bytes that the graph of one step keeps for its gradient, parameters not counted."""
    known = {p.untyped_storage().data_ptr() for p in stepper.objective.parameters()}
    kept: dict[int, torch.UntypedStorage] = {}

    def pack(x: torch.Tensor) -> torch.Tensor:
        kept[x.untyped_storage().data_ptr()] = x.untyped_storage()
        return x

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda x: x):
        z = stepper.objective(stepper.batch, stepper.draws(0))
    assert z["inter/audio"].requires_grad
    return sum(storage.nbytes() for at, storage in kept.items() if at not in known) / 1e9
