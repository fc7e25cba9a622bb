"""Plots, images and self-contained pages: Jinja2 templates over plain records."""

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
from equiav.report.images import data_uri, heat_overlay, image_png, outlined, wav, whole_overlay
from equiav.report.templates import render, write_page

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
