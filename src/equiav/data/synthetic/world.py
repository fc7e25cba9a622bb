"""The generated world: endless clips of known truth, in which the sound follows from what is seen."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import torch
from jaxtyping import Float, UInt8
from numpy.typing import NDArray
from torch import Tensor

from equiav.data.synthetic import drawing, sounds
from equiav.data.synthetic.objects import HUES, KINDS, RADII, Scene, SceneObject
from equiav.errors import DataError

Range = tuple[float, float]

PLACINGS = 96  # tries at putting the objects of a scene where they do not overlap
GAP = 0.02  # wanted between two objects, of the side
# One stream for each purpose, so that neither the size of the frames nor the length of the audio moves the others.
ATTRIBUTES, VIDEO, AUDIO = 1, 2, 3


@dataclass(frozen=True)
class Difficulty:
    """What makes the world easy or hard to learn, all of it apart from the laws that tie sound to image.

    `another` is the chance of each further object, `duet` that of each further voice among the objects there are.
    Ranges are drawn from evenly: texture, grain and brightness of frames in [0, 1], loudness of one voice as root
    mean square, signal_to_noise in decibels. `drift` is the most an object moves in a clip, as a fraction of the side,
    `turn` the most it is tilted or turns, in radians.
    """

    kinds: int = len(KINDS)
    max_objects: int = 3
    max_sounding: int = 2
    another: float = 0.5
    duet: float = 0.3
    brightness: Range = (0.08, 0.7)
    texture: Range = (0.0, 0.08)
    grain: Range = (0.0, 0.02)
    loudness: Range = (0.03, 0.1)
    signal_to_noise: Range = (22.0, 40.0)
    drift: float = 0.08
    turn: float = 0.35

    def __post_init__(self) -> None:
        if not 1 <= self.kinds <= len(KINDS):
            raise DataError(f"a world has 1 to {len(KINDS)} kinds of objects, not {self.kinds}")
        if not 1 <= self.max_sounding <= self.max_objects:
            raise DataError(f"{self.max_sounding} of at most {self.max_objects} objects cannot sound")
        if not (0 <= self.another <= 1 and 0 <= self.duet <= 1):
            raise DataError(f"another={self.another} and duet={self.duet} must be probabilities")


@dataclass(frozen=True)
class World:
    """Clips by number, each a function of (seed, index) alone; two splits are two ranges of numbers that do not meet.

    The laws are those of `SceneObject`: kind decides timbre, radius pitch, hue rhythm. Silent objects are drawn from
    the same distribution as sounding ones, so that only the sound tells them apart.
    """

    seed: int = 0
    size: int = 48
    seconds: float = 2.0
    sample_rate: int = 16000
    frames: int = 10
    difficulty: Difficulty = field(default_factory=Difficulty)

    def __post_init__(self) -> None:
        if self.seed < 0 or min(self.size, self.seconds, self.sample_rate, self.frames) <= 0:
            raise DataError(f"a world needs a seed of at least 0 and positive sizes, got {self}")

    @property
    def samples(self) -> int:
        """Length of a waveform."""
        return round(self.seconds * self.sample_rate)

    def scene(self, index: int) -> Scene:
        """All that is true of clip `index`, without drawing or sounding it."""
        hard, rng = self.difficulty, self._rng(ATTRIBUTES, index)
        loudness = rng.uniform(*hard.loudness)
        return Scene(
            index=index,
            objects=_objects(hard, rng),
            colour=drawing.colour(rng.random(), rng.uniform(0.0, 0.3), rng.uniform(*hard.brightness)),
            slope=(rng.uniform(-0.15, 0.15), rng.uniform(-0.15, 0.15)),
            texture=rng.uniform(*hard.texture),
            cells=int(rng.integers(3, 10)),
            grain=rng.uniform(*hard.grain),
            loudness=loudness,
            noise=loudness * 10 ** (-rng.uniform(*hard.signal_to_noise) / 20),
            noise_tilt=rng.uniform(0.0, 0.9),
        )

    def waveform(self, which: int | Scene) -> Float[Tensor, " samples"]:
        """What is heard in a clip, by its number or by its scene (which may have been changed by hand); in [-1, 1]."""
        scene = self.scene(which) if isinstance(which, int) else which
        rng = self._rng(AUDIO, scene.index)
        return torch.from_numpy(sounds.mix(scene, samples=self.samples, sample_rate=self.sample_rate, rng=rng))

    def video(self, which: int | Scene) -> UInt8[Tensor, "frames 3 size size"]:
        """What is seen in a clip, by its number or by its scene."""
        scene = self.scene(which) if isinstance(which, int) else which
        rng = self._rng(VIDEO, scene.index)
        return torch.from_numpy(drawing.paint(scene, size=self.size, frames=self.frames, rng=rng))

    def boxes(self, which: int | Scene) -> Float[Tensor, "frames sounding 4"]:
        """Where the sounding objects of a clip are: (x0, y0, x1, y1) in pixels, in the order of `scene.sounding`."""
        scene = self.scene(which) if isinstance(which, int) else which
        found = [drawing.boxes(item, size=self.size, frames=self.frames) for item in scene.sounding]
        return torch.from_numpy(np.stack(found, axis=1)) if found else torch.zeros(self.frames, 0, 4)

    def _rng(self, purpose: int, index: int) -> np.random.Generator:
        if index < 0:
            raise DataError(f"clips of a world are numbered from 0, got {index}")
        return np.random.default_rng([purpose, self.seed, index])


def _further(chance: float, most: int, rng: np.random.Generator) -> int:
    """One, and another with the given chance as long as the last try succeeded and there are fewer than `most`."""
    return 1 + int(np.cumprod(rng.random(most - 1) < chance).sum())


def _objects(hard: Difficulty, rng: np.random.Generator) -> tuple[SceneObject, ...]:
    count = _further(hard.another, hard.max_objects, rng)
    voices_heard = min(count, _further(hard.duet, hard.max_sounding, rng))
    # Chosen by lot among objects already drawn: nothing of an object may depend on whether it sounds.
    sounding = set(rng.permutation(count)[:voices_heard].tolist())
    kinds = rng.integers(hard.kinds, size=count)
    radii = RADII[0] * (RADII[1] / RADII[0]) ** rng.random(count)
    hues = rng.uniform(*HUES, size=count)
    velocities = rng.uniform(-hard.drift, hard.drift, size=(count, 2))
    spots = _place(radii, velocities, rng)
    turns = rng.uniform(-hard.turn, hard.turn, size=(count, 2))
    shades = rng.uniform((0.8, 0.85), 1.0, size=(count, 2))
    gains = 10 ** (rng.uniform(-1.5, 1.5, size=count) / 20)
    phases = rng.random((count, 2))
    return tuple(
        SceneObject(
            kind=KINDS[kinds[i]],
            radius=float(radii[i]),
            hue=float(hues[i]),
            x=float(spots[i, 0]),
            y=float(spots[i, 1]),
            sounding=i in sounding,
            saturation=float(shades[i, 0]),
            value=float(shades[i, 1]),
            angle=float(turns[i, 0]),
            spin=float(turns[i, 1]),
            velocity=(float(velocities[i, 0]), float(velocities[i, 1])),
            gain=float(gains[i]),
            phase=float(phases[i, 0]),
            beat=float(phases[i, 1]),
        )
        for i in range(count)
    )


def _place(
    radii: NDArray[np.float64], velocities: NDArray[np.float64], rng: np.random.Generator
) -> NDArray[np.float64]:
    """Centres (count, 2) inside the frame: of many tries, the one in which the objects overlap least."""
    margin = 0.9 * radii[:, None] + np.abs(velocities) / 2
    tries = margin + rng.random((PLACINGS, len(radii), 2)) * (1 - 2 * margin)
    one, two = np.triu_indices(len(radii), k=1)
    apart = np.linalg.norm(tries[:, one] - tries[:, two], axis=2)
    overlap = np.maximum(0, radii[one] + radii[two] + GAP - apart).sum(axis=1)
    best: NDArray[np.float64] = tries[overlap.argmin()]
    return best
