"""Audio files and images that belong together only by class: no clip joins them, a shared label does."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

import numpy as np
import torch
from jaxtyping import Int16
from torch import Tensor

from equiav.data.datasets import Dataset, Labels
from equiav.data.paired_manifest import MANIFEST, assign_splits, open_files, read_manifest
from equiav.errors import DataError
from equiav.media import Limits, read_audio, read_image, square
from equiav.randomness import generator
from equiav.types import AUDIO, SPLITS, VISUAL, Clip, Modality, Sample, Split

KINDS = {AUDIO: "audio", VISUAL: "image"}  # what a manifest calls them
LIMITS = Limits(seconds=3600.0)  # each recording is decoded whole before its loudest stretch is taken


class Items(Dataset):
    """The audio clips, or the images, of a split each by itself.

    `media` are waveforms of 16-bit numbers or images (3, side, side); `numbers` are their classes.
    """

    def __init__(
        self, modality: Modality, names: Sequence[str], numbers: Sequence[int], media: Sequence[Tensor], classes: Labels
    ) -> None:
        self.modalities, self.names, self.numbers, self.media, self.classes = (
            (modality,),
            names,
            numbers,
            media,
            classes,
        )

    def __len__(self) -> int:
        return len(self.names)

    def clip(self, index: int) -> Clip:
        """Its path in the collection, without suffix, and its class."""
        name = self.names[index]
        assert self.classes is not None
        return Clip(name, name, labels=(self.classes[self.numbers[index]],), group=name)

    def sample(self, index: int, frame: int) -> Sample:
        """The waveform, or the image."""
        x, modality = self.media[index], self.modalities[0]
        return Sample(self.names[index], {modality: x.float() / 32768 if modality == AUDIO else x})


@dataclass(frozen=True)
class PairedSet:
    """A whole collection in memory, by modality and split: 32 kB a second of audio, 12 kB an image of 64 x 64."""

    classes: Labels
    items: Mapping[tuple[Modality, Split], Items]
    left_out: int  # audio files of no split: another clip of their recording is in the test split


def read_paired(
    root: Path,
    *,
    size: int = 64,
    seconds: float = 5.0,
    sample_rate: int = 16000,
    classes: Sequence[str] | None = None,
) -> PairedSet:
    """Reads a tar, or a folder, with manifest.csv and the files it lists; `classes` keeps only those named.

    Audio longer than `seconds` is cut to its loudest stretch of that length (many recordings start with silence);
    random crops are left to augmentation. Images are scaled to `size` on the short side and cut to the middle.
    """
    with open_files(root) as read:
        entries = assign_splits(read_manifest(read(MANIFEST), root))
        known = tuple(sorted({e.label for e in entries}))
        chosen = known if classes is None else tuple(sorted(set(classes)))
        if unknown := sorted(set(chosen) - set(known)):
            raise DataError(f"{root}: no class {', '.join(unknown)}; it has {', '.join(known)}")
        entries = [e for e in entries if e.label in chosen]

        def media(modality: Modality, path: str) -> Tensor:
            if modality == AUDIO:
                decoded = read_audio(read(path), sample_rate=sample_rate, name=root / path, limits=LIMITS)
                audio = torch.from_numpy(decoded)
                return loudest(audio, round(seconds * sample_rate), step=sample_rate // 100).clone()
            image = torch.from_numpy(read_image(read(path), upright=False, name=root / path)).permute(2, 0, 1)
            return square(image[None], size)[0]

        items = {}
        for modality, kind in KINDS.items():
            for split in SPLITS:
                of = sorted((e for e in entries if (e.kind, e.split) == (kind, split)), key=lambda e: e.path)
                names = [str(PurePosixPath(e.path).with_suffix("")) for e in of]
                numbers = [chosen.index(e.label) for e in of]
                items[modality, split] = Items(modality, names, numbers, [media(modality, e.path) for e in of], chosen)
    return PairedSet(chosen, items, sum(e.split is None for e in entries))


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


class PairedDataset(Dataset):
    """Clips put together by class: each is one item of a split, audio or image as `anchor` says.

    Its "frames" are `partners` items of the other modality, of the same class and split, drawn once by (seed, index):
    frame k is the k-th partner. The loader draws the frame anew by (seed, step), so an item meets another partner each
    epoch; evaluation, which takes the middle frame, always sees the same one.

    Such pairing is supervision: it uses the labels. Nothing tells one dog's bark from another's photo, so same-class
    rows of a batch are negatives that cannot be told apart, and the inter-modal loss cannot fall below `loss_floor`
    except by learning pairs by heart. For the same reason retrieval is only meaningful by class.
    """

    one_to_one = False

    def __init__(
        self, source: PairedSet, split: Split = "train", anchor: Modality = AUDIO, partners: int = 10, seed: int = 0
    ) -> None:
        if partners < 1:
            raise DataError(f"an item needs at least one partner, got partners={partners}")
        self.source, self.split, self.frames, self.seed = source, split, partners, seed
        self.classes = source.classes
        self.items = source.items[anchor, split]
        self.others = source.items[VISUAL if anchor == AUDIO else AUDIO, split]
        self._pools: dict[int, list[int]] = {}
        for row, number in enumerate(self.others.numbers):
            self._pools.setdefault(number, []).append(row)
        if alone := sorted({source.classes[n] for n in self.items.numbers if n not in self._pools}):
            kinds = [KINDS[of.modalities[0]] for of in (self.items, self.others)]
            raise DataError(f"split {split}: {', '.join(alone)} has {kinds[0]} but no {kinds[1]} to go with it")

    def __len__(self) -> int:
        return len(self.items)

    def clip(self, index: int) -> Clip:
        """That of the item."""
        return self.items.clip(index)

    def sides(self) -> dict[Modality, Dataset]:
        """All audio clips, and all images, of the split: no pair is a truth to look for."""
        return {m: self.source.items[m, self.split] for m in (AUDIO, VISUAL)}

    def partner(self, index: int, frame: int) -> int:
        """Row of the item's partner number `frame`: all differ while the class has that many."""
        pool = self._pools[self.items.numbers[index]]
        order = torch.randperm(len(pool), generator=generator(self.seed, index, "partner"))
        return pool[int(order[frame % len(pool)])]

    def sample(self, index: int, frame: int) -> Sample:
        """The item with its partner number `frame`."""
        item, partner = self.items.sample(index, 0), self.others.sample(self.partner(index, frame), 0)
        inputs = {**item.inputs, **partner.inputs}
        return Sample(item.id, {m: inputs[m] for m in (AUDIO, VISUAL)})

    def loss_floor(self, batch: int) -> float:
        """Mean of log(rows of the anchor's class) over batches: InfoNCE of a model that knows the class and no more."""
        total = len(self)
        if batch > total:
            raise DataError(f"split {self.split}: {total} items are fewer than a batch of {batch}")
        ways = math.comb(total - 1, batch - 1)
        floor = 0.0
        for size in Counter(self.items.numbers).values():
            chances = (math.comb(size - 1, k) * math.comb(total - size, batch - 1 - k) / ways for k in range(batch))
            floor += size / total * sum(chance * math.log(1 + k) for k, chance in enumerate(chances))
        return floor
