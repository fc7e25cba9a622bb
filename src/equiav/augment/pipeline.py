"""The augmentation distributions T_a and T_v: named parts, their order of application, the layout of the vector."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol, cast, runtime_checkable

import torch
from jaxtyping import Float
from torch import Tensor

from equiav.augment.base import Augmentation, Draw
from equiav.augment.transforms import (
    ColorJitter,
    GaussianBlur,
    Greyscale,
    HorizontalFlip,
    RandomResizedCrop,
    SpecAugment,
    TimeShift,
)
from equiav.errors import ShapeError

# Standardised log-mel values lie within about three standard deviations: these stand for black and white in the jitter.
SPECTROGRAM_BOUNDS = (-3.0, 3.0)
# More numbers than this at a time fall out of a processor's caches between one operation and the next.
CPU_NUMBERS = 1 << 18


@runtime_checkable
class VectorSource(Protocol):
    """Anything that draws augmentation vectors: all that a centroid needs."""

    @property
    def slots(self) -> tuple[str, ...]:
        """Names of the vector's columns."""
        ...

    def vectors(self, batch: int, count: int, rng: torch.Generator) -> Float[Tensor, "batch count d_t"]:
        """`count` vectors for each of `batch` samples, in one vectorised draw."""
        ...


class PipelineDraw(dict[str, Draw]):
    """The draws of every part of a pipeline for one batch, by the part's name; never changed, only copied."""

    @property
    def batch(self) -> int:
        """How many samples were drawn for."""
        return len(next(iter(self.values())))

    def rows(self, start: int, stop: int) -> PipelineDraw:
        """The draws of samples `start` up to `stop`: what one rank or micro-batch takes of the global batch."""
        return PipelineDraw({name: draw.rows(start, stop) for name, draw in self.items()})

    def with_part(self, name: str, draw: Draw) -> PipelineDraw:
        """The same draws but for one part."""
        return PipelineDraw({**self, name: draw})


def neutral(part: Augmentation, batch: int) -> Draw:
    """Draws that change nothing: the default of a part that can be off; the whole box of a crop that never is."""
    own = getattr(part, "neutral", None)
    return own(batch) if own else _with_chance(part, 0.0).sample(batch, torch.Generator())


def _with_chance(part: Augmentation, p: float) -> Augmentation:
    return cast(Augmentation, replace(cast(Any, part), p=p))


