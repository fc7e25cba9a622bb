"""Prepared folders: clips in tar files that WebDataset and plain tar open, an index of them, read here by number."""

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
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from copy import copy
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import IO, Any

import av
import numpy as np
import torch
from av.error import FFmpegError
from jaxtyping import Float, UInt8
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from equiav.data.datasets import Dataset
from equiav.data.remote import RemoteFolder, cache_bytes, is_address, open_remote, prepared_folder
from equiav.errors import DataError, MediaError
from equiav.io import Progress, replacing, sha256
from equiav.media import Limits, read_image
from equiav.types import AUDIO, SPLITS, VISUAL, Clip, Modality, Sample, Split

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
OPEN_SHARDS = 128  # files kept open by one process
MAPPED_ROWS = 1000  # of the index, read one after another
STORED = Limits(side=65535, pixels=178_000_000, aspect=65535)  # frames were checked before they were stored

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


class ShardDataset(Dataset):
    """The clips of one split of a prepared folder (None: of all), by number; safe to share with worker processes.

    Frames are stored whole and given as squares of `size` pixels: scaled so that the short side fits, then the
    middle. `folder` may be an address (see `equiav.data.remote`). `modalities` are those that every clip must have and
    that its samples hold; without it all clips are there, with what they have: of a folder prepared with `partial`,
    some lack one. Damage is an error that names the shard and the clip: each member is compared with its CRC-32 when
    it is read.
    """

    def __init__(
        self,
        folder: Path | str,
        split: Split | None,
        *,
        size: int = 224,
        modalities: Sequence[Modality] | None = None,
        verify: bool = True,
    ) -> None:
        self._remote = open_remote(str(folder)) if is_address(folder) else None
        self._place, self.folder = folder, prepared_folder(folder)
        self.split, self.size, self._required = split, size, modalities
        self.meta = read_meta(self.folder)
        self.index = PreparedIndex(self.folder, verify=verify)
        prepared = tuple(VISUAL if name == "video" else AUDIO for name in self.meta["modalities"])
        self.modalities = prepared if modalities is None else tuple(modalities)
        self.frames = int(self.meta["frames"]) if VISUAL in self.modalities else 0
        chosen = np.isin(self.index.split, [SPLITS.index(s) for s in (SPLITS if split is None else (split,))])
        if not chosen.any():
            raise DataError(f"{folder} holds no clips for {split or 'any use'}; its splits are {self.meta['splits']}")
        if modalities is not None or self.meta.get("partial"):
            complete = np.logical_and.reduce([self.index.holds(m) for m in self.modalities])
            self.one_to_one = bool(complete[chosen].all())
            if modalities is not None:
                chosen &= complete
                self.one_to_one = True
        if not chosen.any():
            raise DataError(f"{folder}: no clip for {split or 'any use'} has {' and '.join(self.modalities)}")
        self.rows = np.flatnonzero(chosen)
        self._files: OrderedDict[int, int] = OrderedDict()
        self._kept = 0  # clips of an address up to this row stay here: a bound that needs no bookkeeping
        if self._remote is not None:
            first, second, last = (self.index.members[:, k, :2] for k in (0, 1, -1))
            lengths = last.sum(axis=1) - np.where(first[:, 1] > 0, first[:, 0], second[:, 0])
            self._kept = int(np.searchsorted(lengths.cumsum(), cache_bytes(), side="right"))

    def __reduce__(self) -> tuple[Any, ...]:
        # Another process maps the index and opens the shards by itself.
        again = partial(ShardDataset, size=self.size, modalities=self._required, verify=False)
        return (again, (self._place, self.split))

    def __del__(self) -> None:
        for descriptor in getattr(self, "_files", {}).values():
            os.close(descriptor)

    @property
    def sample_rate(self) -> int:
        """Samples per second."""
        return int(self.meta["sample_rate"])

    def __len__(self) -> int:
        return len(self.rows)

    def clip(self, index: int) -> Clip:
        """All that is known of the clip; `id` is its key in its shard, `source` the name of what it was cut from."""
        info = self.info(index)
        boxes = tuple((x0, y0, x1, y1) for x0, y0, x1, y1 in info.get("boxes") or ())
        return replace(self.index.clip(self._row(index)), fold=info.get("fold"), boxes=boxes)

    def name(self, index: int) -> str:
        """The clip's key in its shard."""
        return self.index.text("keys", self._row(index))

    def source(self, index: int) -> str:
        """The name of the file the clip was cut from."""
        return self.index.text("names", self._row(index))

    def labels(self, index: int) -> tuple[str, ...]:
        """The clip's labels, from the index alone."""
        return self.index.labels(self._row(index))

    def group(self, index: int) -> str:
        """What the clip belongs to: its file, unless the owner said more."""
        return self.index.text("groups", self._row(index))

    def info(self, index: int) -> dict[str, Any]:
        """The description stored with the clip: times of the frames, boxes, fold and so on."""
        found: dict[str, Any] = json.loads(self._member(index, -1))
        return found

    def audio_file(self, index: int) -> bytes:
        """The clip's audio as the FLAC file it is stored as."""
        return self._member(index, 0)

    def waveform(self, index: int) -> Float[Tensor, " samples"]:
        """The clip's audio in [-1, 1]."""
        content = self._member(index, 0)
        try:
            waveform = read_flac(content)
        except (FFmpegError, ValueError, OSError) as error:
            raise self._damaged(index, f"its sound cannot be decoded ({error})") from error
        return torch.from_numpy(waveform.astype(np.float32)) / 32768

    def frame(self, index: int, frame: int, *, whole: bool = False) -> UInt8[Tensor, "3 h w"]:
        """One frame of a clip, square; with `whole` as it is stored, for boxes and for looking at."""
        if not 0 <= frame < self.frames:
            raise DataError(f"{self.folder}: frame {frame} of clips that hold {self.frames}")
        content, side = self._member(index, 1 + frame), None if whole else self.size
        try:
            image = read_image(content, side=side, upright=False, formats=("JPEG",), limits=STORED)
        except MediaError as error:
            raise self._damaged(index, f"picture {frame} cannot be decoded ({error.reason})") from error
        return torch.from_numpy(image).permute(2, 0, 1).contiguous()

    def video(self, index: int) -> UInt8[Tensor, "k 3 size size"]:
        """All frames of a clip, square."""
        return torch.stack([self.frame(index, k) for k in range(self.frames)])

    def has(self, index: int) -> tuple[Modality, ...]:
        """Which modalities of the dataset the clip has."""
        if self.one_to_one:
            return self.modalities
        sizes = self.index.members[self._row(index), :2, 1]
        return tuple(m for m in self.modalities if sizes[0 if m == AUDIO else 1])

    def sides(self) -> Mapping[Modality, Dataset]:
        """The dataset itself; where clips lack a modality, for each modality those that have it."""
        if self.one_to_one:
            return super().sides()
        again = partial(ShardDataset, self._place, self.split, size=self.size, verify=False)
        return {m: again(modalities=(m,)) for m in self.modalities}

    def sample(self, index: int, frame: int) -> Sample:
        """The clip's audio and its frame number `frame`, or what it has of them; only that frame is decoded."""
        return self.part(index, frame, self.has(index))

    def part(self, index: int, frame: int, modalities: Sequence[Modality]) -> Sample:
        """Only what is wanted is decoded."""
        inputs = {m: self.waveform(index) if m == AUDIO else self.frame(index, frame) for m in modalities}
        return Sample(self.name(index), inputs)

    def frame_size(self, index: int, frame: int) -> tuple[int, int, int]:
        """That of the frame as it is stored."""
        height, width = self.frame(index, frame, whole=True).shape[1:]
        return height, width, self.size

    def _row(self, index: int) -> int:
        if not 0 <= index < len(self.rows):
            raise IndexError(f"clip {index} of {len(self.rows)}")
        return int(self.rows[index])

    def _member(self, index: int, member: int) -> bytes:
        row = self._row(index)
        offset, size, checksum = (int(x) for x in self.index.members[row, member])
        if not size:
            held = [m for m in (AUDIO, VISUAL) if self.index.holds(m)[row]]
            raise DataError(f"{self.folder}: clip {self.name(index)} holds only {' and '.join(held)}")
        try:
            if self._remote is None:
                content = os.pread(self._file(int(self.index.shard[row])), size, offset)
            else:
                content = self._fetched(self._remote, row, offset, size, checksum)
        except (OSError, OverflowError, MemoryError) as error:
            raise self._damaged(index, str(error)) from error
        if len(content) != size or zlib.crc32(content) != checksum:
            raise self._damaged(index, CHANGED)
        return content

    def _fetched(self, remote: RemoteFolder, row: int, offset: int, size: int, checksum: int) -> bytes:
        shard, ends = self.index.shards[int(self.index.shard[row])], (offset, offset + size)
        if row >= self._kept:
            return remote.read(shard, *ends)
        used = self.index.members[row][self.index.members[row, :, 1] > 0]
        clip = int(used[:, 0].min()), int(used[:, :2].sum(axis=1).max())
        content = remote.read(shard, *ends, clip)
        if zlib.crc32(content) != checksum:  # the disk may have damaged what was kept
            remote.forget(shard, clip)
            content = remote.read(shard, *ends, clip)
        return content

    def _file(self, shard: int) -> int:
        # Reads state their offset, so that descriptors inherited by a forked process do not disturb each other.
        if shard not in self._files:
            while len(self._files) >= OPEN_SHARDS:
                os.close(self._files.popitem(last=False)[1])
            path = self.folder / SHARDS / self.index.shards[shard]
            self._files[shard] = os.open(path, os.O_RDONLY | getattr(os, "O_CLOEXEC", 0))
        self._files.move_to_end(shard)
        return self._files[shard]

    def _damaged(self, index: int, reason: str) -> DataError:
        place = Path(self._place) if self._remote is None else self._remote.address
        shard = f"{place}/{SHARDS}/{self.index.shards[int(self.index.shard[self._row(index)])]}"
        return damaged(f"{shard}: clip {self.name(index)}", reason)
