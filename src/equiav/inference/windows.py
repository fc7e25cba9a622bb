"""A long file as windows with times: the stretches that `prepare` would make clips of."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from equiav.errors import MediaError
from equiav.inference.items import SHORT_SIDE
from equiav.media import FRAMES, LEAST_SECONDS, ROUNDING, Cut, Excerpt, cuts, open_media, read_clips, usable_span

SILENCE = 10 ** (-60 / 20)  # peak of full scale, as in `prepare`

Vector = NDArray[np.float32]


@dataclass(frozen=True)
class Window:
    """A stretch of a file, in seconds, with the unit vectors of its sound and of its pictures; either may be missing.

    `picture` is the one in the middle (H, W, 3), for looking at.
    """

    start: float
    end: float
    audio: Vector | None
    visual: Vector | None
    picture: NDArray[np.uint8] | None = None


def read_windows(
    path: Path,
    *,
    seconds: float,
    overlap: float = 0.0,
    rate: int,
    span: tuple[float, float | None] = (0.0, None),
    most: float = math.inf,
) -> Iterator[Excerpt]:
    """The windows of a file in order, each as soon as it is read, with the sound and the pictures it has.

    `span` is start and length of the part that counts; a part with a length of at most `most` is one window.
    """
    start, length = span
    info = open_media(path, until=None if length is None else start + length)
    has = {"audio": info.audio is not None, "video": info.video is not None}
    if not any(has.values()):
        raise MediaError(path, "holds neither sound nor picture that can be decoded")
    begin, end = usable_span(path, info, start=start, seconds=length, **has)
    whole = length is not None and end - begin <= most + ROUNDING
    wanted = [Cut(begin, end - begin)] if whole else cuts(begin, end, seconds=seconds, overlap=overlap)
    yield from read_clips(path, wanted, info, sample_rate=rate, frames=FRAMES, short_side=SHORT_SIDE)


def audible(sound: NDArray[np.int16] | None, rate: int) -> bool:
    """Is there sound enough to embed: half a second that is not silence?"""
    if sound is None or len(sound) < LEAST_SECONDS * rate:
        return False
    wave = sound.astype(np.float32) / 32768
    return float(np.abs(wave - wave.mean()).max()) >= SILENCE
