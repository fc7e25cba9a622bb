"""Prepared folders: clips in tar files that WebDataset and plain tar open, an index of them, read here by number."""

from __future__ import annotations

import csv
import io
import json
import os
import re
import shutil
import stat
import tarfile
import zlib
from collections import Counter, OrderedDict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
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

from equiav.data.datasets import Dataset, squared
from equiav.errors import DataError, MediaError
from equiav.media import Limits, read_image
from equiav.types import AUDIO, SPLITS, Clip, Modality, Sample, Split

INDEX, MANIFEST, SKIPPED, META, SHARDS = "index", "manifest.csv", "skipped.csv", "meta.json", "shards"
VERSION = 1
NUMBERS = ("members", "shard", "split", "times", "statistics")
TEXTS = ("keys", "names", "paths", "groups", "labels", "shards")
SHARD_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
NPY_HEADER = 128  # bytes
JPEG_QUALITY = 90
FLAC_BLOCK = 16384  # samples; the default of 1152 takes twice as long to decode
BLOCK = 512
END = bytes(2 * BLOCK)
OPEN_SHARDS = 128  # files kept open by one process
STORED = Limits(side=65535, pixels=178_000_000, aspect=65535)  # frames were checked before they were stored

Member = tuple[int, int, int]  # offset, size, CRC-32; size 0: the clip has no such member


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


