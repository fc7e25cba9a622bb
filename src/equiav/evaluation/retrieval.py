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
