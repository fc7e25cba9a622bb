"""What a generated scene is made of, and the laws that tie how an object looks to how it sounds."""

from __future__ import annotations

from dataclasses import dataclass
from math import log, pow

KINDS = ("disc", "square", "triangle", "ring", "cross", "flower", "bar", "crescent")
RADII = (0.105, 0.25)  # fractions of the side of a frame: 5 to 12 of 48 pixels
HUES = (0.0, 0.8)  # red to violet: closed into a circle, the fastest rhythm would look like the slowest
PITCHES = (880.0, 110.0)  # hertz, of the smallest and of the largest object
TEMPI = (1.5, 8.0)  # beats per second, of the first and of the last hue


@dataclass(frozen=True)
class SceneObject:
    """One object: what it is, where it moves, and the voice it has if it is sounding.

    Kind decides the timbre, radius the pitch, hue the rhythm. Lengths are fractions of the side, `x` and `y` those
    of the middle of the clip; `velocity` and `spin` (radians) are what it moves and turns in the whole clip.
    """

    kind: str
    radius: float
    hue: float
    x: float
    y: float
    sounding: bool
    saturation: float = 0.9
    value: float = 0.95
    angle: float = 0.0
    spin: float = 0.0
    velocity: tuple[float, float] = (0.0, 0.0)
    gain: float = 1.0
    phase: float = 0.0
    beat: float = 0.0

    @property
    def relative_size(self) -> float:
        """0 for the smallest radius, 1 for the largest, even in its logarithm."""
        return log(self.radius / RADII[0]) / log(RADII[1] / RADII[0])

    @property
    def relative_hue(self) -> float:
        """0 for the first hue, 1 for the last."""
        return (self.hue - HUES[0]) / (HUES[1] - HUES[0])

    @property
    def pitch(self) -> float:
        """Fundamental in hertz: bigger is lower, three octaves from end to end."""
        return PITCHES[0] * pow(PITCHES[1] / PITCHES[0], self.relative_size)

    @property
    def tempo(self) -> float:
        """Beats per second, rising with the hue."""
        return TEMPI[0] * pow(TEMPI[1] / TEMPI[0], self.relative_hue)


@dataclass(frozen=True)
class Scene:
    """All that is true of a clip.

    The background has a colour, to which `slope` is added from one side to the other, and a soft texture of so many
    cells; `grain` is the noise of the frames. `loudness` is that of one voice, `noise` that of the recording, both as
    root mean squares.
    """

    index: int
    objects: tuple[SceneObject, ...]
    colour: tuple[float, float, float]
    slope: tuple[float, float]
    texture: float
    cells: int
    grain: float
    loudness: float
    noise: float
    noise_tilt: float

    @property
    def sounding(self) -> tuple[SceneObject, ...]:
        """The objects that are heard."""
        return tuple(item for item in self.objects if item.sounding)

    @property
    def labels(self) -> tuple[str, ...]:
        """The kinds that are heard, sorted, each once."""
        return tuple(sorted({item.kind for item in self.sounding}))
