"""Figures, tables and players as images and self-contained HTML; knows nothing of what is measured."""

from equiav.report.figures import bars, curves, matrix, new_figure, picture_row, png, save, spectrogram_row, value_table
from equiav.report.html import Page, cards, data_uri, image, picture_png, player, row, table, wav
from equiav.report.overlay import heat_overlay, outlined
from equiav.report.spread import Interval, banded_curves, intervals

__all__ = [
    "Interval",
    "Page",
    "banded_curves",
    "bars",
    "cards",
    "curves",
    "data_uri",
    "heat_overlay",
    "image",
    "intervals",
    "matrix",
    "new_figure",
    "outlined",
    "picture_png",
    "picture_row",
    "player",
    "png",
    "row",
    "save",
    "spectrogram_row",
    "table",
    "value_table",
    "wav",
]
