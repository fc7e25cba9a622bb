"""Pictures: uint8 frames to square floats in [0, 1], and the normalisation the encoders expect."""

from __future__ import annotations

from typing import TypeVar

import torch
import torch.nn.functional as F
from jaxtyping import Float, UInt8
from torch import Tensor

MEAN = (0.485, 0.456, 0.406)
STD = (0.229, 0.224, 0.225)

T = TypeVar("T", bound=Tensor)


def resize_short_side(frames: UInt8[Tensor, "n 3 h w"], side: int) -> UInt8[Tensor, "n 3 h2 w2"]:
    """Scales so that the shorter side has `side` pixels, keeping the aspect; antialiased bicubic."""
    height, width = frames.shape[2:]
    scale = side / min(height, width)
    size = (max(side, round(height * scale)), max(side, round(width * scale)))
    if size == (height, width):
        return frames
    resized = F.interpolate(frames.float(), size=size, mode="bicubic", antialias=True)
    return resized.round().clamp(0, 255).to(torch.uint8)


def centre_crop(frames: T, side: int) -> T:
    """The middle side x side pixels."""
    top, left = (frames.shape[-2] - side) // 2, (frames.shape[-1] - side) // 2
    return frames[..., top : top + side, left : left + side]  # type: ignore[return-value]


def square(frames: UInt8[Tensor, "n 3 h w"], side: int) -> UInt8[Tensor, "n 3 side side"]:
    """Resized so that the short side fits, then the middle."""
    return centre_crop(resize_short_side(frames, side), side)


def to_float(frames: UInt8[Tensor, "n 3 h w"]) -> Float[Tensor, "n 3 h w"]:
    """Values in [0, 1]."""
    return frames.float() / 255


def normalise(pictures: Float[Tensor, "n 3 h w"]) -> Float[Tensor, "n 3 h w"]:
    """Subtracts ImageNet's mean and divides by its deviation, per channel."""
    mean = torch.tensor(MEAN, device=pictures.device, dtype=pictures.dtype)[:, None, None]
    std = torch.tensor(STD, device=pictures.device, dtype=pictures.dtype)[:, None, None]
    return (pictures - mean) / std
