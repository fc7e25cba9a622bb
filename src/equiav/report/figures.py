"""Figures as PNG files or bytes, drawn without a screen."""

from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from numpy.typing import NDArray

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
    """Writes the figure as PNG, whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(f".{path.name}.tmp")
    draft.write_bytes(png(figure, dpi))
    draft.replace(path)


def bare(axes: Axes, title: str = "") -> Axes:
    """Axes without ticks, for pictures."""
    axes.set_xticks([])
    axes.set_yticks([])
    if title:
        axes.set_title(title, fontsize=8)
    return axes


def picture_row(figure: Figure, axes: Sequence[Axes], pictures: Sequence[Array], titles: Sequence[str]) -> None:
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
