"""The augmentations: crop, flip and time shift; colour jitter, blur and greyscale; SpecAugment."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor

from equiav.augment.base import Draw, Transform, coins, keep_on, uniform

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
class RandomResizedCrop(Transform):
    """A box of random area and aspect, stretched to the full size; for a spectrogram x runs along time.

    `x_axis` and `y_axis` are the tensor axes that the box's x, w and y, h belong to. The aspect is relative to
    that of the whole input, so that a long spectrogram is cropped like an image.
    """

    area: tuple[float, float] = (0.08, 1.0)
    aspect: tuple[float, float] = (3 / 4, 4 / 3)
    p: float = 1.0
    x_axis: int = 3
    y_axis: int = 2
    slots: ClassVar[tuple[str, ...]] = ("on", "x", "y", "w", "h")

    def values(self, batch: int, rng: torch.Generator) -> Tensor:
        """x, y, w, h as fractions of the whole; of several proposals the first that fits inside is taken."""
        area = uniform(*self.area, (batch, TRIES), rng)
        log_low, log_high = torch.tensor(self.aspect).log().tolist()
        aspect = uniform(log_low, log_high, (batch, TRIES), rng).exp()
        w, h = (area * aspect).sqrt(), (area / aspect).sqrt()
        fits = (w <= 1) & (h <= 1)
        first = fits.int().argmax(dim=1, keepdim=True)  # 0 where none fits: cut down to the whole below
        w, h = w.gather(1, first)[:, 0].clamp(max=1), h.gather(1, first)[:, 0].clamp(max=1)
        at = torch.rand(batch, 2, generator=rng)
        return torch.stack([at[:, 0] * (1 - w), at[:, 1] * (1 - h), w, h], dim=1)

    def neutral(self, batch: int) -> Draw:
        """Of a crop that is never off: the whole box."""
        if self.p < 1:
            return super().neutral(batch)
        return Draw(torch.ones(batch, dtype=torch.bool), torch.tensor([[0.0, 0.0, 1.0, 1.0]]).repeat(batch, 1))

    def change(self, x: Tensor, values: Tensor) -> Tensor:
        """x: (B, C, H, W) or (B, C, T, F)."""
        sizes = torch.tensor([x.shape[self.x_axis], x.shape[self.y_axis]] * 2)
        left, top, width, height = (values * sizes).to(x.device).unbind(dim=1)
        if self.y_axis == 2:
            return resized_crop(x, torch.stack([top, left, height, width], dim=1))
        return resized_crop(x, torch.stack([left, top, width, height], dim=1))


@dataclass(frozen=True)
class HorizontalFlip(Transform):
    """Mirrors one axis: the width of an image, the time of a spectrogram."""

    p: float = 0.5
    axis: int = 3
    slots: ClassVar[tuple[str, ...]] = ("on",)

    def change(self, x: Tensor, values: Tensor) -> Tensor:
        """x: (B, C, H, W) or (B, C, T, F)."""
        return x.flip(self.axis)


@dataclass(frozen=True)
class TimeShift(Transform):
    """A circular shift along time by at most half the length either way: what leaves at one end enters at the other.

    So every rotation is reached, and each by one shift only.
    """

    p: float = 0.8
    slots: ClassVar[tuple[str, ...]] = ("on", "shift")

    def values(self, batch: int, rng: torch.Generator) -> Tensor:
        """Shift as a fraction of the length, in [-0.5, 0.5)."""
        return uniform(-0.5, 0.5, (batch, 1), rng)

    def change(self, x: Tensor, values: Tensor) -> Tensor:
        """x: (B, C, T, F); a positive shift moves the sound to a later time."""
        length = x.shape[2]
        steps = (values[:, 0] * length).round().long()
        index = (torch.arange(length) - steps[:, None]) % length
        # Row by row copies beat a gather over every element tenfold.
        rows = (torch.arange(len(x))[:, None] * length + index).flatten().to(x.device)
        flat = x.transpose(1, 2).reshape(len(x) * length, -1).index_select(0, rows)
        return flat.view(len(x), length, x.shape[1], x.shape[3]).transpose(1, 2)


Image = Float[Tensor, "b c h w"]
Factor = Float[Tensor, " b"]

# ITU-R BT.601 luma, the weights every image library uses for greyscale.
LUMA = (0.2989, 0.587, 0.114)
OPERATIONS = ("brightness", "contrast", "saturation", "hue")


def grey(x: Image) -> Float[Tensor, "b 1 h w"]:
    """Luma of an RGB batch; one channel stays what it is."""
    if x.shape[1] == 1:
        return x
    r, g, b = x.unbind(dim=1)
    return (LUMA[0] * r + LUMA[1] * g + LUMA[2] * b)[:, None]


def _blend(x: Image, other: Tensor, factor: Factor) -> Image:
    return torch.lerp(other.expand_as(x), x, factor[:, None, None, None])


def brightness(x: Image, factor: Factor) -> Image:
    """Multiplies every value."""
    return x * factor[:, None, None, None]


def contrast(x: Image, factor: Factor) -> Image:
    """Scales about the mean luma."""
    return _blend(x, grey(x).mean(dim=(1, 2, 3), keepdim=True), factor)


def saturation(x: Image, factor: Factor) -> Image:
    """Scales about the luma of each pixel."""
    return _blend(x, grey(x), factor)


def hue(x: Image, shift: Factor) -> Image:
    """Turns the colour circle by `shift` (1 = once round, at most half), through HSV; values lie in [0, 1]."""
    r, g, b = x.unbind(dim=1)
    value = torch.maximum(torch.maximum(r, g), b)
    chroma = value - torch.minimum(torch.minimum(r, g), b)
    # 1 where green, or blue, is the greatest, else 0: products are several times as fast as `where`.
    other = (value - r).sign_()
    blue = (value - g).sign_().mul_(other)
    green = other - blue
    rise = (g - b).mul_(1 - other).addcmul_(b - r, green).addcmul_(r - g, blue)
    sixth = rise.div_(chroma.clamp(min=torch.finfo(x.dtype).tiny))
    sixth.add_(green, alpha=2).add_(blue, alpha=4).add_(6 * shift[:, None, None])
    out = torch.empty_like(x)
    for channel, place in enumerate((0.0, 2.0, 4.0)):  # of red, green and blue on a circle of six
        away = (sixth - place).abs_()
        away = torch.minimum(away, (6 - away).abs_()).sub_(1).clamp_(0, 1)
        torch.addcmul(value, chroma, away, value=-1, out=out[:, channel])
    return out


_OPERATORS = (brightness, contrast, saturation, hue)


def gaussian_blur(x: Image, sigma: Factor, radius: int) -> Image:
    """Separable Gaussian of 2 * radius + 1 taps with its own sigma per sample; edges are reflected."""
    taps = torch.arange(radius + 1, device=x.device, dtype=x.dtype)
    half = torch.exp(-0.5 * (taps / sigma.to(x.dtype)[:, None]) ** 2)
    weights = (half / (2 * half.sum(dim=1, keepdim=True) - half[:, :1])).T[:, :, None, None, None]
    # A sum of shifted copies: a convolution with a kernel per sample takes up to ten times as long on a processor.
    for axis, edges in ((2, (0, 0, radius, radius)), (3, (radius, radius, 0, 0))):
        padded, length = F.pad(x, edges, mode="reflect"), x.shape[axis]
        x = padded.narrow(axis, radius, length) * weights[0]
        for k in range(1, radius + 1):
            pair = padded.narrow(axis, radius - k, length) + padded.narrow(axis, radius + k, length)
            x.addcmul_(pair, weights[k])
    return x


@dataclass(frozen=True)
class ColorJitter(Transform):
    """Brightness, contrast, saturation and hue in an order of their own for each sample.

    `strengths` holds one entry per operation; with two of them (a spectrogram has no colour) the order is a
    permutation of those two and the slots of saturation and hue stay at their default. `bounds` are the values
    that stand for black and white: the operations work on (x - black) / (white - black). Images are clamped
    between them after each operation, spectrograms are not.
    """

    strengths: tuple[float, ...] = (0.4, 0.4, 0.4, 0.1)
    p: float = 0.8
    bounds: tuple[float, float] = (0.0, 1.0)
    clamp: bool = True
    slots: ClassVar[tuple[str, ...]] = ("on", *(f"order_{i}" for i in range(4)), *OPERATIONS)

    def sample(self, batch: int, rng: torch.Generator) -> Draw:
        """Values: the order (4), then factor - 1 of brightness, contrast, saturation, and the hue's shift."""
        n = len(self.strengths)
        on = coins(batch, self.p, rng)
        order = torch.arange(4).repeat(batch, 1)
        shuffled = torch.rand(batch, n, generator=rng).argsort(dim=1)
        order[:, :n] = torch.where(on[:, None], shuffled, order[:, :n])
        change = (torch.rand(batch, n, generator=rng) * 2 - 1) * torch.tensor(self.strengths)
        factors = F.pad(keep_on(on, change), (0, 4 - n))
        return Draw(on, torch.cat([order.float(), factors], dim=1))

    def encode(self, draw: Draw) -> Tensor:
        """Flag, order / 3, brightness - 1, contrast - 1, saturation - 1, hue."""
        scale = torch.tensor([1 / 3] * 4 + [1.0] * 4)
        return torch.cat([draw.on[:, None].float(), draw.values * scale], dim=1)

    def change(self, x: Tensor, values: Tensor) -> Tensor:
        """x: (B, C, H, W); the k-th operation of every sample's own order, k = 0, 1, ..."""
        low, high = self.bounds
        if not self.clamp and len(self.strengths) == 2:
            return self._in_any_order(x, values)
        whole = (low, high) == (0.0, 1.0)
        y = x if whole else (x - low) / (high - low)
        for operation in values[:, : len(self.strengths)].long().unbind(dim=1):
            out = torch.empty_like(y)  # every sample does exactly one operation now; those that do the same, together
            for number, operator in enumerate(_OPERATORS[: len(self.strengths)]):
                rows = operation == number
                if not rows.any():
                    continue
                amount = values[rows, 4 + number].to(y.device)
                index = None if rows.all() else rows.nonzero()[:, 0].to(y.device)
                part = y if index is None else y.index_select(0, index)
                part = operator(part, amount if operator is hue else amount + 1)
                part = part.clamp_(0, 1) if self.clamp else part
                out = part if index is None else out.index_copy_(0, index, part)
            y = out
        return y if whole else y * (high - low) + low

    def _in_any_order(self, x: Tensor, values: Tensor) -> Tensor:
        """Brightness b and contrast c where nothing is clamped: b c x + b (1 - c) mean, whichever comes first."""
        b, c = (values[:, 4:6].to(x) + 1).unbind(dim=1)
        low = self.bounds[0]
        shift = low * (1 - b * c) + b * (1 - c) * (grey(x).mean(dim=(1, 2, 3)) - low)
        return torch.addcmul(shift[:, None, None, None], x, (b * c)[:, None, None, None])


