"""Modality, and the frozen records that cross the borders between rooms."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    import torch
    from torch import Tensor


class Modality(str, Enum):
    """The m of the paper: audio (a) or visual (v)."""

    AUDIO = "audio"
    VISUAL = "visual"


Split = Literal["train", "validation", "test"]
SPLITS: tuple[Split, ...] = ("train", "validation", "test")
Box = tuple[float, float, float, float]  # x0, y0, x1, y1 as fractions of the whole frame


@dataclass(frozen=True)
class Clip:
    """What is known of a clip, the same record from manifest through shards to index and search hit.

    `id` is unique in its collection; `source` names the media file for people and stays the same when files move;
    `path` is where it lies. Without `seconds` the clip goes on to the end of the file. `split` None: decided by `group`,
    which keeps what belongs together (clips of one video) in one split. `metadata` are further columns of a manifest.
    """

    id: str
    source: str = ""
    path: Path | None = None
    start: float = 0.0
    seconds: float | None = None
    labels: tuple[str, ...] = ()
    split: Split | None = None
    group: str = ""
    fold: int | None = None
    boxes: tuple[Box, ...] = ()
    text: str | None = None
    metadata: Mapping[str, Any] = field(default_factory=dict)

    @property
    def end(self) -> float:
        """Where it ends in its file, in seconds; its start where the length is not known."""
        return self.start + (self.seconds or 0.0)


@dataclass(frozen=True)
class DecodedClip:
    """A decoded excerpt: mono waveform in [-1, 1] and frames as uint8; either may be missing."""

    name: str
    waveform: Tensor | None  # (samples,)
    sample_rate: int
    frames: Tensor | None  # (K, 3, H, W)
    times: tuple[float, ...] = ()  # seconds of each frame from the start of the file


@dataclass(frozen=True)
class Sample:
    """One clip as a dataset gives it: its waveform and one frame."""

    name: str
    waveform: Tensor  # (samples,), float32
    frame: Tensor  # (3, H, W), uint8


@dataclass(frozen=True)
class Batch:
    """What a loader gives an objective: padded waveforms, one frame per clip, and where they came from."""

    names: tuple[str, ...]
    waveforms: Tensor  # (N, samples), padded with zeros
    lengths: Tensor  # (N,), samples that count
    frames: Tensor  # (N, 3, H, W), uint8

    def __len__(self) -> int:
        return len(self.names)

    def to(self, device: torch.device | str) -> Batch:
        """The same clips on another device; copies overlap with work where memory is pinned."""
        moved = (x.to(device, non_blocking=True) for x in (self.waveforms, self.lengths, self.frames))
        return Batch(self.names, *moved)

    def pin_memory(self) -> Batch:
        """The same clips in page-locked memory: what a loader calls before copying to a GPU."""
        return Batch(self.names, *(x.pin_memory() for x in (self.waveforms, self.lengths, self.frames)))

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
