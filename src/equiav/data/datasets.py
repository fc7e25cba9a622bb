"""What a dataset is, the generated world as one, parts of datasets, and batches of their samples."""

from __future__ import annotations

import zlib
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Float
from numpy.typing import NDArray
from torch import Tensor

from equiav.data.readers import read_vocabulary
from equiav.data.sources import split_of
from equiav.data.synthetic import KINDS, Scene, World
from equiav.errors import DataError
from equiav.types import AUDIO, VISUAL, Batch, Clip, Modality, Sample

Labels = tuple[str, ...]
MISMATCH = 4  # beside the world's own streams for each purpose
ELSEWHERE = 1 << 40  # scenes from this number on are in no split
LEAST_BOX = 1.0  # pixels that must be left of a box after the frame was cut square


class Dataset(ABC):
    """Clips 0 up to len(self): the record of each, and its tensors.

    A subclass gives `__len__`, `clip` and `sample`; everything else is read off the records and has defaults.
    """

    modalities: tuple[Modality, ...] = (AUDIO, VISUAL)
    frames: int = 1  # how many frames a clip has to choose from
    classes: Labels | None = None  # all that exist, in the order of their numbers; None: those that occur
    one_to_one: bool = True  # False: only classes pair the modalities, see `sides`

    @abstractmethod
    def __len__(self) -> int: ...

    @abstractmethod
    def clip(self, index: int) -> Clip:
        """What is known of a clip, without reading its media."""

    @abstractmethod
    def sample(self, index: int, frame: int) -> Sample:
        """The tensors of a clip with one of its frames."""

    def labels(self, index: int) -> Labels:
        """The labels of a clip; datasets that need not build the whole record for them override it."""
        return self.clip(index).labels

    def group(self, index: int) -> str:
        """What a clip belongs to: clips of one group never stand in two splits."""
        clip = self.clip(index)
        return clip.group or clip.source or clip.id

    def part(self, index: int, frame: int, modalities: Sequence[Modality]) -> Sample:
        """Some modalities of a clip; datasets that can read less than everything override it."""
        whole = self.sample(index, frame)
        return Sample(whole.id, {m: whole.inputs[m] for m in modalities if m in whole.inputs})

    def boxes(self, index: int, frame: int) -> Float[Tensor, "boxes 4"]:
        """Boxes (x0, y0, x1, y1) of what sounds, in pixels of the square frame; none where nothing is annotated."""
        shares = self.clip(index).boxes
        if not shares:
            return torch.zeros(0, 4)
        return squared(torch.tensor(shares, dtype=torch.float32), *self.frame_size(index, frame))

    def frame_size(self, index: int, frame: int) -> tuple[int, int, int]:
        """Height and width of a whole frame, and the side of the square made of it."""
        side = self.part(index, frame, (VISUAL,)).inputs[VISUAL].shape[1]
        return side, side, side

    def sides(self) -> Mapping[Modality, Dataset]:
        """The dataset whose clips evaluation takes for each modality: itself, unless only classes pair them."""
        return dict.fromkeys(self.modalities, self)


def squared(shares: Float[Tensor, "boxes 4"], height: int, width: int, side: int) -> Float[Tensor, "kept 4"]:
    """Boxes given as shares of a whole frame, in pixels of its middle square scaled to `side`.

    What lies outside the square is cut off, and boxes of which nothing is left are dropped.
    """
    short = min(height, width)
    offset = torch.tensor([(width - short) / 2, (height - short) / 2] * 2)
    pixels = (shares * torch.tensor([width, height] * 2) - offset) / short * side
    pixels = pixels.clamp(0, side)
    kept = (pixels[:, 2] - pixels[:, 0] >= LEAST_BOX) & (pixels[:, 3] - pixels[:, 1] >= LEAST_BOX)
    return pixels[kept]


