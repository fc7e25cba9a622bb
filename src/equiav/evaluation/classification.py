"""Metrics of classification, as scikit-learn defines them, on tensors."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int64
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


def roc_auc(scores: Float[Tensor, " n"], positive: Float[Tensor, " n"]) -> float:
    """Chance that a positive is scored above a negative, ties counted half; NaN where either is missing."""
    total = len(scores)
    hits = int(positive.sum())
    if hits in (0, total):
        return math.nan
    _, place, size = torch.unique(scores, return_inverse=True, return_counts=True)
    last = size.cumsum(0).double()
    ranks = (last - (size - 1) / 2)[place]  # the mean rank of each run of equal scores
    above = float((ranks * positive.double()).sum()) - hits * (hits + 1) / 2
    return above / (hits * (total - hits))


def d_prime(auc: float) -> float:
    """How far two unit Gaussians lie apart whose ROC curve has this area; infinite at 1."""
    return math.sqrt(2) * float(torch.special.ndtri(torch.tensor(auc, dtype=torch.float64)))


def accuracy(scores: Float[Tensor, "n classes"], labels: Float[Tensor, "n classes"]) -> float:
    """Per cent of clips whose highest score is that of one of their classes; clips without a class do not count."""
    known = labels.sum(dim=1) > 0
    if not bool(known.any()):
        return math.nan
    first = scores[known].argmax(dim=1, keepdim=True)
    return 100 * float((labels[known].gather(1, first) > 0).double().mean())


def confusion(
    scores: Float[Tensor, "n classes"], labels: Float[Tensor, "n classes"]
) -> Int64[Tensor, "true taken_for"]:
    """How often each class (row) is taken for each (column), over the clips that have exactly one class."""
    single = labels.sum(dim=1) == 1
    classes = labels.shape[1]
    pairs = labels[single].argmax(dim=1) * classes + scores[single].argmax(dim=1)
    return torch.bincount(pairs, minlength=classes**2).view(classes, classes)


@dataclass(frozen=True)
class ClassificationMetrics:
    """What a classifier is worth on a set; mAP, accuracy and class values in per cent, d' of the mean AUC."""

    mean_average_precision: float
    accuracy: float
    auc: float
    d_prime: float
    class_average_precision: tuple[float, ...]
    clips: int

    def record(self) -> dict[str, float | int | None]:
        """As written to logs and results files; what is not defined or infinite is null."""
        values = {
            "mAP": self.mean_average_precision,
            "accuracy": self.accuracy,
            "AUC": self.auc,
            "d_prime": self.d_prime,
        }
        return {**{k: v if math.isfinite(v) else None for k, v in values.items()}, "clips": self.clips}


def classification_metrics(
    scores: Float[Tensor, "n classes"], labels: Float[Tensor, "n classes"]
) -> ClassificationMetrics:
    """All metrics from the same scores; each mean goes over the classes for which its figure is defined."""
    mean_ap, each = mean_average_precision(scores, labels)
    areas = [a for c in range(scores.shape[1]) if not math.isnan(a := roc_auc(scores[:, c], labels[:, c]))]
    auc = sum(areas) / len(areas) if areas else math.nan
    return ClassificationMetrics(mean_ap, accuracy(scores, labels), auc, d_prime(auc), tuple(each), len(scores))
