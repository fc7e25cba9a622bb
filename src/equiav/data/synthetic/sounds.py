"""How a generated scene sounds: one wavetable per timbre, read at the pitch and struck in the rhythm of an object."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from equiav.data.synthetic.objects import KINDS, Scene, SceneObject

Array = NDArray[np.floating[Any]]

# A table holds 16 periods, so that partials may lie between the harmonics, on a grid of sixteenths.
PERIODS = 16
TABLE_BITS = 14
BEAT_BITS = 12
LIMITS = (4, 6, 8, 12, 16, 24, 32)  # highest partial of a table; more would only make the low voices buzz
HEADROOM = 0.9  # of the Nyquist frequency
DECAY = 3.5  # a beat has fallen by this many nepers when the next one starts
ATTACK = 0.01  # of a beat
VIBRATO = {"flower": (11.0, 0.07)}  # hertz, and how far the pitch swings


def partials(kind: str) -> dict[float, float]:
    """Timbre of a kind: amplitude of every partial by its multiple of the pitch, the lowest of which is the pitch."""
    harmonics = [float(k) for k in range(1, LIMITS[-1] + 1)]
    match kind:
        case "disc":  # a pure tone
            return {1.0: 1.0}
        case "square":  # odd harmonics only: hollow
            return {k: k**-0.9 for k in harmonics if k % 2}
        case "triangle":  # all harmonics: bright
            return {k: k**-0.6 for k in harmonics}
        case "ring":  # a bell: multiples that are not whole
            return {1.0: 1.0, 2.75: 0.8, 5.375: 0.6, 8.9375: 0.45, 13.375: 0.3}
        case "cross":  # octaves: an organ
            return {float(2**k): 0.8**k for k in range(6)}
        case "flower":  # a dozen harmonics, trembling
            return {k: k**-0.7 for k in harmonics if k <= 12}
        case "bar":  # rough bands around the pitch and two octaves above; closer partials would beat like a rhythm
            steps = [(band, step) for band in (1, 4) for step in range(-2 * band, 2 * band + 1)]
            return {band + step / 8: (1 - abs(step) / (3 * band)) / band for band, step in steps}
        case "crescent":  # the pitch, a gap, and a cluster far above: nasal
            return {1.0: 0.8} | {float(k): float(np.exp(-(((k - 7) / 1.3) ** 2))) for k in range(4, 11)}
        case _:
            raise ValueError(f"no voice for {kind!r}; there are {', '.join(KINDS)}")


@lru_cache(maxsize=len(KINDS) * len(LIMITS))
def wavetable(kind: str, limit: int) -> Array:
    """Sixteen periods of the timbre without what lies above `limit` times the pitch; root mean square one."""
    heard = {multiple: amplitude for multiple, amplitude in partials(kind).items() if multiple <= limit}
    spectrum = np.zeros((1 << TABLE_BITS) // 2 + 1, dtype=np.complex128)
    # Phases of their own for the partials keep the crest low; fixed, so that a timbre is the same in every world.
    phases = np.random.default_rng(KINDS.index(kind)).uniform(0, 2 * np.pi, len(heard))
    for (multiple, amplitude), phase in zip(heard.items(), phases, strict=True):
        spectrum[round(multiple * PERIODS)] = amplitude * np.exp(1j * phase)
    table = np.fft.irfft(spectrum)
    table /= np.sqrt(np.mean(table**2))
    return table.astype(np.float32)


@lru_cache(maxsize=1)
def strike() -> Array:
    """Loudness along one beat: a short attack, then exponential decay; root mean square one."""
    along = np.arange(1 << BEAT_BITS) / (1 << BEAT_BITS)
    shape = np.minimum(along / ATTACK, 1) * np.exp(-DECAY * along)
    shape /= np.sqrt(np.mean(shape**2))
    return shape.astype(np.float32)


@lru_cache(maxsize=4)
def _counter(samples: int) -> NDArray[np.uint32]:
    return np.arange(samples, dtype=np.uint32)


def _cycles(samples: int, per_sample: float, start: float) -> NDArray[np.uint32]:
    """Phase of every sample, a whole turn being 2**32: it wraps by itself, and its top bits index a table."""
    step, first = round(per_sample * 2**32) % 2**32, round(start * 2**32) % 2**32
    return _counter(samples) * np.uint32(step) + np.uint32(first)


def voice(item: SceneObject, *, samples: int, sample_rate: int) -> Array:
    """The object alone, at root mean square one, whether it is sounding or not."""
    turns = _cycles(samples, item.pitch / PERIODS / sample_rate, item.phase)
    rate, swing = VIBRATO.get(item.kind, (0.0, 0.0))
    if swing:
        depth = swing * item.pitch / PERIODS / (2 * np.pi * rate)
        seconds = _counter(samples).astype(np.float32) / np.float32(sample_rate)
        sway = np.sin(np.float32(2 * np.pi) * (np.float32(rate) * seconds + np.float32(item.phase)))
        turns = turns + (sway * np.float32(depth * 2**32)).astype(np.int64).astype(np.uint32)
    highest = HEADROOM * sample_rate / 2 / (item.pitch * (1 + swing))
    limit = max((n for n in LIMITS if n <= highest), default=1)
    tone: Array = wavetable(item.kind, limit)[turns >> np.uint32(32 - TABLE_BITS)]
    beats = _cycles(samples, item.tempo / sample_rate, item.beat)
    tone *= strike()[beats >> np.uint32(32 - BEAT_BITS)]
    return tone


def mix(scene: Scene, *, samples: int, sample_rate: int, rng: np.random.Generator) -> Array:
    """The sounding objects together, and the noise of the recording, which `rng` draws: (samples,) in [-1, 1]."""
    white = rng.standard_normal(samples + 1, dtype=np.float32)
    sound = white[1:] + np.float32(scene.noise_tilt) * white[:-1]
    sound *= np.float32(scene.noise / np.hypot(1, scene.noise_tilt))
    for item in scene.sounding:
        sound += np.float32(scene.loudness * item.gain) * voice(item, samples=samples, sample_rate=sample_rate)
    return np.clip(sound, -1, 1, out=sound)