@dataclass(frozen=True)
class WorldDataset(Dataset):
    """Clips `start` up to `start + count` of the generated world; splits are disjoint ranges of one world.

    The share `mismatched` of them has the audio of another scene, one that no split holds; which ones is decided by the
    world's seed and their number alone. Clips are kept once made, as 16-bit audio and 8-bit frames (about 130 kB each
    at the default size): a run visits them many times. `remember=False` makes them again each time.
    """

    world: World
    start: int
    count: int
    remember: bool = True
    mismatched: float = 0.0
    _made: dict[int, tuple[Tensor, Tensor]] = field(default_factory=dict, repr=False, compare=False)

    @property
    def frames(self) -> int:  # type: ignore[override]
        """Frames per clip."""
        return self.world.frames

    @property
    def classes(self) -> Labels:  # type: ignore[override]
        """All kinds of objects there are."""
        return tuple(KINDS[: self.world.difficulty.kinds])

    def __len__(self) -> int:
        return self.count

    def scene(self, index: int) -> Scene:
        """The truth about what is seen in a clip, and heard unless it is mismatched."""
        return self.world.scene(self.start + index)

    def heard(self, index: int) -> int:
        """The number of the scene that is heard: the clip's own, unless it is mismatched."""
        number = self.start + index
        coin = np.random.default_rng([MISMATCH, self.world.seed, number]).random() if self.mismatched else 1.0
        return number + ELSEWHERE if coin < self.mismatched else number

    def clip(self, index: int) -> Clip:
        """Named as in the truth files, by the world's seed and the clip's number in it; labels are what sounds."""
        scene, name = self.scene(index), self._name(index)
        facts: dict[str, object] = {"silent": len(scene.objects) - len(scene.sounding)}
        if self.heard(index) != self.start + index:
            facts["mismatched"] = True
        return Clip(name, name, seconds=self.world.seconds, labels=scene.labels, group=name, metadata=facts)

    def media(self, index: int) -> tuple[Tensor, Tensor]:
        """Audio as 16-bit numbers, as a recorder would store it, and all frames."""
        if index in self._made:
            return self._made[index]
        waveform = self.world.waveform(self.heard(index))
        made = ((waveform * 32767).round().to(torch.int16), self.world.video(self.start + index))
        if self.remember:
            self._made[index] = made
        return made

    def sample(self, index: int, frame: int) -> Sample:
        """The clip's audio and its frame number `frame`."""
        return self.part(index, frame, (AUDIO, VISUAL))

    def part(self, index: int, frame: int, modalities: Sequence[Modality]) -> Sample:
        """Without turning audio that is not wanted into floats."""
        audio, frames = self.media(index)
        made = {m: audio.float() / 32768 if m == AUDIO else frames[frame] for m in modalities}
        return Sample(self._name(index), made)

    def boxes(self, index: int, frame: int) -> Float[Tensor, "boxes 4"]:
        """Where the sounding objects are in one frame; they move. None where another scene is heard."""
        if self.heard(index) != self.start + index:
            return torch.zeros(0, 4)
        return self.world.boxes(self.start + index)[frame].float()

    def _name(self, index: int) -> str:
        return f"world-{self.world.seed}-{self.start + index:07d}"


class Subset(Dataset):
    """Some clips of a dataset in a stated order, and of these some modalities: a retrieval list, a split, a fold."""

    def __init__(
        self, clips: Dataset, rows: Sequence[int] | NDArray[np.int64], modalities: Sequence[Modality] | None = None
    ) -> None:
        self.clips, self.rows = clips, np.asarray(rows, np.int64)
        self.modalities = tuple(modalities or clips.modalities)
        self.frames = clips.frames if VISUAL in self.modalities else 1
        self.classes, self.one_to_one = clips.classes, clips.one_to_one

    def __len__(self) -> int:
        return len(self.rows)

    def clip(self, index: int) -> Clip:
        """As in the whole dataset."""
        return self.clips.clip(int(self.rows[index]))

    def sample(self, index: int, frame: int) -> Sample:
        """As in the whole dataset; only the wanted modalities are read."""
        return self.clips.part(int(self.rows[index]), frame, self.modalities)

    def part(self, index: int, frame: int, modalities: Sequence[Modality]) -> Sample:
        """As in the whole dataset."""
        return self.clips.part(int(self.rows[index]), frame, modalities)

    def labels(self, index: int) -> Labels:
        """As in the whole dataset."""
        return self.clips.labels(int(self.rows[index]))

    def group(self, index: int) -> str:
        """As in the whole dataset."""
        return self.clips.group(int(self.rows[index]))

    def boxes(self, index: int, frame: int) -> Float[Tensor, "boxes 4"]:
        """As in the whole dataset."""
        return self.clips.boxes(int(self.rows[index]), frame)


