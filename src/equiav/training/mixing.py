"""Mixup: which clips of a global batch are mixed, by how much, and the mixing of sounds and pictures."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Float, Int64
from torch import Tensor

from equiav.media import to_float
from equiav.types import Batch


@dataclass(frozen=True)
class Mixing:
    """For every row of a batch the row it is mixed with, and the share of itself that stays (1: it is not mixed)."""

    partner: Int64[Tensor, " batch"]
    share: Float[Tensor, " batch"]

    def visitors(self, start: int, stop: int) -> list[int]:
        """Rows outside `start` to `stop` that the rows inside are mixed with: a process must read them as well."""
        wanted = set(self.partner[start:stop][self.share[start:stop] < 1].tolist())
        return sorted(row for row in wanted if not start <= row < stop)

    def local(self, start: int, stop: int) -> Mixing:
        """The same for a process that holds rows `start` to `stop` and behind them its visitors."""
        place = {row: row - start for row in range(start, stop)}
        place |= {row: stop - start + k for k, row in enumerate(self.visitors(start, stop))}
        # Rows that stay as they are may have a partner that was not read: their own row stands in, with no weight.
        here = [place.get(row, k) for k, row in enumerate(self.partner[start:stop].tolist())]
        return Mixing(torch.tensor(here, dtype=torch.int64), self.share[start:stop])

    def mix(self, x: Tensor) -> Tensor:
        """share * x[row] + (1 - share) * x[partner] for the rows of this mixing; rows behind them are visitors."""
        own = x[: len(self.share)]
        if bool((self.share == 1).all()):
            return own
        share = self.share.to(x.device).view(-1, *[1] * (x.ndim - 1))
        return own * share + x[self.partner.to(x.device)] * (1 - share)


def draw_mixing(batch: int, p: float, beta: int, rng: torch.Generator) -> Mixing:
    """Each row is mixed with probability `p`, with a row of a random permutation, by a share from Beta(beta, beta).

    For whole numbers that is the middle one of 2 beta - 1 uniform numbers in their order, which any generator gives.
    """
    mixed = torch.rand(batch, generator=rng) < p
    partner = torch.randperm(batch, generator=rng)
    share = torch.rand(batch, 2 * beta - 1, generator=rng).median(dim=1).values
    return Mixing(partner, torch.where(mixed, share, 1.0))


@dataclass(frozen=True)
class MixedBatch:
    """What a classifier is trained on: sounds before their spectrograms, pictures in [0, 1], targets."""

    names: tuple[str, ...]
    waveforms: Float[Tensor, "n samples"]
    lengths: Int64[Tensor, " n"]
    pictures: Float[Tensor, "n 3 h w"]
    targets: Float[Tensor, "n classes"]

    def __len__(self) -> int:
        return len(self.names)

    def rows(self, start: int, stop: int) -> MixedBatch:
        """The clips from `start` up to `stop`."""
        part = slice(start, stop)
        return MixedBatch(
            self.names[part], self.waveforms[part], self.lengths[part], self.pictures[part], self.targets[part]
        )


def mix_batch(batch: Batch, targets: Float[Tensor, "all classes"], mixing: Mixing) -> MixedBatch:
    """Mixes sounds, pictures and labels of a clip with the same partner by the same share; as long as the longer."""
    n = len(mixing.share)
    lengths = batch.lengths[:n]
    other = batch.lengths[mixing.partner.to(batch.lengths.device)]
    mixed = (mixing.share < 1).to(lengths.device)
    return MixedBatch(
        batch.names[:n],
        mixing.mix(batch.waveforms),
        torch.where(mixed, torch.maximum(lengths, other), lengths),
        mixing.mix(to_float(batch.frames)),
        mixing.mix(targets.to(batch.waveforms.device)),
    )
