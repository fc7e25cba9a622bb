"""k nearest neighbours: what the frozen features know without learning anything on top of them."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from equiav.errors import ShapeError

NEIGHBOURS = (1, 5, 10, 20, 50, 100, 200)
TEMPERATURE = 0.07
CHUNK = 1024


def nearest_votes(
    queries: Float[Tensor, "n width"],
    features: Float[Tensor, "m width"],
    targets: Float[Tensor, "m classes"],
    counts: Sequence[int] = NEIGHBOURS,
    *,
    temperature: float = TEMPERATURE,
) -> dict[int, Float[Tensor, "n classes"]]:
    """For each k: the share of every class in the votes of the k features with the greatest cosine.

    A neighbour's vote weighs exp(cosine / temperature). One search serves all k; those beyond m are left out.
    """
    counts = [k for k in counts if k <= len(features)]
    if not counts:
        raise ShapeError(f"{len(features)} features are fewer than the least number of neighbours asked for")
    q, x = F.normalize(queries, dim=1), F.normalize(features, dim=1)
    votes: dict[int, list[Tensor]] = {k: [] for k in counts}
    for start in range(0, len(q), CHUNK):
        cosine, place = (q[start : start + CHUNK] @ x.T).topk(max(counts), dim=1)
        weight = ((cosine - cosine[:, :1]) / temperature).exp()  # the nearest weighs 1: nothing overflows
        for k in counts:
            share = weight[:, :k] / weight[:, :k].sum(dim=1, keepdim=True)
            votes[k].append(torch.einsum("nk,nkc->nc", share, targets[place[:, :k]]))
    return {k: torch.cat(parts) for k, parts in votes.items()}
