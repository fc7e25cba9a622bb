"""What a worker process makes of a file for an index: windows of audible sound, frames of the model's size, thumbnails.

Without torch, as all that processes need which only decode.
"""

from __future__ import annotations

import hashlib
import io
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from equiav.errors import MediaError
from equiav.media.clips import LEAST_SECONDS, read_windows
from equiav.media.container import PICTURES, Limits, read_image
from equiav.media.scaling import square_frames
from equiav.media.workers import tick

logger = logging.getLogger(__name__)

SILENCE = 10 ** (-60 / 20)  # peak of full scale, as in `prepare`

# A stretch of a file: start, end, audible sound, frames (K, 3, H, W) of the model's size, thumbnail.
Piece = tuple[float, float, NDArray[np.int16] | None, NDArray[np.uint8] | None, bytes | None]


def read_pieces(path: Path, *, size: int, limits: Limits, rate: int, **how: Any) -> Iterator[Piece | str]:
    """First what tells whether a file has changed, then its windows."""
    try:
        if not path.is_file():
            raise MediaError(path, "not a regular file" if path.exists() else "no such file")
        status, digest = path.stat(), hashlib.sha256()
        with path.open("rb") as file:
            while portion := file.read(1 << 20):
                digest.update(portion)
                tick()  # however slow the disk is
        yield f"{status.st_size} {status.st_mtime_ns} {digest.hexdigest()}"
        if path.suffix.lower() in PICTURES:
            picture = read_image(path, limits=limits)
            yield 0.0, 0.0, None, square_frames((picture,), size), thumbnail(picture)
            return
        for piece in read_windows(path, rate=rate, limits=limits, **how):
            sound = piece.waveform if audible(piece.waveform, rate) else None
            frames = square_frames(piece.frames, size) if piece.frames else None
            middle = thumbnail(piece.frames[len(piece.frames) // 2]) if piece.frames else None
            yield round(piece.cut.start, 6), round(piece.cut.stop, 6), sound, frames, middle
    except (ArithmeticError, LookupError, ValueError, TypeError) as error:
        # A file nobody foresaw must not end a run over thousands; the log keeps what is needed to mend it.
        logger.warning("%s: %r", path, error, exc_info=True)
        raise MediaError(path, f"cannot be read ({type(error).__name__}: {error})") from error


def audible(sound: NDArray[np.int16] | None, rate: int) -> bool:
    """Is there sound enough to embed: half a second that is not silence?"""
    if sound is None or len(sound) < LEAST_SECONDS * rate:
        return False
    wave = sound.astype(np.float32) / 32768
    return float(np.abs(wave - wave.mean()).max()) >= SILENCE


def thumbnail(picture: NDArray[np.uint8], height: int = 256) -> bytes:
    """An image (H, W, 3) as a small JPEG file."""
    image = Image.fromarray(picture)
    image.thumbnail((2 * height, height))
    buffer = io.BytesIO()
    image.save(buffer, "JPEG", quality=80)
    return buffer.getvalue()