def evenly_spaced(count: int, wanted: int) -> list[int]:
    """At most `wanted` numbers below `count`, evenly spaced, so that nobody can have picked them."""
    wanted = min(wanted, count)
    return [i * count // wanted for i in range(wanted)]


def collate(samples: Sequence[Sample]) -> Batch:
    """A batch: inputs of one axis (waveforms) padded with zeros to the longest, all others stacked.

    Where a sample lacks a modality that others have, its row is zeros and `present` says so.
    """
    inputs, lengths, present = {}, {}, {}
    for m in dict.fromkeys(m for s in samples for m in s.inputs):
        longest = max((s.inputs[m] for s in samples if m in s.inputs), key=len)
        values = [s.inputs[m] if m in s.inputs else torch.zeros_like(longest) for s in samples]
        if longest.ndim == 1:
            inputs[m] = torch.nn.utils.rnn.pad_sequence(values, batch_first=True)
            lengths[m] = torch.tensor([len(x) for x in values])
        else:
            inputs[m] = torch.stack(values)
        if not all(m in s.inputs for s in samples):
            present[m] = torch.tensor([m in s.inputs for s in samples])
    return Batch(tuple(s.id for s in samples), inputs, lengths, present=present)


def labels_of(clips: Dataset) -> list[Labels]:
    """The labels of every clip."""
    return [clips.labels(i) for i in range(len(clips))]


def vocabulary(clips: Dataset) -> Labels:
    """The classes in the order of their numbers: all that exist where the dataset says so, else those that occur."""
    found = clips.classes or tuple(sorted({label for labels in labels_of(clips) for label in labels}))
    if not found:
        raise DataError("these clips have no labels; prepare them from a list that gives some")
    return found


def _class_numbers(labels: Labels, numbers: Mapping[str, int], clip: str) -> list[int]:
    """The classes of a clip; a label that is none is refused."""
    for label in labels:
        if label not in numbers:
            raise DataError(
                f"clip {clip} has the label {label!r}, which is none of the {len(numbers)} "
                "classes; list all of them in finetune.classes_file, or leave the clip out"
            )
    return [numbers[label] for label in labels]


def multi_hot(labels: Sequence[Labels], classes: Sequence[str], ids: Sequence[str] = ()) -> Float[Tensor, "n classes"]:
    """One row per clip, 1 where it has the class; a label that is no class is refused, with the clip's id if given."""
    numbers = {label: number for number, label in enumerate(classes)}
    targets = torch.zeros(len(labels), len(classes))
    for row, of_clip in enumerate(labels):
        targets[row, _class_numbers(of_clip, numbers, ids[row] if ids else str(row))] = 1
    return targets


class LabelledDataset(Subset):
    """Clips with their classes as numbers: what a classifier or a probe is trained and evaluated on."""

    def __init__(
        self,
        clips: Dataset,
        rows: Sequence[int] | NDArray[np.int64],
        classes: Labels,
        modalities: Sequence[Modality] | None = None,
    ) -> None:
        super().__init__(clips, rows, modalities)
        self.classes = classes
        numbers = {label: number for number, label in enumerate(classes)}
        found: list[int] = []
        ends = []
        for i in range(len(self)):
            labels = super().labels(i)
            found += _class_numbers(labels, numbers, self.clip(i).id if set(labels) - numbers.keys() else "")
            ends.append(len(found))
        # Flat arrays: a list of tuples for millions of clips would take gigabytes.
        self._numbers, self._ends = np.array(found, np.int32), np.array(ends, np.int64)

    def targets(self, indices: Sequence[int] | None = None) -> Float[Tensor, "n classes"]:
        """One row per clip (all of them, or those named), 1 where it has the class."""
        assert self.classes is not None
        chosen = range(len(self)) if indices is None else indices
        out = torch.zeros(len(chosen), len(self.classes))
        for row, index in enumerate(chosen):
            start = int(self._ends[index - 1]) if index else 0
            out[row, self._numbers[start : int(self._ends[index])].astype(np.int64)] = 1
        return out


def hold_out(groups: Sequence[str], share: float) -> NDArray[np.bool_]:
    """Which clips are kept from training for validation: by the names of their sources alone, at least one source."""
    # Preparing has split by the plain name: by the same hash, none of what it left for training would be held out.
    held = np.array([split_of(f"held-out/{group}", share) == "validation" for group in groups], dtype=bool)
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
        return tuple(read_vocabulary(path).values())
    classes = tuple(line.strip() for line in text.splitlines() if line.strip())
    if not classes or len(set(classes)) < len(classes):
        raise DataError(f"{path}: a list of classes names each once, one a line")
    return classes
