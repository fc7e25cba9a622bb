"""Plots as PNG, drawn without a screen: building blocks on axes, and whole plots of what results hold."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from numpy.typing import NDArray

from equiav.io import write_whole

Array = NDArray[np.float32] | NDArray[np.uint8]
Number = float | int  # as JSON gives them
MOST_CLASSES = 40  # bars on one plot; of more classes, the worst and the best halves
NAMED_CLASSES = 60  # rows of a confusion matrix that can still carry names


def new_figure(width: float, height: float) -> Figure:
    """A figure of the given size in inches, independent of any global state."""
    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def png(figure: Figure, dpi: int = 110) -> bytes:
    """The figure as PNG bytes."""
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=dpi)
    return buffer.getvalue()


def save(figure: Figure, path: Path, dpi: int = 110) -> None:
    """Writes the figure as PNG."""
    write_whole(path, png(figure, dpi))


# On axes


def _bare(axes: Axes, title: str = "") -> Axes:
    """Axes without ticks, for images."""
    axes.set_xticks([])
    axes.set_yticks([])
    if title:
        axes.set_title(title, fontsize=8)
    return axes


def image_row(axes: Sequence[Axes], images: Sequence[Array], titles: Sequence[str]) -> None:
    """Images (H, W, 3) side by side."""
    for axis, image, title in zip(axes, images, titles, strict=True):
        _bare(axis, title).imshow(image, interpolation="nearest")


def spectrogram_row(axes: Sequence[Axes], spectrograms: Sequence[Array], limits: tuple[float, float]) -> None:
    """Spectrograms (T, F), time to the right, frequency upwards, in one colour scale."""
    for axis, spectrogram in zip(axes, spectrograms, strict=True):
        _bare(axis).imshow(spectrogram.T, origin="lower", aspect="auto", cmap="magma", vmin=limits[0], vmax=limits[1])


def _finish(axis: Axes, x: str, y: str) -> None:
    """Names of the axes, a grid, a legend."""
    axis.set_xlabel(x)
    axis.set_ylabel(y)
    axis.grid(alpha=0.25)
    axis.legend(frameon=False, fontsize=8)


def curves(axis: Axes, series: Mapping[str, tuple[Sequence[float], Sequence[float]]], x: str, y: str) -> None:
    """Lines with their names."""
    for name, (xs, ys) in series.items():
        axis.plot(xs, ys, label=name, linewidth=1.4, marker="o" if len(xs) < 20 else None, markersize=3)
    _finish(axis, x, y)


def _bars(axis: Axes, groups: Sequence[str], series: Mapping[str, Sequence[float]], y: str, *, digits: int = 1) -> None:
    """Grouped bars with their values written on them."""
    width = 0.8 / len(series)
    places = np.arange(len(groups))
    for i, (name, values) in enumerate(series.items()):
        drawn = axis.bar(places + (i - (len(series) - 1) / 2) * width, values, width * 0.92, label=name)
        axis.bar_label(drawn, fmt=f"%.{digits}f", fontsize=7, padding=1)
    axis.set_xticks(places, groups)
    axis.set_ylabel(y)
    axis.grid(axis="y", alpha=0.25)
    axis.legend(frameon=False, fontsize=8)


# Whole plots of records: what templates call


def spectrogram_png(
    spectrogram: Array,
    width: float = 1.9,
    height: float = 1.1,
    dpi: int = 70,
    limits: tuple[float, float] | None = None,
) -> bytes:
    """One spectrogram (T, F), small, in the given or its own colour scale."""
    figure = new_figure(width, height)
    own = (float(spectrogram.min()), float(spectrogram.max()))
    spectrogram_row([figure.add_subplot()], [spectrogram], limits or own)
    return png(figure, dpi)


def bar_plot(series: Mapping[str, Mapping[str, Number | None]], y: str, x: str = "", width: float = 6.5) -> bytes:
    """Grouped bars: values by series and group; the last series names the groups, "audio_to_video" becomes words."""
    groups = list(list(series.values())[-1])
    figure = new_figure(width, 3.0)
    axis = figure.add_subplot()
    _bars(axis, groups, {name.replace("_", " "): [of.get(g) or 0.0 for g in groups] for name, of in series.items()}, y)
    axis.margins(y=0.1)
    axis.set_xlabel(x)
    return png(figure)


def curve_plots(panels: Mapping[str, Mapping[str, Sequence[Sequence[Number]]]], x: str = "step") -> bytes:
    """Curves side by side, one panel per y axis: points (x, y) by panel and name."""
    figure = new_figure(5.0 * len(panels), 3.2)
    axes = np.atleast_1d(figure.subplots(1, len(panels)))
    for axis, (y, series) in zip(axes, panels.items(), strict=True):
        points = {name: np.array(of, dtype=float).reshape(-1, 2).T for name, of in series.items()}
        curves(axis, {name: (of[0].tolist(), of[1].tolist()) for name, of in points.items()}, x, y)
    return png(figure)


def matrix_plot(
    values: Sequence[Sequence[Number]],
    x: str,
    y: str,
    size: tuple[float, float] = (5.4, 4.6),
    names: Sequence[str] = (),
) -> bytes:
    """A matrix of numbers as an image with its scale; `names` stand along both axes."""
    figure = new_figure(*size)
    axis = figure.add_subplot()
    drawn = axis.imshow(np.array(values, dtype=np.float32), cmap="viridis", interpolation="nearest")
    axis.set_xlabel(x)
    axis.set_ylabel(y)
    figure.colorbar(drawn, ax=axis, shrink=0.8)
    if names:
        font = 8 if len(names) <= 25 else 6
        axis.set_xticks(range(len(names)), names, rotation=90, fontsize=font)
        axis.set_yticks(range(len(names)), names, fontsize=font)
    return png(figure)


def confusion_plot(shares: Mapping[str, Mapping[str, Number]], classes: Sequence[str]) -> bytes:
    """Per cent of each class (row) that is taken for each (column), as results hold them: what is zero is left out."""
    values = [[shares.get(a, {}).get(b, 0.0) for b in classes] for a in classes]
    side = min(9.0, 3.5 + 0.18 * len(classes))
    names = list(classes) if len(classes) <= NAMED_CLASSES else []
    return matrix_plot(values, "taken for", "true", (side + 1, side), names)


def class_bars(values: Mapping[str, Mapping[str, Number | None]], shares: Mapping[str, Number]) -> bytes:
    """Horizontal bars of average precision, classes ordered by the last series; a black line at each class's share."""
    last = list(values.values())[-1]
    known = {name: value for name, value in last.items() if value is not None}
    order = sorted(known, key=lambda name: known[name])
    if len(order) > MOST_CLASSES:
        order = order[: MOST_CLASSES // 2] + order[-MOST_CLASSES // 2 :]
    figure = new_figure(8.0, 1 + (0.1 + 0.14 * len(values)) * max(1, len(order)))
    axis = figure.add_subplot()
    height, places = 0.84 / len(values), np.arange(len(order))
    for i, (name, each) in enumerate(values.items()):
        at = places + (i - (len(values) - 1) / 2) * height
        drawn = axis.barh(at, [each[c] or 0.0 for c in order], height * 0.92, label=name)
        axis.bar_label(drawn, fmt="%.0f", fontsize=7, padding=1)
    axis.vlines([shares[c] for c in order], places - 0.42, places + 0.42, "k")
    axis.set_yticks(places, order, fontsize=8)
    axis.set_xlabel("average precision, per cent")
    axis.set_xlim(0, 106)
    if len(values) > 1:
        axis.legend(frameon=False, fontsize=8, loc="lower right", bbox_to_anchor=(1, 1), ncols=len(values))
    return png(figure)


def augmentation_plot(parts: Mapping[str, Mapping[str, Any]], baselines: Mapping[str, str]) -> bytes:
    """Augmentation by augmentation: mean cosines of the true vector and the baselines, and their differences."""
    figure = new_figure(11.0, 6.0)
    above, below = figure.subplots(2, 1)
    legend = {"frameon": False, "fontsize": 8, "loc": "lower right", "bbox_to_anchor": (1, 1)}
    series = {"true": [v["true"] for v in parts.values()]}
    series |= {label: [v[k]["mean"] for v in parts.values()] for k, label in baselines.items()}
    _bars(above, list(parts), series, "mean cosine with z'", digits=2)
    above.margins(y=0.12)
    above.legend(ncols=len(series), **legend)
    places = np.arange(len(parts))[::-1]  # from the top down
    for i, (k, label) in enumerate(baselines.items()):
        found = [(v[k]["difference"], v[k]["low"], v[k]["high"]) for v in parts.values()]
        mean, low, high = np.array(found, dtype=float).T
        at, error = places - (i - (len(baselines) - 1) / 2) * 0.7 / len(baselines), [mean - low, high - mean]
        below.errorbar(mean, at, xerr=error, fmt="o", markersize=4, capsize=3, label=f"true - {label}")
    below.axvline(0, color="#808080", linewidth=0.8)
    below.set_yticks(places, list(parts))
    below.set_xlabel("difference of cosines, 95 % interval; linear below 0.001, then logarithmic")
    below.grid(axis="x", alpha=0.25)
    below.legend(ncols=len(baselines), **legend)
    below.set_xscale("symlog", linthresh=1e-3)
    return png(figure)


def centroid_plot(modalities: Mapping[str, Mapping[str, Any]], spaces: Mapping[str, str], kind: str) -> bytes:
    """Cosines with the mean of real views against S, a panel per modality and space; bands hold eight of ten clips."""
    figure = new_figure(11.0, 6.0)
    grid = figure.subplots(len(modalities), len(spaces), squeeze=False)
    for axes, (m, found) in zip(grid, modalities.items(), strict=True):
        for axis, (space, label) in zip(axes, spaces.items(), strict=True):
            of_space = found[space][kind]
            at = [float(s) for s in of_space["predicted"]]
            for k, name in (("predicted", "centroid of S predictions"), ("real", "mean of S real views")):
                mean, low, high = np.array([(p["mean"], p["p10"], p["p90"]) for p in of_space[k].values()]).T
                (line,) = axis.plot(at, mean, marker="o", markersize=3, linewidth=1.4, label=name)
                axis.fill_between(at, low, high, alpha=0.12, color=line.get_color(), linewidth=0)
            original = of_space["original"]["mean"]
            axis.axhline(original, color="#606060", linestyle="--", linewidth=1.2, label="original")
            axis.set_xscale("log", base=2)
            axis.set_xticks(at, [f"{s:g}" for s in at])
            _finish(axis, "S", "cosine with the real mean")
            axis.set_title(f"{m}, {label}", fontsize=9)
    return png(figure)
