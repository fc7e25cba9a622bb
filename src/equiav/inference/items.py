"""What people hand over (paths, arrays, tensors) as the encoders' raw material: 16-bit-like sound, uint8 pictures."""

from __future__ import annotations

import operator
from pathlib import Path
from typing import Any, TypeAlias

import av
import numpy as np
import torch
from jaxtyping import Float, UInt8
from numpy.typing import NDArray
from torch import Tensor

from equiav.errors import MediaError, ShapeError
from equiav.media import (
    LEAST_SECONDS,
    PICTURES,
    SAMPLE_RATES,
    Limits,
    Workers,
    check_start,
    decoded_in,
    excerpt,
    read_image,
    stacked,
)

Vector: TypeAlias = NDArray[np.float32]
Array: TypeAlias = NDArray[Any] | Tensor
Sound: TypeAlias = str | Path | Array | tuple[Array, int]
Picture: TypeAlias = str | Path | Array
Video: TypeAlias = str | Path | tuple[Array, Array, int]

MOST_CHANNELS = 32


def waveform_of(
    item: Any,
    *,
    rate: int,
    sample_rate: int | None,
    start: float,
    seconds: float,
    limits: Limits | None = None,
    workers: Workers | None = None,
) -> Tensor:
    """Mono sound in [-1, 1] at `rate`: `seconds` of it from `start`, fewer where it ends before."""
    if isinstance(item, str | Path):
        how = {"start": start, "seconds": seconds, "rate": rate, "picture": False, "limits": limits}
        sound = decoded_in(workers, excerpt, Path(item), **how).waveform
        if sound is None:
            raise MediaError(Path(item), "no sound")
        if len(sound) < LEAST_SECONDS * rate:
            raise MediaError(Path(item), f"only {len(sound) / rate:.2f} s of sound from {start:g} s on")
        return torch.from_numpy(sound.astype(np.float32) / 32768)
    check_start(start)
    if isinstance(item, tuple) and len(item) != 2:
        raise ShapeError(f"a sound is a path, a waveform or (waveform, rate), not {kind_of(item)}")
    array, given = item if isinstance(item, tuple) else (item, sample_rate)
    if array is not None and given is None:
        raise ShapeError("a waveform needs its sample rate: give (array, rate) or sample_rate=")
    wave = resampled(mono(array), _rate(given), rate)
    first = round(start * rate)
    wave = wave[first : first + round(seconds * rate)]
    if len(wave) < LEAST_SECONDS * rate:
        raise ShapeError(f"a waveform of {len(wave) / rate:.2f} s from {start:g} s on; {LEAST_SECONDS:g} s are needed")
    return wave


def kind_of(item: object) -> str:
    """What something is, for messages."""
    return f"a tuple of {len(item)}" if isinstance(item, tuple) else type(item).__name__


def _rate(given: Any) -> int:
    try:
        return int(given) if isinstance(given, float) and given.is_integer() else operator.index(given)
    except TypeError:
        raise ShapeError(f"a sample rate is a whole number, got {kind_of(given)} {given!s:.20}") from None


def as_tensor(array: Any) -> Tensor:
    """An array or tensor, wherever it is, as a tensor in main memory."""
    try:
        if isinstance(array, np.ndarray):  # torch warns of read-only arrays, such as those of Pillow: a copy of them
            array = np.require(np.ascontiguousarray(array), requirements="W")
        return torch.as_tensor(array).detach().cpu()
    except (TypeError, ValueError, RuntimeError) as error:
        raise ShapeError(f"neither a path nor an array of numbers: {type(array).__name__}") from error


