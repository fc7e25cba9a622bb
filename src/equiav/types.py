"""Modalities as keys, and the frozen records that cross the borders between rooms."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    import torch
    from torch import Tensor

# The m of the paper. A modality is a key of the mappings below; audio and visual are the paper's two, any other string
# is a further one.
Modality = str
AUDIO: Modality = "audio"
VISUAL: Modality = "visual"

Split = Literal["train", "validation", "test"]
SPLITS: tuple[Split, ...] = ("train", "validation", "test")
Box = tuple[float, float, float, float]  # x0, y0, x1, y1 as fractions of the whole frame


@dataclass(frozen=True)
class Clip:
    """What is known of a clip, the same record from manifest through shards to index and search hit.

    `id` is unique in its collection; `source` names the media file for people and stays the same when files move;
    `path` is where it lies. Without `seconds` the clip goes on to the end of the file. `split` None: decided by
    `group`, which keeps what belongs together (clips of one video) in one split. `metadata` are further columns of a
    manifest, or facts that a dataset knows about its clips.
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
    """One clip as a dataset gives it, by modality: a waveform (samples,) in float32, a frame (3, H, W) in uint8."""

    id: str
    inputs: Mapping[Modality, Tensor]


@dataclass(frozen=True)
class Batch:
    """Clips side by side, by modality; inputs of different length are padded with zeros, `lengths` say what counts.

    Where a clip lacks a modality, its row there is zeros and `present` says so.
    """

    ids: tuple[str, ...]
    inputs: Mapping[Modality, Tensor]  # (N, ...)
    lengths: Mapping[Modality, Tensor] = field(default_factory=dict)  # (N,), of the modalities that were padded
    targets: Tensor | None = None  # (N, classes), where a classifier is trained
    present: Mapping[Modality, Tensor] = field(default_factory=dict)  # (N,) bool, of modalities that some clips lack

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def device(self) -> torch.device:
        """Where its tensors are."""
        return next(iter(self.inputs.values())).device

    def tensors(self) -> list[Tensor]:
        """All of its tensors."""
        found = [*self.inputs.values(), *self.lengths.values(), *self.present.values()]
        return found if self.targets is None else [*found, self.targets]

    def map(self, change: Any) -> Batch:
        """The same clips with every tensor changed; `change` takes and gives a tensor."""
        return replace(
            self,
            inputs={m: change(x) for m, x in self.inputs.items()},
            lengths={m: change(x) for m, x in self.lengths.items()},
            present={m: change(x) for m, x in self.present.items()},
            targets=None if self.targets is None else change(self.targets),
        )

    def to(self, device: torch.device | str) -> Batch:
        """The same clips on another device; copies overlap with work where memory is pinned."""
        return self.map(lambda x: x.to(device, non_blocking=True))

    def pin_memory(self) -> Batch:
        """The same clips in page-locked memory: what a loader calls before copying to a GPU."""
        return self.map(lambda x: x.pin_memory())

    def rows(self, start: int, stop: int) -> Batch:
        """The clips from `start` up to `stop`, as a batch of their own."""
        return replace(self.map(lambda x: x[start:stop]), ids=self.ids[start:stop])


@dataclass(frozen=True)
class Embeddings:
    """Embeddings of a set of clips by modality: row i of every modality comes from clip i."""

    ids: tuple[str, ...]
    vectors: Mapping[Modality, Tensor]  # (N, D)

    def __getitem__(self, modality: Modality) -> Tensor:
        return self.vectors[modality]
