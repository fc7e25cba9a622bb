"""The collection on two axes: the directions along which its embeddings differ most."""

from __future__ import annotations

from html import escape
from threading import Lock
from typing import Any

import numpy as np
from numpy.typing import NDArray

from equiav.report import data_uri
from equiav.search import SIDES, Index

POINTS = 1500  # of each side at most
PICTURES = 200  # points that show their picture, at most
COLOURS = {"audio": "#d1495b", "visual": "#2e86ab"}
WIDTH, HEIGHT, EDGE, PICTURE = 800, 520, 24, 96


def flatten(vectors: NDArray[np.float32]) -> NDArray[np.float32]:
    """Principal components: each row on the two directions of largest variance, scaled into [0, 1]."""
    centred = vectors - vectors.mean(axis=0)
    _, _, directions = np.linalg.svd(centred, full_matrices=False)
    flat = centred @ directions[:2].T
    flat = np.pad(flat, ((0, 0), (0, 2 - flat.shape[1])))
    low, span = flat.min(axis=0), np.ptp(flat, axis=0)
    return np.asarray((flat - low) / np.maximum(span, 1e-12), dtype=np.float32)


def map_html(index: Index) -> str:
    """Sounds and pictures of the collection as points; hovering names them and shows their picture."""
    ids: list[tuple[str, str]] = []
    rows = []
    for side in SIDES:
        names, vectors = index.vectors(side, POINTS)
        ids += [(name, side) for name in names]
        rows.append(vectors)
    places = flatten(np.concatenate(rows)) if len(ids) > 1 else np.full((len(ids), 2), 0.5, np.float32)
    pictured = {name for name, _ in ids[:: max(1, -(-len(ids) // PICTURES))]}
    drawn = []
    for (name, side), (x, y) in zip(ids, places.tolist(), strict=True):
        place = index.thumbnail(name) if name in pictured else None
        drawn.append(_point(name, COLOURS[side], x, y, place.read_bytes() if place is not None else b""))
    legend = f'<span style="color:{COLOURS["audio"]}">●</span> sounds, '
    legend += f'<span style="color:{COLOURS["visual"]}">●</span> pictures of the same clips'
    return f'<p>{legend}</p><svg class="map" viewBox="0 0 {WIDTH} {HEIGHT}">{"".join(drawn)}</svg>'


class Map:
    """The map of an index, drawn again only when the index has changed."""

    def __init__(self, index: Index) -> None:
        self.index = index
        self._lock = Lock()
        self._drawn: tuple[Any, str] | None = None

    def html(self) -> str:
        """As `map_html`; whoever asks while it is being drawn waits for it."""
        with self._lock:
            state = self.index.store.generation()
            if self._drawn is None or self._drawn[0] != state:
                self._drawn = state, map_html(self.index)
            return self._drawn[1]


def _point(name: str, colour: str, x: float, y: float, jpeg: bytes) -> str:
    cx, cy = EDGE + x * (WIDTH - 2 * EDGE), EDGE + y * (HEIGHT - 2 * EDGE)
    left, top = min(cx + 8, WIDTH - PICTURE), min(cy + 8, HEIGHT - PICTURE)
    shown = ""
    if jpeg:
        source = data_uri("image/jpeg", jpeg)
        shown = f'<image href="{source}" x="{left:.0f}" y="{top:.0f}" width="{PICTURE}"/>'
    dot = f'<circle cx="{cx:.1f}" cy="{cy:.1f}" r="5" fill="{colour}" fill-opacity=".7"/>'
    return f"<g><title>{escape(name)}</title>{dot}{shown}</g>"