@dataclass(frozen=True)
class Pipeline:
    """Parts by name, in the order in which they are applied; `layout` is their order in the vector."""

    parts: dict[str, Augmentation]
    layout: tuple[str, ...]
    slots: tuple[str, ...] = field(init=False)

    def __post_init__(self) -> None:
        if sorted(self.layout) != sorted(self.parts):
            raise ValueError(f"layout {self.layout} does not name the parts {tuple(self.parts)}")
        slots = tuple(f"{name}.{slot}" for name in self.layout for slot in self.parts[name].slots)
        object.__setattr__(self, "slots", slots)

    def slot(self, name: str) -> int:
        """Column of a slot such as "crop.x"."""
        return self.slots.index(name)

    def sample(self, batch: int, rng: torch.Generator) -> PipelineDraw:
        """Draws every part for `batch` samples; each part has its own coin."""
        return PipelineDraw({name: part.sample(batch, rng) for name, part in self.parts.items()})

    def redraw(self, draws: PipelineDraw, name: str, rng: torch.Generator) -> PipelineDraw:
        """The same draws but for one part, which is drawn anew."""
        return draws.with_part(name, self.parts[name].sample(draws.batch, rng))

    def leave_out(self, draws: PipelineDraw, name: str) -> PipelineDraw:
        """The same draws but for one part, which does nothing."""
        return draws.with_part(name, neutral(self.parts[name], draws.batch))

    def alone(self, name: str, batch: int, rng: torch.Generator) -> PipelineDraw:
        """Draws in which one part is on for every sample and the others do nothing."""
        still = PipelineDraw({other: neutral(part, batch) for other, part in self.parts.items()})
        return still.with_part(name, _with_chance(self.parts[name], 1.0).sample(batch, rng))

    def without(self, names: Sequence[str]) -> Pipeline:
        """The same slots, with some parts never on."""
        parts = {name: _with_chance(part, 0.0) if name in names else part for name, part in self.parts.items()}
        return replace(self, parts=parts)

    def encode(self, draws: PipelineDraw) -> Float[Tensor, "batch d_t"]:
        """The vectors t of the draws."""
        return torch.cat([self.parts[name].encode(draws[name]) for name in self.layout], dim=1)

    def apply(self, x: Tensor, draws: PipelineDraw) -> Tensor:
        """t(x) for a batch x of shape (B, C, H, W) or (B, C, T, F)."""
        if x.ndim != 4:
            raise ShapeError(f"augmentation wants a batch of shape (B, C, H, W), got {tuple(x.shape)}")
        if len(x) != draws.batch:
            raise ShapeError(f"{draws.batch} augmentations were drawn for a batch of {len(x)}")
        chunk = max(1, CPU_NUMBERS * len(x) // max(1, x.numel()))
        if x.device.type != "cpu" or chunk >= len(x):
            return self._apply(x, draws)
        starts = range(0, len(x), chunk)
        return torch.cat([self._apply(x[i : i + chunk], draws.rows(i, i + chunk)) for i in starts])

    def _apply(self, x: Tensor, draws: PipelineDraw) -> Tensor:
        for name, part in self.parts.items():
            x = part.apply(x, draws[name])
        return x

    def vectors(self, batch: int, count: int, rng: torch.Generator) -> Float[Tensor, "batch count d_t"]:
        """`count` vectors for each of `batch` samples, nothing applied: one vectorised draw."""
        return self.encode(self.sample(batch * count, rng)).view(batch, count, -1)


Range = tuple[float, float]


def visual_pipeline(
    *,
    crop_area: Range = (0.08, 1.0),
    crop_aspect: Range = (3 / 4, 4 / 3),
    jitter: tuple[float, float, float, float] = (0.4, 0.4, 0.4, 0.1),
    blur_sigma: Range = (0.1, 2.0),
    off: Sequence[str] = (),
) -> Pipeline:
    """Crop, jitter, blur, flip, greyscale, in this order; 18 slots; pictures in [0, 1].

    Parts named in `off` change no input and keep their default in every vector.
    """
    parts: dict[str, Augmentation] = {
        "crop": RandomResizedCrop(crop_area, crop_aspect),
        "jitter": ColorJitter(jitter),
        "blur": GaussianBlur(blur_sigma),
        "flip": HorizontalFlip(),
        "grey": Greyscale(),
    }
    return Pipeline(parts, layout=tuple(parts)).without(off)


def audio_pipeline(
    *,
    crop_area: Range = (0.08, 1.0),
    crop_aspect: Range = (0.667, 1.25),
    jitter: tuple[float, float] = (0.4, 0.4),
    blur_sigma: Range = (0.1, 2.0),
    mask_time: float = 192 / 1024,
    mask_frequency: float = 48 / 128,
    off: Sequence[str] = (),
) -> Pipeline:
    """Shift, SpecAugment, crop, jitter, blur, flip, in this order; 24 slots; standardised (B, 1, T, F).

    Shifting comes before masking, so that the vector's mask is where the mask is. `off` is that of `visual_pipeline`.
    """
    parts: dict[str, Augmentation] = {
        "shift": TimeShift(),
        "specaugment": SpecAugment(mask_time, mask_frequency),
        "crop": RandomResizedCrop(crop_area, crop_aspect, x_axis=2, y_axis=3),
        "jitter": ColorJitter(jitter, bounds=SPECTROGRAM_BOUNDS, clamp=False),
        "blur": GaussianBlur(blur_sigma),
        "flip": HorizontalFlip(axis=2),
    }
    return Pipeline(parts, layout=("specaugment", "shift", "crop", "jitter", "blur", "flip")).without(off)
