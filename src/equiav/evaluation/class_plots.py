"""Figures about classes: how well each is known, and what is taken for what."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from jaxtyping import Int64
from torch import Tensor

from equiav.report import matrix, new_figure, png

MOST_CLASSES = 40  # bars on one figure; of more classes, the worst and the best halves
NAMED_CLASSES = 60  # rows of a confusion matrix that can still carry names


def class_bars(values: Mapping[str, Sequence[float]], classes: Sequence[str], shares: Sequence[float]) -> bytes:
    """Horizontal bars of average precision, classes ordered by the last series; a black line at each class's share."""
    last = list(values)[-1]
    order = sorted((c for c in range(len(classes)) if not math.isnan(values[last][c])), key=lambda c: values[last][c])
    if len(order) > MOST_CLASSES:
        order = order[: MOST_CLASSES // 2] + order[-MOST_CLASSES // 2 :]
    figure = new_figure(8.0, 1 + (0.1 + 0.14 * len(values)) * max(1, len(order)))
    axis = figure.add_subplot()
    height = 0.84 / len(values)
    for i, (name, each) in enumerate(values.items()):
        places = [p + (i - (len(values) - 1) / 2) * height for p in range(len(order))]
        drawn = axis.barh(places, [each[c] for c in order], height * 0.92, label=name)
        axis.bar_label(drawn, fmt="%.0f", fontsize=7, padding=1)
    ends = [[p + side for p in range(len(order))] for side in (-0.42, 0.42)]
    axis.vlines([shares[c] for c in order], ends[0], ends[1], "k")
    axis.set_yticks(range(len(order)), [classes[c] for c in order], fontsize=8)
    axis.set_xlabel("average precision, per cent")
    axis.set_xlim(0, 106)
    if len(values) > 1:
        axis.legend(frameon=False, fontsize=8, loc="lower right", bbox_to_anchor=(1, 1), ncols=len(values))
    return png(figure)


def confusion_figure(counts: Int64[Tensor, "true taken_for"], classes: Sequence[str]) -> bytes:
    """Per cent of each class (row) that is taken for each (column)."""
    share = 100 * counts.double() / counts.sum(dim=1, keepdim=True).clamp(min=1)
    side = min(9.0, 3.5 + 0.18 * len(classes))
    figure = new_figure(side + 1, side)
    axis = figure.add_subplot()
    matrix(axis, share.float().numpy(), "taken for", "true")
    if len(classes) <= NAMED_CLASSES:
        size = 8 if len(classes) <= 25 else 6
        axis.set_xticks(range(len(classes)), classes, rotation=90, fontsize=size)
        axis.set_yticks(range(len(classes)), classes, fontsize=size)
    return png(figure)


def worst_confusions(counts: Int64[Tensor, "true taken_for"], classes: Sequence[str], most: int = 8) -> list[list[str]]:
    """True class, what it was taken for, how often: the most frequent first."""
    wrong = counts.clone().fill_diagonal_(0)
    top = wrong.flatten().topk(min(most, wrong.numel()))
    places = [divmod(i, len(classes)) for i in top.indices.tolist()]
    return [[classes[a], classes[b], str(n)] for (a, b), n in zip(places, top.values.tolist(), strict=True) if n]
