"""Images from files and from memory, decoded within limits."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
from jaxtyping import UInt8
from PIL import Image, ImageOps, UnidentifiedImageError

from equiav.errors import MediaError
from equiav.media.container import Limits, check_size

# What Pillow may open: it knows many more formats, and hands some of them (EPS) to other programs.
FORMATS = ("BMP", "GIF", "JPEG", "PNG", "PPM", "TIFF", "WEBP")
PICTURES = frozenset({".bmp", ".jfif", ".jpeg", ".jpg", ".png", ".tif", ".tiff", ".webp"})  # known by their names


def read_image(
    source: Path | bytes,
    *,
    side: int | None = None,
    upright: bool = True,
    formats: tuple[str, ...] = FORMATS,
    name: Path | None = None,
    limits: Limits | None = None,
) -> UInt8[np.ndarray, "h w 3"]:
    """An image file, or one held in memory, as RGB; with `side`, the middle square scaled to that many pixels.

    `upright` turns it as its EXIF data say. Its size is checked before it is decoded. `name` is what errors speak of.
    """
    path = name or (source if isinstance(source, Path) else Path("image in memory"))
    if isinstance(source, Path) and not source.is_file():
        raise MediaError(path, "not a regular file" if source.exists() else "no such file")
    try:
        with Image.open(source if isinstance(source, Path) else io.BytesIO(source), formats=formats) as opened:
            check_size(path, opened.width, opened.height, limits or Limits())
            image = (ImageOps.exif_transpose(opened) if upright else opened).convert("RGB")
    except (UnidentifiedImageError, Image.DecompressionBombError, OSError, ValueError, SyntaxError) as error:
        reason = "unknown format" if isinstance(error, UnidentifiedImageError) else str(error)
        raise MediaError(path, f"cannot be read as an image ({reason})") from error
    except MemoryError as error:
        raise MediaError(path, "cannot be decoded within the memory allowed") from error
    if side is not None and image.size != (side, side):
        short = min(image.size)
        left, top = (image.width - short) / 2, (image.height - short) / 2
        # Scaling only the middle is scaling the whole and taking the middle, for less.
        box = (left, top, left + short, top + short)
        image = image.resize((side, side), Image.Resampling.BICUBIC, box=box)
    return np.array(image)
