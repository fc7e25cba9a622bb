"""Augmentations that move things: random resized crop, horizontal flip, time shift."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from equiav.augment.base import Draw, chosen, coins, keep_on, uniform, with_flag

TRIES = 10


def resized_crop(x: Float[Tensor, "b c h w"], box: Float[Tensor, "b 4"]) -> Float[Tensor, "b c h w"]:
    """Cuts the box (top, left, height, width, in pixels, need not be whole) and stretches it to the full size.

    Bilinear; points beyond the outermost pixel centres of the box take the border's value, as if the box had been
    cut out first.
    """
    rows = _source(box[:, 0], box[:, 2], x.shape[2])
    columns = _source(box[:, 1], box[:, 3], x.shape[3])
    grid = torch.stack(
        [
            columns[:, None, :].expand(-1, x.shape[2], -1),
            rows[:, :, None].expand(-1, -1, x.shape[3]),
        ],
        dim=-1,
    )
    return F.grid_sample(x, grid.to(x.dtype), mode="bilinear", padding_mode="zeros", align_corners=False)


def _source(start: Float[Tensor, " b"], size: Float[Tensor, " b"], length: int) -> Float[Tensor, "b length"]:
    """Where each of `length` output pixels looks, in grid_sample's units (-1 and 1 are the outer edges)."""
    steps = (torch.arange(length, device=start.device) + 0.5) / length
    centres = start[:, None] + steps * size[:, None] - 0.5
    last = (start + size - 1)[:, None]
    inside = centres.clamp(min=start[:, None]).minimum(last).clamp(0, length - 1)
    return (2 * inside + 1) / length - 1


@dataclass(frozen=True)
class RandomResizedCrop:
    """A box of random area and aspect, stretched to the full size; for a spectrogram x runs along time.

    `x_axis` and `y_axis` are the tensor axes that the box's x, w and y, h belong to. The aspect is relative to
    that of the whole input, so that a long spectrogram is cropped like a picture.
    """

    area: tuple[float, float] = (0.08, 1.0)
    aspect: tuple[float, float] = (3 / 4, 4 / 3)
    p: float = 1.0
    x_axis: int = 3
    y_axis: int = 2
    slots: ClassVar[tuple[str, ...]] = ("on", "x", "y", "w", "h")

    def sample(self, batch: int, rng: torch.Generator) -> Draw:
        """Values x, y, w, h as fractions; of several proposals the first that fits inside is taken."""
        on = coins(batch, self.p, rng)
        area = uniform(*self.area, (batch, TRIES), rng)
        log_low, log_high = torch.tensor(self.aspect).log().tolist()
        aspect = uniform(log_low, log_high, (batch, TRIES), rng).exp()
        w, h = (area * aspect).sqrt(), (area / aspect).sqrt()
        fits = (w <= 1) & (h <= 1)
        first = fits.int().argmax(dim=1, keepdim=True)  # 0 where none fits: cut down to the whole below
        w, h = w.gather(1, first)[:, 0].clamp(max=1), h.gather(1, first)[:, 0].clamp(max=1)
        at = torch.rand(batch, 2, generator=rng)
        x, y = at[:, 0] * (1 - w), at[:, 1] * (1 - h)
        return Draw(on, keep_on(on, torch.stack([x, y, w, h], dim=1)))

    def encode(self, draw: Draw) -> Tensor:
        """Flag, x, y, w, h, each a fraction of the whole."""
        return with_flag(draw)

    def apply(self, x: Tensor, draw: Draw) -> Tensor:
        """x: (B, C, H, W) or (B, C, T, F)."""
        index = chosen(draw.on, x)
        if len(index) == 0:
            return x
        values = draw.values[draw.on].to(x.device)
        x_size, y_size = x.shape[self.x_axis], x.shape[self.y_axis]
        along_x = (values[:, 0] * x_size, values[:, 2] * x_size)
        along_y = (values[:, 1] * y_size, values[:, 3] * y_size)
        rows, columns = (along_y, along_x) if self.y_axis == 2 else (along_x, along_y)
        box = torch.stack([rows[0], columns[0], rows[1], columns[1]], dim=1)
        if len(index) == len(x):
            return resized_crop(x, box)
        return x.index_copy(0, index, resized_crop(x[index], box))


@dataclass(frozen=True)
class HorizontalFlip:
    """Mirrors one axis: the width of a picture, the time of a spectrogram."""

    p: float = 0.5
    axis: int = 3
    slots: ClassVar[tuple[str, ...]] = ("on",)

    def sample(self, batch: int, rng: torch.Generator) -> Draw:
        """Only the coin."""
        return Draw(coins(batch, self.p, rng), torch.empty(batch, 0))

    def encode(self, draw: Draw) -> Tensor:
        """The flag alone."""
        return with_flag(draw)

    def apply(self, x: Tensor, draw: Draw) -> Tensor:
        """x: (B, C, H, W) or (B, C, T, F)."""
        index = chosen(draw.on, x)
        return x.index_copy(0, index, x[index].flip(self.axis)) if len(index) else x


@dataclass(frozen=True)
class TimeShift:
    """Rolls a spectrogram along time, what leaves at one end entering at the other."""

    p: float = 0.8
    slots: ClassVar[tuple[str, ...]] = ("on", "shift")

    def sample(self, batch: int, rng: torch.Generator) -> Draw:
        """Shift as a fraction of the length, in [-0.5, 0.5)."""
        on = coins(batch, self.p, rng)
        return Draw(on, keep_on(on, uniform(-0.5, 0.5, (batch, 1), rng)))

    def encode(self, draw: Draw) -> Tensor:
        """Flag and shift / T."""
        return with_flag(draw)

    def apply(self, x: Tensor, draw: Draw) -> Tensor:
        """x: (B, C, T, F); a positive shift moves the sound to a later time."""
        length = x.shape[2]
        steps = (draw.values[:, 0] * length).round().long()
        index = (torch.arange(length) - steps[:, None]) % length
        # Row by row copies beat a gather over every element tenfold.
        rows = (torch.arange(len(x))[:, None] * length + index).flatten().to(x.device)
        flat = x.transpose(1, 2).reshape(len(x) * length, -1).index_select(0, rows)
        return flat.view(len(x), length, x.shape[1], x.shape[3]).transpose(1, 2)
