"""Audio files and images that belong together only by class: no clip joins them, a shared label does."""

from __future__ import annotations

import csv
import io
import math
import re
import tarfile
import zlib
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from itertools import product
from lzma import LZMAError
from pathlib import Path, PurePosixPath
from typing import IO, cast

import numpy as np
import torch
from jaxtyping import Int16
from torch import Tensor

from equiav.data.datasets import Dataset, Labels
from equiav.data.shards import MANIFEST
from equiav.errors import DataError
from equiav.media import Limits, read_audio, read_image, square
from equiav.randomness import generator
from equiav.types import AUDIO, SPLITS, VISUAL, Clip, Modality, Sample, Split

KINDS = {AUDIO: "audio", VISUAL: "image"}  # what a manifest calls them
COLUMNS = ("path", "kind", "class", "split", "source")
HELD_OUT_FOLDS = {"ESC-50": 4, "UrbanSound8K": 3}
HELD_OUT_SHARE = 0.1
MOST_BYTES = 512 << 20  # of a file: packed tars may hold what no memory does
EXPANDED = 100  # times its own size, and one such file, that a compressed tar may hold
LIMITS = Limits(seconds=3600.0)  # each recording is decoded whole before its loudest stretch is taken


# How each publisher writes down where a sound was cut from: fold (where there are folds) and recording.
# ESC-50 and UrbanSound8K both cut from Freesound, so its numbers name one recording in either.
_SOURCES = {
    "ESC-50": re.compile(r"ESC-50 fold (?P<fold>\d+) \d+-(?P<recording>\d+)-"),
    "UrbanSound8K": re.compile(r"UrbanSound8K fold(?P<fold>\d+)/(?P<recording>\d+)-"),
    "AudioMNIST": re.compile(r"AudioMNIST data/(?P<recording>\d+)/"),
}


def assign_splits(entries: Iterable[Clip]) -> list[Clip]:
    """Train, validation and test for every line of a manifest, by names alone; None is left out.

    Test: what the manifest says. If it names no test at all: fold 4 of ESC-50, fold 3 of UrbanSound8K, and of what
    has no folds (photos) the tenth with the lowest CRC-32 of the path. A sound outside those folds whose recording
    also lies inside is left out: the two collections share recordings. Validation: of the rest of each class, the
    tenth of its recordings (speakers, photos) with the lowest CRC-32, at least one.
    """
    entries = list(entries)
    published = any(e.split == "test" for e in entries)

    def tested(e: Clip) -> bool:
        held_out = e.metadata["held_out"]
        if published:
            return e.split == "test"
        return zlib.crc32(e.group.encode()) / 2**32 < HELD_OUT_SHARE if held_out is None else bool(held_out)

    tests = {e.id for e in entries if tested(e)}
    recordings = {e.group for e in entries if e.id in tests}
    rest = [e for e in entries if e.group not in recordings]
    validation = {e.group for e in rest if e.split == "validation"}
    if not validation:
        groups: dict[tuple[str, str], set[str]] = defaultdict(set)
        for e in rest:
            groups[e.labels[0], e.metadata["kind"]].add(e.group)
        for members in groups.values():
            ordered = _stable(members)
            validation.update(ordered[: max(round(len(ordered) * HELD_OUT_SHARE), int(len(ordered) > 1))])

    def split(e: Clip) -> Split | None:
        if e.group in recordings:
            return "test" if e.id in tests else None
        return "validation" if e.group in validation else "train"

    return [replace(e, split=split(e)) for e in entries]


def _stable(groups: Iterable[str]) -> list[str]:
    """In an order that depends on nothing but their names, and follows none of their numbering."""
    return sorted(groups, key=lambda g: (zlib.crc32(g.encode()), g))


def thinned(entries: Sequence[Clip], share: float) -> list[Clip]:
    """Of the training split of each class and kind, the first `share` of its recordings (photos), at least one."""
    groups: dict[tuple[str, str], set[str]] = defaultdict(set)
    for e in entries:
        if e.split == "train":
            groups[e.labels[0], e.metadata["kind"]].add(e.group)
    kept = {key: set(_stable(of)[: max(1, round(share * len(of)))]) for key, of in groups.items()}
    return [e for e in entries if e.split != "train" or e.group in kept[e.labels[0], e.metadata["kind"]]]


@contextmanager
def open_files(root: Path) -> Iterator[Callable[[str], bytes]]:
    """A function from a path, as the manifest writes it, to the file's bytes; one folder above all is allowed.

    Of a tar nothing is written to disk.
    """
    files: dict[PurePosixPath, tuple[int, Callable[[], bytes]]]  # how long each is, and how it is read

    def read(path: str) -> bytes:
        place = top / path
        if place not in files:
            what = f"holds no {MANIFEST}" if path == MANIFEST else f"its manifest lists {path}, which is missing"
            raise DataError(f"{root}: {what}")
        size, content = files[place]
        if size > MOST_BYTES:
            raise DataError(f"{root}: {path} is larger than the {MOST_BYTES >> 20} MB that are read")
        return content()

    if root.is_dir():
        found = ((p.relative_to(root), p) for p in root.rglob("*") if p.is_file())
        files = {PurePosixPath(name.as_posix()): (p.stat().st_size, p.read_bytes) for name, p in found}
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
            content = lambda m: cast(IO[bytes], tar.extractfile(m)).read()  # noqa: E731
            files, total, most = {}, 0, EXPANDED * root.stat().st_size + MOST_BYTES
            for m in tar:  # one after another: what a header claims is looked at before it is read
                total += m.size
                if total > most:
                    raise DataError(f"{root}: {root.stat().st_size} bytes that would become {total} or more; not read")
                if m.isfile():
                    files[PurePosixPath(m.name)] = m.size, partial(content, m)
            top = next((path.parent for path in files if path.name == MANIFEST), PurePosixPath())
            yield read
    except (tarfile.TarError, EOFError, OSError, zlib.error, LZMAError) as error:
        # What it says of every compression that it tried takes several lines.
        raise DataError(f"{root}: not a readable tar ({(str(error).splitlines() or [''])[0].rstrip(':')})") from error


