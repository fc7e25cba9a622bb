"""What a collection paired by class says about itself: its manifest, its splits, and the bytes of its files."""

from __future__ import annotations

import csv
import io
import re
import tarfile
import zlib
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path, PurePosixPath
from typing import IO, Literal, cast, get_args

from equiav.errors import DataError
from equiav.types import SPLITS, Split

Kind = Literal["audio", "image"]

MANIFEST = "manifest.csv"
COLUMNS = ("path", "kind", "class", "split", "source")
KINDS: tuple[Kind, ...] = get_args(Kind)
HELD_OUT_FOLDS = {"ESC-50": 4, "UrbanSound8K": 3}
HELD_OUT_SHARE = 0.1

# How each publisher writes down where a sound was cut from: fold (where there are folds) and recording.
# ESC-50 and UrbanSound8K both cut from Freesound, so its numbers name one recording in either.
_SOURCES = {
    "ESC-50": re.compile(r"ESC-50 fold (?P<fold>\d+) \d+-(?P<recording>\d+)-"),
    "UrbanSound8K": re.compile(r"UrbanSound8K fold(?P<fold>\d+)/(?P<recording>\d+)-"),
    "AudioMNIST": re.compile(r"AudioMNIST data/(?P<recording>\d+)/"),
}


@dataclass(frozen=True)
class Entry:
    """One line of the manifest. `group` is the recording (or speaker, or photo); split None means left out."""

    path: str
    kind: Kind
    label: str
    group: str
    fold_held_out: bool | None  # None: comes in no folds
    split: Split | None


def assign_splits(entries: Iterable[Entry]) -> list[Entry]:
    """Train, validation and test for every line, by names alone.

    Test: what the manifest says. If it names no test at all: fold 4 of ESC-50, fold 3 of UrbanSound8K, and of what
    has no folds (photos) the tenth with the lowest CRC-32 of the path. A sound outside those folds whose recording
    also lies inside is left out: the two collections share recordings. Validation: of the rest of each class, the
    tenth of its recordings (speakers, photos) with the lowest CRC-32, at least one.
    """
    entries = list(entries)
    published = any(e.split == "test" for e in entries)

    def tested(e: Entry) -> bool:
        if published:
            return e.split == "test"
        return zlib.crc32(e.group.encode()) / 2**32 < HELD_OUT_SHARE if e.fold_held_out is None else e.fold_held_out

    tests = [e for e in entries if tested(e)]
    recordings = {e.group for e in tests}
    rest = [e for e in entries if e.group not in recordings]
    validation = {e.group for e in rest if e.split == "validation"} or _lowest_tenth(rest)
    paths = {e.path for e in tests}

    def split(e: Entry) -> Split | None:
        if e.group in recordings:
            return "test" if e.path in paths else None
        return "validation" if e.group in validation else "train"

    return [replace(e, split=split(e)) for e in entries]


def _lowest_tenth(entries: Sequence[Entry]) -> set[str]:
    groups: dict[tuple[str, Kind], set[str]] = defaultdict(set)
    for e in entries:
        groups[e.label, e.kind].add(e.group)
    chosen: set[str] = set()
    for members in groups.values():
        ordered = sorted(members, key=lambda g: (zlib.crc32(g.encode()), g))
        chosen.update(ordered[: max(round(len(ordered) * HELD_OUT_SHARE), int(len(ordered) > 1))])
    return chosen


@contextmanager
def open_files(root: Path) -> Iterator[Callable[[str], bytes]]:
    """A function from a path, as the manifest writes it, to the file's bytes; one folder above all is allowed.

    Of a tar nothing is written to disk.
    """
    files: dict[PurePosixPath, Callable[[], bytes]]

    def read(path: str) -> bytes:
        place = top / path
        if place not in files:
            what = f"holds no {MANIFEST}" if path == MANIFEST else f"its manifest lists {path}, which is missing"
            raise DataError(f"{root}: {what}")
        return files[place]()

    if root.is_dir():
        files = {PurePosixPath(p.relative_to(root).as_posix()): p.read_bytes for p in root.rglob("*") if p.is_file()}
        manifests = sorted(
            (p for p in files if p.name == MANIFEST and len(p.parts) < 3), key=lambda p: (len(p.parts), p)
        )
        top = manifests[0].parent if manifests else PurePosixPath()
        yield read
        return
    if not root.is_file():
        raise DataError(f"{root}: no such tar or folder")
    try:
        with tarfile.open(root) as tar:
            members = [m for m in tar.getmembers() if m.isfile()]
            files = {
                PurePosixPath(m.name): partial(lambda m: cast(IO[bytes], tar.extractfile(m)).read(), m) for m in members
            }
            top = next((path.parent for path in files if path.name == MANIFEST), PurePosixPath())
            yield read
    except (tarfile.TarError, EOFError) as error:
        raise DataError(f"{root}: not a readable tar ({error})") from error


def read_manifest(text: bytes, root: Path) -> list[Entry]:
    """The lines of a manifest.csv; `root` names the collection in errors."""
    try:
        lines = csv.DictReader(io.StringIO(text.decode("utf-8-sig"), newline=""))
        if absent := [c for c in COLUMNS if c not in (lines.fieldnames or ())]:
            raise DataError(f"{root}: {MANIFEST} lacks the columns {', '.join(absent)}")
        entries = [_entry(line, root, number) for number, line in enumerate(lines, 2)]
    except UnicodeDecodeError as error:
        raise DataError(f"{root}: {MANIFEST} is not UTF-8 text ({error.reason}); save it as UTF-8") from error
    except csv.Error as error:
        raise DataError(f"{root}: {MANIFEST} is not a table ({error})") from error
    if not entries:
        raise DataError(f"{root}: {MANIFEST} lists nothing")
    return entries


def _entry(line: dict[str, str], root: Path, number: int) -> Entry:
    if absent := [c for c in COLUMNS if line.get(c) is None]:
        raise DataError(f"{root}: {MANIFEST}, line {number} has no {', '.join(absent)}")
    kind, split = line["kind"], line["split"]
    if kind not in KINDS or split not in SPLITS:
        allowed = f"kind is one of {', '.join(KINDS)}, split one of {', '.join(SPLITS)}"
        raise DataError(f"{root}: {MANIFEST}, {line['path']}: {allowed}; got {kind} and {split}")
    group, held_out = line["path"], None
    for publisher, pattern in _SOURCES.items():
        if found := pattern.match(line["source"]):
            group = ("speaker " if publisher == "AudioMNIST" else "freesound ") + found["recording"]
            fold = found.groupdict().get("fold")
            held_out = None if fold is None else int(fold) == HELD_OUT_FOLDS[publisher]
    return Entry(line["path"], kind, line["class"], group, held_out, split)
