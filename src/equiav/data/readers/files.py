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
        # Few label files carry one name; the one nearest the root is meant.
        for folder, _, names in sorted(
            os.walk(root, followlinks=True), key=lambda step: (step[0].count(os.sep), step[0])
        ):
            for name in sorted(names):
                self._add(folder, name)

    def _add(self, folder: str, name: str) -> None:
        stem, suffix = os.path.splitext(name)  # noqa: PTH122 - millions of names: no Path for each
        suffix = suffix.lower()
        path = f"{folder}{os.sep}{name}"
        if suffix in LABEL_SUFFIXES:
            self._labels.setdefault(name, path)
        if suffix not in MEDIA_SUFFIXES:
            return
        self._folders.setdefault(folder)
        for key in (stem, f"{folder.rpartition(os.sep)[2]}/{stem}"):
            if key not in self._media or _rank(path) < _rank(self._media[key]):
                self._media[key] = path

    def find(self, stems: Iterable[str]) -> Path | None:
        """The media file of the first of these names that is there."""
        found = (self._media[stem] for stem in stems if stem in self._media)
        return next((Path(path) for path in found), None)

    def label_files(self, *patterns: str, expected: str = "") -> list[Path]:
        """The label files whose names fit any pattern, sorted by name; none is an error if one is `expected`."""
        fitting = [name for name in sorted(self._labels) if any(fnmatchcase(name, p) for p in patterns)]
        if expected and not fitting:
            raise DataError(f"{self.root}: no {Path(expected).name}; expected as {self.root / expected}")
        return [Path(self._labels[name]) for name in fitting]

    def folders(self, name: str) -> list[Path]:
        """The folders of this name that hold media."""
        return [Path(folder) for folder in self._folders if folder.rpartition(os.sep)[2] == name]

    def label_file(self, name: str, *, folder: str = "") -> Path:
        """The label file of this name; `folder` says where its publishers put it."""
        return self.label_files(name, expected=f"{folder}/{name}" if folder else name)[0]


def _rank(path: str) -> int:
    return MEDIA_SUFFIXES.index(os.path.splitext(path)[1].lower())  # noqa: PTH122


def cover(tree: Tree, listed: Iterable[Listed], classes: Iterable[str], *, remarks: tuple[str, ...] = ()) -> Coverage:
    """Looks every listed clip up; a name listed twice counts once. Nothing found at all is an error."""
    seen: set[str] = set()
    clips: list[Clip] = []
    missing: list[str] = []
    sought = ""
    for clip, stems in listed:
        if clip.id in seen:
            continue
        seen.add(clip.id)
        sought = sought or stems[0]
        path = tree.find(stems)
        if path is None:
            missing.append(clip.id)
        else:
            clips.append(replace(clip, path=path))
    if not seen:
        raise DataError(f"{tree.root}: its label files list no clips")
    if not clips:
        raise DataError(
            f"{tree.root}: none of the {len(seen)} listed clips is there; looked for {sought}.* in any folder"
        )
    return Coverage(clips, len(seen), missing, tuple(classes), remarks)


@dataclass(frozen=True)
class Vocabulary:
    """The classes of a dataset in the order of their numbers: machine names and display names."""

    mids: tuple[str, ...]
    names: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.mids)


def read_vocabulary(path: Path) -> Vocabulary:
    """A label file with the header index,mid,display_name; the order is that of the index."""
    lines = list(read_table(path, ("index", "mid", "display_name")))
    lines.sort(key=lambda line: number(line["index"], path))
    if [number(line["index"], path) for line in lines] != list(range(len(lines))):
        raise DataError(f"{path}: its indices are not 0 to {len(lines) - 1}, each once")
    return Vocabulary(tuple(line["mid"] for line in lines), tuple(line["display_name"] for line in lines))


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
