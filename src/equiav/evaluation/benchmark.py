"""Retrieval on any set of clips: by instance where a sound belongs to one picture, by class where only classes pair."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, pstdev
from typing import Any

import torch
from torch import Tensor

from equiav.build import build_bank, build_inputs
from equiav.config import Config
from equiav.data import ClipDataset, PairedDataset, label_names, multi_hot
from equiav.errors import DataError
from equiav.evaluation.embed import Banks, Say, device_of, embed_with_banks, embedder, item_batches, read_tokens, silent
from equiav.evaluation.retrieval import class_retrieval, retrieve
from equiav.inference import LoadedModel
from equiav.media import Inputs
from equiav.models import EquiAV, Representation
from equiav.types import Embeddings, Modality

Record = dict[str, dict[str, float]]
Spread = dict[str, dict[str, dict[str, float]]]

WAYS = ("audio_to_video", "video_to_audio")
SIZES = ("pool", "queries", "gallery", "chance")  # of a record: what no bank can change


@dataclass(frozen=True)
class Sides:
    """Embedded sounds and pictures; row i of both is one clip, unless the set pairs only by class."""

    audio: Tensor  # (N, D)
    visual: Tensor  # (M, D)


@dataclass(frozen=True)
class RetrievalRun:
    """What was found: embeddings and figures on the stored bank, and the figures' spread over it and further ones."""

    sides: Sides
    figures: Record
    by_class: Record  # of clips with labels, beside the figures by instance; else empty
    spread: Spread  # empty without further banks
    seeds: tuple[int, ...]  # of the further banks


def retrieval_record(
    model: EquiAV,
    clips: ClipDataset,
    inputs: Inputs,
    banks: Banks,
    representation: Representation,
    *,
    all_frames: bool = False,
) -> Record:
    """Both directions from the same embeddings, as written to logs and results files."""
    return figures(clips, embed_sides(model, clips, inputs, [banks], representation, all_frames=all_frames)[0])


def embed_sides(
    model: EquiAV,
    clips: ClipDataset,
    inputs: Inputs,
    banks: Sequence[Banks],
    representation: Representation,
    *,
    all_frames: bool = False,
    say: Say = silent,
) -> list[Sides]:
    """Sounds and pictures on each bank, every one encoded once; of a set paired by class, all that the split holds."""
    if isinstance(clips, PairedDataset):
        if all_frames:
            raise DataError("images paired by class have no frames; leave --all-frames out")
        batches = item_batches(clips.sounds, clips.images, inputs, device_of(model))
        parts = read_tokens(model, batches, embedder(model, banks, representation))
        audio, visual = ([torch.cat(rows) for rows in parts[m]] for m in Modality)
        return [Sides(a, v) for a, v in zip(audio, visual, strict=True)]
    found = embed_with_banks(model, clips, inputs, banks, representation, all_frames=all_frames, say=say)
    return [Sides(e.audio, e.visual) for e in found]


def figures(clips: ClipDataset, sides: Sides) -> Record:
    """R@k and median rank of each clip's own partner, or precision and mAP where only classes pair."""
    if isinstance(clips, PairedDataset):
        return _both_ways(sides, clips.sounds.labels, clips.images.labels)
    names = tuple(clips.name(i) for i in range(len(clips)))
    return retrieve(Embeddings(names, sides.audio, sides.visual)).record()


def class_figures(clips: ClipDataset, sides: Sides) -> Record:
    """Precision and mAP by class of clips that have labels, a clip's own partner included; empty without labels.

    Found is what shares at least one label with the query; clips without any stand aside.
    """
    if isinstance(clips, PairedDataset):
        return {}
    labels = label_names(clips)
    rows = [i for i, of_clip in enumerate(labels) if of_clip]
    if not rows:
        return {}
    classes = sorted({label for of_clip in labels for label in of_clip})
    targets = multi_hot([labels[i] for i in rows], classes)
    return _both_ways(Sides(sides.audio[rows], sides.visual[rows]), targets, targets)


def _both_ways(sides: Sides, audio_classes: Tensor, visual_classes: Tensor) -> Record:
    a, v = (sides.audio, audio_classes), (sides.visual, visual_classes)
    return {WAYS[0]: class_retrieval(*a, *v).record(), WAYS[1]: class_retrieval(*v, *a).record()}


def further_banks(config: Config, count: int) -> tuple[list[Banks], tuple[int, ...]]:
    """Banks like the stored one from the seeds that follow its own, and those seeds."""
    seeds = tuple(config.bank.seed + 1 + i for i in range(count))
    drawn = [config.model_copy(update={"bank": config.bank.model_copy(update={"seed": s})}) for s in seeds]
    return [{m: build_bank(c, m) for m in Modality} for c in drawn], seeds


def spread(records: Sequence[Record]) -> Spread:
    """Mean, standard deviation, least and greatest of every figure over records of the same set."""
    return {
        way: {
            name: {"mean": fmean(values), "std": pstdev(values), "min": min(values), "max": max(values)}
            for name in first
            if name not in SIZES
            for values in [[r[way][name] for r in records]]
        }
        for way, first in records[0].items()
    }


def evaluate_retrieval(
    loaded: LoadedModel,
    config: Config,
    clips: ClipDataset,
    *,
    banks: int = 0,
    all_frames: bool = False,
    say: Say = silent,
) -> RetrievalRun:
    """Both directions on the stored bank, and how much `banks` further ones would change them.

    `config` is the model's recipe, perhaps with its data elsewhere. A model that contrasts pooled tokens uses no
    bank, so none is drawn for it.
    """
    representation = config.objective.representation
    others, seeds = further_banks(config, banks if representation == "centroid" else 0)
    found = embed_sides(
        loaded.model, clips, build_inputs(config.audio), [loaded.banks, *others], representation,
        all_frames=all_frames, say=say,
    )  # fmt: skip
    records = [figures(clips, sides) for sides in found]
    return RetrievalRun(found[0], records[0], class_figures(clips, found[0]), spread(records) if others else {}, seeds)


def run_record(run: RetrievalRun) -> dict[str, Any]:
    """What results.json holds of it."""
    return {
        "retrieval": run.figures,
        "by_class": run.by_class,
        "spread_over_banks": run.spread,
        "further_bank_seeds": list(run.seeds),
    }


def retrieval_lines(run: RetrievalRun) -> list[str]:
    """The figures for a terminal, with their range over the banks."""

    def said(way: str, name: str, value: float | int) -> str:
        if name in ("pool", "queries", "gallery"):
            return f"{name} {value}"
        over = run.spread.get(way, {}).get(name)
        return f"{name} {value:.1f}" + (f" ({over['min']:.1f} to {over['max']:.1f})" if over else "")

    lines = [f"{way}: " + ", ".join(said(way, k, v) for k, v in values.items()) for way, values in run.figures.items()]
    for way, values in run.by_class.items():
        lines.append(f"{way} by class: " + ", ".join(f"{k} {values[k]:.1f}" for k in ("P@1", "P@10", "mAP", "chance")))
    if run.seeds:
        lines.append(f"in brackets: least and greatest over {len(run.seeds) + 1} banks of augmentation vectors")
    return lines
