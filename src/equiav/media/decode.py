"""Any file FFmpeg opens (through PyAV): a mono waveform, and frames at stated times."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import av
import numpy as np
import torch
from av.error import FFmpegError
from jaxtyping import Float, UInt8
from torch import Tensor

from equiav.errors import MediaError
from equiav.types import Clip


def decode(path: Path, *, sample_rate: int = 16000, frames: int = 10, seconds: float = 10.0) -> Clip:
    """The first `seconds` of a file: its waveform, and `frames` pictures evenly spaced over them.

    A missing stream gives None; a file with neither is refused.
    """
    if not path.is_file():
        raise MediaError(path, "no such file")
    waveform = read_audio(path, sample_rate=sample_rate, seconds=seconds)
    pictures, times = read_frames(path, frames=frames, seconds=seconds)
    if waveform is None and pictures is None:
        raise MediaError(path, "holds neither sound nor picture that can be decoded")
    return Clip(path.stem, waveform, sample_rate, pictures, tuple(times))


def _open(path: Path) -> av.container.InputContainer:
    try:
        return av.open(str(path))
    except (FFmpegError, OSError, ValueError) as error:
        raise MediaError(path, f"cannot be opened as media ({_short(error)})") from error


def _short(error: Exception) -> str:
    return str(getattr(error, "strerror", None) or error).splitlines()[0]


def read_audio(path: Path, *, sample_rate: int, seconds: float) -> Float[Tensor, " samples"] | None:
    """Mono waveform in [-1, 1], or None where there is no sound."""
    with _open(path) as container:
        if not container.streams.audio:
            return None
        resampler = av.AudioResampler(format="flt", layout="mono", rate=sample_rate)
        wanted = round(seconds * sample_rate)
        parts: list[np.ndarray] = []
        total = 0
        try:
            for frame in container.decode(audio=0):
                for out in resampler.resample(frame):
                    parts.append(out.to_ndarray().reshape(-1))
                    total += len(parts[-1])
                if total >= wanted:
                    break
            else:
                parts.extend(out.to_ndarray().reshape(-1) for out in resampler.resample(None))
        except (FFmpegError, ValueError) as error:
            if not parts:
                raise MediaError(path, f"its sound cannot be decoded ({_short(error)})") from error
    samples = np.concatenate(parts)[:wanted] if parts else np.zeros(0, np.float32)
    return torch.from_numpy(np.ascontiguousarray(samples, dtype=np.float32)) if len(samples) else None


def read_frames(path: Path, *, frames: int, seconds: float) -> tuple[UInt8[Tensor, "k 3 h w"] | None, list[float]]:
    """Frames at the middles of `frames` equal parts of the first `seconds`, with their times."""
    with _open(path) as container:
        if not container.streams.video:
            return None, []
        stream = container.streams.video[0]
        length = _duration(container, stream)
        span = min(seconds, length) if length else seconds
        times = [(i + 0.5) * span / frames for i in range(frames)]
        try:
            pictures = _at_times(container, times)
        except (FFmpegError, ValueError) as error:
            raise MediaError(path, f"its picture cannot be decoded ({_short(error)})") from error
    if not pictures:
        return None, []
    return torch.from_numpy(np.stack(pictures)).permute(0, 3, 1, 2).contiguous(), times[: len(pictures)]


def _duration(container: av.container.InputContainer, stream: av.VideoStream) -> float:
    if stream.duration and stream.time_base:
        return float(stream.duration * stream.time_base)
    return container.duration / av.time_base if container.duration else 0.0


def _at_times(container: av.container.InputContainer, times: Sequence[float]) -> list[np.ndarray]:
    """For each time the frame on screen then: the last one that started before it."""
    pictures: list[np.ndarray] = []
    shown: np.ndarray | None = None
    first: float | None = None
    for frame in container.decode(video=0):
        first = frame.time or 0.0 if first is None else first
        now = (frame.time or 0.0) - first
        while shown is not None and len(pictures) < len(times) and times[len(pictures)] < now:
            pictures.append(shown)
        if len(pictures) == len(times):
            break
        shown = frame.to_ndarray(format="rgb24")
    while shown is not None and len(pictures) < len(times):
        pictures.append(shown)
    return pictures
