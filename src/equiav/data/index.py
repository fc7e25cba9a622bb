"""The index of a prepared folder: where every member of every clip lies, in columns that are memory-mapped."""

from __future__ import annotations

import csv
import json
import os
import re
import shutil
import stat
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from equiav.data.manifest import Split
from equiav.errors import DataError

INDEX, MANIFEST, SKIPPED, META, SHARDS = "index", "manifest.csv", "skipped.csv", "meta.json", "shards"
VERSION = 1
SPLITS: tuple[Split, ...] = ("train", "validation", "test")
TEXTS = ("keys", "names", "paths", "groups", "labels", "shards")
SHARD_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")

Member = tuple[int, int, int]  # offset in the shard, size, CRC-32; size 0: the clip has no such member


@dataclass(frozen=True)
class ClipRow:
    """One stored clip. Members: the sound, the pictures in order, the description."""

    key: str
    name: str
    path: str
    split: str
    group: str
    labels: tuple[str, ...]
    start: float
    seconds: float
    shard: str
    members: tuple[Member, ...]
    statistics: tuple[float, float, float]  # sum, sum of squares and number of the spectrogram's values


def write_index(folder: Path, rows: Sequence[ClipRow], skipped: Iterable[tuple[str, str, str]]) -> None:
    """Writes index, manifest.csv and skipped.csv (source, start, reason), each whole or not at all."""
    draft = folder / f".{INDEX}.tmp"
    shutil.rmtree(draft, ignore_errors=True)
    draft.mkdir(parents=True)
    shards = sorted({row.shard for row in rows})
    numbers = {name: number for number, name in enumerate(shards)}
    width = len(rows[0].members) if rows else 0
    columns: dict[str, Any] = {
        "members": np.empty((len(rows), width, 3), np.int64),
        "shard": np.array([numbers[row.shard] for row in rows], np.int32),
        "split": np.array([SPLITS.index(row.split) for row in rows], np.uint8),
        "times": np.array([(row.start, row.seconds) for row in rows], np.float64).reshape(-1, 2),
        "statistics": np.array([row.statistics for row in rows], np.float64).reshape(-1, 3),
    }
    for number, row in enumerate(rows):  # one by one: as objects all at once they would take six times the memory
        columns["members"][number] = row.members
    for name, values in columns.items():
        np.save(draft / f"{name}.npy", values)
    _save_texts(draft, "keys", [row.key for row in rows])
    _save_texts(draft, "names", [row.name for row in rows])
    _save_texts(draft, "paths", [row.path for row in rows])
    _save_texts(draft, "groups", [row.group for row in rows])
    _save_texts(draft, "labels", [json.dumps(row.labels) for row in rows])
    _save_texts(draft, "shards", shards)
    shutil.rmtree(folder / INDEX, ignore_errors=True)
    draft.replace(folder / INDEX)
    header = ("key", "name", "source", "split", "group", "start", "seconds", "labels", "shard")
    lines = (
        (r.key, r.name, r.path, r.split, r.group, f"{r.start:.6f}", f"{r.seconds:.6f}", ";".join(r.labels), r.shard)
        for r in rows
    )
    _write_csv(folder / MANIFEST, header, lines)
    _write_csv(folder / SKIPPED, ("source", "start", "reason"), skipped)


def _write_csv(path: Path, header: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    draft = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    # File names that are not text in any encoding are written with escapes.
    with draft.open("w", encoding="utf-8", errors="backslashreplace", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(header)
        writer.writerows(rows)
    draft.replace(path)


def read_skipped(folder: Path) -> list[tuple[str, str, str]]:
    """Source, start (empty: the whole file) and reason of everything that was left out."""
    with (folder / SKIPPED).open(encoding="utf-8", newline="") as file:
        return [(row["source"], row["start"], row["reason"]) for row in csv.DictReader(file)]


def _save_texts(folder: Path, name: str, texts: Sequence[str]) -> None:
    """Strings of any length as one block of bytes and the ends of each."""
    blobs = [text.encode("utf-8", "backslashreplace") for text in texts]
    np.save(folder / f"{name}.npy", np.frombuffer(b"".join(blobs), np.uint8))
    np.save(folder / f"{name}_ends.npy", np.cumsum([0, *map(len, blobs)], dtype=np.int64))


def read_meta(folder: Path) -> dict[str, Any]:
    """What meta.json says; its presence means that the folder is complete."""
    try:
        meta = json.loads((folder / META).read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise DataError(f"{folder} holds no finished data (no {META}); run `equiav prepare` again to finish") from None
    except (OSError, ValueError) as error:
        raise DataError(f"{folder / META} cannot be read: {error}") from error
    if not isinstance(meta, dict) or meta.get("format") != VERSION:
        raise DataError(f"{folder} was prepared in another format; prepare it again with this version")
    return meta


class Index:
    """The columns of a prepared folder; nothing is read before it is asked for, nothing is ever unpickled.

    A folder may come from elsewhere: its shards must be regular files in it, with plain names.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        try:
            self.members, self.shard, self.split, self.times, self.statistics = (
                self._load(name) for name in ("members", "shard", "split", "times", "statistics")
            )
            self.texts = {name: (self._load(name), self._load(f"{name}_ends")) for name in TEXTS}
            self._check_shards()
        except (OSError, ValueError) as error:
            raise DataError(f"{folder / INDEX} is damaged ({error}); prepare the folder again") from error

    def _load(self, name: str) -> NDArray[Any]:
        path = self.folder / INDEX / f"{name}.npy"
        # A file of no clips is too short to be mapped.
        empty = path.stat().st_size <= 128
        array: NDArray[Any] = np.load(path, mmap_mode=None if empty else "r", allow_pickle=False)
        return array

    def _check_shards(self) -> None:
        names = [self.text("shards", i) for i in range(len(self.texts["shards"][1]) - 1)]
        if len(self.shard) and not 0 <= self.shard.min() <= self.shard.max() < len(names):
            raise ValueError("a clip lies in a shard that has no name")
        for name in names:
            path = self.folder / SHARDS / name
            if not SHARD_NAME.fullmatch(name):
                raise DataError(f"{self.folder / INDEX}: {name!r} is not the name of a shard; use another folder")
            if os.path.lexists(path) and not stat.S_ISREG(path.lstat().st_mode):
                raise DataError(f"{path}: a shard must be a regular file, not a link, pipe or device")

    def __len__(self) -> int:
        return len(self.shard)

    def text(self, column: str, row: int) -> str:
        """One string."""
        block, ends = self.texts[column]
        return bytes(block[ends[row] : ends[row + 1]]).decode("utf-8")

    def labels(self, row: int) -> tuple[str, ...]:
        """The labels of a clip."""
        return tuple(json.loads(self.text("labels", row)))

    def rows(self) -> Iterator[ClipRow]:
        """Everything, as it was written."""
        for i in range(len(self)):
            yield ClipRow(
                key=self.text("keys", i),
                name=self.text("names", i),
                path=self.text("paths", i),
                split=SPLITS[self.split[i]],
                group=self.text("groups", i),
                labels=self.labels(i),
                start=float(self.times[i, 0]),
                seconds=float(self.times[i, 1]),
                shard=self.text("shards", int(self.shard[i])),
                members=tuple((int(a), int(b), int(c)) for a, b, c in self.members[i]),
                statistics=(
                    float(self.statistics[i, 0]),
                    float(self.statistics[i, 1]),
                    float(self.statistics[i, 2]),
                ),
            )
