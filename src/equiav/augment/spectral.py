"""SpecAugment: one mask along time and one along frequency."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from jaxtyping import Bool
from torch import Tensor

from equiav.augment.base import Draw, chosen, coins, keep_on, with_flag


@dataclass(frozen=True)
class SpecAugment:
    """Masks one span of time and one band of frequency with 0, the mean of a standardised spectrogram."""

    max_time: float = 192 / 1024
    max_frequency: float = 48 / 128
    p: float = 0.8
    slots: ClassVar[tuple[str, ...]] = ("on", "time_start", "time_end", "frequency_start", "frequency_end")

    def sample(self, batch: int, rng: torch.Generator) -> Draw:
        """Values: start and end of both masks, as fractions of the whole."""
        on = coins(batch, self.p, rng)
        width = torch.rand(batch, 2, generator=rng) * torch.tensor([self.max_time, self.max_frequency])
        start = torch.rand(batch, 2, generator=rng) * (1 - width)
        spans = torch.stack([start, start + width], dim=2).flatten(1)
        return Draw(on, keep_on(on, spans))

    def encode(self, draw: Draw) -> Tensor:
        """Flag, time start, time end (/ T), frequency start, frequency end (/ F)."""
        return with_flag(draw)

    def apply(self, x: Tensor, draw: Draw) -> Tensor:
        """x: (B, C, T, F)."""
        index = chosen(draw.on, x)
        if len(index) == 0:
            return x
        values = draw.values[draw.on].to(x.device)
        time = _inside(values[:, 0:2], x.shape[2])
        frequency = _inside(values[:, 2:4], x.shape[3])
        masked = x[index].masked_fill((time[:, :, None] | frequency[:, None, :])[:, None], 0.0)
        return x.index_copy(0, index, masked)


def _inside(span: Tensor, size: int) -> Bool[Tensor, "b size"]:
    """Which of `size` bins lie between start and end (fractions, rounded to whole bins)."""
    start, end = (span * size).round().unbind(dim=1)
    bins = torch.arange(size, device=span.device)
    return (bins >= start[:, None]) & (bins < end[:, None])
