"""What is said to be in a clip, wherever the clips come from: names, the list of classes, targets."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from jaxtyping import Float
from torch import Tensor

from equiav.data.cavmae import CavMaeDataset
from equiav.data.dataset import Chosen, ClipDataset, WorldDataset
from equiav.data.paired import PairedDataset
from equiav.data.shards import ShardDataset
from equiav.data.synthetic import KINDS
from equiav.errors import DataError

Labels = tuple[str, ...]


def label_names(clips: ClipDataset) -> list[Labels]:
    """The labels of every clip: kinds that sound (world), the owner's (shards, data files), the class (paired)."""
    return list(map(_labels_of(clips), range(len(clips))))


def _labels_of(clips: ClipDataset) -> Callable[[int], Labels]:
    match clips:
        case WorldDataset():
            return lambda i: tuple(clips.scene(i).labels)
        case ShardDataset() | CavMaeDataset():
            return clips.labels
        case PairedDataset():
            return lambda i: (clips.classes[clips.label(i)],)
        case Chosen():
            whole = _labels_of(clips.clips)
            return lambda i: whole(clips.rows[i])
        case _:
            raise DataError(f"clips of {type(clips).__name__} have no labels")


def vocabulary(clips: ClipDataset) -> Labels:
    """The classes there are, in the order of their numbers: all that exist (world, paired), else those that occur."""
    match clips:
        case WorldDataset():
            return tuple(KINDS[: clips.world.difficulty.kinds])
        case PairedDataset():
            return clips.classes
        case _:
            found = tuple(sorted({label for labels in label_names(clips) for label in labels}))
    if not found:
        raise DataError("these clips have no labels; prepare them from a list that gives some")
    return found


def multi_hot(labels: Sequence[Labels], classes: Sequence[str]) -> Float[Tensor, "n classes"]:
    """One row per clip, 1 where it has the class; a label that is no class is refused by name."""
    numbers = {label: number for number, label in enumerate(classes)}
    targets = torch.zeros(len(labels), len(classes))
    for row, of_clip in enumerate(labels):
        for label in of_clip:
            if label not in numbers:
                raise DataError(f"clip {row} has the label {label}, which is none of the {len(classes)} classes")
            targets[row, numbers[label]] = 1
    return targets


def one_each(labels: Sequence[Labels]) -> bool:
    """Whether every clip has exactly one label, so that accuracy and confusions are defined."""
    return all(len(of_clip) == 1 for of_clip in labels)