def read_manifest(text: bytes, root: Path) -> list[Clip]:
    """The lines of a manifest.csv; `root` names the collection in errors.

    `id` is the path, `group` the recording (or speaker, or photo). The metadata have `kind`, and `held_out`: whether
    the fold is one that is held out, None for what comes in no folds.
    """
    try:
        lines = csv.DictReader(io.StringIO(text.decode("utf-8-sig"), newline=""))
        if absent := [c for c in COLUMNS if c not in (lines.fieldnames or ())]:
            raise DataError(f"{root}: {MANIFEST} lacks the columns {', '.join(absent)}")
        entries = [_of_line(line, root, number) for number, line in enumerate(lines, 2)]
    except UnicodeDecodeError as error:
        raise DataError(f"{root}: {MANIFEST} is not UTF-8 text ({error.reason}); save it as UTF-8") from error
    except csv.Error as error:
        raise DataError(f"{root}: {MANIFEST} is not a table ({error})") from error
    if not entries:
        raise DataError(f"{root}: {MANIFEST} lists nothing")
    return entries


def _of_line(line: dict[str, str], root: Path, number: int) -> Clip:
    if absent := [c for c in COLUMNS if line.get(c) is None]:
        raise DataError(f"{root}: {MANIFEST}, line {number} has no {', '.join(absent)}")
    path, kind, split = line["path"], line["kind"], line["split"]
    if kind not in KINDS.values() or split not in SPLITS:
        allowed = f"kind is one of {', '.join(KINDS.values())}, split one of {', '.join(SPLITS)}"
        got = " ".join(f"{path}: {allowed}; got {kind} and {split}".split())  # a cell may hold several lines
        raise DataError(f"{root}: {MANIFEST}, {got}")
    group, held_out = path, None
    for publisher, pattern in _SOURCES.items():
        if found := pattern.match(line["source"]):
            group = ("speaker " if publisher == "AudioMNIST" else "freesound ") + found["recording"]
            fold = found.groupdict().get("fold")
            held_out = None if fold is None else int(fold) == HELD_OUT_FOLDS[publisher]
    return Clip(path, labels=(line["class"],), split=split, group=group, metadata={"kind": kind, "held_out": held_out})


class Items(Dataset):
    """The audio clips, or the images, of a split each by itself.

    `media` are waveforms of 16-bit numbers or images (3, side, side); `numbers` are their classes.
    """

    def __init__(
        self, modality: Modality, names: Sequence[str], numbers: Sequence[int], media: Sequence[Tensor], classes: Labels
    ) -> None:
        self.modalities, self.classes = (modality,), classes
        self.names, self.numbers, self.media = names, numbers, media

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
    share: float = 1.0,
) -> PairedSet:
    """Reads a tar, or a folder, with manifest.csv and the files it lists; `classes` keeps only those named, `share`
    that much of the training split.

    Audio longer than `seconds` is cut to its loudest stretch of that length (many recordings start with silence);
    random crops are left to augmentation. Images are scaled to `size` on the short side and cut to the middle.
    """
    with open_files(root) as read:
        entries = assign_splits(read_manifest(read(MANIFEST), root))
        known = tuple(sorted({e.labels[0] for e in entries}))
        chosen = known if classes is None else tuple(sorted(set(classes)))
        if unknown := sorted(set(chosen) - set(known)):
            raise DataError(f"{root}: no class {', '.join(unknown)}; it has {', '.join(known)}")
        entries = thinned([e for e in entries if e.labels[0] in chosen], share)

        def media(modality: Modality, path: str) -> Tensor:
            if modality == AUDIO:
                decoded = read_audio(read(path), sample_rate=sample_rate, name=root / path, limits=LIMITS)
                return loudest(torch.from_numpy(decoded), round(seconds * sample_rate), step=sample_rate // 100).clone()
            image = torch.from_numpy(read_image(read(path), upright=False, name=root / path)).permute(2, 0, 1)
            return square(image[None], size)[0]

        items = {}
        for modality, split in product(KINDS, SPLITS):
            of = sorted(
                (e for e in entries if (e.metadata["kind"], e.split) == (KINDS[modality], split)), key=lambda e: e.id
            )
            found = [media(modality, e.id) for e in of]  # first: what is no file at all has no name
            names = [str(PurePosixPath(e.id).with_suffix("")) for e in of]
            numbers = [chosen.index(e.labels[0]) for e in of]
            items[modality, split] = Items(modality, names, numbers, found, chosen)
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
