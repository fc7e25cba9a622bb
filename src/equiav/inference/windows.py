"""Windows of a long file with their vectors, and what of a window is worth embedding."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from equiav.media import LEAST_SECONDS

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


def audible(sound: NDArray[np.int16] | None, rate: int) -> bool:
    """Is there sound enough to embed: half a second that is not silence?"""
    if sound is None or len(sound) < LEAST_SECONDS * rate:
        return False
    wave = sound.astype(np.float32) / 32768
    return float(np.abs(wave - wave.mean()).max()) >= SILENCE
