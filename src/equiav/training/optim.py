"""AdamW, its state as plain tensors, and the moving average of the weights."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from equiav.errors import CheckpointError

_SLOTS = ("exp_avg", "exp_avg_sq", "step")


def trainable(model: nn.Module) -> dict[str, nn.Parameter]:
    """Parameters that the run changes, by name."""
    return {name: p for name, p in model.named_parameters() if p.requires_grad}


def adamw(
    model: nn.Module,
    *,
    rate: float,
    weight_decay: float,
    betas: tuple[float, float],
    scales: Mapping[str, float] | None = None,
) -> torch.optim.AdamW:
    """AdamW over everything trainable; fused where the build has it. `scales` multiply the rate, by parameter name."""
    groups: dict[float, dict[str, Any]] = {}
    for name, parameter in trainable(model).items():
        scale = (scales or {}).get(name, 1.0)
        groups.setdefault(scale, {"params": [], "scale": scale})["params"].append(parameter)
    fused = all(p.device.type in ("cpu", "cuda") for p in trainable(model).values())
    return torch.optim.AdamW(list(groups.values()), lr=rate, weight_decay=weight_decay, betas=betas, fused=fused)


def set_rate(optimiser: torch.optim.Optimizer, rate: float) -> None:
    """The rate of a step, each group's by its own scale."""
    for group in optimiser.param_groups:
        group["lr"] = rate * group["scale"]


def layer_scales(model: nn.Module, depth: int, *, decay: float, head: float) -> dict[str, float]:
    """Rates of a classifier's parts, by parameter name: `head` for what is new, `decay` once more per layer below it.

    Final norm 1 (it belongs to the last block's output), block l of L decay^(L - l), patches decay^(L + 1).
    """
    scales = {}
    for name in trainable(model):
        block = re.search(r"encoders\.\w+\.blocks\.(\d+)\.", name)
        if block:
            scales[name] = decay ** (depth - int(block[1]))
        elif ".patch_embed." in name:
            scales[name] = decay ** (depth + 1)
        else:
            scales[name] = 1.0 if re.search(r"encoders\.\w+\.norm", name) else head
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
