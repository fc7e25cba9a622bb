"""Figures of means with their spread: intervals about differences, curves in bands."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.axes import Axes

Interval = tuple[float, float, float]  # mean, low, high


def intervals(axis: Axes, groups: Sequence[str], series: Mapping[str, Sequence[Interval]], x: str) -> None:
    """One line per group, from the top down; a dot and its interval per series, zero marked."""
    places = np.arange(len(groups))[::-1]
    for i, (name, values) in enumerate(series.items()):
        mean, low, high = np.array(values, dtype=float).T
        at = places - (i - (len(series) - 1) / 2) * 0.7 / max(1, len(series))
        axis.errorbar(mean, at, xerr=[mean - low, high - mean], fmt="o", markersize=4, capsize=3, label=name)
    axis.axvline(0, color="#808080", linewidth=0.8)
    axis.set_yticks(places, groups)
    axis.set_xlabel(x)
    axis.grid(axis="x", alpha=0.25)
    axis.legend(frameon=False, fontsize=8, ncols=len(series), loc="lower right", bbox_to_anchor=(1, 1))


def banded_curves(
    axis: Axes,
    at: Sequence[float],
    series: Mapping[str, Sequence[Interval]],
    levels: Mapping[str, float],
    x: str,
    y: str,
) -> None:
    """Lines in bands over a logarithmic axis of whole numbers, and levels that do not depend on it."""
    for name, values in series.items():
        mean, low, high = np.array(values, dtype=float).T
        (line,) = axis.plot(at, mean, marker="o", markersize=3, linewidth=1.4, label=name)
        axis.fill_between(at, low, high, alpha=0.12, color=line.get_color(), linewidth=0)
    for name, level in levels.items():
        axis.axhline(level, color="#606060", linestyle="--", linewidth=1.2, label=name)
    axis.set_xscale("log", base=2)
    axis.set_xticks(at, [f"{value:g}" for value in at])
    axis.set_xlabel(x)
    axis.set_ylabel(y)
    axis.grid(alpha=0.25)
    axis.legend(frameon=False, fontsize=8)
