"""Ranks against a slow count; ties do not help; chunks do not matter."""

import pytest
import torch
import torch.nn.functional as F

from equiav.evaluation.retrieval import ranks, recall


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
    assert recall(ranks(collapsed, collapsed)).pool == 6


def test_perfect_and_reversed(rng):
    z = F.normalize(torch.randn(30, 16, generator=rng), dim=1)
    assert recall(ranks(z, z)).r1 == 100.0
    assert recall(ranks(z, -z)).r1 == 0.0
