"""AdamW, its state as plain tensors, the learning rate, and the moving average of the weights."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from equiav.errors import CheckpointError
from equiav.models import Classifier
from equiav.objectives import Objective

_SLOTS = ("exp_avg", "exp_avg_sq", "step")


@dataclass(frozen=True)
class WarmupCosine:
    """From `start` up to `peak` in `warmup` steps, then down to `final` at `total` steps."""

    peak: float
    total: int
    warmup: int = 0
    start: float = 1e-6
    final: float = 1e-6

    def __call__(self, step: int) -> float:
        """The learning rate of a step, counted from 0."""
        if step < self.warmup:
            return self.start + (self.peak - self.start) * step / self.warmup
        progress = min(1.0, (step - self.warmup) / max(1, self.total - self.warmup))
        return self.final + (self.peak - self.final) * 0.5 * (1 + math.cos(math.pi * progress))


def trainable(model: nn.Module) -> dict[str, nn.Parameter]:
    """Parameters that the run changes, by name."""
    return {name: p for name, p in model.named_parameters() if p.requires_grad}


def adamw(
    model: nn.Module,
    *,
    lr: float,
    weight_decay: float,
    betas: tuple[float, float],
    scales: Mapping[str, float] | None = None,
) -> torch.optim.AdamW:
    """AdamW over everything trainable, fused where the build has it; `scales` multiply the lr by parameter name."""
    groups: dict[float, dict[str, Any]] = {}
    for name, parameter in trainable(model).items():
        scale = (scales or {}).get(name, 1.0)
        groups.setdefault(scale, {"params": [], "scale": scale})["params"].append(parameter)
    fused = all(p.device.type in ("cpu", "cuda") for p in trainable(model).values())
    return torch.optim.AdamW(list(groups.values()), lr=lr, weight_decay=weight_decay, betas=betas, fused=fused)


def set_lr(optimiser: torch.optim.Optimizer, lr: float) -> None:
    """The learning rate of a step, each group's by its own scale."""
    for group in optimiser.param_groups:
        group["lr"] = lr * group["scale"]


def layer_scales(objective: Objective, model: Classifier, *, decay: float, head: float) -> dict[str, float]:
    """Scales of a classifier's learning rate by parameter name: `head` for what is new, `decay` once more per layer.

    Of an encoder with groups 0 to n: the last 1 (a ViT's final norm belongs to its last block), group k decay^(n - k).
    """
    scales = dict.fromkeys(trainable(objective), head)
    for m in model.modalities:
        groups = model.encoder(m).layers()
        for number, names in enumerate(groups):
            scale = decay ** (len(groups) - 1 - number)
            scales |= {f"model.encoders.{m}.{name}": scale for name in names if f"model.encoders.{m}.{name}" in scales}
    return scales


def optimiser_tensors(model: nn.Module, optimiser: torch.optim.AdamW) -> dict[str, Tensor]:
    """The optimiser's memory under the names of the parameters: nothing to unpickle."""
    out = {}
    for name, parameter in trainable(model).items():
        for slot in _SLOTS:
            value = optimiser.state[parameter].get(slot)
            if value is not None:
                out[f"{slot}.{name}"] = value.detach().clone()
    return out


def restore_optimiser(model: nn.Module, optimiser: torch.optim.AdamW, tensors: dict[str, Tensor]) -> None:
    """Puts the memory back; refuses that of another model."""
    for name, parameter in trainable(model).items():
        state = {}
        for slot in _SLOTS:
            key = f"{slot}.{name}"
            if key not in tensors:  # fine-tuning runs of format 1 called the model "classifier"
                key = f"{slot}.{name.replace('model.', 'classifier.', 1)}"
            if key not in tensors:
                raise CheckpointError(f"the checkpoint has no optimiser state for {name}")
            # The step counter of a fused optimiser lives where the parameter does.
            state[slot] = tensors[key].to(parameter.device)
        if state["exp_avg"].shape != parameter.shape:
            raise CheckpointError(f"optimiser state of {name} is {tuple(state['exp_avg'].shape)}")
        optimiser.state[parameter] = state


@torch.no_grad()
def update_average(average: dict[str, Tensor], model: nn.Module, decay: float) -> None:
    """average = decay * average + (1 - decay) * weights, in place."""
    for name, value in model.state_dict().items():
        average[name].lerp_(value, 1 - decay)
