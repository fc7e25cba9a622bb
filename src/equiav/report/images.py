"""Frames, maps and waveforms as files for a page: PNG, WAV, data URIs, heat maps and boxes drawn over frames."""

from __future__ import annotations

import base64
import io
import wave

import numpy as np
from numpy.typing import NDArray
from PIL import Image

Pixels = NDArray[np.uint8]  # (H, W, 3)
BOX = (255, 255, 255)


def data_uri(kind: str, content: bytes) -> str:
    """Bytes inside the page."""
    return f"data:{kind};base64,{base64.b64encode(content).decode()}"


def image_png(image: Pixels, scale: int = 1) -> bytes:
    """An image (H, W, 3) as PNG, each pixel `scale` times as large."""
    drawn = Image.fromarray(image)
    if scale > 1:
        drawn = drawn.resize((drawn.width * scale, drawn.height * scale), Image.Resampling.NEAREST)
    buffer = io.BytesIO()
    drawn.save(buffer, "PNG")
    return buffer.getvalue()


def wav(samples: NDArray[np.float32], sample_rate: int) -> bytes:
    """A mono waveform in [-1, 1] as a 16-bit WAV file."""
    buffer = io.BytesIO()
    with wave.open(buffer, "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(sample_rate)
        file.writeframes((np.clip(samples, -1, 1) * 32767).astype("<i2").tobytes())
    return buffer.getvalue()


def heat_overlay(image: Pixels, heat: NDArray[np.float32], *, strength: float = 0.55, pale: float = 0.5) -> Pixels:
    """The image under a map of its size; what is below the map's `pale` quantile stays as it is."""
    from matplotlib import colormaps

    low, high = np.quantile(heat, pale), heat.max()
    level = np.clip((heat - low) / max(float(high - low), 1e-12), 0, 1)
    colours = colormaps["inferno"](0.25 + 0.75 * level)[..., :3] * 255
    weight = (strength * np.sqrt(level))[..., None]
    mixed = image * (1 - weight) + colours * weight
    return np.asarray(np.round(mixed).clip(0, 255).astype(np.uint8))


def whole_overlay(image: Pixels, heat: NDArray[np.float32], *, unseen: float = 0.6) -> Pixels:
    """An image of any shape, at its own size, under the map of its middle square, which is all that a model sees.

    `unseen` is the brightness of the rest.
    """
    height, width = image.shape[:2]
    side = min(height, width)
    top, left = (height - side) // 2, (width - side) // 2
    middle = np.s_[top : top + side, left : left + side]
    large = np.asarray(Image.fromarray(heat.astype(np.float32)).resize((side, side), Image.Resampling.BICUBIC))
    drawn = image.copy() if height == width else (image * unseen).astype(np.uint8)
    drawn[middle] = heat_overlay(image[middle], large)
    return drawn


def outlined(image: Pixels, boxes: NDArray[np.float32]) -> Pixels:
    """The image with one-pixel frames round the boxes (x0, y0, x1, y1)."""
    out = image.copy()
    side = np.array([out.shape[1], out.shape[0]] * 2) - 1
    for x0, y0, x1, y1 in np.clip(np.round(boxes), 0, side).astype(int):
        out[y0, x0 : x1 + 1] = out[y1, x0 : x1 + 1] = BOX
        out[y0 : y1 + 1, x0] = out[y0 : y1 + 1, x1] = BOX
    return out