@dataclass(frozen=True)
class GaussianBlur(Transform):
    """Gaussian blur, sigma in pixels of the input as given; `radius` taps on either side."""

    sigma: tuple[float, float] = (0.1, 2.0)
    p: float = 0.5
    radius: int = 4
    slots: ClassVar[tuple[str, ...]] = ("on", "sigma")

    def values(self, batch: int, rng: torch.Generator) -> Tensor:
        """Sigma in pixels."""
        return uniform(*self.sigma, (batch, 1), rng)

    def encode(self, draw: Draw) -> Tensor:
        """Flag and sigma / 2."""
        return torch.cat([draw.on[:, None].float(), draw.values / 2], dim=1)

    def change(self, x: Tensor, values: Tensor) -> Tensor:
        """x: (B, C, H, W) or (B, C, T, F)."""
        return gaussian_blur(x, values[:, 0].to(x.device), self.radius)


@dataclass(frozen=True)
class Greyscale(Transform):
    """Replaces the three channels by their luma."""

    p: float = 0.2
    slots: ClassVar[tuple[str, ...]] = ("on",)

    def change(self, x: Tensor, values: Tensor) -> Tensor:
        """x: (B, 3, H, W)."""
        return grey(x).expand(-1, x.shape[1], -1, -1)


@dataclass(frozen=True)
class SpecAugment(Transform):
    """Masks one span of time and one band of frequency with 0, the mean of a standardised spectrogram."""

    max_time: float = 192 / 1024
    max_frequency: float = 48 / 128
    p: float = 0.8
    slots: ClassVar[tuple[str, ...]] = ("on", "time_start", "time_end", "frequency_start", "frequency_end")

    def values(self, batch: int, rng: torch.Generator) -> Tensor:
        """Start and end of both masks, as fractions of the whole."""
        width = torch.rand(batch, 2, generator=rng) * torch.tensor([self.max_time, self.max_frequency])
        start = torch.rand(batch, 2, generator=rng) * (1 - width)
        return torch.stack([start, start + width], dim=2).flatten(1)

    def change(self, x: Tensor, values: Tensor) -> Tensor:
        """x: (B, C, T, F)."""
        values = values.to(x.device)
        time = _outside(values[:, 0:2], x.shape[2]).to(x.dtype)
        frequency = _outside(values[:, 2:4], x.shape[3]).to(x.dtype)
        return (x * time[:, None, :, None]).mul_(frequency[:, None, None, :])  # several times as fast as masked_fill


def _outside(span: Tensor, size: int) -> Bool[Tensor, "b size"]:
    """Which of `size` bins do not lie between start and end (fractions, rounded to whole bins)."""
    start, end = (span * size).round().unbind(dim=1)
    bins = torch.arange(size, device=span.device)
    return (bins < start[:, None]) | (bins >= end[:, None])
