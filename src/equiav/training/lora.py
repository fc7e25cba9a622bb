"""Low-rank adapters (LoRA) in the encoders: added for training, merged into the weights that a checkpoint holds."""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from torch import Tensor, nn

from equiav.errors import ConfigError
from equiav.models import Encoder
from equiav.randomness import generator
from equiav.types import Modality

A, B, BASE = ".lora_A.default.weight", ".lora_B.default.weight", ".base_layer."


def add_lora(encoders: Mapping[Modality, Encoder], *, rank: int, alpha: int, seed: int) -> None:
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
