"""How a generated scene looks: its frames, drawn with soft edges, and the boxes of its objects."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from equiav.data.synthetic.objects import KINDS, Scene, SceneObject

Array = NDArray[np.floating[Any]]

PETALS = (0.66, 0.34)  # mean radius of the flower, and how far a petal reaches beyond it
BITE = (0.45, 0.78)  # the disc cut out of a crescent: how far off the centre, and its radius
REACH = 1.25  # no shape reaches further from its centre, in radii


def _flower(p: Array, q: Array) -> Array:
    rho = np.hypot(p, q) + np.float32(1e-6)
    c = -q / rho
    square = c * c
    petals = c * (square * (16 * square - 20) + 5)  # the cosine of five times the angle
    edge: Array = PETALS[0] + PETALS[1] * petals
    return (rho - edge) * 0.6  # flatter, for the edge is slanted


# Distance to the edge, negative inside, in radii; p points to the right and q down, both in radii.
SHAPES: dict[str, Callable[[Array, Array], Array]] = {
    "disc": lambda p, q: np.hypot(p, q) - 1,
    "square": lambda p, q: np.maximum(np.abs(p), np.abs(q)) - 0.85,
    "triangle": lambda p, q: np.maximum(q, np.abs(p) * 0.866 - q / 2) - 0.575,
    "ring": lambda p, q: np.abs(np.hypot(p, q) - 0.76) - 0.24,
    "cross": lambda p, q: np.maximum(np.maximum(np.abs(p), np.abs(q)) - 1, np.minimum(np.abs(p), np.abs(q)) - 0.3),
    "flower": _flower,
    "bar": lambda p, q: np.maximum(np.abs(p) - 1, np.abs(q) - 0.33),
    "crescent": lambda p, q: np.maximum(np.hypot(p, q) - 1, BITE[1] - np.hypot(p - BITE[0], q)),
}


@lru_cache(maxsize=len(KINDS))
def outline(kind: str) -> Array:
    """Points (n, 2) that reach as far as the shape does, whichever way it is turned; in radii."""
    angles = np.linspace(0, 2 * np.pi, 180, endpoint=False)
    circle = np.stack([np.cos(angles), np.sin(angles)], axis=1)
    match kind:
        case "square":
            points = 0.85 * np.array([[-1, -1], [-1, 1], [1, -1], [1, 1]])
        case "triangle":
            points = 1.15 * np.array([[0, -1], [-0.866, 0.5], [0.866, 0.5]])
        case "cross":
            points = np.array([[a * x, b * y] for a, b in ((1, 0.3), (0.3, 1)) for x in (-1, 1) for y in (-1, 1)])
        case "flower":
            points = circle * (PETALS[0] + PETALS[1] * np.sin(-5 * angles))[:, None]
        case "bar":
            points = np.array([[x, y] for x in (-1, 1) for y in (-0.33, 0.33)])
        case "crescent":
            horn = (1 + BITE[0] ** 2 - BITE[1] ** 2) / (2 * BITE[0])
            tips = np.array([[horn, sign * np.sqrt(1 - horn**2)] for sign in (-1, 1)])
            points = np.concatenate([circle[circle[:, 0] < horn], tips])
        case _:
            points = circle
    return points.astype(np.float32)


def _poses(item: SceneObject, frames: int) -> tuple[Array, Array, Array]:
    """Centre and angle of the object in every frame, shot in the middle of equal parts of the clip."""
    when = (np.arange(frames, dtype=np.float32) + 0.5) / frames - 0.5
    dx, dy = item.velocity
    return item.x + dx * when, item.y + dy * when, item.angle + item.spin * when


def boxes(item: SceneObject, *, size: int, frames: int) -> Array:
    """Box (x0, y0, x1, y1) of the object in every frame, in pixels, cut at the edge of the frame: (frames, 4)."""
    x, y, angle = (pose[:, None] for pose in _poses(item, frames))
    p, q = outline(item.kind).T
    across = x + item.radius * (np.cos(angle) * p - np.sin(angle) * q)
    down = y + item.radius * (np.sin(angle) * p + np.cos(angle) * q)
    corners = np.stack([across.min(1), down.min(1), across.max(1), down.max(1)], axis=1)
    corners *= size
    return corners.clip(0, size).astype(np.float32)


def colour(hue: float, saturation: float, value: float) -> tuple[float, float, float]:
    """Red, green and blue in [0, 1]."""
    k = [(n + 6 * hue) % 6 for n in (5, 3, 1)]
    red, green, blue = (value - value * saturation * max(0.0, min(x, 4 - x, 1.0)) for x in k)
    return red, green, blue


def paint(scene: Scene, *, size: int, frames: int, rng: np.random.Generator) -> NDArray[np.uint8]:
    """The frames of the scene, (frames, 3, size, size); `rng` draws the texture and the grain."""
    canvas = np.repeat(_backdrop(scene, size, rng)[None], frames, axis=0)
    for item in scene.objects:
        _put(canvas, item)
    # Even noise from raw bytes: a tenth of the time of a normal draw, and the eye cannot tell.
    grain = np.frombuffer(rng.bytes(canvas.size), dtype=np.uint8).astype(np.float32).reshape(canvas.shape)
    grain -= 127.5
    grain *= 255 * scene.grain / 73.9  # the standard deviation of a byte
    grain += 0.5  # to round, not to cut
    canvas += grain
    return np.clip(canvas, 0, 255, out=canvas).astype(np.uint8)


def _put(canvas: Array, item: SceneObject) -> None:
    """Draws the object into every frame, touching only the window it moves through."""
    frames, _, _, size = canvas.shape
    x, y, angle = _poses(item, frames)
    radius = item.radius * size
    x, y = x * size, y * size
    reach = REACH * radius + 1
    left, top = max(0, int(x.min() - reach)), max(0, int(y.min() - reach))
    right, bottom = min(size, int(x.max() + reach) + 1), min(size, int(y.max() + reach) + 1)
    across = ((np.arange(left, right, dtype=np.float32) + 0.5 - x[:, None]) / radius)[:, None, :]
    down = ((np.arange(top, bottom, dtype=np.float32) + 0.5 - y[:, None]) / radius)[:, :, None]
    cos, sin = np.cos(angle)[:, None, None], np.sin(angle)[:, None, None]
    distance = SHAPES[item.kind](cos * across + sin * down, cos * down - sin * across)
    cover = np.clip(0.5 - distance * radius, 0, 1)[:, None]
    paint = 255 * np.array(colour(item.hue, item.saturation, item.value), dtype=np.float32)[:, None, None]
    window = canvas[:, :, top:bottom, left:right]
    window += cover * (paint - window)


@lru_cache(maxsize=32)
def _stretch(cells: int, size: int) -> Array:
    """(size, cells): linear interpolation from the corners of cells to pixels."""
    at = (np.arange(size) + 0.5) / size * (cells - 1)
    weights: Array = np.maximum(0, 1 - np.abs(at[:, None] - np.arange(cells)))
    return weights.astype(np.float32)


def _backdrop(scene: Scene, size: int, rng: np.random.Generator) -> Array:
    """(3, size, size), 0 to 255: a colour that changes slowly across the frame, and soft blotches."""
    ramp = np.linspace(-0.5, 0.5, size, dtype=np.float32)
    shade = scene.slope[0] * ramp + scene.slope[1] * ramp[:, None]
    stretch = _stretch(scene.cells, size)
    # Mostly light and dark, a little colour: hue must stay a property of the objects.
    corners = rng.standard_normal((4, scene.cells, scene.cells), dtype=np.float32)
    corners = corners[:1] + 0.35 * corners[1:]
    blotches = stretch @ corners @ stretch.T
    flat = np.array(scene.colour, dtype=np.float32)[:, None, None]
    return np.clip(flat + shade + scene.texture * blotches, 0, 1) * np.float32(255)
