"""Vectors as the authors' released code draws and writes them, for checkpoints imported from it.

Faithful to what that code does, slips included (one coin for mask and shift, raw bins, swapped divisors), because
its weights have seen nothing else. Only drawing and encoding live here: its way of applying them is not kept.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from equiav.augment.base import coins, keep_on, uniform
from equiav.augment.transforms import TRIES
from equiav.types import AUDIO, Modality

_JITTER = ("on", "order_0", "order_1", "order_2", "order_3", "brightness", "contrast", "saturation", "hue")
AUDIO_SLOTS = (
    "specaugment.on", "specaugment.time_start", "specaugment.time_end",
    "specaugment.frequency_start", "specaugment.frequency_end",
    "shift.on", "shift.shift",
    "crop.on", "crop.top", "crop.left", "crop.height", "crop.width",
    *(f"jitter.{slot}" for slot in _JITTER),
    "blur.on", "blur.sigma", "flip.on",
)  # fmt: skip
VISUAL_SLOTS = (
    "crop.on", "crop.top", "crop.left", "crop.height", "crop.width",
    *(f"jitter.{slot}" for slot in _JITTER),
    "blur.on", "blur.sigma", "flip.on", "grey.on",
)  # fmt: skip


@dataclass(frozen=True)
class ReleasedVectors:
    """The released layout of one modality: draws vectors, applies nothing.

    `frames` x `bins` is the spectrogram, `image` the side of the picture: the released numbers depend on them.
    """

    modality: Modality
    frames: int = 1024
    bins: int = 128
    image: int = 224

    @property
    def slots(self) -> tuple[str, ...]:
        """Names of the columns."""
        return AUDIO_SLOTS if self.modality == AUDIO else VISUAL_SLOTS

    def vectors(self, batch: int, count: int, rng: torch.Generator) -> Float[Tensor, "batch count d_t"]:
        """`count` vectors for each of `batch` samples."""
        n = batch * count
        flat = self._audio(n, rng) if self.modality == AUDIO else self._visual(n, rng)
        return flat.view(batch, count, -1)

    def _audio(self, n: int, rng: torch.Generator) -> Tensor:
        on = coins(n, 0.8, rng)
        spans = torch.cat([_span(n, self.frames, 192, rng), _span(n, self.bins, 48, rng)], dim=1)
        shift = torch.randint(-self.frames, self.frames, (n, 1), generator=rng) / self.frames
        # Time is divided by the bins and frequency by the frames, as released.
        divisors = torch.tensor([self.bins, self.frames, self.bins, self.frames])
        crop = _crop(n, self.frames, self.bins, (0.1, 0.1875), rng) / divisors
        flag = on[:, None].float()
        parts = [flag, keep_on(on, spans), flag, keep_on(on, shift), torch.ones(n, 1), crop]
        return torch.cat([*parts, _jitter(n, rng), _blur(n, rng), coins(n, 0.5, rng)[:, None].float()], dim=1)

    def _visual(self, n: int, rng: torch.Generator) -> Tensor:
        crop = _crop(n, self.image, self.image, (3 / 4, 4 / 3), rng) / self.image
        flip, grey = coins(n, 0.5, rng)[:, None].float(), coins(n, 0.2, rng)[:, None].float()
        return torch.cat([torch.ones(n, 1), crop, _jitter(n, rng), _blur(n, rng), flip, grey], dim=1)


def _span(n: int, size: int, longest: int, rng: torch.Generator) -> Tensor:
    """Start and end of a mask in whole bins."""
    width = torch.rand(n, generator=rng) * longest
    start = (torch.rand(n, generator=rng) * (size - width)).floor()
    return torch.stack([start, start + width.floor()], dim=1)


def _crop(n: int, height: int, width: int, ratio: tuple[float, float], rng: torch.Generator) -> Tensor:
    """Top, left, height, width in whole pixels; area 0.08 to 1; the first of ten tries that fits, else all of it."""
    area = uniform(0.08, 1.0, (n, TRIES), rng) * (height * width)
    low, high = torch.tensor(ratio).log().tolist()
    aspect = uniform(low, high, (n, TRIES), rng).exp()
    w, h = (area * aspect).sqrt().round(), (area / aspect).sqrt().round()
    fits = (w > 0) & (w <= width) & (h > 0) & (h <= height)
    first = fits.int().argmax(dim=1, keepdim=True)
    w = w.gather(1, first)[:, 0].clamp(1, width)
    h = h.gather(1, first)[:, 0].clamp(1, height)
    at = torch.rand(n, 2, generator=rng)
    top, left = (at[:, 0] * (height - h + 1)).floor(), (at[:, 1] * (width - w + 1)).floor()
    return torch.stack([top, left, h, w], dim=1)


def _jitter(n: int, rng: torch.Generator) -> Tensor:
    """Flag, raw order of four operations, factors minus one and hue."""
    on = coins(n, 0.8, rng)
    order = torch.where(on[:, None], torch.rand(n, 4, generator=rng).argsort(dim=1), torch.arange(4))
    change = (torch.rand(n, 4, generator=rng) * 2 - 1) * torch.tensor([0.4, 0.4, 0.4, 0.1])
    return torch.cat([on[:, None].float(), order.float(), keep_on(on, change)], dim=1)


def _blur(n: int, rng: torch.Generator) -> Tensor:
    """Flag and sigma in pixels."""
    on = coins(n, 0.5, rng)
    return torch.cat([on[:, None].float(), keep_on(on, uniform(0.1, 2.0, (n, 1), rng))], dim=1)
