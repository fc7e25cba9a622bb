"""Augmentations of text on grids of words (B, 1, words, letters): crop, dropout, swap and spelling, slots by name.

What a draw does to a text follows from its vector alone: which words are dropped or misspelt is no further lottery but
a pattern that two numbers of the vector fix, so that a predictor can know it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from equiav.augment import Augmentation, Pipeline
from equiav.augment.base import Transform, uniform

Grid = Float[Tensor, "b 1 words letters"]
STEP = (
    0.618033988749895  # of the golden ratio: its multiples, taken modulo 1, are spread evenly for any number of words
)


def word_mask(x: Grid) -> Bool[Tensor, "b words"]:
    """Where there are words; they always stand at the front."""
    return (x[:, 0] != 0).any(dim=-1)


def _picked(there: Bool[Tensor, "b words"], share: Tensor, phase: Tensor) -> tuple[Tensor, Tensor]:
    """About a share of some words, at least one; and the one that comes last in the pattern, to be left alone."""
    places = (torch.arange(there.shape[1], device=there.device) * STEP + phase[:, None]) % 1  # (B, words)
    first = places.masked_fill(~there, 2.0)
    chosen = there & ((places < share[:, None]) | (first == first.amin(dim=1, keepdim=True)))
    last = places.masked_fill(~there, -1.0)
    return chosen, there & (last == last.amax(dim=1, keepdim=True))


def _kept(x: Grid, keep: Bool[Tensor, "b words"]) -> Grid:
    """Only some words, moved to the front in their order."""
    order = (~keep).long().argsort(dim=1, stable=True)
    return _ordered(x * keep[:, None, :, None], order)


def _ordered(x: Grid, order: Int[Tensor, "b words"]) -> Grid:
    return x.gather(2, order[:, None, :, None].expand_as(x))


@dataclass(frozen=True)
class SpanCrop(Transform):
    """Keeps a stretch of neighbouring words: `length` of them from `start` on, as shares of the text."""

    p: float = 0.5
    shortest: float = 0.5
    slots: ClassVar[tuple[str, ...]] = ("on", "start", "length")

    def values(self, batch: int, rng: torch.Generator) -> Float[Tensor, "batch 2"]:
        """Start and length."""
        length = uniform(self.shortest, 0.9, (batch, 1), rng)
        return torch.cat([uniform(0.0, 1.0, (batch, 1), rng) * (1 - length), length], dim=1)

    def change(self, x: Grid, values: Tensor) -> Grid:
        """A text of two words or more loses at least one and keeps at least one."""
        start, length = values.to(x.device).unbind(dim=1)
        count = word_mask(x).sum(dim=1)
        kept = (length * count).round().long().clamp(min=1).minimum((count - 1).clamp(min=1))
        first = (start * count).floor().long().minimum(count - kept).clamp(min=0)
        place = torch.arange(x.shape[2], device=x.device)
        return _kept(x, (place >= first[:, None]) & (place < (first + kept)[:, None]))


@dataclass(frozen=True)
class WordDropout(Transform):
    """Drops about `share` of the words; `phase` decides which. The only word of a text stays."""

    p: float = 0.5
    most: float = 0.4
    slots: ClassVar[tuple[str, ...]] = ("on", "share", "phase")

    def values(self, batch: int, rng: torch.Generator) -> Float[Tensor, "batch 2"]:
        """Share and phase."""
        return torch.cat([uniform(0.1, self.most, (batch, 1), rng), uniform(0.0, 1.0, (batch, 1), rng)], dim=1)

    def change(self, x: Grid, values: Tensor) -> Grid:
        """The words that stay move together."""
        there = word_mask(x)
        chosen, safe = _picked(there, *values.to(x.device).unbind(dim=1))
        return _kept(x, there & (~chosen | safe))


@dataclass(frozen=True)
class WordSwap(Transform):
    """Two words change places: those at `first` and `second` as shares of the text, or neighbours if that is one."""

    p: float = 0.3
    slots: ClassVar[tuple[str, ...]] = ("on", "first", "second")

    def values(self, batch: int, rng: torch.Generator) -> Float[Tensor, "batch 2"]:
        """First and second."""
        return uniform(0.0, 1.0, (batch, 2), rng)

    def change(self, x: Grid, values: Tensor) -> Grid:
        """The other words stay where they are."""
        count = word_mask(x).sum(dim=1).clamp(min=1)[:, None]
        places = (values.to(x.device) * count).floor().long().minimum(count - 1)
        one, two = places[:, :1], places[:, 1:]
        two = torch.where(one == two, (one + 1) % count, two)
        order = torch.arange(x.shape[2], device=x.device).repeat(len(x), 1)
        return _ordered(x, order.scatter(1, one, two).scatter(1, two, one))


@dataclass(frozen=True)
class SpellingNoise(Transform):
    """In about `share` of the words, chosen by `phase`, two neighbouring letters change places, at `place` in the word.

    Only letters of one byte are exchanged: halves of a character would be no spelling.
    """

    p: float = 0.3
    most: float = 0.5
    slots: ClassVar[tuple[str, ...]] = ("on", "share", "phase", "place")

    def values(self, batch: int, rng: torch.Generator) -> Float[Tensor, "batch 3"]:
        """Share, phase and place."""
        return torch.cat([uniform(0.1, self.most, (batch, 1), rng), uniform(0.0, 1.0, (batch, 2), rng)], dim=1)

    def change(self, x: Grid, values: Tensor) -> Grid:
        """Words of one letter are not chosen."""
        share, phase, place = values.to(x.device).unbind(dim=1)
        length = (x[:, 0] != 0).sum(dim=-1)  # (B, words)
        one = (place[:, None] * (length - 1)).floor().long().minimum(length - 2).clamp(min=0)
        pair = torch.stack([one, (one + 1).clamp(max=x.shape[3] - 1)], dim=-1)
        letters = x[:, 0].gather(2, pair)
        chosen, _ = _picked((length > 1) & (letters < 128).all(dim=-1), share, phase)
        swapped = x[:, 0].scatter(2, pair, letters.flip(-1))
        return torch.where(chosen[..., None], swapped, x[:, 0])[:, None]


def text_pipeline(*, crop: float = 0.5, drop: float = 0.5, swap: float = 0.3, spell: float = 0.3) -> Pipeline:
    """Span crop, word dropout, word swap, spelling noise, in this order, with these chances; 13 slots."""
    parts: dict[str, Augmentation] = {
        "crop": SpanCrop(crop),
        "drop": WordDropout(drop),
        "swap": WordSwap(swap),
        "spell": SpellingNoise(spell),
    }
    return Pipeline(parts, layout=tuple(parts))
