"""Zero-shot retrieval: ranks, R@k and median rank in both directions, without ever holding the square matrix."""

from __future__ import annotations

from dataclasses import asdict, dataclass

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int, Shaped
from torch import Tensor

from equiav.errors import ShapeError
from equiav.types import Embeddings

CHUNK = 512
KS = (1, 5, 10)


@dataclass(frozen=True)
class Recall:
    """One direction: the share of queries (per cent) whose true partner is among the first k, and the median rank."""

    r1: float
    r5: float
    r10: float
    median_rank: float
    pool: int

    def record(self) -> dict[str, float]:
        """As written to results files."""
        return {"R@1": self.r1, "R@5": self.r5, "R@10": self.r10, "median_rank": self.median_rank, "pool": self.pool}


@dataclass(frozen=True)
class RetrievalResult:
    """Both directions, from the same embeddings."""

    audio_to_video: Recall
    video_to_audio: Recall

    def record(self) -> dict[str, dict[str, float]]:
        """As written to results files."""
        return {name: Recall(**value).record() for name, value in asdict(self).items()}


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


def recall(ranks: Int[Tensor, " n"]) -> Recall:
    """R@1, R@5, R@10 in per cent, and the median rank."""
    share = {k: 100 * float((ranks <= k).double().mean()) for k in KS}
    return Recall(share[1], share[5], share[10], float(ranks.double().quantile(0.5)), len(ranks))


def chance(k: int, pool: int) -> float:
    """R@k of guessing, per cent."""
    return 100 * min(1.0, k / pool)


def retrieve(embeddings: Embeddings, chunk: int = CHUNK) -> RetrievalResult:
    """Sound to picture and picture to sound among all clips of the set."""
    forth, back = both_ranks(embeddings.audio, embeddings.visual, chunk)
    return RetrievalResult(audio_to_video=recall(forth), video_to_audio=recall(back))


@dataclass(frozen=True)
class ClassRetrieval:
    """One direction where only classes pair: per cent of the first k that are of the query's class, mAP, and chance."""

    p1: float
    p5: float
    p10: float
    mean_average_precision: float
    chance: float
    queries: int
    gallery: int

    def record(self) -> dict[str, float]:
        """As written to results files."""
        return {
            "P@1": self.p1,
            "P@5": self.p5,
            "P@10": self.p10,
            "mAP": self.mean_average_precision,
            "chance": self.chance,
            "queries": self.queries,
            "gallery": self.gallery,
        }


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


def class_retrieval(
    queries: Float[Tensor, "n d"],
    query_classes: Shaped[Tensor, "n ..."],
    gallery: Float[Tensor, "m d"],
    gallery_classes: Shaped[Tensor, "m ..."],
    chunk: int = CHUNK,
) -> ClassRetrieval:
    """The means of `class_scores`, per cent; chance is the precision of a random order."""
    scores = class_scores(queries, query_classes, gallery, gallery_classes, chunk)
    p1, p5, p10 = (100 * float(scores.precision[k].mean()) for k in KS)
    average, chance = (100 * float(x.mean()) for x in (scores.average_precision, scores.share))
    return ClassRetrieval(p1, p5, p10, average, chance, len(queries), len(gallery))
