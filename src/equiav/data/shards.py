"""Shards: clips in tar files that WebDataset and plain tar open, read here by number through the index."""

from __future__ import annotations

import io
import json
import os
import tarfile
import zlib
from collections import OrderedDict
from pathlib import Path
from typing import Any

import av
import numpy as np
import torch
from av.error import FFmpegError
from jaxtyping import Float, UInt8
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from equiav.data.index import SHARDS, SPLITS, Index, read_meta
from equiav.data.manifest import Split
from equiav.errors import DataError, MediaError
from equiav.media import Limits, read_image
from equiav.types import Sample

JPEG_QUALITY = 90
FLAC_BLOCK = 16384  # samples; the default of 1152 takes twice as long to decode
BLOCK = 512
END = bytes(2 * BLOCK)
STORED = Limits(side=65535, pixels=178_000_000, aspect=65535)  # frames were checked before they were stored
OPEN_SHARDS = 128  # files kept open by one process


def flac(sound: NDArray[np.int16], rate: int) -> bytes:
    """Mono 16-bit sound as a FLAC file: nothing is lost."""
    buffer = io.BytesIO()
    with av.open(buffer, "w", format="flac") as container:
        options = {"frame_size": str(FLAC_BLOCK)}
        stream = container.add_stream("flac", rate=rate, layout="mono", format="s16", options=options)
        frame = av.AudioFrame.from_ndarray(sound[None], format="s16", layout="mono")
        frame.sample_rate, frame.pts = rate, 0
        for packet in [*stream.encode(frame), *stream.encode(None)]:
            container.mux(packet)
    return buffer.getvalue()


def read_flac(content: bytes) -> NDArray[np.int16]:
    """The sound of a FLAC file held in memory."""
    # What the header says is enough: probing would decode the beginning twice.
    options = {"analyzeduration": "0", "probesize": "32"}
    with av.open(io.BytesIO(content), mode="r", format="flac", options=options) as container:
        chunks = [frame.to_ndarray().reshape(-1) for frame in container.decode(audio=0)]
    return np.concatenate(chunks) if chunks else np.zeros(0, np.int16)


def jpeg(picture: NDArray[np.uint8]) -> bytes:
    """A picture (H, W, 3) as JPEG of quality 90."""
    buffer = io.BytesIO()
    Image.fromarray(picture).save(buffer, "JPEG", quality=JPEG_QUALITY)
    return buffer.getvalue()


def tar_member(name: str, content: bytes) -> bytes:
    """One file as it stands in a tar: the same bytes whenever and wherever it is written."""
    info = tarfile.TarInfo(name)
    info.size = len(content)
    info.mode = 0o644
    header = info.tobuf(tarfile.USTAR_FORMAT)
    return header + content + bytes(-len(content) % BLOCK)


class ShardDataset:
    """The clips of one split of a prepared folder (None: of all), by number; safe to share with worker processes.

    Pictures are stored whole and given as squares of `size` pixels: scaled so that the short side fits, then the
    middle. Damage is an error that names the shard and the clip.
    """

    def __init__(self, folder: Path, split: Split | None, *, size: int = 224) -> None:
        self.folder, self.split, self.size = folder, split, size
        self.meta = read_meta(folder)
        self.index = Index(folder)
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
    def frames(self) -> int:
        """Frames per clip; none where only sound was prepared."""
        return int(self.meta["frames"]) if "video" in self.meta["modalities"] else 0

    @property
    def sample_rate(self) -> int:
        """Samples per second."""
        return int(self.meta["sample_rate"])

    def __len__(self) -> int:
        return len(self.rows)

    def name(self, index: int) -> str:
        """The clip's key in its shard."""
        return self.index.text("keys", self._row(index))

    def source(self, index: int) -> str:
        """The name of the file the clip was cut from."""
        return self.index.text("names", self._row(index))

    def labels(self, index: int) -> tuple[str, ...]:
        """What the owner says is in the clip."""
        return self.index.labels(self._row(index))

    def group(self, index: int) -> str:
        """What the clip belongs to: its file, unless the owner said more."""
        return self.index.text("groups", self._row(index))

    def seconds(self, index: int) -> float:
        """How long the clip lasts."""
        return float(self.index.times[self._row(index), 1])

    def info(self, index: int) -> dict[str, Any]:
        """All that was stored about the clip: times of the pictures, boxes, fold and so on."""
        found: dict[str, Any] = json.loads(self._member(index, -1))
        return found

    def sound_file(self, index: int) -> bytes:
        """The clip's sound as the FLAC file it is stored as."""
        return self._member(index, 0)

    def waveform(self, index: int) -> Float[Tensor, " samples"]:
        """The clip's sound in [-1, 1]."""
        content = self._member(index, 0)
        try:
            sound = read_flac(content)
        except (FFmpegError, ValueError, OSError) as error:
            raise self._damaged(index, f"its sound cannot be decoded ({error})") from error
        return torch.from_numpy(sound.astype(np.float32)) / 32768

    def picture(self, index: int, frame: int) -> UInt8[Tensor, "3 size size"]:
        """One picture of a clip, square."""
        return self._image(index, frame, self.size)

    def whole_picture(self, index: int, frame: int) -> UInt8[Tensor, "3 h w"]:
        """One picture as it is stored: all of it, for boxes and for looking at."""
        return self._image(index, frame, None)

    def pictures(self, index: int) -> UInt8[Tensor, "k 3 size size"]:
        """All pictures of a clip, square."""
        return torch.stack([self.picture(index, frame) for frame in range(self.frames)])

    def sample(self, index: int, frame: int) -> Sample:
        """The clip's sound and its frame number `frame`; only that picture is decoded."""
        return Sample(self.name(index), self.waveform(index), self.picture(index, frame))

    def _row(self, index: int) -> int:
        if not 0 <= index < len(self.rows):
            raise IndexError(f"clip {index} of {len(self.rows)}")
        return int(self.rows[index])

    def _image(self, index: int, frame: int, side: int | None) -> Tensor:
        if not 0 <= frame < self.frames:
            raise DataError(f"{self.folder}: frame {frame} of clips that hold {self.frames}")
        content = self._member(index, 1 + frame)
        try:
            image = read_image(content, side=side, upright=False, formats=("JPEG",), limits=STORED)
        except MediaError as error:
            raise self._damaged(index, f"picture {frame} cannot be decoded ({error.reason})") from error
        return torch.from_numpy(image).permute(2, 0, 1).contiguous()

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
            path = self.folder / SHARDS / self.index.text("shards", shard)
            self._files[shard] = os.open(path, os.O_RDONLY | getattr(os, "O_CLOEXEC", 0))
        self._files.move_to_end(shard)
        return self._files[shard]

    def _damaged(self, index: int, reason: str) -> DataError:
        row = self._row(index)
        shard = self.folder / SHARDS / self.index.text("shards", int(self.index.shard[row]))
        return DataError(f"{shard}: clip {self.name(index)} is damaged: {reason}; prepare the folder again")


def _reopened(folder: Path, split: Split | None, size: int) -> ShardDataset:
    return ShardDataset(folder, split, size=size)
