"""Zero-shot retrieval: ranks, R@k and median rank in both directions, without ever holding the square matrix."""

from __future__ import annotations

from dataclasses import asdict, dataclass

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor

from equiav.errors import ShapeError
from equiav.types import Embeddings

CHUNK = 1024


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
    """Rank of gallery[i] for queries[i]: 1 + the number of strictly greater cosines.

    A pair's own similarity is taken from the same product as the others', so that equal vectors tie exactly.
    """
    if queries.shape != gallery.shape or queries.ndim != 2 or len(queries) == 0:
        raise ShapeError(f"retrieval wants two (N, D) sets, got {tuple(queries.shape)} and {tuple(gallery.shape)}")
    queries, gallery = F.normalize(queries, dim=1), F.normalize(gallery, dim=1)
    if not bool(queries.isfinite().all() and gallery.isfinite().all()):
        raise ShapeError("embeddings hold values that are not finite (NaN or infinity)")
    out = torch.ones(len(queries), dtype=torch.int64, device=queries.device)
    for start in range(0, len(queries), chunk):
        stop = min(start + chunk, len(queries))
        block = queries[start:stop]
        own = torch.empty(0)
        # The true partners lie in the diagonal block: its product comes first.
        for first in [start, *(c for c in range(0, len(gallery), chunk) if c != start)]:
            similarity = block @ gallery[first : first + chunk].T
            if first == start:
                own = similarity.diagonal().clone()[:, None]
            out[start:stop] += (similarity > own).sum(dim=1)
    return out


def recall(ranks: Int[Tensor, " n"]) -> Recall:
    """R@1, R@5, R@10 in per cent, and the median rank."""
    share = {k: 100 * float((ranks <= k).double().mean()) for k in (1, 5, 10)}
    return Recall(share[1], share[5], share[10], float(ranks.double().quantile(0.5)), len(ranks))


def retrieve(embeddings: Embeddings, chunk: int = CHUNK) -> RetrievalResult:
    """Sound to picture and picture to sound among all clips of the set."""
    return RetrievalResult(
        audio_to_video=recall(ranks(embeddings.audio, embeddings.visual, chunk)),
        video_to_audio=recall(ranks(embeddings.visual, embeddings.audio, chunk)),
    )


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


def class_retrieval(
    queries: Float[Tensor, "n d"],
    query_classes: Int[Tensor, " n"],
    gallery: Float[Tensor, "m d"],
    gallery_classes: Int[Tensor, " m"],
    chunk: int = CHUNK,
) -> ClassRetrieval:
    """How much of what is found first belongs to the query's class.

    Chance is the precision of a random order: the mean share of the query's class in the gallery. Queries whose class
    the gallery does not hold cannot be answered and are refused.
    """
    if not bool(torch.isin(query_classes, gallery_classes).all()):
        raise ShapeError("some queries are of a class that the gallery does not hold")
    q, g = F.normalize(queries, dim=1), F.normalize(gallery, dim=1)
    shown = {k: min(k, len(g)) for k in (1, 5, 10)}
    sums, precision_sum, chance = dict.fromkeys(shown, 0.0), 0.0, 0.0
    places = torch.arange(1, len(g) + 1, device=g.device)
    for start in range(0, len(q), chunk):
        order = (q[start : start + chunk] @ g.T).argsort(dim=1, descending=True, stable=True)
        same = (gallery_classes[order] == query_classes[start : start + chunk, None]).double()
        for k, n in shown.items():
            sums[k] += float(same[:, :n].mean(dim=1).sum())
        hits = same.cumsum(dim=1)
        precision_sum += float(((hits / places * same).sum(dim=1) / same.sum(dim=1)).sum())
        chance += float(same.mean(dim=1).sum())
    n = len(q)
    share = {k: 100 * v / n for k, v in sums.items()}
    return ClassRetrieval(share[1], share[5], share[10], 100 * precision_sum / n, 100 * chance / n, n, len(g))
