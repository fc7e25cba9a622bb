"""Plots, images and self-contained pages: Jinja2 templates over plain records."""

from typing import TYPE_CHECKING, Any

from equiav.report.images import data_uri, heat_overlay, image_png, outlined, wav, whole_overlay
from equiav.report.templates import render, write_page

if TYPE_CHECKING:
    from equiav.report.figures import (
        confusion_plot,
        curves,
        image_row,
        new_figure,
        png,
        save,
        spectrogram_png,
        spectrogram_row,
    )

__all__ = [
    "confusion_plot",
    "curves",
    "data_uri",
    "heat_overlay",
    "image_png",
    "image_row",
    "new_figure",
    "outlined",
    "png",
    "render",
    "save",
    "spectrogram_png",
    "spectrogram_row",
    "wav",
    "whole_overlay",
    "write_page",
]


def __getattr__(name: str) -> Any:  # plots bring matplotlib, which training and searches do without
    if name in __all__:
        from equiav.report import figures

        return getattr(figures, name)
    raise AttributeError(f"module 'equiav.report' has no attribute {name!r}")
