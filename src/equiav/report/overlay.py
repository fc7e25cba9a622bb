"""Heat laid over a picture, and frames round boxes."""

from __future__ import annotations

import numpy as np
from matplotlib import colormaps
from numpy.typing import NDArray

BOX = (255, 255, 255)


def heat_overlay(
    picture: NDArray[np.uint8], heat: NDArray[np.float32], *, strength: float = 0.55, pale: float = 0.5
) -> NDArray[np.uint8]:
    """The picture (H, W, 3) under a map of its size; what is below the map's `pale` quantile stays as it is."""
    low, high = np.quantile(heat, pale), heat.max()
    level = np.clip((heat - low) / max(float(high - low), 1e-12), 0, 1)
    colours = colormaps["inferno"](0.25 + 0.75 * level)[..., :3] * 255
    weight = (strength * np.sqrt(level))[..., None]
    mixed = picture * (1 - weight) + colours * weight
    return np.asarray(np.round(mixed).clip(0, 255).astype(np.uint8))


def outlined(picture: NDArray[np.uint8], boxes: NDArray[np.float32]) -> NDArray[np.uint8]:
    """The picture (H, W, 3) with one-pixel frames round the boxes (x0, y0, x1, y1)."""
    out = picture.copy()
    side = np.array([out.shape[1], out.shape[0]] * 2) - 1
    for x0, y0, x1, y1 in np.clip(np.round(boxes), 0, side).astype(int):
        out[y0, x0 : x1 + 1] = out[y1, x0 : x1 + 1] = BOX
        out[y0 : y1 + 1, x0] = out[y0 : y1 + 1, x1] = BOX
    return out
