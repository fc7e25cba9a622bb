"""What every reader of a published dataset needs: the files of a folder by name, label tables, and coverage."""

from __future__ import annotations

import csv
import json
import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from equiav.errors import DataError
from equiav.types import Clip, Split

# Where one name comes as video and as sound, the video is wanted: earlier suffixes win.
MEDIA_SUFFIXES = (".mp4", ".mkv", ".webm", ".avi", ".mov", ".m4v", ".flv", ".wav", ".flac", ".ogg", ".mp3", ".m4a")
LABEL_SUFFIXES = (".csv", ".json", ".txt")
# Publishers' words for the three splits.
SPLIT_WORDS: dict[str, Split] = {
    "train": "train",
    "val": "validation",
    "validate": "validation",
    "validation": "validation",
    "test": "test",
}

# Published clips are at most ten seconds, or are used by their first ten, as in CAV-MAE's preparation.
CLIP_SECONDS = 10.0

# A clip that a label file lists: all but its path, and the names (without suffix) its file may go by.
Listed = tuple[Clip, tuple[str, ...]]


def listed(
    name: str, stems: tuple[str, ...], *, labels: tuple[str, ...], split: Split, group: str, **more: Any
) -> Listed:
    """A clip whose file holds just the published stretch, as downloads of these datasets do."""
    facts: dict[str, Any] = {"labels": labels, "split": split, "group": group, **more}
    return Clip(id=name, source=name, seconds=CLIP_SECONDS, **facts), stems


@dataclass(frozen=True)
class Coverage:
    """What a label file lists against what is on disk: clips vanish from the net, so some are always missing."""

    clips: list[Clip]
    listed: int
    missing: list[str]
    classes: tuple[str, ...]
    remarks: tuple[str, ...] = ()

    def line(self) -> str:
        """One line: listed, found, missing, per cent, and what else was noticed."""
        found = len(self.clips)
        share = 100 * found / self.listed
        counts = f"{self.listed:,} listed, {found:,} found, {len(self.missing):,} missing ({share:.1f} % found)"
        return "; ".join((counts, *self.remarks))


class Tree:
    """All files under a root, read once: media by stem or folder/stem, label files by name."""

    def __init__(self, root: Path) -> None:
        if not root.is_dir():
            raise DataError(f"{root}: no such folder")
        self.root = root
        self._media: dict[str, str] = {}
        self._labels: dict[str, str] = {}
        self._folders: dict[str, None] = {}
        ranks: dict[str, int] = {}
        # Few label files carry one name; the one nearest the root is meant.
        walk = sorted(os.walk(root, followlinks=True), key=lambda step: (step[0].count(os.sep), step[0]))
        for folder, name in ((folder, name) for folder, _, names in walk for name in sorted(names)):
            stem, suffix = os.path.splitext(name)  # noqa: PTH122 - millions of names: no Path for each
            path, suffix = f"{folder}{os.sep}{name}", suffix.lower()
            if suffix in LABEL_SUFFIXES:
                self._labels.setdefault(name, path)
            if suffix in MEDIA_SUFFIXES:
                self._folders.setdefault(folder)
                rank = MEDIA_SUFFIXES.index(suffix)
                for key in (stem, f"{folder.rpartition(os.sep)[2]}/{stem}"):
                    if rank < ranks.get(key, len(MEDIA_SUFFIXES)):
                        self._media[key], ranks[key] = path, rank

    def find(self, stems: Iterable[str]) -> Path | None:
        """The media file of the first of these names that is there."""
        return next((Path(self._media[stem]) for stem in stems if stem in self._media), None)

    def label_files(self, *patterns: str, expected: str = "") -> list[Path]:
        """The label files whose names fit any pattern, sorted by name; none is an error if one is `expected`."""
        fitting = [name for name in sorted(self._labels) if any(fnmatchcase(name, p) for p in patterns)]
        found = [path for path in (Path(self._labels[name]) for name in fitting) if path.is_file()]  # no pipes
        if expected and not found:
            raise DataError(f"{self.root}: no {Path(expected).name}; expected as {self.root / expected}")
        return found

    def folders(self, name: str) -> list[Path]:
        """The folders of this name that hold media."""
        return [Path(folder) for folder in self._folders if folder.rpartition(os.sep)[2] == name]

    def label_file(self, name: str, *, folder: str = "") -> Path:
        """The label file of this name; `folder` says where its publishers put it."""
        return self.label_files(name, expected=f"{folder}/{name}" if folder else name)[0]


