"""Prepared folders as datasets: clips read by number. `equiav.data.shards` writes them and needs no torch."""

from __future__ import annotations

import json
import os
import zlib
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from av.error import FFmpegError
from jaxtyping import Float, UInt8
from PIL import Image
from torch import Tensor

from equiav.data.datasets import Dataset
from equiav.data.remote import RemoteFolder, cache_bytes, is_address, open_remote, prepared_folder
from equiav.data.shards import CHANGED, SHARDS, PreparedIndex, damaged, read_flac, read_meta
from equiav.errors import DataError, MediaError
from equiav.media import Limits, middle_square, read_image
from equiav.types import AUDIO, SPLITS, VISUAL, Clip, Modality, Sample, Split

OPEN_SHARDS = 128  # files kept open by one process
STORED = Limits(side=65535, pixels=178_000_000, aspect=65535)  # frames were checked before they were stored


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

    def __del__(self, close: Callable[[int], None] = os.close) -> None:  # `os` may be gone when Python ends
        for descriptor in getattr(self, "_files", {}).values():
            close(descriptor)

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

    def shown(self, index: int) -> tuple[UInt8[Tensor, "k 3 size size"], UInt8[np.ndarray, "h w 3"]]:
        """All frames of a clip, square, and the middle one as it is stored; each is decoded once."""
        middle = self.frames // 2
        whole = self.frame(index, middle, whole=True).permute(1, 2, 0).numpy()
        square = torch.from_numpy(np.array(middle_square(Image.fromarray(whole), self.size))).permute(2, 0, 1)
        return torch.stack([square if k == middle else self.frame(index, k) for k in range(self.frames)]), whole

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
