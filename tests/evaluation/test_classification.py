"""Metrics equal scikit-learn's on random and on degenerate inputs; the probe finds what is linear."""

import math

import pytest
import torch
from sklearn.metrics import average_precision_score

from equiav.evaluation.classification import average_precision, mean_average_precision
from equiav.evaluation.probe import fit_probe, probe


@pytest.mark.parametrize("ties", [False, True])
@pytest.mark.parametrize("n", [1, 2, 50, 300])
def test_average_precision_is_scikit_learns(n, ties, rng):
    for _ in range(5):
        scores = torch.randn(n, generator=rng)
        scores = scores.round() if ties else scores
        positive = (torch.rand(n, generator=rng) < 0.3).float()
        if positive.sum() == 0:
            assert math.isnan(average_precision(scores, positive))
            continue
        expected = average_precision_score(positive.numpy(), scores.numpy())
        assert average_precision(scores, positive) == pytest.approx(expected, abs=1e-9)


def test_classes_without_positives_do_not_count(rng):
    scores = torch.randn(20, 3, generator=rng)
    labels = torch.zeros(20, 3)
    labels[:5, 0] = 1
    labels[5:9, 1] = 1
    mean, each = mean_average_precision(scores, labels)
    assert math.isnan(each[2])
    assert mean == pytest.approx((each[0] + each[1]) / 2)


def test_probe_finds_what_is_linear(rng):
    x = torch.randn(300, 8, generator=rng)
    y = (x[:, :2] + 0.1 * torch.randn(300, 2, generator=rng) > 0.5).float()
    parts = [(x[i : i + 100], y[i : i + 100]) for i in (0, 100, 200)]
    assert probe(*parts)[0] > 95
    first, again = (fit_probe(*parts[0], 1e-3) for _ in range(2))
    assert torch.equal(first.weight, again.weight)
