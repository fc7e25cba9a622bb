"""Clips with their classes: what a classifier is trained and judged on."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Float
from numpy.typing import NDArray
from torch import Tensor

from equiav.data.dataset import ClipDataset
from equiav.data.labels import Labels
from equiav.data.readers import read_vocabulary
from equiav.data.shards import ShardDataset
from equiav.data.sources import split_of
from equiav.errors import DataError
from equiav.types import Modality, Sample

NO_SOUND = torch.zeros(0)
NO_PICTURE = torch.zeros(3, 0, 0, dtype=torch.uint8)


@dataclass(frozen=True)
class Targets:
    """The classes of many clips in little memory: class numbers of all clips in a row, and where each clip's end."""

    classes: Labels
    numbers: NDArray[np.int32]
    ends: NDArray[np.int64]

    @staticmethod
    def of(labels: Sequence[Labels], classes: Labels, names: Sequence[str]) -> Targets:
        """The labels of clips as numbers; a label that is no class is refused, `names` says whose it is."""
        known = {label: number for number, label in enumerate(classes)}
        for of_clip, name in zip(labels, names, strict=True):
            if unknown := [label for label in of_clip if label not in known]:
                raise DataError(
                    f"clip {name} has the label {unknown[0]!r}, which is none of the {len(classes)} classes; "
                    "list all of them in finetune.classes_file, or leave the clip out"
                )
        numbers = [known[label] for of_clip in labels for label in of_clip]
        ends = np.cumsum([len(of_clip) for of_clip in labels], dtype=np.int64)
        return Targets(classes, np.array(numbers, np.int32), ends)

    def __len__(self) -> int:
        return len(self.ends)

    def of_clip(self, index: int) -> tuple[int, ...]:
        """The class numbers of one clip."""
        start = int(self.ends[index - 1]) if index else 0
        return tuple(int(n) for n in self.numbers[start : int(self.ends[index])])

    def rows(self, indices: Sequence[int]) -> Float[Tensor, "n classes"]:
        """One row per clip, 1 where it has the class."""
        out = torch.zeros(len(indices), len(self.classes))
        for row, index in enumerate(indices):
            out[row, list(self.of_clip(index))] = 1
        return out

    def names(self) -> list[Labels]:
        """The labels of every clip."""
        return [tuple(self.classes[n] for n in self.of_clip(i)) for i in range(len(self))]


@dataclass(frozen=True)
class LabelledClips:
    """Some clips of a set with their classes; only the wanted modalities are read, the other is empty."""

    clips: ClipDataset
    rows: NDArray[np.int64]
    targets: Targets
    wanted: tuple[Modality, ...]

    @property
    def frames(self) -> int:
        """How many pictures a clip has to choose from; one where none is looked at."""
        return self.clips.frames if Modality.VISUAL in self.wanted else 1

    def __len__(self) -> int:
        return len(self.rows)

    def name(self, index: int) -> str:
        """As in the whole set."""
        return self.clips.name(int(self.rows[index]))

    def sample(self, index: int, frame: int) -> Sample:
        """The wanted half, or both, of a clip."""
        row = int(self.rows[index])
        sounds, pictures = Modality.AUDIO in self.wanted, Modality.VISUAL in self.wanted
        if isinstance(self.clips, ShardDataset):
            sound = self.clips.waveform(row) if sounds else NO_SOUND
            picture = self.clips.frame(row, frame) if pictures else NO_PICTURE
            return Sample(self.clips.name(row), sound, picture)
        whole = self.clips.sample(row, frame)
        return Sample(whole.name, whole.waveform if sounds else NO_SOUND, whole.frame if pictures else NO_PICTURE)


def hold_out(groups: Sequence[str], share: float) -> NDArray[np.bool_]:
    """Which clips are kept from training for validation: by the names of their sources alone, at least one source."""
    # Preparing has split by the plain name: by the same hash, none of what it left for training would be held out.
    salted = [f"held-out/{group}" for group in groups]
    held = np.array([split_of(group, share) == "validation" for group in salted], dtype=bool)
    if not held.any() and len(groups):
        lowest = min(groups, key=lambda group: (zlib.crc32(f"held-out/{group}".encode()), group))
        held = np.array([group == lowest for group in groups], dtype=bool)
    return held


def read_classes(path: Path) -> Labels:
    """A file of classes in the order of their numbers: one a line, or AudioSet's CSV (its display names)."""
    try:
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"{path}: cannot be read as a list of classes ({error})") from error
    if text.startswith("index,mid,display_name"):
        return read_vocabulary(path).names
    classes = tuple(line.strip() for line in text.splitlines() if line.strip())
    if not classes or len(set(classes)) < len(classes):
        raise DataError(f"{path}: a list of classes names each once, one a line")
    return classes
