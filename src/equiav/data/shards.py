"""Prepared folders: clips in tar files that WebDataset and plain tar open, and an index of them."""

from __future__ import annotations

import csv
import io
import json
import math
import os
import re
import stat
import tarfile
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from copy import copy
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO, Any

import av
import numpy as np
from numpy.typing import NDArray
from PIL import Image

from equiav.data.remote import prepared_folder
from equiav.errors import DataError
from equiav.io import Progress, replacing, sha256
from equiav.types import AUDIO, SPLITS, Clip, Modality

INDEX, MANIFEST, SKIPPED, META, SHARDS = "index", "manifest.csv", "skipped.csv", "meta.json", "shards"
VERSION = 1
SUMS = "SHA256SUMS"  # as `sha256sum -c` reads it
NUMBERS = {"members": np.int64, "shard": np.int32, "split": np.uint8, "times": np.float64, "statistics": np.float64}
TEXTS = ("keys", "names", "paths", "groups", "labels", "shards")
SHARD_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
SUMMED_NAME = re.compile(rf"((?:{INDEX}|{SHARDS})/)?{SHARD_NAME.pattern}")
FORMULAS = "=+-@\t\r'"  # what a cell begins with that a spreadsheet would compute, and what such cells are marked with
NPY_HEADER = 128  # bytes
CHANGED = "its bytes are not those that were written"
JPEG_QUALITY = 90
FLAC_BLOCK = 16384  # samples; the default of 1152 takes twice as long to decode
BLOCK = 512
END = bytes(2 * BLOCK)
MAPPED_ROWS = 1000  # of the index, read one after another

Member = tuple[int, int, int]  # offset, size, CRC-32; size 0: the clip has no such member


def damaged(what: Path | str, reason: object) -> DataError:
    """The one line on a file, or a clip, that is not as it was written."""
    return DataError(f"{what} is damaged: {reason}; prepare the folder again")


def flac(waveform: NDArray[np.int16], rate: int) -> bytes:
    """Mono 16-bit audio as a FLAC file: nothing is lost."""
    buffer = io.BytesIO()
    with av.open(buffer, "w", format="flac") as container:
        options = {"frame_size": str(FLAC_BLOCK)}
        stream = container.add_stream("flac", rate=rate, layout="mono", format="s16", options=options)
        frame = av.AudioFrame.from_ndarray(waveform[None], format="s16", layout="mono")
        frame.sample_rate, frame.pts = rate, 0
        for packet in [*stream.encode(frame), *stream.encode(None)]:
            container.mux(packet)
    return buffer.getvalue()


def read_flac(content: bytes) -> NDArray[np.int16]:
    """The samples of a FLAC file held in memory."""
    # What the header says is enough: probing would decode the beginning twice.
    options = {"analyzeduration": "0", "probesize": "32"}
    with av.open(io.BytesIO(content), mode="r", format="flac", options=options) as container:
        chunks = [frame.to_ndarray().reshape(-1) for frame in container.decode(audio=0)]
    return np.concatenate(chunks) if chunks else np.zeros(0, np.int16)


def jpeg(frame: NDArray[np.uint8]) -> bytes:
    """A frame (H, W, 3) as JPEG of quality 90."""
    buffer = io.BytesIO()
    Image.fromarray(frame).save(buffer, "JPEG", quality=JPEG_QUALITY)
    return buffer.getvalue()


