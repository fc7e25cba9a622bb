"""Augmentations of value: colour jitter with its order, Gaussian blur, greyscale."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor

from equiav.augment.base import Draw, chosen, coins, keep_on, uniform, with_flag

Picture = Float[Tensor, "b c h w"]
Factor = Float[Tensor, " b"]

# ITU-R BT.601 luma, the weights every image library uses for greyscale.
LUMA = (0.2989, 0.587, 0.114)
OPERATIONS = ("brightness", "contrast", "saturation", "hue")


def grey(x: Picture) -> Float[Tensor, "b 1 h w"]:
    """Luma of an RGB batch; one channel stays what it is."""
    if x.shape[1] == 1:
        return x
    r, g, b = x.unbind(dim=1)
    return (LUMA[0] * r + LUMA[1] * g + LUMA[2] * b)[:, None]


def _blend(x: Picture, other: Tensor, factor: Factor) -> Picture:
    return torch.lerp(other.expand_as(x), x, factor[:, None, None, None])


def brightness(x: Picture, factor: Factor) -> Picture:
    """Multiplies every value."""
    return x * factor[:, None, None, None]


def contrast(x: Picture, factor: Factor) -> Picture:
    """Scales about the mean luma."""
    return _blend(x, grey(x).mean(dim=(1, 2, 3), keepdim=True), factor)


def saturation(x: Picture, factor: Factor) -> Picture:
    """Scales about the luma of each pixel."""
    return _blend(x, grey(x), factor)


def hue(x: Picture, shift: Factor) -> Picture:
    """Turns the colour circle by `shift` (1 = once round, at most half), through HSV; values lie in [0, 1]."""
    r, g, b = x.unbind(dim=1)
    value = torch.maximum(torch.maximum(r, g), b)
    chroma = value - torch.minimum(torch.minimum(r, g), b)
    red, green = value == r, value == g
    rise = torch.where(red, g - b, torch.where(green, b - r, r - g))
    sector = torch.where(red, 0.0, torch.where(green, 2.0, 4.0))
    sixth = rise.div_(torch.where(chroma == 0, 1.0, chroma)).add_(sector).add_(6 * shift[:, None, None])
    out = torch.empty_like(x)
    for channel, place in enumerate((0.0, 2.0, 4.0)):  # of red, green and blue on a circle of six
        away = (sixth - place).abs_()
        away = torch.minimum(away, (6 - away).abs_()).sub_(1).clamp_(0, 1)
        torch.addcmul(value, chroma, away, value=-1, out=out[:, channel])
    return out


_OPERATORS = (brightness, contrast, saturation, hue)


def gaussian_blur(x: Picture, sigma: Factor, radius: int) -> Picture:
    """Separable Gaussian of 2 * radius + 1 taps with its own sigma per sample; edges are reflected."""
    taps = torch.arange(-radius, radius + 1, device=x.device, dtype=x.dtype)
    kernel = torch.exp(-0.5 * (taps / sigma.to(x.dtype)[:, None]) ** 2)
    kernel = (kernel / kernel.sum(dim=1, keepdim=True)).repeat_interleave(x.shape[1], dim=0)
    groups = x.shape[0] * x.shape[1]
    flat = F.pad(x.reshape(1, groups, *x.shape[2:]), (radius,) * 4, mode="reflect")
    flat = F.conv2d(flat, kernel[:, None, :, None], groups=groups)
    flat = F.conv2d(flat, kernel[:, None, None, :], groups=groups)
    return flat.view_as(x)


@dataclass(frozen=True)
class ColorJitter:
    """Brightness, contrast, saturation and hue in an order of their own for each sample.

    `strengths` holds one entry per operation; with two of them (a spectrogram has no colour) the order is a
    permutation of those two and the slots of saturation and hue stay at their default. `bounds` are the values
    that stand for black and white: the operations work on (x - black) / (white - black). Pictures are clamped
    between them after each operation, spectrograms are not.
    """

    strengths: tuple[float, ...] = (0.4, 0.4, 0.4, 0.1)
    p: float = 0.8
    bounds: tuple[float, float] = (0.0, 1.0)
    clamp: bool = True
    slots: ClassVar[tuple[str, ...]] = (
        "on",
        *(f"order_{i}" for i in range(4)),
        *OPERATIONS,
    )
    operations: int = field(init=False, default=4)

    def __post_init__(self) -> None:
        object.__setattr__(self, "operations", len(self.strengths))

    def sample(self, batch: int, rng: torch.Generator) -> Draw:
        """Values: the order (4), then factor - 1 of brightness, contrast, saturation, and the hue's shift."""
        n = self.operations
        on = coins(batch, self.p, rng)
        order = torch.arange(4).repeat(batch, 1)
        shuffled = torch.rand(batch, n, generator=rng).argsort(dim=1)
        order[:, :n] = torch.where(on[:, None], shuffled, order[:, :n])
        strengths = torch.tensor(self.strengths)
        change = (torch.rand(batch, n, generator=rng) * 2 - 1) * strengths
        factors = F.pad(keep_on(on, change), (0, 4 - n))
        return Draw(on, torch.cat([order.float(), factors], dim=1))

    def encode(self, draw: Draw) -> Tensor:
        """Flag, order / 3, brightness - 1, contrast - 1, saturation - 1, hue."""
        scale = torch.tensor([1 / 3] * 4 + [1.0] * 4)
        return torch.cat([draw.on[:, None].float(), draw.values * scale], dim=1)

    def apply(self, x: Tensor, draw: Draw) -> Tensor:
        """x: (B, C, H, W); the k-th operation of every sample's own order, k = 0, 1, ..."""
        index = chosen(draw.on, x)
        if len(index) == 0:
            return x
        values = draw.values[draw.on]
        order, change = values[:, : self.operations].long(), values[:, 4 : 4 + self.operations]
        low, high = self.bounds
        y = (x[index] - low) / (high - low)
        for step in range(self.operations):
            y = self._step(y, order[:, step], change)
        return x.index_copy(0, index, y * (high - low) + low)

    def _step(self, y: Picture, operation: Int[Tensor, " b"], change: Float[Tensor, "b n"]) -> Picture:
        """One operation per sample: samples that do the same thing now do it together."""
        out = torch.empty_like(y)  # every sample does exactly one operation now
        for number, operator in enumerate(_OPERATORS[: self.operations]):
            rows = operation == number
            if not rows.any():
                continue
            index = chosen(rows, y)
            amount = change[rows, number].to(y.device)
            part = operator(y[index], amount if operator is hue else amount + 1)
            out.index_copy_(0, index, part.clamp_(0, 1) if self.clamp else part)
        return out


