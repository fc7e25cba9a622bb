"""Metrics of classification, as scikit-learn defines them, on tensors."""

from __future__ import annotations

import math

import torch
from jaxtyping import Float
from torch import Tensor


def average_precision(scores: Float[Tensor, " n"], positive: Float[Tensor, " n"]) -> float:
    """Area under precision over recall, one step per distinct score; NaN where nothing is positive."""
    total = float(positive.sum())
    if total == 0:
        return math.nan
    order = scores.argsort(descending=True, stable=True)
    scores, hits = scores[order], positive[order].double().cumsum(0)
    last = torch.ones(len(scores), dtype=torch.bool, device=scores.device)  # of its run of equal scores
    last[:-1] = scores[1:] != scores[:-1]
    hits, seen = hits[last], torch.arange(1, len(scores) + 1, device=scores.device)[last]
    gained = torch.diff(hits, prepend=hits.new_zeros(1))
    return float((gained / total * hits / seen).sum())


def mean_average_precision(
    scores: Float[Tensor, "n classes"], labels: Float[Tensor, "n classes"]
) -> tuple[float, list[float]]:
    """Mean over the classes that have positives, and each class's own value, both in per cent."""
    values = [100 * average_precision(scores[:, c], labels[:, c]) for c in range(scores.shape[1])]
    known = [v for v in values if not math.isnan(v)]
    return (sum(known) / len(known) if known else math.nan), values
