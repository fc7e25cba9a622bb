"""Mixup: which clips of a global batch are mixed, by how much, and the mixing itself."""

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

    def further_rows(self, start: int, stop: int) -> list[int]:
        """Rows outside `start` to `stop` that the rows inside are mixed with: a process must read them as well."""
        wanted = set(self.partner[start:stop][self.share[start:stop] < 1].tolist())
        return sorted(row for row in wanted if not start <= row < stop)

    def local(self, start: int, stop: int) -> Mixing:
        """The same for a process that holds rows `start` to `stop` and behind them its further rows."""
        place = {row: row - start for row in range(start, stop)}
        place |= {row: stop - start + k for k, row in enumerate(self.further_rows(start, stop))}
        # Rows that stay as they are may have a partner that was not read: their own row stands in, with no weight.
        here = [place.get(row, k) for k, row in enumerate(self.partner[start:stop].tolist())]
        return Mixing(torch.tensor(here, dtype=torch.int64), self.share[start:stop])

    def mix(self, x: Tensor) -> Tensor:
        """share * x[row] + (1 - share) * x[partner] for the rows of this mixing; rows behind them are further_rows."""
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


def mix_batch(batch: Batch, mixing: Mixing) -> Batch:
    """Mixes inputs and targets of a clip with the same partner by the same share; audio lasts as long as the longer.

    Frames become floats in [0, 1]; waveforms are mixed before their spectrograms.
    """
    n = len(mixing.share)
    inputs = {m: mixing.mix(x if x.is_floating_point() else to_float(x)) for m, x in batch.inputs.items()}
    lengths = {}
    for m, own in batch.lengths.items():
        mixed = (mixing.share < 1).to(own.device)
        lengths[m] = torch.where(mixed, torch.maximum(own[:n], own[mixing.partner.to(own.device)]), own[:n])
    targets = None if batch.targets is None else mixing.mix(batch.targets)
    return Batch(batch.ids[:n], inputs, lengths, targets)
