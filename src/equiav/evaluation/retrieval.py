"""Retrieval between modalities: R@k where each clip has one partner, precision where only classes pair.

Ranks are counted without ever holding the square matrix of similarities.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import permutations
from statistics import fmean, pstdev
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int, Shaped
from torch import Tensor

from equiav.build import build_bank
from equiav.data import Dataset, labels_of, multi_hot
from equiav.errors import DataError, ShapeError
from equiav.evaluation.base import Report, Results, silent
from equiav.evaluation.embed import embed_with_banks
from equiav.inference import Banks, LoadedModel
from equiav.types import VISUAL, Embeddings, Modality

CHUNK = 512
KS = (1, 5, 10)
SIZES = ("pool", "queries", "gallery", "chance")  # what no bank can change
Metrics = dict[str, dict[str, float]]  # by direction and name


def direction(query: Modality, gallery: Modality) -> str:
    """The key of a direction in results: audio_to_video, video_to_audio, ... (visual is called video there)."""
    words = {VISUAL: "video"}
    return f"{words.get(query, query)}_to_{words.get(gallery, gallery)}"


def ranks(queries: Float[Tensor, "n d"], gallery: Float[Tensor, "n d"], chunk: int = CHUNK) -> Int[Tensor, " n"]:
    """Rank of gallery[i] for queries[i]: 1 + the number of strictly greater cosines."""
    return both_ranks(queries, gallery, chunk)[0]


def both_ranks(
    one: Float[Tensor, "n d"], other: Float[Tensor, "n d"], chunk: int = CHUNK
) -> tuple[Int[Tensor, " n"], Int[Tensor, " n"]]:
    """Ranks with either side as queries, from one product of the two.

    A pair's own similarity is taken from the same product as the others', so that equal vectors tie exactly.
    """
    if one.shape != other.shape or one.ndim != 2 or len(one) == 0:
        raise ShapeError(f"retrieval wants two (N, D) sets, got {tuple(one.shape)} and {tuple(other.shape)}")
    one, other = F.normalize(one, dim=1), F.normalize(other, dim=1)
    if not bool(one.isfinite().all() and other.isfinite().all()):
        raise ShapeError("embeddings hold values that are not finite (NaN or infinity)")
    parts = [slice(start, start + chunk) for start in range(0, len(one), chunk)]
    own = torch.cat([(one[rows] @ other[rows].T).diagonal() for rows in parts])
    forth, back = (torch.ones(len(one), dtype=torch.int64, device=one.device) for _ in range(2))
    for rows in parts:
        for columns in parts:
            similarity = one[rows] @ other[columns].T
            forth[rows] += (similarity > own[rows, None]).sum(dim=1)
            back[columns] += (similarity > own[columns]).sum(dim=0)
    return forth, back


def rank_metrics(ranks: Int[Tensor, " n"], ks: Sequence[int] = KS) -> dict[str, float]:
    """R@k in per cent, the median rank, and the number of clips among which the partner was looked for."""
    shares = {f"R@{k}": 100 * float((ranks <= k).double().mean()) for k in ks}
    return {**shares, "median_rank": float(ranks.double().quantile(0.5)), "pool": len(ranks)}


def chance(k: int, pool: int) -> float:
    """R@k of guessing, per cent."""
    return 100 * min(1.0, k / pool)


@dataclass(frozen=True)
class ClassScores:
    """Every query by itself, as shares: precision among the first k, average precision, share of its class."""

    precision: dict[int, Float[Tensor, " n"]]
    average_precision: Float[Tensor, " n"]
    share: Float[Tensor, " n"]


def same_class(one: Shaped[Tensor, "n ..."], other: Shaped[Tensor, "m ..."]) -> Bool[Tensor, "n m"]:
    """Which pairs have a class in common; classes are one number each, or rows of zeros and ones."""
    return one[:, None] == other if one.ndim == 1 else one @ other.T > 0


def class_scores(
    queries: Float[Tensor, "n d"],
    query_classes: Shaped[Tensor, "n ..."],
    gallery: Float[Tensor, "m d"],
    gallery_classes: Shaped[Tensor, "m ..."],
    chunk: int = CHUNK,
) -> ClassScores:
    """How much of what is found first shares a class with each query.

    Queries that share no class with anything in the gallery cannot be answered and are refused.
    """
    q, g = F.normalize(queries, dim=1), F.normalize(gallery, dim=1)
    places = torch.arange(1, len(g) + 1, device=g.device)
    parts = []
    for start in range(0, len(q), chunk):
        rows = slice(start, start + chunk)
        order = (q[rows] @ g.T).argsort(dim=1, descending=True, stable=True)
        same = same_class(query_classes[rows], gallery_classes).gather(1, order).double()
        if not bool(same.any(dim=1).all()):
            raise ShapeError("some queries are of a class that the gallery does not hold")
        first = [same[:, : min(k, len(g))].mean(dim=1) for k in KS]
        average = (same.cumsum(dim=1) / places * same).sum(dim=1) / same.sum(dim=1)
        parts.append(torch.stack([*first, average, same.mean(dim=1)]))
    *first, average, share = torch.cat(parts, dim=1)
    return ClassScores(dict(zip(KS, first, strict=True)), average, share)


def class_metrics(
    queries: Float[Tensor, "n d"],
    query_classes: Shaped[Tensor, "n ..."],
    gallery: Float[Tensor, "m d"],
    gallery_classes: Shaped[Tensor, "m ..."],
) -> dict[str, float]:
    """The means of `class_scores`, per cent; chance is the precision of a random order."""
    scores = class_scores(queries, query_classes, gallery, gallery_classes)
    found = {f"P@{k}": 100 * float(scores.precision[k].mean()) for k in KS}
    found |= {"mAP": 100 * float(scores.average_precision.mean()), "chance": 100 * float(scores.share.mean())}
    return found | {"queries": len(queries), "gallery": len(gallery)}


def retrieval_metrics(embeddings: Embeddings, ks: Sequence[int] = KS) -> Metrics:
    """Every direction between two modalities, each clip's own partner looked for among all clips."""
    found: Metrics = {}
    done: dict[tuple[Modality, Modality], Tensor] = {}
    for a, b in permutations(embeddings.vectors, 2):
        if (a, b) not in done:
            done[a, b], done[b, a] = both_ranks(embeddings[a], embeddings[b])
        found[direction(a, b)] = rank_metrics(done[a, b], ks)
    return found


