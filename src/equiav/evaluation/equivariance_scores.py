"""Statistics of equivariance: paired differences over clips, ranks among draws, cosines about a centre."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Literal

import torch
from jaxtyping import Bool, Float
from torch import Tensor

DEVIATIONS = 1.96  # of a mean, on either side: 95 per cent

Verdict = Literal["above", "below", "level with"]


@dataclass(frozen=True)
class Beside:
    """A baseline's mean cosine, and by how much the true vector's lies above it: mean and 95 % interval over clips."""

    mean: float
    difference: float
    low: float
    high: float

    @property
    def verdict(self) -> Verdict:
        """Where the true vector stands, if the interval can tell."""
        return "above" if self.low > 0 else "below" if self.high < 0 else "level with"

    def record(self) -> dict[str, float | str]:
        """As written to results files."""
        return {**asdict(self), "true_is": self.verdict}


def interval(values: Float[Tensor, " n"]) -> tuple[float, float, float]:
    """Mean and its 95 % interval (normal); clips are the units. Unknown for fewer than two."""
    if len(values) < 2:
        return (float(values.mean()) if len(values) else math.nan), math.nan, math.nan
    mean, half = float(values.mean()), DEVIATIONS * float(values.std()) / math.sqrt(len(values))
    return mean, mean - half, mean + half


def beside(true: Float[Tensor, " n"], other: Float[Tensor, " n"]) -> Beside:
    """The true vector's cosines against a baseline's, clip by clip; clips that are NaN in either do not count."""
    known = true.isfinite() & other.isfinite()
    return Beside(float(other[known].mean()), *interval((true - other)[known]))


def clip_means(values: Float[Tensor, "n draws"], counted: Bool[Tensor, "n draws"]) -> Float[Tensor, " n"]:
    """Each clip's mean over the draws that count; NaN where none does."""
    return torch.where(counted, values, 0.0).sum(dim=1) / counted.sum(dim=1)


def others_mean(pairs: Float[Tensor, "n draws draws"]) -> Float[Tensor, " n"]:
    """Each clip's mean over the pairs of different draws: what a vector of another draw gives."""
    d = pairs.shape[1]
    return (pairs.sum(dim=(1, 2)) - pairs.diagonal(dim1=1, dim2=2).sum(dim=1)) / (d * (d - 1))


def rank_among_draws(pairs: Float[Tensor, "n draws draws"]) -> dict[str, float]:
    """How often, and how far up, a prediction finds its own augmented input among all draws of the same clip.

    `pairs[i, d, e]` is the cosine of the prediction for draw d with the input really augmented by draw e. Ties count
    against the truth, so that collapsed embeddings gain nothing. Whatever ignores the vector stays at chance.
    """
    d = pairs.shape[1]
    own = pairs.diagonal(dim1=1, dim2=2)[:, :, None]
    rank = (pairs >= own).sum(dim=2).double()
    return {
        "first": 100 * float((rank == 1).double().mean()),
        "reciprocal_rank": float((1 / rank).mean()),
        "chance_first": 100 / d,
        "chance_reciprocal_rank": sum(1 / k for k in range(1, d + 1)) / d,
        "draws": d,
    }


def centred_cosine(
    a: Float[Tensor, "*n d"], b: Float[Tensor, "*n d"], centre: Float[Tensor, " d"]
) -> Float[Tensor, "*n"]:
    """Cosine as seen from the centre of a set: what is common to all of it counts for nothing."""
    return torch.cosine_similarity(a - centre, b - centre, dim=-1)
