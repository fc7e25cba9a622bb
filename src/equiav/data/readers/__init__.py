"""Published datasets as their publishers lay them out, and the lists of clips retrieval is measured on."""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path

from equiav.data.readers.audio import (
    WORDS_30,
    WORDS_35,
    read_esc50,
    read_fsd50k,
    read_speech_commands,
    read_superb_commands,
)
from equiav.data.readers.files import Coverage, Tree, read_entries, read_vocabulary
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

__all__ = ["PUBLISHED", "read_entries", "read_published", "read_retrieval_list", "read_vocabulary", "select"]

# By name, what a clip needs ("audio" or "video" for datasets published without the other, or judged without it), and
# the reader of the dataset.
_READERS: dict[str, tuple[str, Callable[..., Coverage]]] = {
    "audioset-2m": ("both", partial(read_audioset, lists=("balanced_train", "unbalanced_train"), split="train")),
    "audioset-20k": ("both", partial(read_audioset, lists=("balanced_train",), split="train")),
    "audioset-eval": ("both", partial(read_audioset, lists=("eval",), split="test")),
    "vggsound": ("both", read_vggsound),
    "vggss": ("both", read_vggss),
    "msrvtt": ("both", read_msrvtt),
    "msrvtt-1ka": ("both", read_msrvtt_1ka),
    "esc50": ("audio", read_esc50),
    "speech-commands": ("audio", read_superb_commands),
    "speech-commands-12": ("audio", read_superb_commands),
    "speech-commands-30": ("audio", partial(read_speech_commands, words=WORDS_30)),
    "speech-commands-35": ("audio", partial(read_speech_commands, words=WORDS_35)),
    "fsd50k": ("audio", read_fsd50k),
    "ucf101": ("video", read_ucf101),
    "hmdb51": ("video", read_hmdb51),
    "kinetics400": ("video", read_kinetics400),
}
PUBLISHED = {name: need for name, (need, _) in _READERS.items()}
SPLIT_COUNTS = {"ucf101": 3, "hmdb51": 3, "esc50": 5}  # of datasets published with several splits or folds

# What may stand between a clip's name and the number `prepare` or a downloader puts behind it.
SEPARATORS = "_-./#@"


def read_published(name: str, root: Path, *, split: int = 1) -> Coverage:
    """The clips of a published dataset under `root`, with the publishers' labels and splits.

    `split` is for datasets published with several: 1-3 of UCF101 and HMDB51, and the test fold, 1-5, of ESC-50.
    Missing clips are counted; only a missing label file, or nothing found at all, is an error.
    """
    if name not in _READERS:
        raise DataError(f"no reader for {name!r}; known datasets: {', '.join(PUBLISHED)}")
    splits = SPLIT_COUNTS.get(name, 1)
    if not 1 <= split <= splits:
        raise DataError(f"{name} has {splits} split{'s' if splits > 1 else ''}; there is no split {split}")
    chosen = {"split": split} if splits > 1 else {}
    try:
        return _READERS[name][1](Tree(root), **chosen)
    except (OSError, ValueError, TypeError, AttributeError, LookupError, ArithmeticError, csv.Error) as error:
        # Label files come from elsewhere: whatever stands in them, the answer is one line.
        raise DataError(f"{root}: its label files cannot be read as those of {name} ({error!r})") from error


def read_retrieval_list(path: Path) -> list[str]:
    """The video ids of a retrieval list in CAV-MAE's format, in its order."""
    ids = [str(entry["video_id"]) for entry in read_entries(path, "data", ("video_id",))]
    if len(set(ids)) < len(ids):
        raise DataError(f"{path}: {len(ids) - len(set(ids))} of its {len(ids)} ids are repeated")
    return ids


def select(names: Sequence[str], ids: Iterable[str]) -> tuple[list[int], list[str]]:
    """Finds clips by video id: the clip called so, else the first whose name goes on behind it (_000030, -1, ...).

    Gives the rows in the order of the ids, and the ids that are not there.
    """
    first: dict[str, int] = {}
    for row in sorted(range(len(names)), key=lambda r: names[r]):
        name = names[row]
        for end in (i for i, letter in enumerate(name) if letter in SEPARATORS):
            first.setdefault(name[:end], row)
    # Ids may hold separators themselves, so an exact name goes before any shorter reading.
    first.update({name: row for row, name in enumerate(names)})
    wanted = list(ids)
    return [first[name] for name in wanted if name in first], [name for name in wanted if name not in first]