def mono(array: Any) -> Float[Tensor, " samples"]:
    """A waveform (samples,) or (channels, samples), floats in [-1, 1] or integers, as the mean of its channels."""
    wave = as_tensor(array)
    if wave.ndim not in (1, 2) or not wave.numel():
        raise ShapeError(f"a waveform is (samples,) or (channels, samples), got {tuple(wave.shape)}")
    if wave.ndim == 2 and len(wave) > MOST_CHANNELS:
        raise ShapeError(f"{len(wave)} channels: a waveform is (channels, samples), got {tuple(wave.shape)}")
    if not wave.dtype.is_floating_point:
        if wave.dtype not in (torch.int16, torch.int32):
            raise ShapeError(f"a waveform is floats in [-1, 1], int16 or int32, got {wave.dtype}")
        wave = wave.double() / -torch.iinfo(wave.dtype).min
    wave = wave.float()
    if not bool(wave.isfinite().all()):
        raise ShapeError("a waveform with values that are not finite")
    return wave if wave.ndim == 1 else wave.mean(dim=0)


def resampled(wave: Float[Tensor, " samples"], rate: int, wanted: int) -> Float[Tensor, " resampled"]:
    """The same sound at another rate, by FFmpeg's resampler as for files."""
    if not SAMPLE_RATES[0] <= rate <= SAMPLE_RATES[1]:
        raise ShapeError(f"a sample rate of {rate} is not one of sound")
    if rate == wanted:
        return wave
    resampler = av.AudioResampler(format="flt", layout="mono", rate=wanted)
    frame = av.AudioFrame.from_ndarray(np.ascontiguousarray(wave.numpy()[None]), format="flt", layout="mono")
    frame.sample_rate = rate
    chunks = [f.to_ndarray().reshape(-1) for f in [*resampler.resample(frame), *resampler.resample(None)]]
    return torch.from_numpy(np.concatenate(chunks)) if chunks else wave[:0]


def frames_of(
    item: Any,
    *,
    start: float,
    seconds: float,
    frames: int | None = None,
    limits: Limits | None = None,
    workers: Workers | None = None,
) -> UInt8[Tensor, "k 3 h w"]:
    """One picture, or `frames` of a film, evenly spread; as many as are embedded without it."""
    check_start(start)
    if not isinstance(item, str | Path):
        return rgb(item)[None]
    path = Path(item)
    if path.suffix.lower() in PICTURES:
        return stacked((decoded_in(workers, read_image, path, limits=limits),))
    how = {"start": start, "seconds": seconds, "sound": False, "frames": frames, "limits": limits}
    found = decoded_in(workers, excerpt, path, **how).frames
    if not found:
        raise MediaError(path, "no picture")
    return stacked(found)


def rgb(array: Any) -> UInt8[Tensor, "3 h w"]:
    """A picture (H, W, 3) or (3, H, W), or of 1 or 4 channels, or (H, W), as uint8 or floats in [0, 1]."""
    picture = as_tensor(array)
    if picture.ndim == 2:
        picture = picture[None]
    elif picture.ndim == 3 and picture.shape[-1] in (1, 3, 4):
        picture = picture.permute(2, 0, 1)
    if picture.ndim != 3 or picture.shape[0] not in (1, 3, 4) or not picture.numel():
        raise ShapeError(f"a picture is (H, W, 3) or (3, H, W), got {tuple(picture.shape)}")
    if picture.dtype.is_floating_point:
        if not bool(((picture >= 0) & (picture <= 1)).all()):
            raise ShapeError("a picture of floats has values in [0, 1]; give uint8 for 0 to 255")
        picture = (picture.float() * 255).round().to(torch.uint8)
    elif picture.dtype is not torch.uint8:
        raise ShapeError(f"a picture is uint8 or floats in [0, 1], got {picture.dtype}")
    return (picture[:1].expand(3, -1, -1) if len(picture) == 1 else picture[:3]).contiguous()


def film(frames: Any) -> UInt8[Tensor, "k 3 h w"]:
    """Frames (K, H, W, 3) or (K, 3, H, W) of one film."""
    pictures = as_tensor(frames)
    if pictures.ndim != 4 or not len(pictures):
        raise ShapeError(f"the frames of a film are (K, H, W, 3) or (K, 3, H, W), got {tuple(pictures.shape)}")
    return torch.stack([rgb(picture) for picture in pictures])
