"""Ranks against a slow count; ties do not help; chunks do not matter."""

import pytest
import torch
import torch.nn.functional as F

from equiav.errors import ShapeError
from equiav.evaluation.retrieval import class_retrieval, ranks, recall


@pytest.mark.parametrize("chunk", [1, 7, 50, 1000])
def test_ranks_are_one_plus_the_number_strictly_greater(chunk, rng):
    a, v = torch.randn(50, 8, generator=rng), torch.randn(50, 8, generator=rng)
    cosine = F.cosine_similarity(a[:, None].double(), v[None].double(), dim=-1)
    slow = torch.tensor([1 + sum(int(cosine[i, j] > cosine[i, i]) for j in range(50)) for i in range(50)])
    assert torch.equal(ranks(a.double(), v.double(), chunk), slow)


def test_ties_count_once():
    v = torch.eye(4).repeat(2, 1)  # every picture stands twice
    assert ranks(v, v).tolist() == [1] * 8
    collapsed = torch.ones(6, 4)
    assert ranks(collapsed, collapsed).tolist() == [1] * 6  # why runs log the effective rank


def test_perfect_and_reversed(rng):
    z = F.normalize(torch.randn(30, 16, generator=rng), dim=1)
    assert recall(ranks(z, z)).r1 == 100.0
    assert recall(ranks(z, -z)).r1 == 0.0


def test_class_retrieval_against_a_slow_count(rng):
    q, g = torch.randn(20, 8, generator=rng), torch.randn(30, 8, generator=rng)
    qc, gc = torch.arange(20) % 4, torch.arange(30) % 4
    result = class_retrieval(q, qc, g, gc, chunk=7)
    cosine = F.cosine_similarity(q[:, None], g[None], dim=-1)
    p5, ap = [], []
    for i in range(20):
        order = sorted(range(30), key=lambda j, i=i: -float(cosine[i, j]))
        same = [int(gc[j] == qc[i]) for j in order]
        p5.append(sum(same[:5]) / 5)
        ap.append(sum(sum(same[: k + 1]) / (k + 1) for k in range(30) if same[k]) / sum(same))
    assert result.p5 == pytest.approx(100 * sum(p5) / 20)
    assert result.mean_average_precision == pytest.approx(100 * sum(ap) / 20)
    assert result.chance == pytest.approx(100 * sum(float((gc == c).float().mean()) for c in qc) / 20)
    with pytest.raises(ShapeError, match="does not hold"):
        class_retrieval(q, qc + 1, g, gc)
