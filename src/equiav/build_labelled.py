"""From a recipe to clips with classes: the splits of a fine-tuning run, and one split for a trained classifier."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from equiav.build_data import build_clips, with_statistics
from equiav.config import ClassifierConfig, Config, FinetuneConfig, PairedConfig, ShardsConfig
from equiav.data import (
    SPLITS,
    Chosen,
    ClipDataset,
    Index,
    LabelledClips,
    Labels,
    ShardDataset,
    Split,
    Targets,
    hold_out,
    label_names,
    read_classes,
    vocabulary,
)
from equiav.errors import ConfigError, DataError
from equiav.models import modalities

Part = tuple[ClipDataset, NDArray[np.int64]]  # a set, and which of its clips


@dataclass(frozen=True)
class LabelledSplits:
    """What a classifier is trained on, chosen on, and judged on once; `test` None: the data have no such split."""

    classes: Labels
    train: LabelledClips
    validation: LabelledClips
    test: LabelledClips | None


def sections(config: Config) -> tuple[ClassifierConfig, FinetuneConfig]:
    """The two sections that only fine-tuning has, or a refusal."""
    if config.classifier is None or config.finetune is None:
        missing = "classifier" if config.classifier is None else "finetune"
        raise ConfigError(f"{missing}: a fine-tuning recipe has this section; see configs/finetune/")
    return config.classifier, config.finetune


def build_splits(config: Config) -> LabelledSplits:
    """All splits of a fine-tuning recipe; a label that is no class is refused before anything is trained."""
    _, finetune = sections(config)
    train = _part(config, "train")
    if finetune.classes_file:
        classes = read_classes(Path(finetune.classes_file))
    else:
        clips, rows = train
        if not _published(config, "validation"):
            rows = np.concatenate([rows, _part(config, "validation")[1]])
        classes = vocabulary(clips if len(rows) == len(clips) else Chosen(clips, tuple(rows.tolist())))
    test = None
    if _published(config, "test"):
        test = _labelled(config, _part(config, "test"), classes)
    splits = LabelledSplits(
        classes, _labelled(config, train, classes), _labelled(config, _part(config, "validation"), classes), test
    )
    _refuse_unlabelled(splits, finetune.loss)
    return splits


def build_labelled(config: Config, split: Split, classes: Labels) -> LabelledClips:
    """One split with the classes of a trained classifier."""
    if config.finetune is None:  # an imported classifier: its recipe says nothing about how it was trained
        config = config.model_copy(update={"finetune": FinetuneConfig(loss="bce", metric="mAP")})
    return _labelled(config, _part(config, split), classes)


def resolve_finetuning(config: Config, splits: LabelledSplits, processes: int) -> tuple[Config, list[str]]:
    """The recipe with what only the data can tell filled in, and what a person should know about it."""
    classifier, _ = sections(config)
    count, notices = len(splits.classes), []
    if classifier.classes not in (None, count):
        raise ConfigError(f"classifier.classes is {classifier.classes}, but the data have {count} classes")
    config = with_statistics(config)
    config = config.model_copy(update={"classifier": classifier.model_copy(update={"classes": count})})
    clips = len(splits.train)
    if config.train.shrink_batch and clips < config.train.batch:
        batch = max(processes, clips // processes * processes)
        config = config.model_copy(update={"train": config.train.model_copy(update={"batch": batch})})
        notices.append(f"{clips} clips for training: the batch shrinks to {batch}")
    if not _published(config, "validation"):
        notices.append(
            f"no validation split: {len(splits.validation)} of {clips + len(splits.validation)} training clips "
            "are held out for it, by source"
        )
    if splits.test is None:
        notices.append("no test split: the chosen weights are judged on validation only")
    return config, notices


def _published(config: Config, split: Split) -> bool:
    """Whether the data themselves have this split, as fine-tuning uses it."""
    data = config.data
    instead = sections(config)[1].test_split == "validation"
    if instead and not isinstance(data, ShardsConfig):
        raise ConfigError("finetune.test_split=validation is for prepared folders (data.kind: shards)")
    match data.kind:
        case "world" | "paired":
            return True
        case "cavmae":
            return split != "test" or data.test is not None
        case "shards":
            if data.fold is not None or (instead and split == "validation"):
                return split != "validation"
            if instead and split == "test":
                split = "validation"
            folder = Path(data.test if split == "test" and data.test else data.path)
            return bool((Index(folder).split == SPLITS.index(split)).any())


def _part(config: Config, split: Split) -> Part:
    """The clips of a split; where the publishers have no validation split, a share of the training part is it."""
    data = config.data
    classifier, finetune = sections(config)
    if isinstance(data, PairedConfig) and classifier.mode != "audiovisual":
        anchor = "sound" if classifier.mode == "audio" else "image"
        config = config.model_copy(update={"data": data.model_copy(update={"anchor": anchor})})
    if isinstance(data, ShardsConfig) and (data.fold is not None or not _published(config, "validation")):
        return _held_out_part(config, data, finetune.validation_share, split)
    clips = build_clips(config, split)
    return clips, np.arange(len(clips))


def _held_out_part(config: Config, data: ShardsConfig, share: float, split: Split) -> Part:
    if data.fold is None and split == "test":
        clips = build_clips(config, sections(config)[1].test_split)
        return clips, np.arange(len(clips))
    whole = ShardDataset(Path(data.path), None if data.fold else "train", size=config.visual.size)
    rows = np.arange(len(whole))
    if data.fold is not None:
        folds = np.array([whole.info(i).get("fold") or 0 for i in range(len(whole))])
        if data.fold not in folds:
            known = ", ".join(map(str, sorted(set(folds.tolist()) - {0}))) or "none"
            raise DataError(f"{data.path}: no fold {data.fold}; its folds are {known}")
        if split == "test":
            return whole, rows[folds == data.fold]
        rows = rows[folds != data.fold]
    held = hold_out([whole.group(int(i)) for i in rows], share)
    return whole, rows[held] if split == "validation" else rows[~held]


def _labelled(config: Config, part: Part, classes: Labels) -> LabelledClips:
    clips, rows = part
    classifier, _ = sections(config)
    wanted = modalities(classifier.mode)
    chosen = Chosen(clips, tuple(rows.tolist()))
    names = [chosen.name(i) for i in range(len(chosen))]
    out = LabelledClips(clips, rows, Targets.of(label_names(chosen), classes, names), wanted)
    if out.frames == 0:
        raise DataError(f"these clips hold no pictures, which classifier.mode={classifier.mode} needs")
    return out


def _refuse_unlabelled(splits: LabelledSplits, loss: str) -> None:
    for clips in (splits.train, splits.validation):
        empty = np.flatnonzero(np.diff(clips.targets.ends, prepend=0) == 0)
        if loss == "ce" and len(empty):
            raise DataError(f"clip {clips.name(int(empty[0]))} has no label, and finetune.loss=ce needs one a clip")
