"""Clips as CAV-MAE and EquiAV prepare them, read in place: audio files and extracted frames listed in JSON."""

from __future__ import annotations

import logging
import math
import os
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import torch
from jaxtyping import Float
from torch import Tensor

from equiav.data.datasets import Dataset
from equiav.data.readers import read_entries
from equiav.errors import DataError, MediaError
from equiav.media import decode, read_image, square
from equiav.types import AUDIO, VISUAL, Clip, Modality, Sample

logger = logging.getLogger(__name__)

FIELDS = ("video_id", "wav", "video_path", "labels")


def read_cavmae(path: Path, *, root: Path | None = None) -> list[Clip]:
    """The clips of a data file, in its order; relative paths in it are meant from `root`, or from the file's folder.

    A clip's path is its audio; its frame k lies at <frames> / frame_<k> / <id>.jpg, <frames> being in its metadata.
    Beside CAV-MAE's fields a record may have `boxes`, lists of x0, y0, x1, y1 as shares of the frame.
    """
    base = path.parent if root is None else root
    clips: dict[str, Clip] = {}
    records = read_entries(path, "data", FIELDS)
    for record in records:
        name = str(record["video_id"])
        try:
            boxes = tuple((float(a), float(b), float(c), float(d)) for a, b, c, d in record.get("boxes") or ())
            if not all(math.isfinite(x) for box in boxes for x in box):
                raise ValueError("not all are numbers")
        except (TypeError, ValueError, OverflowError) as error:
            raise DataError(f"{path}: {name}: boxes are lists of x0, y0, x1, y1 ({error})") from error
        labels = tuple(label for label in str(record["labels"]).split(",") if label)
        wav, frames = base / str(record["wav"]), base / str(record["video_path"])
        clips[name] = Clip(name, name, wav, labels=labels, group=name, boxes=boxes, metadata={"frames": frames})
    if len(clips) < len(records):
        counts = Counter(str(record["video_id"]) for record in records)
        repeated = [name for name, count in counts.items() if count > 1]
        raise DataError(f"{path}: {len(repeated)} video_ids stand there more than once, first {repeated[0]}")
    if not clips:
        raise DataError(f"{path}: lists no clips")
    return list(clips.values())


def read_weights(path: Path, *, clips: int) -> Float[Tensor, " n"]:
    """A weight file: one number per line, in the order of the data file's `clips`."""
    try:
        values = [float(line) for line in path.read_text().split()]
    except (OSError, ValueError) as error:
        raise DataError(f"{path}: not a file of one number per line ({error})") from error
    if len(values) != clips:
        raise DataError(f"{path}: {len(values)} weights for {clips} clips")
    if not all(0 <= value < math.inf for value in values) or not any(values):
        raise DataError(f"{path}: weights are at least 0, finite, and not all 0")
    return torch.tensor(values, dtype=torch.float64)


@dataclass(frozen=True)
class CavMaeDataset(Dataset):
    """The clips of a data file, decoded when asked for; nothing is extracted anew.

    Every clip has `frames` frames. With `fallback`, a missing one is replaced by the nearest existing one before
    it, as CAV-MAE does, and counted in `fallbacks` (per process); without, it is an error that names the file.
    """

    entries: Sequence[Clip]  # as `read_cavmae` gives them
    size: int
    frames: int = 10
    seconds: float = 10.0
    sample_rate: int = 16000
    fallback: bool = False
    fallbacks: Counter[str] = field(default_factory=Counter, repr=False, compare=False)

    def __len__(self) -> int:
        return len(self.entries)

    def clip(self, index: int) -> Clip:
        """The clip's video_id, the machine names of its classes, and its boxes."""
        return replace(self.entries[index], seconds=self.seconds, metadata={})

    def frame_size(self, index: int, frame: int) -> tuple[int, int, int]:
        """That of the image file."""
        height, width = read_image(self._frame(self.entries[index], frame), upright=False).shape[:2]
        return height, width, self.size

    def sample(self, index: int, frame: int) -> Sample:
        """The clip's audio, cut to `seconds`, and its frame number `frame` as a square of `size`."""
        return self.part(index, frame, self.modalities)

    def part(self, index: int, frame: int, modalities: Sequence[Modality]) -> Sample:
        """Some modalities; only their files are read."""
        entry, inputs = self.entries[index], {}
        if AUDIO in modalities:
            if entry.path is None or not _is_file(entry.path):
                raise DataError(f"{entry.id}: its audio {entry.path} is missing")
            waveform = decode(entry.path, sample_rate=self.sample_rate, seconds=self.seconds).waveform
            if waveform is None:
                raise MediaError(entry.path, "holds no audio")
            inputs[AUDIO] = waveform
        if VISUAL in modalities:
            image = torch.from_numpy(read_image(self._frame(entry, frame), upright=False)).permute(2, 0, 1)
            inputs[VISUAL] = square(image[None], self.size)[0]
        return Sample(entry.id, inputs)

    def _frame(self, entry: Clip, k: int) -> Path:
        places = [entry.metadata["frames"] / f"frame_{n}" / f"{entry.id}.jpg" for n in range(k + 1)]
        if _is_file(places[k]):
            return Path(places[k])
        missing = f"{entry.id}: frame {k} is missing"
        if not self.fallback:
            raise DataError(f"{missing} ({places[k]}); fallback=True takes the one before it")
        lower = next((n for n in range(k - 1, -1, -1) if _is_file(places[n])), None)
        if lower is None:
            raise DataError(f"{missing} and so are all before it ({places[k]})")
        # The first is worth a line to everyone; a list may lack thousands.
        level = logging.INFO if self.fallbacks else logging.WARNING
        self.fallbacks[entry.id] += 1
        logger.log(level, "%s, frame %d stands in", missing, lower)
        return Path(places[lower])


def _is_file(path: Path) -> bool:
    return os.path.isfile(path)  # noqa: PTH113 - a Path raises where a name is too long for the file system
