"""Modality, and the frozen records that cross the borders between rooms."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor


class Modality(str, Enum):
    """The m of the paper: audio (a) or visual (v)."""

    AUDIO = "audio"
    VISUAL = "visual"


@dataclass(frozen=True)
class Clip:
    """A decoded excerpt: mono waveform in [-1, 1] and frames as uint8; either may be missing."""

    name: str
    waveform: Tensor | None  # (samples,)
    sample_rate: int
    frames: Tensor | None  # (K, 3, H, W)
    times: tuple[float, ...] = ()  # seconds of each frame from the start of the file


@dataclass(frozen=True)
class Batch:
    """What a loader gives an objective: padded waveforms, one frame per clip, and where they came from."""

    names: tuple[str, ...]
    waveforms: Tensor  # (N, samples), padded with zeros
    lengths: Tensor  # (N,), samples that count
    frames: Tensor  # (N, 3, H, W), uint8

    def __len__(self) -> int:
        return len(self.names)

    def rows(self, start: int, stop: int) -> Batch:
        """The clips from `start` up to `stop`, as a batch of their own."""
        part = slice(start, stop)
        return Batch(self.names[part], self.waveforms[part], self.lengths[part], self.frames[part])


@dataclass(frozen=True)
class LossTerms:
    """The three terms of Eq. (16), unweighted, and their weighted sum."""

    inter: Tensor
    intra_audio: Tensor
    intra_visual: Tensor
    total: Tensor


@dataclass(frozen=True)
class Embeddings:
    """Paired embeddings of a set of clips: row i of both sides comes from clip i."""

    names: tuple[str, ...]
    audio: Tensor  # (N, D)
    visual: Tensor  # (N, D)
