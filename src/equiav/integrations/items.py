"""Media as other libraries hand them over (paths, bytes, arrays, images) as unit vectors of the shared space."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from equiav.errors import DataError
from equiav.inference import PICTURES, Embedder, joint
from equiav.media import FRAMES

Vector = NDArray[np.float32]
KINDS = ("audio", "image", "video")


def kind_of(item: Any) -> str:
    """What an item is, where nobody says: audio, image, video, or "several" for a mapping by these names."""
    if isinstance(item, Mapping):
        if any(kind in item for kind in KINDS):
            return "several"
        return "audio" if "sampling_rate" in item else _by_suffix(str(item.get("path") or ""))
    if isinstance(item, str | Path):
        return _by_suffix(str(item))
    shape = getattr(item, "shape", None)
    return "audio" if shape is not None and len(shape) == 1 else "image"


def vector_of(embedder: Embedder, item: Any, kind: str | None = None) -> Vector:
    """The unit vector of one item.

    Args:
        embedder: makes the vectors.
        item: a path; {"bytes", "path"}; {"array", "sampling_rate"}; an image of Pillow or an array; frames
            (K, 3, H, W); or a mapping of these by "audio", "image" and "video", whose directions are added.
        kind: "audio", "image" (also the frames of a video without its sound) or "video"; found out without it.
    """
    kind = kind or kind_of(item)
    if kind == "several":
        named = [(name, item[name]) for name in KINDS if item.get(name) is not None]
        # A video beside its own sound is what is seen in it: the sound must not count twice.
        seen = "image" if len(named) > 1 else "video"
        return joint(*(vector_of(embedder, part, seen if name == "video" else name) for name, part in named))
    if kind not in KINDS:
        raise DataError(f"{kind!r} input: equiav embeds {', '.join(KINDS)}")
    if isinstance(item, Mapping):
        if item.get("bytes") is not None:
            suffix = Path(item.get("path") or "").suffix
            with tempfile.NamedTemporaryFile(suffix=suffix) as file:
                file.write(item["bytes"])
                file.flush()
                return vector_of(embedder, file.name, kind)
        item = (
            (item["array"], item["sampling_rate"]) if "sampling_rate" in item else item.get("array", item.get("path"))
        )
    if kind == "audio":
        return embedder.audio(item)
    if isinstance(item, str | Path):
        return embedder.image(item) if kind == "image" else embedder.video(item)
    if hasattr(item, "convert"):  # an image of Pillow
        item = np.asarray(item.convert("RGB"))
    if getattr(item, "ndim", 3) == 4:
        frames = torch.as_tensor(item)
        frames = frames[np.linspace(0, len(frames) - 1, min(FRAMES, len(frames))).round().astype(int)]
        return joint(*(embedder.image(frame) for frame in frames))
    return embedder.image(item)


def _by_suffix(path: str) -> str:
    suffix = Path(path).suffix.lower()
    if suffix in PICTURES:
        return "image"
    return "audio" if suffix in (".wav", ".mp3", ".ogg", ".oga", ".flac", ".aac", ".m4a", ".opus") else "video"