@dataclass(frozen=True)
class StoredClip:
    """A clip, and where its bytes lie: its members are the audio, the frames in order, and the description.

    Their offsets count from the beginning of `shard`, or of the clip itself as long as it waits for one. `statistics`
    are sum, sum of squares and number of the values of its spectrogram.
    """

    clip: Clip
    members: tuple[Member, ...]
    statistics: tuple[float, float, float]
    shard: str = ""

    @property
    def length(self) -> int:
        """Bytes of a clip that waits for its shard: the description, which all clips have, is its last member."""
        offset, size, _ = self.members[-1]
        return -(-(offset + size) // BLOCK) * BLOCK

    def placed(self, shard: str, offset: int) -> StoredClip:
        """The same clip beginning at `offset` of a shard."""
        members = tuple((offset + at if size else 0, size, crc) for at, size, crc in self.members)
        return replace(self, members=members, shard=shard)


def pack(
    clip: Clip, contents: Sequence[tuple[str, bytes]], statistics: tuple[float, float, float]
) -> tuple[bytes, StoredClip]:
    """A clip as members of a tar, by suffix: the same bytes whenever and wherever it is written."""
    blob, members = b"", []
    for suffix, content in contents:
        if not content:
            members.append((0, 0, 0))
            continue
        info = tarfile.TarInfo(f"{clip.id}.{suffix}")
        info.size, info.mode = len(content), 0o644
        blob += info.tobuf(tarfile.USTAR_FORMAT)
        members.append((len(blob), len(content), zlib.crc32(content)))
        blob += content + bytes(-len(content) % BLOCK)
    return blob, StoredClip(clip, tuple(members), statistics)


def cell(text: str) -> str:
    """Text of a table such that no spreadsheet takes it for a formula; `uncelled` gives it back."""
    return f"'{text}" if text and text[0] in FORMULAS else text


def uncelled(text: str) -> str:
    """What was written as a cell; tables from before `cell` are read as they are."""
    return text[1:] if text[:1] == "'" and text[1:2] and text[1] in FORMULAS else text


class _Column:
    """An .npy file written row by row; its header follows once the number of rows is known."""

    def __init__(self, file: IO[bytes], dtype: Any) -> None:
        self.file, self.dtype, self.values = file, np.dtype(dtype), 0
        self.file.write(bytes(NPY_HEADER))

    def add(self, row: Any) -> None:
        """One row, or for plain columns any number of values."""
        array = np.asarray(row, self.dtype)
        self.file.write(array.tobytes())
        self.values += array.size

    def finish(self, row_shape: tuple[int, ...] = ()) -> None:
        """Writes the header for rows of this shape."""
        each = math.prod(row_shape)
        header = io.BytesIO()
        shape = (self.values // each if each else 0, *row_shape)
        fields = {"descr": np.lib.format.dtype_to_descr(self.dtype), "fortran_order": False, "shape": shape}
        np.lib.format.write_array_header_1_0(header, fields)
        assert len(header.getvalue()) == NPY_HEADER
        self.file.seek(0)
        self.file.write(header.getvalue())


class IndexWriter:
    """Writes index, manifest.csv and skipped.csv clip by clip; they are put in place, each whole, when all is written.

    The index says where every member of every clip lies, in columns that are memory-mapped. `shards` are the names of
    all shards.
    """

    def __init__(self, folder: Path, shards: Iterable[str]) -> None:
        self.folder = folder
        self.splits: Counter[str] = Counter()
        self.labels: set[str] = set()
        self.sources = self.skipped = self.width = 0
        self.shards = sorted(shards)
        self._numbers = {name: number for number, name in enumerate(self.shards)}
        self._source: str | None = None

    def __enter__(self) -> IndexWriter:
        with ExitStack() as stack:
            draft = stack.enter_context(replacing(self.folder / INDEX))
            draft.mkdir()

            def column(name: str, dtype: Any) -> _Column:
                return _Column(stack.enter_context((draft / f"{name}.npy").open("wb")), dtype)

            def table(name: str, *header: str) -> Any:
                path = stack.enter_context(replacing(self.folder / name))
                # File names that are not text in any encoding are written with escapes.
                opened = path.open("w", encoding="utf-8", errors="backslashreplace", newline="")
                writer = csv.writer(stack.enter_context(opened))
                writer.writerow(header)
                return writer

            self._columns = {name: column(name, dtype) for name, dtype in NUMBERS.items()}
            self._texts = {name: (column(name, np.uint8), column(f"{name}_ends", np.int64)) for name in TEXTS}
            for _, ends in self._texts.values():
                ends.add(0)
            for shard in self.shards:
                self._add_text("shards", shard)
            of_clips = "key", "name", "source", "split", "group", "start", "seconds", "labels", "shard"
            self._manifest, self._left_out = table(MANIFEST, *of_clips), table(SKIPPED, "source", "start", "reason")
            self._stack = stack.pop_all()
        return self

    def _add_text(self, column: str, text: str) -> None:
        """Strings of any length: one block of bytes, and the ends of each."""
        block, ends = self._texts[column]
        content = text.encode("utf-8", "backslashreplace")
        block.add(np.frombuffer(content, np.uint8))
        ends.add(block.values)

    def add(self, stored: StoredClip) -> None:
        """The next clip; those of one source follow one another."""
        clip = stored.clip
        assert clip.split is not None
        assert clip.seconds is not None
        self.width = len(stored.members)
        times = clip.start, clip.seconds
        shard, split = self._numbers[stored.shard], SPLITS.index(clip.split)
        for name, row in zip(NUMBERS, (stored.members, shard, split, times, stored.statistics), strict=True):
            self._columns[name].add(row)
        texts = (clip.id, clip.source, str(clip.path), clip.group, json.dumps(clip.labels))
        for name, text in zip(TEXTS, texts, strict=False):
            self._add_text(name, text)
        facts = (*texts[:3], clip.split, clip.group, *(f"{t:.6f}" for t in times), ";".join(clip.labels), stored.shard)
        self._manifest.writerow(map(cell, facts))
        self.splits[clip.split] += 1
        self.labels.update(clip.labels)
        self.sources += clip.source != self._source
        self._source = clip.source

    def skip(self, source: str, start: str, reason: str) -> None:
        """A source (`start` empty) or a stretch of one that was left out."""
        self._left_out.writerow((cell(source), start, cell(reason)))
        self.skipped += not start

    def __exit__(self, *error: Any) -> None:
        with ExitStack() as stack:
            stack.push(self._stack)  # a header that cannot be written puts nothing in place, either
            if error[0] is not None:
                self._stack.pop_all().__exit__(*error)
                return
            shapes = {"members": (self.width, 3), "times": (2,), "statistics": (3,)}
            for name, column in self._columns.items():
                column.finish(shapes.get(name, ()))
            for column in (c for pair in self._texts.values() for c in pair):
                column.finish()


def read_sums(folder: Path) -> dict[str, str] | None:
    """SHA-256 of the files of a prepared folder by their name in it; None if it was prepared before they were kept."""
    try:
        lines = (folder / SUMS).read_bytes().decode("ascii").split("\n")
        found = {name: digest for digest, name in (line.split("  ") for line in lines[:-1])}
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise damaged(folder / SUMS, error) from error
    if META not in found or lines[-1]:
        raise damaged(folder / SUMS, f"it ends early or lacks {META}")
    return found


def check_file(folder: Path, name: str, sums: Mapping[str, str] | None) -> None:
    """Refuses a file of a prepared folder that is not the one that was written; without sums nobody knows."""
    if sums is None:
        return
    try:
        if not stat.S_ISREG((folder / name).lstat().st_mode):
            raise damaged(folder / name, "it is not a regular file")
        if sha256(folder / name) != sums.get(name):
            raise damaged(folder / name, CHANGED)
    except OSError as error:
        raise damaged(folder / name, error.strerror or error) from error


def verify_prepared(folder: Path, progress: Callable[[str], None] = lambda line: None) -> list[str]:
    """Compares every file of a prepared folder with its recorded SHA-256: one line per problem, none if it is whole."""
    try:
        meta, sums = read_meta(folder), read_sums(folder)
    except DataError as error:
        return [str(error)]
    if sums is None:
        return [f"{folder} has no checksums: it was prepared by an earlier version; prepare it again to have them"]
    progressing = Progress(len(sums), progress, "files verified")
    problems = []
    for done, name in enumerate(sorted(sums), start=1):
        try:
            if not SUMMED_NAME.fullmatch(name):
                raise DataError(f"{folder / SUMS}: {name!r} is no file of a prepared folder; use another folder")
            check_file(folder, name, sums)
        except DataError as error:
            problems.append(str(error))
        progressing.update(done)
    shards = sum(name.startswith(f"{SHARDS}/") for name in sums)
    if shards != meta.get("shards"):
        problems.append(f"{folder / SUMS} names {shards} of {meta.get('shards')} shards; prepare the folder again")
    return problems


def read_skipped(folder: Path) -> Iterator[tuple[str, str, str]]:
    """Source, start (empty: the whole file) and reason of everything that was left out."""
    check_file(folder, SKIPPED, read_sums(folder))
    with (folder / SKIPPED).open(encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file):
            yield uncelled(row["source"]), row["start"], uncelled(row["reason"])


def read_meta(folder: Path | str) -> dict[str, Any]:
    """What meta.json says; its presence means that the folder, which may be an address, is complete."""
    folder = prepared_folder(folder)
    try:
        meta = json.loads((folder / META).read_bytes())
        if not isinstance(meta, dict) or meta.get("format") != VERSION:
            raise DataError(f"{folder} was prepared in another format; prepare it again with this version")
        if not set(meta["modalities"]) <= {"audio", "video"} or not all(n >= 0 for n in meta["splits"].values()):
            raise ValueError("it names other modalities than audio and video, or splits without a number")
        if not 0 <= int(meta["frames"]) <= 1000 or not 0 < int(meta["sample_rate"]) < 1 << 31:
            raise ValueError(f"{meta['frames']} frames and {meta['sample_rate']} samples a second make no sense")
        if not all(x is None or math.isfinite(x) for x in map(meta["spectrogram"].get, ("mean", "std"))):
            raise ValueError("its spectrogram statistics are not numbers")
    except FileNotFoundError:
        if not folder.exists():
            raise DataError(f"{folder}: no such folder; give one that `equiav prepare` wrote") from None
        raise DataError(f"{folder} holds no finished data (no {META}); run `equiav prepare` again to finish") from None
    except NotADirectoryError:
        raise DataError(f"{folder} is a file; give the folder that `equiav prepare` wrote") from None
    except (OSError, ValueError, TypeError, LookupError, ArithmeticError, AttributeError, RecursionError) as error:
        reason = getattr(error, "strerror", None) or repr(error)
        raise DataError(f"{folder / META} cannot be read: {reason}") from error
    if meta.get("checksums") and not (folder / SUMS).exists():
        raise DataError(f"{folder / SUMS} is missing; prepare the folder again")
    check_file(folder, META, read_sums(folder))
    return meta


class PreparedIndex:
    """The columns of a prepared folder; nothing is read before it is asked for, nothing is ever unpickled.

    A folder may come from elsewhere: its shards must be regular files in it, with plain names. Its columns are compared
    with their checksums first, unless `verify` says that this has just been done.
    """

    def __init__(self, folder: Path, *, verify: bool = True) -> None:
        self.folder = folder
        sums = read_sums(folder) if verify else None
        try:
            self._map(sums)
            self.shards = [self.text("shards", i) for i in range(len(self.texts["shards"][1]) - 1)]
            if len(self.shard) and not 0 <= self.shard.min() <= self.shard.max() < len(self.shards):
                raise ValueError("a clip lies in a shard that has no name")
            lengths = {len(column) for column in (self.members, self.shard, self.split, self.times, self.statistics)}
            lengths |= {len(ends) - 1 for name, (_, ends) in self.texts.items() if name != "shards"}
            shapes = self.members.shape[2:], self.times.shape[1:], self.statistics.shape[1:]
            if len(lengths) > 1 or shapes != ((3,), (2,), (3,)) or self.split.max(initial=0) >= len(SPLITS):
                raise ValueError("its columns do not belong together")
        except (OSError, ValueError, TypeError, LookupError, ArithmeticError, MemoryError) as error:
            reason = str(error).partition("\n")[0]  # what the headers of arrays are parsed with tells more lines
            raise damaged(folder / INDEX, reason) from error
        for name in self.shards:
            path = folder / SHARDS / name
            if not SHARD_NAME.fullmatch(name):
                raise DataError(f"{folder / INDEX}: {name!r} is not the name of a shard; use another folder")
            if os.path.lexists(path) and not stat.S_ISREG(path.lstat().st_mode):
                raise DataError(f"{path}: a shard must be a regular file, not a link, pipe or device")

    def _map(self, sums: Mapping[str, str] | None) -> None:
        self.members, self.shard, self.split, self.times, self.statistics = (self._load(n, sums) for n in NUMBERS)
        self.texts = {name: (self._load(name, sums), self._load(f"{name}_ends", sums)) for name in TEXTS}

    def _load(self, name: str, sums: Mapping[str, str] | None) -> NDArray[Any]:
        path = self.folder / INDEX / f"{name}.npy"
        check_file(self.folder, f"{INDEX}/{name}.npy", sums)
        if not path.is_file():
            raise ValueError(f"no file {path.name}")
        # A file of no clips is too short to be mapped.
        empty = path.stat().st_size <= NPY_HEADER
        try:
            array: NDArray[Any] = np.load(path, mmap_mode=None if empty else "r", allow_pickle=False)
        except Exception as error:  # headers are parsed as Python: what its parser raises differs between versions
            raise ValueError(f"{path.name}: {error}") from error
        return array

    def __len__(self) -> int:
        return len(self.shard)

    def text(self, column: str, row: int) -> str:
        """One string."""
        block, ends = self.texts[column]
        try:
            return bytes(block[ends[row] : ends[row + 1]]).decode("utf-8")
        except ValueError as error:
            raise damaged(self.folder / INDEX, f"{column}: {error}") from error

    def labels(self, row: int) -> tuple[str, ...]:
        """The labels of a clip."""
        try:
            return tuple(json.loads(self.text("labels", row)))
        except (ValueError, TypeError) as error:
            raise damaged(self.folder / INDEX, f"labels: {error}") from error

    def holds(self, modality: Modality) -> NDArray[np.bool_]:
        """Which clips have audio, or frames: of a folder prepared with `partial`, not all have both."""
        member = 0 if modality == AUDIO else 1
        # Clips of audio alone have two members, audio and description.
        return self.members[:, member, 1] > 0 if member < self.members.shape[1] - 1 else np.zeros(len(self), np.bool_)

    def clip(self, row: int) -> Clip:
        """What the index says about a clip: all but its fold and its boxes."""
        start, seconds = self.times[row].tolist()
        return Clip(
            id=self.text("keys", row),
            source=self.text("names", row),
            path=Path(self.text("paths", row)),
            start=start,
            seconds=seconds,
            labels=self.labels(row),
            split=SPLITS[self.split[row]],
            group=self.text("groups", row),
        )

    def portions(self) -> Iterator[tuple[PreparedIndex, range]]:
        """All rows, so many at a time, each time with columns mapped anew: pages that were read stay in memory."""
        for begin in range(0, len(self), MAPPED_ROWS):
            index = copy(self)
            index._map(None)
            yield index, range(begin, min(begin + MAPPED_ROWS, len(self)))

    def rows(self) -> Iterator[StoredClip]:
        """Everything, as it was written."""
        for index, row in ((index, row) for index, rows in self.portions() for row in rows):
            members = tuple((offset, size, crc) for offset, size, crc in index.members[row].tolist())
            total, squares, count = index.statistics[row].tolist()
            yield StoredClip(index.clip(row), members, (total, squares, count), self.shards[index.shard[row]])