def class_retrieval_metrics(dataset: Dataset, embeddings: Embeddings) -> Metrics:
    """Every direction by class: found is what shares at least one label with the query.

    Clips without labels are left out; empty where none has any.
    """
    sides = dataset.sides()
    labels = {m: labels_of(sides[m]) for m in embeddings.vectors}
    classes = dataset.classes or sorted({label for of in labels.values() for clip in of for label in clip})
    rows = {m: [i for i, of_clip in enumerate(labels[m]) if of_clip] for m in labels}
    if not all(rows.values()):
        return {}
    known = {
        m: (embeddings[m][rows[m]], multi_hot([labels[m][i] for i in rows[m]], classes)) for m in embeddings.vectors
    }
    return {direction(a, b): class_metrics(*known[a], *known[b]) for a, b in permutations(known, 2)}


def spread(records: Sequence[Metrics]) -> dict[str, dict[str, dict[str, float]]]:
    """Mean, standard deviation, least and greatest of every metric over records of the same dataset."""
    found: dict[str, dict[str, dict[str, float]]] = {}
    for way, first in records[0].items():
        found[way] = {}
        for name in (name for name in first if name not in SIZES):
            values = [r[way][name] for r in records]
            found[way][name] = {"mean": fmean(values), "std": pstdev(values), "min": min(values), "max": max(values)}
    return found


@dataclass(frozen=True)
class Retrieval:
    """The evaluator of retrieval, in all directions between the modalities of a dataset.

    `banks` further banks of augmentation vectors, from the seeds that follow the stored one's, state how much the
    choice of bank matters; a model that uses no bank gets none. `pages`: with examples to look at.
    """

    ks: tuple[int, ...] = KS
    banks: int = 0
    all_frames: bool = False
    pages: bool = False
    report: Report = silent

    primary = "retrieval/audio_to_video/R@10"
    greater_is_better = True

    def __call__(self, model: LoadedModel, dataset: Dataset) -> Results:
        """Both directions of every pair of modalities, from the same embeddings."""
        if self.all_frames and not dataset.one_to_one:
            raise DataError("images paired by class have no frames; leave --all-frames out")
        others, seeds = further_banks(model, self.banks)
        found = embed_with_banks(model, dataset, [model.banks, *others], all_frames=self.all_frames, report=self.report)
        measure = self._measure(dataset)
        records = [measure(embeddings) for embeddings in found]
        record: dict[str, Any] = {
            "frames": "all" if self.all_frames else "middle",
            "retrieval": records[0],
            "by_class": class_retrieval_metrics(dataset, found[0]) if dataset.one_to_one else {},
            "spread_over_banks": spread(records) if others else {},
            "further_bank_seeds": list(seeds),
            "bank_seed": model.config.bank.seed,
            "bank_size": model.config.bank.size,
        }
        forth = next(iter(records[0]))
        metric = f"R@{self.ks[-1]}" if dataset.one_to_one else "P@10"
        return Results(
            "retrieval",
            record,
            primary=f"retrieval/{forth}/{metric}",
            lines=tuple(_lines(record)),
            watch="retrieval",
        )

    def _measure(self, dataset: Dataset) -> Any:
        if dataset.one_to_one:
            return lambda embeddings: retrieval_metrics(embeddings, self.ks)
        return lambda embeddings: class_retrieval_metrics(dataset, embeddings)


def further_banks(model: LoadedModel, count: int) -> tuple[list[Banks], tuple[int, ...]]:
    """Banks like the stored one from the seeds that follow its own, and those seeds; none for models without one."""
    config = model.config
    seeds = tuple(config.bank.seed + 1 + i for i in range(count if model.uses_banks else 0))
    drawn = [config.model_copy(update={"bank": config.bank.model_copy(update={"seed": s})}) for s in seeds]
    return [{m: build_bank(c, m) for m in model.model.modalities} for c in drawn], seeds


def _lines(record: Mapping[str, Any]) -> list[str]:
    """The metrics for a terminal, with their range over the banks."""
    over = record["spread_over_banks"]

    def said(way: str, name: str, value: float) -> str:
        if name in ("pool", "queries", "gallery"):
            return f"{name} {value}"
        of = over.get(way, {}).get(name)
        return f"{name} {value:.1f}" + (f" ({of['min']:.1f} to {of['max']:.1f})" if of else "")

    lines = [f"{way}: " + ", ".join(said(way, k, v) for k, v in of.items()) for way, of in record["retrieval"].items()]
    for way, values in record["by_class"].items():
        lines.append(f"{way} by class: " + ", ".join(f"{k} {values[k]:.1f}" for k in ("P@1", "P@10", "mAP", "chance")))
    if record["further_bank_seeds"]:
        lines.append(f"in brackets: least and greatest over {len(record['further_bank_seeds']) + 1} banks of vectors")
    return lines
