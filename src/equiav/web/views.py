"""Parts of the page as HTML: nearest clips with players, frames under their maps, the map of a collection."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from threading import Lock
from urllib.parse import quote

import numpy as np
from numpy.typing import NDArray

from equiav.report import data_uri, image_png, render
from equiav.search import PREPARED, SIDES, Hit, Index
from equiav.web.service import Look

# What browsers play by themselves; of anything else the sound is decoded for them.
FILMS = {".mp4": "video/mp4", ".m4v": "video/mp4", ".webm": "video/webm", ".mov": "video/quicktime"}

POINTS = 1500  # of each side at most
PICTURES = 200  # points that show their picture, at most
COLOURS = {"audio": "#d1495b", "visual": "#2e86ab"}
WIDTH, HEIGHT, EDGE, PICTURE = 800, 520, 24, 96


def clips_html(hits: Sequence[Hit]) -> str:
    """The clips that were found, nearest first."""
    cards = []
    for hit in hits:
        clip, path = hit.clip, hit.clip.path
        here = path is not None and path.is_file()
        player = "sound" if here or PREPARED in clip.metadata else ""
        if clip.end <= clip.start:  # a still picture
            player = ""
        if path is not None and here and path.suffix.lower() in FILMS:
            player = "film"
        title = Path(clip.source).name
        cards.append({"hit": hit, "id": quote(clip.id, safe=""), "title": title, "player": player})
    return render("web_clips.html", cards=cards)


def looks_html(looks: Sequence[Look]) -> str:
    """Frames and the same under their maps, in pairs."""
    return render("web_looks.html", looks=looks, png=image_png)


def film_html(film: bytes) -> str:
    """A video (MP4) inside the page."""
    return f'<video controls playsinline style="width: 100%" src="{data_uri("video/mp4", film)}"></video>'


def flatten(vectors: NDArray[np.float32]) -> NDArray[np.float32]:
    """Principal components: each row on the two directions of largest variance, scaled into [0, 1]."""
    centred = vectors - vectors.mean(axis=0)
    _, _, directions = np.linalg.svd(centred, full_matrices=False)
    flat = centred @ directions[:2].T
    flat = np.pad(flat, ((0, 0), (0, 2 - flat.shape[1])))
    low, span = flat.min(axis=0), np.ptp(flat, axis=0)
    return np.asarray((flat - low) / np.maximum(span, 1e-12), dtype=np.float32)


def map_html(index: Index) -> str:
    """Sounds and pictures of the collection as points on the two directions along which they differ most."""
    found = {side: index.vectors(side, POINTS) for side in SIDES}
    ids = [(name, side) for side, (names, _) in found.items() for name in names]
    places = np.full((len(ids), 2), 0.5, np.float32)
    if len(ids) > 1:
        places = flatten(np.concatenate([vectors for _, vectors in found.values()]))
    pictured = {name for name, _ in ids[:: max(1, -(-len(ids) // PICTURES))]}
    points = []
    for (name, side), (x, y) in zip(ids, places.tolist(), strict=True):
        thumbnail = index.thumbnail(name) if name in pictured else None
        place = {"x": EDGE + x * (WIDTH - 2 * EDGE), "y": EDGE + y * (HEIGHT - 2 * EDGE)}
        points.append({"name": name, "side": side, **place, "picture": thumbnail and thumbnail.read_bytes()})
    return render("web_map.html", points=points, colours=COLOURS, width=WIDTH, height=HEIGHT, shown=PICTURE)


class Map:
    """The map of an index, drawn again only when the index has changed."""

    def __init__(self, index: Index) -> None:
        self.index = index
        self._lock = Lock()
        self._drawn: tuple[int, str] | None = None

    def html(self) -> str:
        """As `map_html`; whoever asks while it is being drawn waits for it."""
        with self._lock:
            state = self.index.store.generation()
            if self._drawn is None or self._drawn[0] != state:
                self._drawn = state, map_html(self.index)
            return self._drawn[1]
