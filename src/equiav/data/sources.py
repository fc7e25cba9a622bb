"""Finding the media to prepare: a folder, a list of paths, or a table with labels and splits, as records of clips."""

from __future__ import annotations

import csv
import json
import math
import os
import pickle
import sqlite3
import sys
import zlib
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import fields
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
TEXT: dict[str, Any] = {"encoding": "utf-8", "errors": "surrogatepass"}  # bytes that sort as the text does
FIELDS = tuple(field.name for field in fields(Clip))
MOST_SECONDS, MOST_FOLDS = 1e6, 10**6  # larger numbers in a list are mistakes


@contextmanager
def temporary_files() -> Iterator[None]:
    """Errors of the folder for temporary files, where what is known of sources is kept, as one line."""
    try:
        yield
    except sqlite3.Error as error:
        raise DataError(f"no room for the list of sources among temporary files ({error}); see TMPDIR") from error


class Clips(Sequence[Clip]):
    """Clips sorted by id, which must be unique: the order in which they are stored.

    They are kept on disk, in a database without a name that goes with this object, and made anew when asked for: in
    memory, those of a large collection would be a good part of what a preparation needs.
    """

    def __init__(self, clips: Iterable[Clip]) -> None:
        with temporary_files():
            self._rows = sqlite3.connect("", check_same_thread=False)
            self._rows.execute("CREATE TABLE found (id, packed)")
            self._rows.executemany("INSERT INTO found VALUES (?, ?)", map(_packed, clips))
            self._rows.execute("CREATE TABLE clips AS SELECT id, packed FROM found ORDER BY id")
            self._rows.execute("DROP TABLE found")
            follows = "clips AS two ON two.rowid = one.rowid + 1"
            same = f"SELECT one.id FROM clips AS one JOIN {follows} WHERE two.id = one.id"
            twice = self._rows.execute(same).fetchone()
            self._count = int(self._rows.execute("SELECT count(*) FROM clips").fetchone()[0])
        if twice:
            raise DataError(f"two sources are called {twice[0].decode(**TEXT)!r}; give them different names")

    def __len__(self) -> int:
        return self._count

    @overload
    def __getitem__(self, place: SupportsIndex) -> Clip: ...
    @overload
    def __getitem__(self, place: slice) -> list[Clip]: ...
    def __getitem__(self, place: SupportsIndex | slice) -> Clip | list[Clip]:
        if isinstance(place, slice):
            return [self[i] for i in range(*place.indices(len(self)))]
        number = range(1, len(self) + 1)[place]
        (packed,) = self._rows.execute("SELECT packed FROM clips WHERE rowid = ?", (number,)).fetchone()
        values = dict(zip(FIELDS, pickle.loads(packed), strict=True))
        return Clip(**{**values, "path": None if values["path"] is None else Path(values["path"])})


def _packed(clip: Clip) -> tuple[bytes, bytes]:
    """The id, and all of the clip."""
    path = None if clip.path is None else str(clip.path)
    values = [path if name == "path" else getattr(clip, name) for name in FIELDS]
    return clip.id.encode(**TEXT), pickle.dumps(values)


def find_sources(path: Path, *, suffixes: frozenset[str] = SUFFIXES) -> Clips:
    """The media of a folder (searched in depth), or those named by a .txt, .csv or .jsonl file; sorted by id.

    Paths in a list are relative to it. A table has a column `path` and may have name (the id; the path as written
    without it), label or labels (separated by ";"), split, group, start, seconds, fold, boxes; further columns become
    metadata.
    """
    if path.is_dir():
        # Pipes and devices are listed, never opened: they end up among what was skipped, with the reason.
        found = (p for p in _below(path) if p.suffix.lower() in suffixes and p.exists() and not p.is_dir())
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


def _below(folder: Path) -> Iterator[Path]:
    """Whatever is in a folder and those in it, links not followed; `rglob` would remember every path it gave."""
    folders = [folder]
    while folders:
        with suppress(PermissionError), os.scandir(folders.pop()) as entries:
            for entry in entries:
                path = Path(entry.path)
                if entry.is_dir(follow_symlinks=False):
                    folders.append(path)
                yield path


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
