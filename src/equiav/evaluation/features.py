"""Frozen features of labelled data, split by split: what a probe or neighbours are asked about."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from equiav.build_data import build_clips, present_splits
from equiav.config import Config
from equiav.data import (
    Chosen,
    ClipDataset,
    Images,
    LabelledClips,
    Labels,
    PairedDataset,
    ShardDataset,
    Sounds,
    Split,
    Targets,
    evaluation_batches,
    evenly_spaced,
    hold_out,
    label_names,
    multi_hot,
    vocabulary,
)
from equiav.errors import DataError
from equiav.evaluation.embed import (
    Reader,
    Say,
    counted,
    device_of,
    half_or_both,
    item_batches,
    read_tokens,
    silent,
)
from equiav.inference import LoadedModel
from equiav.media import Inputs
from equiav.models import Tokens, mean_pool
from equiav.types import Modality

SPLITS: tuple[Split, ...] = ("train", "validation", "test")
HELD_OUT = 0.1
BOTH = "audiovisual"
BATCH = 64
Part = tuple[ClipDataset, tuple[int, ...]]  # a set, and which of its clips


@dataclass(frozen=True)
class View:
    """One modality, or both, of a split: pooled tokens, embeddings in the shared space, and what is true."""

    pooled: Float[Tensor, "n width"]
    shared: Float[Tensor, "n d"]
    targets: Float[Tensor, "n classes"]

    def __len__(self) -> int:
        return len(self.targets)


@dataclass(frozen=True)
class Apart:
    """Sounds and images that only classes join: each is asked about by itself."""

    sounds: Sounds
    images: Images


@dataclass(frozen=True)
class LabelledSplit:
    """What of a split takes part, with its targets."""

    items: LabelledClips | Apart
    targets: dict[Modality, Tensor]  # of the modalities there are, (N, classes)
    of: int  # clips with labels in the whole split

    @property
    def joined(self) -> bool:
        """Whether sound and picture of a row belong together."""
        return isinstance(self.items, LabelledClips) and len(self.targets) == len(Modality)


@dataclass(frozen=True)
class LabelledData:
    """Everything a probe needs to know about its data."""

    classes: Labels
    splits: dict[Split, LabelledSplit]
    validation: str  # where the validation part comes from

    @property
    def single(self) -> bool:
        """Whether everything has exactly one class, so that accuracy and confusions are defined."""
        return all(bool((t.sum(dim=1) == 1).all()) for s in self.splits.values() for t in s.targets.values())


def labelled_data(config: Config, *, limit: int | None = None) -> LabelledData:
    """The labelled clips of all splits, of each at most `limit`, evenly spaced; refuses what no probe could learn."""
    sets, validation = _splits(config)
    train = sets["train"]
    classes = vocabulary(Chosen(*train) if len(train[1]) < len(train[0]) else train[0])
    splits = {name: _labelled(part, classes, name, limit) for name, part in sets.items()}
    for m, known in splits["train"].targets.items():
        for name in SPLITS[1:]:
            unknown = (splits[name].targets[m].any(dim=0) & ~known.any(dim=0)).nonzero()[:, 0].tolist()
            if unknown:
                some = ", ".join(classes[c] for c in unknown[:5])
                raise DataError(
                    f"{len(unknown)} labels of the {name} split do not occur among the {len(known)} training "
                    f"{'sounds' if m is Modality.AUDIO else 'pictures'} used: {some}; raise --limit or relabel"
                )
    return LabelledData(classes, splits, validation)


def _splits(config: Config) -> tuple[dict[Split, Part], str]:
    """The three splits; without a validation or test split, a tenth of the training sources stands in."""
    there = present_splits(config)
    if there == set(SPLITS):
        return {name: _whole(build_clips(config, name)) for name in SPLITS}, "its own split"
    if not there & {"validation", "test"}:
        raise DataError("there are only training clips; a probe needs a validation or test split to be judged on")
    train = build_clips(config, "train")
    test = build_clips(config, "test" if "test" in there else "validation")
    groups = [train.group(i) if isinstance(train, ShardDataset) else train.name(i) for i in range(len(train))]
    held = hold_out(groups, HELD_OUT)
    rest, kept = ((train, tuple(np.flatnonzero(which).tolist())) for which in (~held, held))
    said = "a tenth of the training sources" + ("" if "test" in there else "; the validation split is the test")
    return {"train": rest, "validation": kept, "test": _whole(test)}, said


def _whole(clips: ClipDataset) -> Part:
    return clips, tuple(range(len(clips)))


def _labelled(part: Part, classes: Labels, name: str, limit: int | None) -> LabelledSplit:
    clips, rows = part
    if isinstance(clips, PairedDataset):
        few = _fewer(clips, limit)
        sides = {Modality.AUDIO: few.sounds.labels, Modality.VISUAL: few.images.labels}
        targets = {m: F.one_hot(y, len(classes)).float() for m, y in sides.items()}
        return LabelledSplit(few, targets, len(clips.sounds.names))
    labels = dict(zip(rows, label_names(Chosen(clips, rows)), strict=True))
    known = [i for i in rows if labels[i]]
    if not known:
        raise DataError(f"no clip of the {name} split has a label; prepare the data from a list that gives some")
    used = thin(known, limit)
    chosen = [labels[i] for i in used]
    if strange := sorted({label for of_clip in chosen for label in of_clip} - set(classes)):
        raise DataError(f"{len(strange)} labels of the {name} split do not occur in training: {', '.join(strange[:5])}")
    held = held_modalities(clips)
    numbers = Targets.of(chosen, classes, [clips.name(i) for i in used])
    items = LabelledClips(clips, np.array(used, np.int64), numbers, held)
    return LabelledSplit(items, dict.fromkeys(held, multi_hot(chosen, classes)), len(known))


def thin(rows: Sequence[int], limit: int | None) -> list[int]:
    """At most `limit` of the rows, evenly spaced."""
    if limit is None or limit >= len(rows):
        return list(rows)
    return [rows[i] for i in evenly_spaced(len(rows), limit)]


def _fewer(clips: PairedDataset, limit: int | None) -> Apart:
    sounds, images = clips.sounds, clips.images
    a, v = (thin(range(len(x.names)), limit) for x in (sounds, images))
    return Apart(
        Sounds(tuple(sounds.names[i] for i in a), sounds.labels[a], sounds.samples[a], sounds.lengths[a]),
        Images(tuple(images.names[i] for i in v), images.labels[v], images.pictures[v]),
    )


def held_modalities(clips: ClipDataset) -> tuple[Modality, ...]:
    """What the clips hold: sound, picture or both."""
    if isinstance(clips, ShardDataset):
        words = {Modality.AUDIO: "audio", Modality.VISUAL: "video"}
        return tuple(m for m, word in words.items() if word in clips.meta["modalities"])
    return tuple(Modality)


def frozen_features(loaded: LoadedModel, split: LabelledSplit, inputs: Inputs, say: Say = silent) -> dict[str, View]:
    """The views of a split: audio, visual, and both side by side where sound and picture belong together."""
    device = device_of(loaded.model)
    batches: Iterable[dict[Modality, Tensor]]
    if isinstance(split.items, Apart):
        batches = item_batches(split.items.sounds, split.items.images, inputs, device, BATCH)
    else:
        read = counted(evaluation_batches(split.items, batch=BATCH), -(-len(split.items) // BATCH), "encoding", say)
        batches = (half_or_both(part.to(device), inputs, split.targets) for part in read)
    parts = read_tokens(loaded.model, batches, _reader(loaded))
    views = {}
    for m, kept in parts.items():
        pooled, shared = (torch.cat(rows).clone() for rows in kept)  # clones are ordinary tensors: probes learn on them
        views[m.value] = View(pooled, F.normalize(shared, dim=1), split.targets[m])
    if split.joined:
        sides = [views[m.value] for m in Modality]
        pooled, shared = (torch.cat(x, dim=1) for x in ([s.pooled for s in sides], [s.shared for s in sides]))
        views[BOTH] = View(pooled, shared, sides[0].targets)
    return views


def _reader(loaded: LoadedModel) -> Reader:
    representation = loaded.config.objective.representation

    def read(m: Modality, h: Tokens) -> list[Tensor]:
        return [mean_pool(h), loaded.model[m].embed_tokens(h, loaded.banks[m], representation)]

    return read
