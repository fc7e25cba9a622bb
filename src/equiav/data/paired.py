"""Sounds and images that belong together only by class: no clip joins them, a shared label does."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Literal, cast

import numpy as np
import torch
from jaxtyping import Float, Int16, Int64, UInt8
from torch import Tensor

from equiav.data.datasets import Dataset
from equiav.data.paired_manifest import KINDS, MANIFEST, SPLITS, Entry, Kind, assign_splits, open_files, read_manifest
from equiav.errors import DataError
from equiav.media import Limits, read_audio, read_image, square
from equiav.randomness import generator
from equiav.types import AUDIO, VISUAL, Clip, Sample, Split

Anchor = Literal["sound", "image"]

LIMITS = Limits(seconds=3600.0)  # each recording is decoded whole before its loudest stretch is taken


@dataclass(frozen=True)
class Sounds:
    """Labelled sounds as 16-bit numbers, each filled up with zeros to the common length."""

    names: tuple[str, ...]
    labels: Int64[Tensor, " n"]
    samples: Int16[Tensor, "n samples"]
    lengths: Int64[Tensor, " n"]

    def waveform(self, index: int) -> Float[Tensor, " length"]:
        """One sound in [-1, 1), without the filling."""
        return self.samples[index, : int(self.lengths[index])].float() / 32768

    def rows(self, start: int, stop: int) -> Sounds:
        """Those from `start` up to `stop`, sharing memory."""
        part = slice(start, stop)
        return Sounds(self.names[part], self.labels[part], self.samples[part], self.lengths[part])


@dataclass(frozen=True)
class Images:
    """Labelled square pictures."""

    names: tuple[str, ...]
    labels: Int64[Tensor, " n"]
    pictures: UInt8[Tensor, "n 3 side side"]

    def rows(self, start: int, stop: int) -> Images:
        """Those from `start` up to `stop`, sharing memory."""
        part = slice(start, stop)
        return Images(self.names[part], self.labels[part], self.pictures[part])


@dataclass(frozen=True)
class PairedSet:
    """A whole collection in memory: every sound and image once, in the order train, validation, test.

    Memory: 2 bytes a sample and 3 a pixel, so 32 kB per second of sound and 12 kB per picture of 64 x 64.
    """

    classes: tuple[str, ...]
    all_sounds: Sounds
    all_images: Images
    counts: dict[tuple[Kind, Split], int]
    left_out: int  # sounds of no split: another clip of their recording is in the test split

    def sounds(self, split: Split) -> Sounds:
        """The sounds of one split, for class-level retrieval and statistics."""
        return self.all_sounds.rows(*self._range("audio", split))

    def images(self, split: Split) -> Images:
        """The images of one split."""
        return self.all_images.rows(*self._range("image", split))

    def _range(self, kind: Kind, split: Split) -> tuple[int, int]:
        start = sum(self.counts[kind, s] for s in SPLITS[: SPLITS.index(split)])
        return start, start + self.counts[kind, split]

    @property
    def nbytes(self) -> int:
        """Memory taken by samples and pixels."""
        return self.all_sounds.samples.nbytes + self.all_images.pictures.nbytes

    def line(self) -> str:
        """What was read, in one line."""
        parts = [f"{s} {self.counts['audio', s]}+{self.counts['image', s]}" for s in SPLITS]
        return (
            f"{len(self.all_sounds.names)} sounds + {len(self.all_images.names)} images of {len(self.classes)} classes:"
            f" {', '.join(parts)}; {self.left_out} sounds left out; {self.nbytes / 2**20:.0f} MB"
        )


def read_paired(
    root: Path,
    *,
    size: int = 64,
    seconds: float = 5.0,
    sample_rate: int = 16000,
    classes: Sequence[str] | None = None,
) -> PairedSet:
    """Reads a tar, or a folder, with manifest.csv and the files it lists; `classes` keeps only those named.

    Sounds longer than `seconds` are cut to their loudest stretch of that length (many start with silence);
    random crops are left to augmentation. Images are scaled to `size` on the short side and cut to the middle.
    """
    with open_files(root) as read:
        entries = assign_splits(read_manifest(read(MANIFEST), root))
        known = tuple(sorted({e.label for e in entries}))
        chosen = known if classes is None else tuple(sorted(set(classes)))
        if unknown := sorted(set(chosen) - set(known)):
            raise DataError(f"{root}: no class {', '.join(unknown)}; it has {', '.join(known)}")
        entries = [e for e in entries if e.label in chosen]
        kept = sorted((e for e in entries if e.split), key=lambda e: (SPLITS.index(cast(Split, e.split)), e.path))
        sounds = [e for e in kept if e.kind == "audio"]
        images = [e for e in kept if e.kind == "image"]
        counted = Counter((e.kind, e.split) for e in kept)
        return PairedSet(
            classes=chosen,
            all_sounds=_load_sounds(sounds, chosen, read, root, round(seconds * sample_rate), sample_rate),
            all_images=_load_images(images, chosen, read, root, size),
            counts={(kind, split): counted[kind, split] for kind in KINDS for split in SPLITS},
            left_out=len(entries) - len(kept),
        )


def _labels(entries: Sequence[Entry], classes: tuple[str, ...]) -> Tensor:
    numbers = {label: number for number, label in enumerate(classes)}
    return torch.tensor([numbers[e.label] for e in entries], dtype=torch.int64)


def _names(entries: Sequence[Entry]) -> tuple[str, ...]:
    return tuple(str(PurePosixPath(e.path).with_suffix("")) for e in entries)


def _load_sounds(
    entries: Sequence[Entry],
    classes: tuple[str, ...],
    read: Callable[[str], bytes],
    root: Path,
    length: int,
    sample_rate: int,
) -> Sounds:
    samples = torch.zeros(len(entries), length, dtype=torch.int16)
    lengths = torch.zeros(len(entries), dtype=torch.int64)
    for row, e in enumerate(entries):
        decoded = read_audio(read(e.path), sample_rate=sample_rate, name=root / e.path, limits=LIMITS)
        sound = loudest(torch.from_numpy(decoded), length, step=sample_rate // 100)
        samples[row, : len(sound)] = sound
        lengths[row] = len(sound)
    return Sounds(_names(entries), _labels(entries, classes), samples, lengths)


def _load_images(
    entries: Sequence[Entry], classes: tuple[str, ...], read: Callable[[str], bytes], root: Path, size: int
) -> Images:
    pictures = torch.zeros(len(entries), 3, size, size, dtype=torch.uint8)
    for row, e in enumerate(entries):
        image = torch.from_numpy(read_image(read(e.path), upright=False, name=root / e.path)).permute(2, 0, 1)
        pictures[row] = square(image[None], size)[0]
    return Images(_names(entries), _labels(entries, classes), pictures)


def loudest(sound: Int16[Tensor, " n"], length: int, *, step: int = 160) -> Int16[Tensor, " m"]:
    """The stretch of `length` samples with the most energy, of those starting at multiples of `step`; ties: first."""
    if len(sound) <= length:
        return sound
    starts = np.arange(0, len(sound) - length + 1, step)
    edges = np.unique(np.concatenate([starts, starts + length]))
    # Energy up to each edge, in whole numbers: exact, and 4 bytes a sample, for recordings may be long.
    squares = np.square(sound.numpy()[: edges[-1]], dtype=np.int32)
    energy = np.concatenate([[0], np.add.reduceat(squares, edges[:-1], dtype=np.int64).cumsum()])
    of_stretch = energy[np.searchsorted(edges, starts + length)] - energy[np.searchsorted(edges, starts)]
    start = int(starts[of_stretch.argmax()])
    return sound[start : start + length]


class Items(Dataset):
    """The audio clips, or the images, of a split each by itself."""

    def __init__(self, items: Sounds | Images, classes: tuple[str, ...]) -> None:
        self.items, self.classes = items, classes
        self.modalities = (AUDIO,) if isinstance(items, Sounds) else (VISUAL,)

    def __len__(self) -> int:
        return len(self.items.names)

    def clip(self, index: int) -> Clip:
        """Its name and class."""
        name = self.items.names[index]
        assert self.classes is not None
        return Clip(name, name, labels=(self.classes[int(self.items.labels[index])],), group=name)

    def sample(self, index: int, frame: int) -> Sample:
        """The waveform, or the image."""
        items = self.items
        if isinstance(items, Sounds):
            return Sample(items.names[index], {AUDIO: items.waveform(index)})
        return Sample(items.names[index], {VISUAL: items.pictures[index]})


@dataclass(frozen=True)
class PairedDataset(Dataset):
    """Clips put together by class: each item is one sound (or image, as `anchor` says) of a split.

    Its "frames" are `partners` images (sounds) of the same class and split, drawn once by (seed, index): frame k is
    the k-th partner. The loader draws the frame anew by (seed, step), so an item meets another partner each epoch;
    evaluation, which takes the middle frame, always sees the same one.

    Such pairing is supervision: it uses the labels. Nothing tells one dog's bark from another's picture, so
    same-class rows of a batch are negatives that cannot be told apart, and the inter-modal loss cannot fall below
    `loss_floor` except by learning pairs by heart. For the same reason retrieval is only meaningful by class.
    """

    source: PairedSet
    split: Split = "train"
    anchor: Anchor = "sound"
    partners: int = 10
    seed: int = 0
    sounds: Sounds = field(init=False, repr=False, compare=False)
    images: Images = field(init=False, repr=False, compare=False)
    _pools: dict[int, list[int]] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if self.partners < 1:
            raise DataError(f"an item needs at least one partner, got partners={self.partners}")
        object.__setattr__(self, "sounds", self.source.sounds(self.split))
        object.__setattr__(self, "images", self.source.images(self.split))
        pools: dict[int, list[int]] = defaultdict(list)
        for row, label in enumerate(self._sides()[1].labels.tolist()):
            pools[label].append(row)
        object.__setattr__(self, "_pools", dict(pools))
        alone = sorted({self.source.classes[i] for i in self._sides()[0].labels.tolist() if i not in pools})
        if alone:
            other = "image" if self.anchor == "sound" else "sound"
            raise DataError(f"split {self.split}: {', '.join(alone)} has a {self.anchor} but no {other} to go with it")

    def _sides(self) -> tuple[Sounds | Images, Sounds | Images]:
        """The items, and what their partners are drawn from."""
        return (self.sounds, self.images) if self.anchor == "sound" else (self.images, self.sounds)

    one_to_one = False

    @property
    def frames(self) -> int:  # type: ignore[override]
        """How many partners an item has to choose from."""
        return self.partners

    @property
    def classes(self) -> tuple[str, ...]:  # type: ignore[override]
        """The names of the classes; labels are places in it."""
        return self.source.classes

    def __len__(self) -> int:
        return len(self._sides()[0].names)

    def clip(self, index: int) -> Clip:
        """The item's path in its collection, without suffix, and its class."""
        name = self._sides()[0].names[index]
        return Clip(name, name, labels=(self.classes[self.label(index)],), group=name, split=self.split)

    def sides(self) -> dict[str, Dataset]:
        """All audio clips, and all images, of the split: no pair is a truth to look for."""
        return {AUDIO: Items(self.sounds, self.classes), VISUAL: Items(self.images, self.classes)}

    def label(self, index: int) -> int:
        """The item's class."""
        return int(self._sides()[0].labels[index])

    def partner(self, index: int, frame: int) -> int:
        """Row of the item's partner number `frame`: all differ while the class has that many."""
        pool = self._pools[self.label(index)]
        order = torch.randperm(len(pool), generator=generator(self.seed, index, "partner"))
        return pool[int(order[frame % len(pool)])]

    def sample(self, index: int, frame: int) -> Sample:
        """The item with its partner number `frame`."""
        other = self.partner(index, frame)
        sound, image = (index, other) if self.anchor == "sound" else (other, index)
        name = self._sides()[0].names[index]
        return Sample(name, {AUDIO: self.sounds.waveform(sound), VISUAL: self.images.pictures[image]})

    def loss_floor(self, batch: int) -> float:
        """Mean of log(rows of the anchor's class) over batches: InfoNCE of a model that knows the class and no more."""
        total = len(self)
        if batch > total:
            raise DataError(f"split {self.split}: {total} items are fewer than a batch of {batch}")
        ways = math.comb(total - 1, batch - 1)
        floor = 0.0
        for size in Counter(self._sides()[0].labels.tolist()).values():
            chances = (math.comb(size - 1, k) * math.comb(total - size, batch - 1 - k) / ways for k in range(batch))
            floor += size / total * sum(chance * math.log(1 + k) for k, chance in enumerate(chances))
        return floor
