"""What an augmentation is: drawn parameters, the vector that describes them, the change they make."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Protocol, cast, runtime_checkable

import torch
from jaxtyping import Bool, Float
from torch import Tensor


@dataclass(frozen=True)
class Draw:
    """Parameters drawn for a batch, on the CPU: whether each sample is changed, and by how much.

    `values` are in units of the whole input (fractions of its length, height, width), so that drawing needs no
    tensor; rows that are off hold the augmentation's default.
    """

    on: Bool[Tensor, " batch"]
    values: Float[Tensor, "batch parameters"]

    def __len__(self) -> int:
        return len(self.on)

    def rows(self, start: int, stop: int) -> Draw:
        """The draws of samples `start` up to `stop`."""
        return Draw(self.on[start:stop], self.values[start:stop])


@runtime_checkable
class Augmentation(Protocol):
    """One augmentation: what it was told, what it writes into the vector and what it does cannot disagree."""

    slots: ClassVar[tuple[str, ...]]

    def sample(self, batch: int, rng: torch.Generator) -> Draw:
        """Draws parameters for `batch` samples."""
        ...

    def encode(self, draw: Draw) -> Float[Tensor, "batch slots"]:
        """The part of the vector t that describes the draw, one column per slot."""
        ...

    def apply(self, x: Tensor, draw: Draw) -> Tensor:
        """The batch x, changed as drawn; never in place."""
        ...


def coins(batch: int, p: float, rng: torch.Generator) -> Bool[Tensor, " batch"]:
    """One coin per sample, heads with probability p."""
    return torch.rand(batch, generator=rng) < p


def uniform(low: float, high: float, shape: tuple[int, ...], rng: torch.Generator) -> Tensor:
    """Uniform numbers in [low, high)."""
    return torch.rand(shape, generator=rng) * (high - low) + low


def keep_on(on: Bool[Tensor, " batch"], values: Tensor, default: float = 0.0) -> Tensor:
    """`values` where the coin fell on heads, the default elsewhere."""
    return torch.where(on[:, None], values, default)


class Transform(ABC):
    """An augmentation that tosses a coin per sample, and changes those on heads by the values drawn for them."""

    slots: ClassVar[tuple[str, ...]]
    p: float

    def sample(self, batch: int, rng: torch.Generator) -> Draw:
        """Coins, and the values where they fell on heads."""
        on = coins(batch, self.p, rng)
        return Draw(on, keep_on(on, self.values(batch, rng)))

    def encode(self, draw: Draw) -> Tensor:
        """The flag, then the values as drawn."""
        return torch.cat([draw.on[:, None].float(), draw.values], dim=1)

    def apply(self, x: Tensor, draw: Draw) -> Tensor:
        """The batch with the samples that are on changed; the draw is on the CPU, so that nothing waits for a GPU."""
        if not draw.on.any():
            return x
        if draw.on.all():
            return self.change(x, draw.values)
        index = draw.on.nonzero()[:, 0].to(x.device)
        return x.index_copy(0, index, self.change(x.index_select(0, index), draw.values[draw.on]))

    def values(self, batch: int, rng: torch.Generator) -> Float[Tensor, "batch parameters"]:
        """Parameters of every sample; none by default."""
        return torch.empty(batch, 0)

    def neutral(self, batch: int) -> Draw:
        """A draw that changes nothing: off, so that nothing of what is drawn remains."""
        return replace(cast(Any, self), p=0.0).sample(batch, torch.Generator())  # type: ignore[no-any-return]

    @abstractmethod
    def change(self, x: Tensor, values: Tensor) -> Tensor:
        """Samples x of shape (B, C, H, W) or (B, C, T, F), each changed by its row of values."""
