"""Finding the media to prepare: a folder, a list of paths, or a table with labels and splits, as records of clips."""

from __future__ import annotations

import csv
import json
import math
import os
import pickle
import sys
import zlib
from array import array
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import fields
from itertools import pairwise
from pathlib import Path
from typing import Any, SupportsIndex, overload

from equiav.errors import DataError
from equiav.types import SPLITS, Clip, Split

_MEDIA = """
.3g2 .3gp .aac .ac3 .aif .aiff .amr .ape .asf .au .avi .caf .divx .dv .flac .flv
.gif .m2ts .m2v .m4a .m4b .m4v .mka .mkv .mov .mp2 .mp3 .mp4 .mpeg .mpg .mts .mxf
.nut .oga .ogg .ogv .opus .qt .rm .rmvb .tta .ts .vob .wav .weba .webm .wma .wmv
.wtv .wv .y4m
"""
SUFFIXES = frozenset(_MEDIA.split())
IMAGE_SUFFIXES = frozenset({".bmp", ".jfif", ".jpeg", ".jpg", ".png", ".tif", ".tiff", ".webp"})
COLUMNS = frozenset({"path", "name", "label", "labels", "split", "group", "start", "seconds", "fold", "boxes"})
VALIDATION_SHARE = 0.1
NONE: dict[str, Any] = {}  # one for all clips without further columns
FIELDS = tuple(field.name for field in fields(Clip))
MOST_SECONDS, MOST_FOLDS = 1e6, 10**6  # larger numbers in a list are mistakes


class Clips(Sequence[Clip]):
    """Clips sorted by id, which must be unique: the order in which they are stored.

    They are kept packed, and made anew when asked for: as objects, most of which is their paths, those of a large
    collection would be a good part of the memory of a preparation.
    """

    def __init__(self, clips: Iterable[Clip]) -> None:
        self._packed, self._ends, ids = bytearray(), array("q", [0]), []
        for clip in clips:
            path = None if clip.path is None else str(clip.path)
            self._packed += pickle.dumps([path if name == "path" else getattr(clip, name) for name in FIELDS])
            self._ends.append(len(self._packed))
            ids.append(clip.id)
        self._order = array("q", sorted(range(len(ids)), key=ids.__getitem__))
        for one, two in pairwise(self._order):
            if ids[one] == ids[two]:
                raise DataError(f"two sources are called {ids[one]!r}; give them different names")

    def __len__(self) -> int:
        return len(self._order)

    @overload
    def __getitem__(self, place: SupportsIndex) -> Clip: ...
    @overload
    def __getitem__(self, place: slice) -> list[Clip]: ...
    def __getitem__(self, place: SupportsIndex | slice) -> Clip | list[Clip]:
        if isinstance(place, slice):
            return [self[i] for i in range(*place.indices(len(self)))]
        number = self._order[place]
        values = dict(zip(FIELDS, pickle.loads(self._packed[self._ends[number] : self._ends[number + 1]]), strict=True))
        return Clip(**{**values, "path": None if values["path"] is None else Path(values["path"])})


def find_sources(path: Path, *, suffixes: frozenset[str] = SUFFIXES) -> Clips:
    """The media of a folder (searched in depth), or those named by a .txt, .csv or .jsonl file; sorted by id.

    Paths in a list are relative to it. A table has a column `path` and may have name (the id; the path as written
    without it), label or labels (separated by ";"), split, group, start, seconds, fold, boxes; further columns become
    metadata.
    """
    if path.is_dir():
        # Pipes and devices are listed, never opened: they end up among what was skipped, with the reason.
        found = (p for p in path.rglob("*") if p.suffix.lower() in suffixes and p.exists() and not p.is_dir())
        clips = Clips(_of_file(p.relative_to(path).as_posix(), p) for p in found)
    elif not path.is_file():
        raise DataError(f"{path}: no such folder or list of media")
    elif path.suffix.lower() in (".txt", ".csv", ".jsonl"):
        clips = Clips(_of_row(row, path, number) for number, row in _rows(path))
    elif path.suffix.lower() in suffixes:
        clips = Clips([_of_file(path.name, path)])
    else:
        raise DataError(f"{path}: give a folder of media, or a list as .txt, .csv or .jsonl")
    if not clips:
        raise DataError(f"{path} names no media; suffixes looked for are {' '.join(sorted(suffixes))}")
    return clips