@dataclass(frozen=True)
class GaussianBlur:
    """Gaussian blur, sigma in pixels of the input as given; `radius` taps on either side."""

    sigma: tuple[float, float] = (0.1, 2.0)
    p: float = 0.5
    radius: int = 4
    slots: ClassVar[tuple[str, ...]] = ("on", "sigma")

    def sample(self, batch: int, rng: torch.Generator) -> Draw:
        """Sigma in pixels."""
        on = coins(batch, self.p, rng)
        return Draw(on, keep_on(on, uniform(*self.sigma, (batch, 1), rng)))

    def encode(self, draw: Draw) -> Tensor:
        """Flag and sigma / 2."""
        return torch.cat([draw.on[:, None].float(), draw.values / 2], dim=1)

    def apply(self, x: Tensor, draw: Draw) -> Tensor:
        """x: (B, C, H, W) or (B, C, T, F)."""
        index = chosen(draw.on, x)
        if len(index) == 0:
            return x
        sigma = draw.values[draw.on, 0].to(x.device)
        return x.index_copy(0, index, gaussian_blur(x[index], sigma, self.radius))


@dataclass(frozen=True)
class Greyscale:
    """Replaces the three channels by their luma."""

    p: float = 0.2
    slots: ClassVar[tuple[str, ...]] = ("on",)

    def sample(self, batch: int, rng: torch.Generator) -> Draw:
        """Only the coin."""
        return Draw(coins(batch, self.p, rng), torch.empty(batch, 0))

    def encode(self, draw: Draw) -> Tensor:
        """The flag alone."""
        return with_flag(draw)

    def apply(self, x: Tensor, draw: Draw) -> Tensor:
        """x: (B, 3, H, W)."""
        index = chosen(draw.on, x)
        return x.index_copy(0, index, grey(x[index]).expand(-1, x.shape[1], -1, -1)) if len(index) else x