class _Column:
    """An .npy file written row by row; its header follows once the number of rows is known."""

    def __init__(self, folder: Path, name: str, dtype: Any) -> None:
        self.dtype, self.values = np.dtype(dtype), 0
        self.file = (folder / f"{name}.npy").open("wb")
        self.file.write(bytes(NPY_HEADER))

    def add(self, row: Any) -> None:
        """One row, or for plain columns any number of values."""
        array = np.asarray(row, self.dtype)
        self.file.write(array.tobytes())
        self.values += array.size

    def close(self, row_shape: tuple[int, ...] = ()) -> None:
        """Writes the header for rows of this shape."""
        each = int(np.prod(row_shape))
        header = io.BytesIO()
        fields = {"descr": np.lib.format.dtype_to_descr(self.dtype), "fortran_order": False}
        np.lib.format.write_array_header_1_0(
            header, {**fields, "shape": (self.values // each if each else 0, *row_shape)}
        )
        assert len(header.getvalue()) == NPY_HEADER
        self.file.seek(0)
        self.file.write(header.getvalue())
        self.file.close()


class IndexWriter:
    """Writes index, manifest.csv and skipped.csv clip by clip; they are put in place, each whole, when all is written.

    The index says where every member of every clip lies, in columns that are memory-mapped. `shards` are the names of
    all shards.
    """

    def __init__(self, folder: Path, shards: Sequence[str]) -> None:
        self.folder, self.draft = folder, folder / f".{INDEX}.tmp"
        self.splits: Counter[str] = Counter()
        self.labels: set[str] = set()
        self.sources = self.skipped = self.width = 0
        self.shards = sorted(shards)
        self._numbers = {name: number for number, name in enumerate(self.shards)}
        self._source: str | None = None

    def __enter__(self) -> IndexWriter:
        shutil.rmtree(self.draft, ignore_errors=True)
        self.draft.mkdir(parents=True)
        types = {
            "members": np.int64,
            "shard": np.int32,
            "split": np.uint8,
            "times": np.float64,
            "statistics": np.float64,
        }
        self._columns = {name: _Column(self.draft, name, types[name]) for name in NUMBERS}
        self._texts = {
            name: (_Column(self.draft, name, np.uint8), _Column(self.draft, f"{name}_ends", np.int64)) for name in TEXTS
        }
        for _, ends in self._texts.values():
            ends.add(0)
        for shard in self.shards:
            self._add_text("shards", shard)
        self._drafts: dict[str, tuple[Path, IO[str]]] = {}
        self._manifest = self._table(
            MANIFEST, ("key", "name", "source", "split", "group", "start", "seconds", "labels", "shard")
        )
        self._left_out = self._table(SKIPPED, ("source", "start", "reason"))
        return self

    def _table(self, name: str, header: Sequence[str]) -> Any:
        draft = self.folder / f".{name}.{os.getpid()}.tmp"
        # File names that are not text in any encoding are written with escapes.
        file = draft.open("w", encoding="utf-8", errors="backslashreplace", newline="")
        self._drafts[name] = draft, file
        writer = csv.writer(file)
        writer.writerow(header)
        return writer

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
        for name, row in (
            ("members", stored.members),
            ("shard", self._numbers[stored.shard]),
            ("split", SPLITS.index(clip.split)),
            ("times", (clip.start, clip.seconds)),
            ("statistics", stored.statistics),
        ):
            self._columns[name].add(row)
        texts = (clip.id, clip.source, str(clip.path), clip.group, json.dumps(clip.labels))
        for name, text in zip(TEXTS, texts, strict=False):
            self._add_text(name, text)
        times = f"{clip.start:.6f}", f"{clip.seconds:.6f}"
        labels = ";".join(clip.labels)
        self._manifest.writerow(
            (clip.id, clip.source, str(clip.path), clip.split, clip.group, *times, labels, stored.shard)
        )
        self.splits[clip.split] += 1
        self.labels.update(clip.labels)
        self.sources += clip.source != self._source
        self._source = clip.source

    def skip(self, source: str, start: str, reason: str) -> None:
        """A source (`start` empty) or a stretch of one that was left out."""
        self._left_out.writerow((source, start, reason))
        self.skipped += not start

    def __exit__(self, kind: type[BaseException] | None, *error: object) -> None:
        shapes = {"members": (self.width, 3), "times": (2,), "statistics": (3,)}
        for name, column in self._columns.items():
            column.close(shapes.get(name, ()))
        for column in (c for pair in self._texts.values() for c in pair):
            column.close()
        for _, file in self._drafts.values():
            file.close()
        if kind is None:
            shutil.rmtree(self.folder / INDEX, ignore_errors=True)
            self.draft.replace(self.folder / INDEX)
            for name, (draft, _) in self._drafts.items():
                draft.replace(self.folder / name)


def read_skipped(folder: Path) -> Iterator[tuple[str, str, str]]:
    """Source, start (empty: the whole file) and reason of everything that was left out."""
    with (folder / SKIPPED).open(encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file):
            yield row["source"], row["start"], row["reason"]


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


class PreparedIndex:
    """The columns of a prepared folder; nothing is read before it is asked for, nothing is ever unpickled.

    A folder may come from elsewhere: its shards must be regular files in it, with plain names.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        try:
            self.members, self.shard, self.split, self.times, self.statistics = (self._load(name) for name in NUMBERS)
            self.texts = {name: (self._load(name), self._load(f"{name}_ends")) for name in TEXTS}
            self.shards = [self.text("shards", i) for i in range(len(self.texts["shards"][1]) - 1)]
            if len(self.shard) and not 0 <= self.shard.min() <= self.shard.max() < len(self.shards):
                raise ValueError("a clip lies in a shard that has no name")
        except (OSError, ValueError) as error:
            raise DataError(f"{folder / INDEX} is damaged ({error}); prepare the folder again") from error
        for name in self.shards:
            path = folder / SHARDS / name
            if not SHARD_NAME.fullmatch(name):
                raise DataError(f"{folder / INDEX}: {name!r} is not the name of a shard; use another folder")
            if os.path.lexists(path) and not stat.S_ISREG(path.lstat().st_mode):
                raise DataError(f"{path}: a shard must be a regular file, not a link, pipe or device")

    def _load(self, name: str) -> NDArray[Any]:
        path = self.folder / INDEX / f"{name}.npy"
        # A file of no clips is too short to be mapped.
        empty = path.stat().st_size <= NPY_HEADER
        array: NDArray[Any] = np.load(path, mmap_mode=None if empty else "r", allow_pickle=False)
        return array

    def __len__(self) -> int:
        return len(self.shard)

    def text(self, column: str, row: int) -> str:
        """One string."""
        block, ends = self.texts[column]
        return bytes(block[ends[row] : ends[row + 1]]).decode("utf-8")

    def labels(self, row: int) -> tuple[str, ...]:
        """The labels of a clip."""
        return tuple(json.loads(self.text("labels", row)))

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

    def rows(self) -> Iterator[StoredClip]:
        """Everything, as it was written."""
        for row in range(len(self)):
            members = tuple((offset, size, crc) for offset, size, crc in self.members[row].tolist())
            total, squares, count = self.statistics[row].tolist()
            yield StoredClip(self.clip(row), members, (total, squares, count), self.shards[self.shard[row]])


class ShardDataset(Dataset):
    """The clips of one split of a prepared folder (None: of all), by number; safe to share with worker processes.

    Frames are stored whole and given as squares of `size` pixels: scaled so that the short side fits, then the
    middle. Damage is an error that names the shard and the clip.
    """

    def __init__(self, folder: Path, split: Split | None, *, size: int = 224) -> None:
        self.folder, self.split, self.size = folder, split, size
        self.meta = read_meta(folder)
        self.index = PreparedIndex(folder)
        wanted = SPLITS if split is None else (split,)
        self.rows = np.flatnonzero(np.isin(self.index.split, [SPLITS.index(s) for s in wanted]))
        self._files: OrderedDict[int, int] = OrderedDict()
        if not len(self.rows):
            raise DataError(
                f"{folder} holds no clips for {split or 'any use'}; its splits are {self.meta.get('splits')}"
            )

    def __reduce__(self) -> tuple[Any, ...]:
        # Another process maps the index and opens the shards by itself.
        return (_reopened, (self.folder, self.split, self.size))

    def __del__(self) -> None:
        for descriptor in getattr(self, "_files", {}).values():
            os.close(descriptor)

    @property
    def modalities(self) -> tuple[Modality, ...]:  # type: ignore[override]
        """What was prepared: audio, visual or both."""
        return tuple("visual" if name == "video" else str(name) for name in self.meta["modalities"])

    @property
    def frames(self) -> int:  # type: ignore[override]
        """Frames per clip; none where only audio was prepared."""
        return int(self.meta["frames"]) if "visual" in self.modalities else 0

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

    def sample(self, index: int, frame: int) -> Sample:
        """The clip's audio and its frame number `frame`; only that frame is decoded."""
        return self.part(index, frame, self.modalities)

    def part(self, index: int, frame: int, modalities: Sequence[Modality]) -> Sample:
        """Only what is wanted is decoded."""
        inputs = {m: self.waveform(index) if m == AUDIO else self.frame(index, frame) for m in modalities}
        return Sample(self.name(index), inputs)

    def boxes(self, index: int, frame: int) -> Float[Tensor, "boxes 4"]:
        """The publisher's boxes in pixels of the square frame."""
        shares = self.clip(index).boxes
        if not shares:
            return torch.zeros(0, 4)
        height, width = self.frame(index, frame, whole=True).shape[1:]
        return squared(torch.tensor(shares, dtype=torch.float32), height, width, self.size)

    def _row(self, index: int) -> int:
        if not 0 <= index < len(self.rows):
            raise IndexError(f"clip {index} of {len(self.rows)}")
        return int(self.rows[index])

    def _member(self, index: int, member: int) -> bytes:
        row = self._row(index)
        offset, size, checksum = (int(x) for x in self.index.members[row, member])
        if not size:
            raise DataError(f"{self.folder}: clips hold only {' and '.join(self.meta['modalities'])}")
        try:
            content = os.pread(self._file(int(self.index.shard[row])), size, offset)
        except OSError as error:
            raise self._damaged(index, str(error)) from error
        if len(content) != size or zlib.crc32(content) != checksum:
            raise self._damaged(index, "its bytes are not those that were written")
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
        shard = self.folder / SHARDS / self.index.shards[int(self.index.shard[self._row(index)])]
        return DataError(f"{shard}: clip {self.name(index)} is damaged: {reason}; prepare the folder again")


def _reopened(folder: Path, split: Split | None, size: int) -> ShardDataset:
    return ShardDataset(folder, split, size=size)
