"""What is trained and how fast: frozen parts, low-rank adapters, AdamW and its state, rates, moving average."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from equiav.errors import CheckpointError, ConfigError, TrainingError
from equiav.models import ClassifierModel, Layered
from equiav.objectives import Objective
from equiav.randomness import generator
from equiav.types import Modality

BACKEND = "inductor"  # of torch.compile
_SLOTS = ("exp_avg", "exp_avg_sq", "step")
A, B, BASE = ".lora_A.default.weight", ".lora_B.default.weight", ".base_layer."  # peft's names


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


def layer_scales(objective: Objective, model: ClassifierModel, *, decay: float, head: float) -> dict[str, float]:
    """Scales of a classifier's learning rate by parameter name: `head` for what is new, `decay` once more per layer.

    Of an encoder with groups 0 to n: the last 1 (a ViT's final norm belongs to its last block), group k decay^(n - k).
    """
    scales = dict.fromkeys(trainable(objective), head)
    for groups in model.layers():
        for number, names in enumerate(groups):
            scale = decay ** (len(groups) - 1 - number)
            scales |= {f"model.{name}": scale for name in names if f"model.{name}" in scales}
    return scales


def encoders_of(model: nn.Module) -> dict[Modality, Layered]:
    """The encoders of a model by modality, wherever it keeps them; one for all modalities by its own name."""
    known = getattr(model, "modalities", ())
    found = ((name, part) for name, part in model.named_modules() if isinstance(part, Layered))
    return {next((key for key in name.split(".") if key in known), name): part for name, part in found}


def compile_blocks(model: nn.Module) -> None:
    """Compiles the blocks of a model's encoders in place, where they are called: names of weights stay.

    Block by block: equal blocks share one compilation, and activation checkpointing stays outside. A machine on which
    nothing can be compiled is refused now rather than in the first step.
    """
    try:
        torch.compile(_one_more, backend=BACKEND)(torch.zeros(1, device=next(model.parameters()).device))
    except RuntimeError as error:
        reason = str(error).partition("\n")[0]
        raise TrainingError(
            f"train.compile: torch.compile fails on this machine ({reason}); install a C++ compiler such as g++ (CXX "
            "names another one; a GPU needs Triton as well), or leave train.compile out"
        ) from error
    for encoder in encoders_of(model).values():
        lists = [part for part in encoder.modules() if isinstance(part, nn.ModuleList)]
        for block in [block for blocks in lists for block in blocks] or [encoder]:
            block.compile(backend=BACKEND)


def _one_more(x: Tensor) -> Tensor:
    return x + 1


def parts_of(model: nn.Module) -> dict[str, list[str]]:
    """Names of a model's parameters by part: encoder, predictor, heads; of each modality, and of all together."""
    known = getattr(model, "modalities", ())
    encoders = {id(p) for encoder in encoders_of(model).values() for p in encoder.parameters()}
    found: dict[str, list[str]] = {}
    for name, parameter in model.named_parameters():
        keys = name.split(".")
        part = "encoder" if id(parameter) in encoders else "predictor" if "u" in keys else "heads"
        for key in (part, *(f"{modality}.{part}" for modality in keys if modality in known)):
            found.setdefault(key, []).append(name)
    return found


def freeze(model: nn.Module, frozen: Mapping[str, str | int]) -> None:
    """Takes parts of a model out of training: whole ("all"), or the first blocks of an encoder, patches with them."""
    parts = parts_of(model)
    parameters = dict(model.named_parameters())
    for part, amount in frozen.items():
        if part not in parts:
            raise ConfigError(f"optim.freeze: this model has no {part}; its parts are {', '.join(sorted(parts))}")
        if amount == "all":
            for name in parts[part]:
                parameters[name].requires_grad_(False)
            continue
        modality, _, kind = part.rpartition(".")
        if kind != "encoder":
            raise ConfigError(f"optim.freeze: {part} has no blocks to count; freeze it whole ({part}: all)")
        encoders = encoders_of(model)
        if modality and modality not in encoders:
            raise ConfigError(
                f"optim.freeze: all modalities share the blocks of this encoder; count them as encoder: {amount}"
            )
        for m, encoder in encoders.items():
            groups, own = encoder.layers(), dict(encoder.named_parameters())
            if modality not in ("", m):
                continue
            if int(amount) > len(groups) - 2:
                whose = f"{m} encoder".removeprefix("encoder ")
                raise ConfigError(f"optim.freeze: the {whose} has {max(0, len(groups) - 2)} blocks, not {amount}")
            for name in (name for group in groups[: int(amount) + 1] for name in group):
                own[name].requires_grad_(False)
    if frozen and not trainable(model):
        raise ConfigError("optim.freeze: nothing is left to train")


def add_lora(encoders: Mapping[Modality, Layered], *, rank: int, alpha: int, seed: int) -> None:
    """Adapters for every linear layer in the blocks that are not frozen; nothing else of these encoders is trained.

    The first factor is drawn from the seed, the second is zero: training starts from what the encoder was.
    """
    try:
        from peft import LoraConfig, inject_adapter_in_model
    except ImportError as error:
        raise ConfigError("optim.lora needs peft: `pip install 'equiav[transformers]'`") from error
    adapted = False
    for m, encoder in encoders.items():
        groups = encoder.layers()
        inside = {name for group in (groups[1:-1] or groups) for name in group}  # an encoder may have no blocks
        targets = [
            name
            for name, part in encoder.named_modules()
            if isinstance(part, nn.Linear) and part.weight.requires_grad and f"{name}.weight" in inside
        ]
        if not targets:
            continue
        adapted = True
        rng = generator(seed, 0, f"lora/{m}")
        with torch.random.fork_rng(devices=[]):  # it draws from the global generator; drawn anew below
            config = LoraConfig(r=rank, lora_alpha=alpha, lora_dropout=0.0, target_modules=targets)
            inject_adapter_in_model(config, encoder)
        for name, parameter in encoder.named_parameters():
            if name.endswith(A):
                start = nn.init.kaiming_uniform_(torch.empty(parameter.shape), a=math.sqrt(5), generator=rng)
                parameter.data.copy_(start)
    if not adapted:
        raise ConfigError("optim.lora: no encoder is left to adapt; take one out of optim.freeze, or leave lora out")


def merge_lora(weights: Mapping[str, Tensor], *, rank: int, alpha: int) -> dict[str, Tensor]:
    """The weights as a model without adapters names them: W + alpha / rank * B A for every adapted layer."""
    out = {}
    for name, value in weights.items():
        if name.endswith((A, B)):
            continue
        stem, base, kind = name.partition(BASE)
        if base and kind == "weight":
            value = value + alpha / rank * (weights[stem + B] @ weights[stem + A])
        out[f"{stem}.{kind}" if base else name] = value
    return out


def part_scales(objective: Objective, scales: Mapping[str, float]) -> dict[str, float]:
    """Scales of the learning rate by parameter name; what is said of one modality's part counts before the rest."""
    parts = parts_of(objective.model)
    found = dict.fromkeys(trainable(objective), 1.0)
    for part in sorted(scales, key=lambda part: "." in part):
        if part not in parts:
            raise ConfigError(f"optim.lr_scales: this model has no {part}; its parts are {', '.join(sorted(parts))}")
        found |= {f"model.{name}": scales[part] for name in parts[part] if f"model.{name}" in found}
    return found


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
        if value.is_floating_point():
            average[name].lerp_(value, 1 - decay)
        else:  # what is no weight, such as the bytes of a tokenizer
            average[name].copy_(value)
