"""Finding the media to prepare: a folder, a list of paths, or a table with labels and splits."""

from __future__ import annotations

import csv
import json
import math
import os
from collections.abc import Iterable, Iterator, Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any, get_args

from equiav.data.manifest import Source, Split
from equiav.errors import DataError

_MEDIA = """
.3g2 .3gp .aac .ac3 .aif .aiff .amr .ape .asf .au .avi .caf .divx .dv .flac .flv
.gif .m2ts .m2v .m4a .m4b .m4v .mka .mkv .mov .mp2 .mp3 .mp4 .mpeg .mpg .mts .mxf
.nut .oga .ogg .ogv .opus .qt .rm .rmvb .tta .ts .vob .wav .weba .webm .wma .wmv
.wtv .wv .y4m
"""
SUFFIXES = frozenset(_MEDIA.split())
COLUMNS = frozenset({"path", "name", "label", "labels", "split", "group", "start", "seconds", "fold", "boxes"})


def find_sources(path: Path, *, suffixes: frozenset[str] = SUFFIXES) -> list[Source]:
    """The media of a folder (searched in depth), or those named by a .txt, .csv or .jsonl file; sorted by name.

    Paths in a list are relative to it. A table has a column `path` and may have label or labels (separated by ";"),
    name, split, group, start, seconds, fold; names default to the path as written.
    """
    if path.is_dir():
        sources = list(_in_folder(path, suffixes))
    elif not path.is_file():
        raise DataError(f"{path}: no such folder or list of media")
    elif path.suffix.lower() in (".txt", ".csv", ".jsonl"):
        sources = [_source(row, path, number) for number, row in _rows(path)]
    elif path.suffix.lower() in suffixes:
        sources = [Source(name=_text(path.name), path=path)]
    else:
        raise DataError(f"{path}: give a folder of media, or a list as .txt, .csv or .jsonl")
    if not sources:
        raise DataError(f"{path} names no media; suffixes looked for are {' '.join(sorted(suffixes))}")
    return ordered(sources)


def further_columns(path: Path) -> dict[str, dict[str, Any]]:
    """What a table says beyond the columns that `prepare` uses, by the name of the source; nothing for folders."""
    if path.is_dir() or path.suffix.lower() not in (".csv", ".jsonl"):
        return {}
    return {
        _source(row, path, number).name: {key: value for key, value in row.items() if key not in COLUMNS}
        for number, row in _rows(path)
    }


def ordered(sources: Iterable[Source]) -> list[Source]:
    """Sorted by name, which must be unique: the order in which clips are stored."""
    found = sorted(sources, key=lambda source: source.name)
    for one, two in pairwise(found):
        if one.name == two.name:
            raise DataError(f"two sources are called {one.name!r}; give them different names")
    return found


def _text(name: str) -> str:
    """File names need not be text; what is not is written with escapes."""
    return os.fsencode(name).decode("utf-8", "backslashreplace")


def _in_folder(folder: Path, suffixes: frozenset[str]) -> Iterator[Source]:
    for path in folder.rglob("*"):
        # Pipes and devices are listed, never opened: they end up among what was skipped, with the reason.
        if path.suffix.lower() in suffixes and path.exists() and not path.is_dir():
            yield Source(name=_text(path.relative_to(folder).as_posix()), path=path)


def _rows(path: Path) -> Iterator[tuple[int, Mapping[str, Any]]]:
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            if path.suffix.lower() == ".csv":
                table = csv.DictReader(file, strict=True)
                if "path" not in (table.fieldnames or ()):
                    raise DataError(f"{path} has no column called path; it has {', '.join(table.fieldnames or ())}")
                for row in table:
                    yield table.line_num, {k: v for k, v in row.items() if k and v}
                return
            for number, line in enumerate(file, start=1):
                if not line.strip():
                    continue
                yield number, json.loads(line) if path.suffix.lower() == ".jsonl" else {"path": line.rstrip("\r\n")}
    except (OSError, ValueError, csv.Error) as error:
        raise DataError(f"{path} cannot be read as a list of media: {error}") from error


def _source(row: Mapping[str, Any], path: Path, number: int) -> Source:
    """One line of a list; what is wrong is said with its number."""
    try:
        written = row["path"]
        split = row.get("split") or None
        if not isinstance(written, str) or not written:
            raise ValueError("path must be text")
        if split is not None and split not in get_args(Split):
            raise ValueError(f"split must be one of {', '.join(get_args(Split))}, not {split!r}")
        start, seconds = float(row.get("start") or 0), row.get("seconds")
        seconds = None if seconds in (None, "") else float(seconds)
        if not (start >= 0 and math.isfinite(start)) or not (seconds is None or 0 < seconds <= 3600):
            raise ValueError("start must be at least 0, seconds more than 0 and at most 3600")
        default = f"{written}@{start:g}" if start or seconds is not None else written
        return Source(
            name=str(row.get("name") or default),
            path=path.parent / written,
            labels=_labels(row),
            split=split,
            group=str(row.get("group") or written),  # stretches of one file belong together
            start=start,
            seconds=seconds,
            boxes=tuple((float(a), float(b), float(c), float(d)) for a, b, c, d in _boxes(row)),
            fold=int(row["fold"]) if row.get("fold") not in (None, "") else None,
        )
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        what = f"{error} is missing" if isinstance(error, KeyError) else str(error)
        raise DataError(f"{path}, line {number}: {what}") from error


def _boxes(row: Mapping[str, Any]) -> list[Any]:
    boxes = row.get("boxes") or []
    return list(json.loads(boxes) if isinstance(boxes, str) else boxes)


def _labels(row: Mapping[str, Any]) -> tuple[str, ...]:
    labels = row.get("labels") or row.get("label") or ()
    parts = labels.split(";") if isinstance(labels, str) else [str(label) for label in labels]
    return tuple(part.strip() for part in parts if part.strip())
