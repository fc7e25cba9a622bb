"""Figures as PNG files or bytes, drawn without a screen."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from numpy.typing import NDArray

from equiav.io import write_whole

Array = NDArray[np.float32] | NDArray[np.uint8]


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


def bare(axes: Axes, title: str = "") -> Axes:
    """Axes without ticks, for pictures."""
    axes.set_xticks([])
    axes.set_yticks([])
    if title:
        axes.set_title(title, fontsize=8)
    return axes


def picture_row(axes: Sequence[Axes], pictures: Sequence[Array], titles: Sequence[str]) -> None:
    """Pictures (H, W, 3) side by side."""
    for axis, picture, title in zip(axes, pictures, titles, strict=True):
        bare(axis, title).imshow(picture, interpolation="nearest")


def spectrogram_row(axes: Sequence[Axes], spectrograms: Sequence[Array], limits: tuple[float, float]) -> None:
    """Spectrograms (T, F), time to the right, frequency upwards, in one colour scale."""
    for axis, spectrogram in zip(axes, spectrograms, strict=True):
        bare(axis).imshow(spectrogram.T, origin="lower", aspect="auto", cmap="magma", vmin=limits[0], vmax=limits[1])


def value_table(axis: Axes, values: Array, names: Sequence[str], columns: Sequence[str]) -> None:
    """A table of numbers (rows = names), coloured by value; zeros stay pale, so that what is on stands out."""
    axis.imshow(values, aspect="auto", cmap="RdBu_r", vmin=-1.6, vmax=1.6)
    for row in range(values.shape[0]):
        for column in range(values.shape[1]):
            shade = "#b0b0b0" if values[row, column] == 0 else "black"
            axis.text(column, row, f"{values[row, column]:.2f}", ha="center", va="center", fontsize=6, color=shade)
    axis.set_yticks(range(len(names)), names, fontsize=6)
    axis.set_xticks(range(len(columns)), columns, fontsize=6)
    axis.tick_params(length=0)


def curves(axis: Axes, series: Mapping[str, tuple[Sequence[float], Sequence[float]]], x: str, y: str) -> None:
    """Lines with their names."""
    for name, (xs, ys) in series.items():
        axis.plot(xs, ys, label=name, linewidth=1.4, marker="o" if len(xs) < 20 else None, markersize=3)
    axis.set_xlabel(x)
    axis.set_ylabel(y)
    axis.grid(alpha=0.25)
    axis.legend(frameon=False, fontsize=8)


def bars(axis: Axes, groups: Sequence[str], series: Mapping[str, Sequence[float]], y: str, *, digits: int = 1) -> None:
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


def matrix(axis: Axes, values: Array, x: str, y: str) -> None:
    """A square of numbers as a picture with its scale."""
    drawn = axis.imshow(values, cmap="viridis", interpolation="nearest")
    axis.set_xlabel(x)
    axis.set_ylabel(y)
    axis.figure.colorbar(drawn, ax=axis, shrink=0.8)
