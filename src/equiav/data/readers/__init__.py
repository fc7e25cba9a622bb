"""Published datasets as their publishers lay them out, and the lists of clips retrieval is measured on."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from equiav.data.readers.audio import read_esc50, read_fsd50k, read_speech_commands
from equiav.data.readers.files import Coverage, Vocabulary, read_entries, read_vocabulary
from equiav.data.readers.video import (
    read_audioset,
    read_hmdb51,
    read_kinetics400,
    read_msrvtt,
    read_msrvtt_1ka,
    read_ucf101,
    read_vggsound,
    read_vggss,
)
from equiav.errors import DataError

__all__ = [
    "PUBLISHED",
    "Coverage",
    "Selection",
    "Vocabulary",
    "read_entries",
    "read_published",
    "read_retrieval_list",
    "read_vocabulary",
    "select",
]

# By name, what a clip needs: "audio" or "video" for datasets published without the other, or judged without it.
PUBLISHED = {
    "audioset-2m": "both",
    "audioset-20k": "both",
    "audioset-eval": "both",
    "vggsound": "both",
    "vggss": "both",
    "msrvtt": "both",
    "msrvtt-1ka": "both",
    "esc50": "audio",
    "speech-commands": "audio",
    "fsd50k": "audio",
    "ucf101": "video",
    "hmdb51": "video",
    "kinetics400": "video",
}

# What may stand between a clip's name and the number `prepare` or a downloader puts behind it.
SEPARATORS = "_-./#@"


def read_published(name: str, root: Path, *, split: int = 1) -> Coverage:
    """The clips of a published dataset under `root`, with the publishers' labels and splits.

    `split` is for datasets published with several: 1-3 of UCF101 and HMDB51, and the test fold, 1-5, of ESC-50.
    Missing clips are counted; only a missing label file, or nothing found at all, is an error.
    """
    splits = {"ucf101": 3, "hmdb51": 3, "esc50": 5}.get(name, 1)
    if name in PUBLISHED and not 1 <= split <= splits:
        raise DataError(f"{name} has {splits} split{'s' if splits > 1 else ''}; there is no split {split}")
    match name:
        case "audioset-2m":
            return read_audioset(root, lists=("balanced_train", "unbalanced_train"), split="train")
        case "audioset-20k":
            return read_audioset(root, lists=("balanced_train",), split="train")
        case "audioset-eval":
            return read_audioset(root, lists=("eval",), split="test")
        case "vggsound":
            return read_vggsound(root)
        case "vggss":
            return read_vggss(root)
        case "msrvtt":
            return read_msrvtt(root)
        case "msrvtt-1ka":
            return read_msrvtt_1ka(root)
        case "esc50":
            return read_esc50(root, fold=split)
        case "speech-commands":
            return read_speech_commands(root)
        case "fsd50k":
            return read_fsd50k(root)
        case "ucf101":
            return read_ucf101(root, split=split)
        case "hmdb51":
            return read_hmdb51(root, split=split)
        case "kinetics400":
            return read_kinetics400(root)
        case _:
            raise DataError(f"no reader for {name!r}; known datasets: {', '.join(PUBLISHED)}")


def read_retrieval_list(path: Path) -> list[str]:
    """The video ids of a retrieval list in CAV-MAE's format, in its order."""
    ids = [str(entry["video_id"]) for entry in read_entries(path, "data", ("video_id",))]
    if len(set(ids)) < len(ids):
        raise DataError(f"{path}: {len(ids) - len(set(ids))} of its {len(ids)} ids are repeated")
    return ids


@dataclass(frozen=True)
class Selection:
    """Rows of a set in the order of a list of ids, and the ids it does not hold."""

    rows: list[int]
    missing: list[str]

    def line(self) -> str:
        """One line: how many of the list are there."""
        wanted = len(self.rows) + len(self.missing)
        return f"{wanted:,} listed, {len(self.rows):,} found, {len(self.missing):,} missing"


def select(names: Sequence[str], ids: Iterable[str]) -> Selection:
    """Finds clips by video id: the clip called so, else the first whose name goes on behind it (_000030, -1, ...)."""
    first: dict[str, int] = {}
    for row in sorted(range(len(names)), key=lambda r: names[r]):
        name = names[row]
        for end in (i for i, letter in enumerate(name) if letter in SEPARATORS):
            first.setdefault(name[:end], row)
    # Ids may hold separators themselves, so an exact name goes before any shorter reading.
    first.update({name: row for row, name in enumerate(names)})
    rows: list[int] = []
    missing: list[str] = []
    for wanted in ids:
        if wanted in first:
            rows.append(first[wanted])
        else:
            missing.append(wanted)
    return Selection(rows, missing)
