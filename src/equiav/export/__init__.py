"""A model to give away: its towers as ONNX, its weights, its recipe and a card, in one folder."""

from equiav.export.card import found_results, measurements
from equiav.export.folder import export, shareable
from equiav.export.graphs import run_graph, write_graph

__all__ = ["export", "found_results", "measurements", "run_graph", "shareable", "write_graph"]
