"""What goes into an index, what is asked of it, and what it answers."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

Vector = NDArray[np.float32]
Side = Literal["audio", "visual"]
Among = Literal["audio", "visual", "both"]
Kind = Literal["audio", "image", "video", "like"]
SIDES: tuple[Side, Side] = ("audio", "visual")


@dataclass(frozen=True)
class Entry:
    """A stretch of a file with the unit vectors of its sound and its pictures; either may be missing.

    `source` is the file's name for people, `path` where it lies; `picture` (H, W, 3) becomes the thumbnail.
    """

    id: str
    source: str
    path: Path | None
    start: float
    end: float
    audio: Vector | None = None
    visual: Vector | None = None
    labels: tuple[str, ...] = ()
    metadata: Mapping[str, Any] = field(default_factory=dict)
    picture: NDArray[np.uint8] | None = None

    def vector(self, side: Side) -> Vector | None:
        """Its vector on one side."""
        return self.audio if side == "audio" else self.visual

    def description(self) -> dict[str, Any]:
        """All but vectors and picture, as plain data."""
        return {
            "id": self.id,
            "source": self.source,
            "path": None if self.path is None else str(self.path),
            "start": self.start,
            "end": self.end,
            "labels": list(self.labels),
            "metadata": dict(self.metadata),
        }

    @staticmethod
    def from_description(record: Mapping[str, Any], audio: Vector | None = None, visual: Vector | None = None) -> Entry:
        """The opposite of `description`."""
        return Entry(
            id=record["id"],
            source=record["source"],
            path=None if record["path"] is None else Path(record["path"]),
            start=record["start"],
            end=record["end"],
            audio=audio,
            visual=visual,
            labels=tuple(record["labels"]),
            metadata=record["metadata"],
        )


@dataclass(frozen=True)
class Query:
    """A unit vector, what it was made of, and the digest of the model that made it; `exclude` is never an answer."""

    kind: Kind
    vector: Vector
    made_by: str
    exclude: str | None = None


@dataclass(frozen=True)
class Hit:
    """An entry that was found: the cosine, and which of its vectors it was found by."""

    id: str
    score: float
    side: Side
    source: str
    path: Path | None
    start: float
    end: float
    labels: tuple[str, ...]
    metadata: Mapping[str, Any]
    thumbnail: Path | None

    def record(self) -> dict[str, Any]:
        """As plain data."""
        found = {name: getattr(self, name) for name in ("id", "score", "side", "source", "start", "end")}
        found |= {"labels": list(self.labels), "metadata": dict(self.metadata)}
        paths = {"path": self.path, "thumbnail": self.thumbnail}
        return found | {name: None if path is None else str(path) for name, path in paths.items()}


def default_among(kind: Kind) -> Among:
    """Where to look: sounds find pictures and pictures sounds; videos and clips are compared with both."""
    match kind:
        case "audio":
            return "visual"
        case "image":
            return "audio"
        case "video" | "like":
            return "both"


def digest64(text: str) -> int:
    """A short name for a text, for columns of numbers."""
    return int.from_bytes(hashlib.blake2b(text.encode("utf-8", "backslashreplace"), digest_size=8).digest(), "little")