def split_of(group: str, share: float = VALIDATION_SHARE) -> Split:
    """Train or validation by the name alone: stable under adding files, the same for all clips of a group."""
    return "validation" if zlib.crc32(group.encode()) / 2**32 < share else "train"


def _text(written: object) -> str:
    """Text as it can be stored: file names and JSON may hold what is no text in any encoding, written with escapes."""
    text = str(written)
    return text if text.isascii() else text.encode("utf-8", "backslashreplace").decode()  # lists are long: no copies


def _of_file(name: str, path: Path) -> Clip:
    text = os.fsencode(name).decode("utf-8", "backslashreplace")
    return Clip(id=text, source=text, path=path)


def _rows(path: Path) -> Iterator[tuple[int, Any]]:
    suffix = path.suffix.lower()
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            if suffix == ".csv":
                table = csv.DictReader(file, strict=True)
                if "path" not in (table.fieldnames or ()):
                    raise DataError(f"{path} has no column called path; it has {', '.join(table.fieldnames or ())}")
                for row in table:
                    yield table.line_num, {k: v for k, v in row.items() if k and v}
                return
            for number, line in enumerate(file, start=1):
                if line.strip():
                    yield number, json.loads(line) if suffix == ".jsonl" else {"path": line.rstrip("\r\n")}
    except (OSError, ValueError, RecursionError, csv.Error) as error:
        raise DataError(f"{path} cannot be read as a list of media: {error}") from error


def _of_row(row: Any, path: Path, number: int) -> Clip:
    """One line of a list; what is wrong is said with its number."""
    try:
        if not isinstance(row, dict):
            raise ValueError('a line is a record such as {"path": "video.mp4"}')
        written = row["path"]
        split = row.get("split") or None
        if not isinstance(written, str) or not written:
            raise ValueError("path must be text")
        if "\0" in written:
            raise ValueError("no path holds the character NUL")
        if split is not None and split not in SPLITS:
            raise ValueError(f"split must be one of {', '.join(SPLITS)}, not {split!r}")
        start, seconds = float(row.get("start") or 0), row.get("seconds")
        seconds = None if seconds in (None, "") else float(seconds)
        if not 0 <= start <= MOST_SECONDS or not (seconds is None or 0 < seconds <= 3600):
            raise ValueError("start must be 0 to a million, seconds more than 0 and at most 3600")
        fold = int(row["fold"]) if row.get("fold") not in (None, "") else None
        if fold is not None and abs(fold) > MOST_FOLDS:
            raise ValueError(f"fold must be at most {MOST_FOLDS}")
        name = _text(row.get("name") or (f"{written}@{start:g}" if start or seconds is not None else written))
        labels = row.get("labels") or row.get("label") or ()
        parts = labels.split(";") if isinstance(labels, str) else [str(label) for label in labels]
        boxes = row.get("boxes") or []
        corners = [[float(x) for x in box] for box in (json.loads(boxes) if isinstance(boxes, str) else boxes)]
        if not all(math.isfinite(x) for box in corners for x in box):
            raise ValueError("boxes must be numbers")
        return Clip(
            id=name,
            source=name,
            path=path.parent / written,
            start=start,
            seconds=seconds,
            labels=tuple(sys.intern(_text(part.strip())) for part in parts if part.strip()),
            split=split,
            group=_text(row.get("group") or written),  # stretches of one file belong together
            fold=fold,
            boxes=tuple((x0, y0, x1, y1) for x0, y0, x1, y1 in corners),
            metadata={key: value for key, value in row.items() if key not in COLUMNS} or NONE,
        )
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError, RecursionError) as error:
        what = f"{error} is missing" if isinstance(error, KeyError) else str(error)
        raise DataError(f"{path}, line {number}: {what}") from error