def cover(tree: Tree, listed: Iterable[Listed], classes: Iterable[str], *, remarks: tuple[str, ...] = ()) -> Coverage:
    """Looks every listed clip up; a name listed twice counts once. Nothing found at all is an error."""
    wanted: dict[str, Listed] = {}
    for clip, stems in listed:
        wanted.setdefault(clip.id, (clip, stems))
    if not wanted:
        raise DataError(f"{tree.root}: its label files list no clips")
    found = {name: tree.find(stems) for name, (_, stems) in wanted.items()}
    clips = [replace(clip, path=found[name]) for name, (clip, _) in wanted.items() if found[name]]
    if not clips:
        sought = next(iter(wanted.values()))[1][0]
        raise DataError(
            f"{tree.root}: none of the {len(wanted)} listed clips is there; looked for {sought}.* in any folder"
        )
    missing = [name for name, path in found.items() if path is None]
    return Coverage(clips, len(wanted), missing, tuple(classes), remarks)


def read_vocabulary(path: Path) -> dict[str, str]:
    """Display names by machine name, in the order of the index, from a file with the header index,mid,display_name."""
    lines = sorted(read_table(path, ("index", "mid", "display_name")), key=lambda line: number(line["index"], path))
    names = {line["mid"]: line["display_name"] for line in lines}
    if [number(line["index"], path) for line in lines] != list(range(len(names))):
        raise DataError(f"{path}: its indices are not 0 to {len(lines) - 1}, each once")
    return names


def split_word(word: str, path: Path) -> Split:
    """A publisher's word for a split."""
    if word not in SPLIT_WORDS:
        raise DataError(f"{path}: unknown split {word!r}; known: {', '.join(SPLIT_WORDS)}")
    return SPLIT_WORDS[word]


def read_lines(path: Path) -> Iterator[str]:
    """The lines of a text file, with their ends."""
    with path.open(newline="", encoding="utf-8-sig") as file:
        yield from file


def read_table(path: Path, columns: tuple[str, ...]) -> Iterator[dict[str, str]]:
    """The lines of a CSV file by the names in its header, which must hold `columns`."""
    lines = csv.DictReader(read_lines(path), skipinitialspace=True)
    if absent := [c for c in columns if c not in (lines.fieldnames or ())]:
        raise DataError(f"{path}: its first line does not name the columns {', '.join(absent)}")
    yield from lines


def read_rows(path: Path, width: int) -> Iterator[list[str]]:
    """The lines of a CSV file without header, each with at least `width` columns; # starts a comment line."""
    plain = (line for line in read_lines(path) if line.strip() and not line.startswith("#"))
    for number, row in enumerate(csv.reader(plain, skipinitialspace=True), 1):
        if len(row) < width:
            raise DataError(f"{path}: entry {number} has {len(row)} columns where {width} are expected")
        yield row


def number(text: str | None, path: Path) -> int:
    """A whole number as label files write it: 30, or 30.000."""
    try:
        return int(float(text or ""))
    except (ValueError, OverflowError) as error:
        raise DataError(f"{path}: {text!r} stands where a number is expected") from error


def read_entries(path: Path, key: str | None, required: tuple[str, ...]) -> list[dict[str, Any]]:
    """The list of records in a JSON file, at the top or under `key`, each with the `required` fields."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise DataError(f"{path}: cannot be read as JSON ({error})") from error
    entries = content if key is None else content.get(key) if isinstance(content, dict) else None
    if not isinstance(entries, list) or not all(isinstance(e, dict) and all(r in e for r in required) for e in entries):
        place = "a list" if key is None else f'{{"{key}": [...]}}'
        raise DataError(f"{path}: expected {place} of records with {', '.join(required)}")
    return entries
