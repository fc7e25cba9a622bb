"""Frames and clips as tensors: decoded, stacked, square, in [0, 1], and with the normalisation the encoders expect."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Float, UInt8
from numpy.typing import NDArray
from torch import Tensor

from equiav.errors import MediaError
from equiav.media.clips import CLIP_SECONDS, FRAMES, SAMPLE_RATE, Cut, open_media, read_clips
from equiav.types import DecodedClip

MEAN = (0.485, 0.456, 0.406)
STD = (0.229, 0.224, 0.225)
LARGE = 10_000_000  # values of a picture


def decode(
    path: Path, *, sample_rate: int = SAMPLE_RATE, frames: int = FRAMES, seconds: float = CLIP_SECONDS
) -> DecodedClip:
    """The first `seconds` of a file: its waveform, and `frames` frames evenly spaced over them.

    A missing stream gives None; a file with neither is refused.
    """
    info = open_media(path, until=seconds)
    waveform: Tensor | None = None
    images: Tensor | None = None
    times: tuple[float, ...] = ()
    if info.audio is not None:
        cut = Cut(0.0, min(seconds, info.audio[1]))
        excerpt = next(read_clips(path, [cut], info, sample_rate=sample_rate, video=False))
        if excerpt.waveform is not None and len(excerpt.waveform):
            waveform = torch.from_numpy(excerpt.waveform.astype(np.float32) / 32768)
    if info.video is not None:
        cut = Cut(0.0, min(seconds, info.video[1]))
        excerpt = next(read_clips(path, [cut], info, frames=frames, audio=False))
        images, times = stacked(excerpt.frames), excerpt.times
    if waveform is None and images is None:
        raise MediaError(path, "holds neither sound nor picture that can be decoded")
    return DecodedClip(path.stem, waveform, sample_rate, images, times)


def stacked(frames: Sequence[NDArray[np.uint8]]) -> UInt8[Tensor, "k 3 h w"]:
    """Frames as one tensor; those whose size changed on the way are cut to the smallest height and width."""
    height, width = min(f.shape[0] for f in frames), min(f.shape[1] for f in frames)
    stack = np.stack([f[:height, :width] for f in frames])
    return torch.from_numpy(stack).permute(0, 3, 1, 2).contiguous()


def square(frames: UInt8[Tensor, "n 3 h w"], side: int) -> UInt8[Tensor, "n 3 side side"]:
    """Scaled so that the short side has `side` pixels (antialiased bicubic), then the middle."""
    height, width = frames.shape[2:]
    scale = side / min(height, width)
    size = (max(side, round(height * scale)), max(side, round(width * scale)))
    if size != (height, width):
        # Large ones channel by channel: the same in a third of the memory.
        parts = torch.split(frames, 1, dim=1) if frames[0].numel() > LARGE else (frames,)
        resized = [F.interpolate(part.float(), size=size, mode="bicubic", antialias=True) for part in parts]
        frames = torch.cat(resized, dim=1).round().clamp(0, 255).to(torch.uint8)
    top, left = (size[0] - side) // 2, (size[1] - side) // 2
    return frames[..., top : top + side, left : left + side]


def to_float(frames: UInt8[Tensor, "n 3 h w"]) -> Float[Tensor, "n 3 h w"]:
    """Values in [0, 1]."""
    return frames.float() / 255


def normalise(
    images: Float[Tensor, "n 3 h w"], mean: tuple[float, ...] = MEAN, std: tuple[float, ...] = STD
) -> Float[Tensor, "n 3 h w"]:
    """Subtracts a mean and divides by a standard deviation per channel, ImageNet's by default."""
    shift = torch.tensor(mean, device=images.device, dtype=images.dtype)[:, None, None]
    scale = torch.tensor(std, device=images.device, dtype=images.dtype)[:, None, None]
    return (images - shift) / scale


def denormalise(
    images: Float[Tensor, "n 3 h w"], mean: tuple[float, ...] = MEAN, std: tuple[float, ...] = STD
) -> Float[Tensor, "n 3 h w"]:
    """The inverse of `normalise`."""
    shift, scale = (torch.tensor(v, device=images.device, dtype=images.dtype)[:, None, None] for v in (mean, std))
    return images * scale + shift
