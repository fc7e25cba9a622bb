"""What the page is about: an index with its model, or a run of the demo whose scenes become one."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from equiav.checkpoint import CONFIG, resolve
from equiav.errors import EquiAVError
from equiav.inference import Embedder, load_model
from equiav.search import INDEX, Index
from equiav.web.scenes import demo_index


def open_collection(
    place: Path, model: Path | None, say: Callable[[str], None] = lambda line: None
) -> tuple[Index, Embedder]:
    """The index at `place`, or that of a run's held-out scenes, and the embedder for questions to it."""
    if (place / INDEX).is_file():
        index = Index.open(place)
        path = model or index.model_path
        if path is None:
            raise EquiAVError(f"{place}: does not say which checkpoint made it; give --model")
        return index, Embedder(load_model(path))
    if not (resolve(place) / CONFIG).is_file():
        raise EquiAVError(f"{place}: neither an index nor a model; `make demo` or `equiav index CLIPS OUT` comes first")
    embedder = Embedder(load_model(place))
    return Index.open(demo_index(place, embedder, say)), embedder
