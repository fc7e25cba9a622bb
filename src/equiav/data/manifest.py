"""What is known about media before they are read: the records that `prepare` works through."""

from __future__ import annotations

import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

Split = Literal["train", "validation", "test"]

VALIDATION_SHARE = 0.1


@dataclass(frozen=True)
class Source:
    """One media file, or one stretch of it, with what its publisher or owner says about it.

    `name` is unique and stays the same when files are added; `group` keeps what belongs together (clips of one
    video) in one split. Without `seconds` the whole file is cut into clips. `split` None means: decided by `group`.
    Boxes are (x0, y0, x1, y1) as fractions of the picture.
    """

    name: str
    path: Path
    labels: tuple[str, ...] = ()
    split: Split | None = None
    group: str = ""
    start: float = 0.0
    seconds: float | None = None
    boxes: tuple[tuple[float, float, float, float], ...] = ()
    fold: int | None = None


def split_of(group: str, share: float = VALIDATION_SHARE) -> Split:
    """Train or validation by the name alone: stable under adding files, the same for all clips of a group."""
    return "validation" if zlib.crc32(group.encode()) / 2**32 < share else "train"
