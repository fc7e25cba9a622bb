"""Metrics equal scikit-learn's on random and on degenerate inputs."""

import math

import pytest
import torch
from scipy.stats import norm
from sklearn.metrics import accuracy_score, average_precision_score, confusion_matrix, roc_auc_score

from equiav.evaluation import (
    accuracy,
    average_precision,
    classification_metrics,
    confusion,
    d_prime,
    mean_average_precision,
    roc_auc,
)


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


@pytest.mark.parametrize("ties", [False, True])
@pytest.mark.parametrize("n", [1, 2, 50, 300])
def test_area_under_roc_is_scikit_learns(n, ties, rng):
    for _ in range(5):
        scores = torch.randn(n, generator=rng)
        scores = scores.round() if ties else scores
        positive = (torch.rand(n, generator=rng) < 0.3).float()
        if positive.sum() in (0, n):
            assert math.isnan(roc_auc(scores, positive))
            continue
        expected = roc_auc_score(positive.numpy(), scores.numpy())
        assert roc_auc(scores, positive) == pytest.approx(expected, abs=1e-9)


def test_d_prime():
    for auc in (0.1, 0.5, 0.9, 0.975):
        assert d_prime(auc) == pytest.approx(2**0.5 * norm.ppf(auc), abs=1e-9)
    assert d_prime(1.0) == math.inf
    assert math.isnan(d_prime(math.nan))


@pytest.mark.parametrize("n", [1, 40])
def test_accuracy_and_confusion_are_scikit_learns(n, rng):
    scores = torch.randn(n, 5, generator=rng)
    truth = torch.randint(5, (n,), generator=rng)
    labels = torch.nn.functional.one_hot(truth, 5).float()
    guess = scores.argmax(dim=1)
    assert accuracy(scores, labels) == pytest.approx(100 * accuracy_score(truth, guess))
    assert confusion(scores, labels).tolist() == confusion_matrix(truth, guess, labels=range(5)).tolist()


def test_several_classes_or_none():
    scores = torch.tensor([[2.0, 1.0], [2.0, 1.0], [0.0, 1.0]])
    labels = torch.tensor([[1.0, 1.0], [0.0, 0.0], [1.0, 0.0]])
    assert accuracy(scores, labels) == pytest.approx(50)  # the clip without a class does not count
    assert confusion(scores, labels).tolist() == [[0, 1], [0, 0]]  # nor one with two
    assert math.isnan(accuracy(scores, torch.zeros(3, 2)))


@pytest.mark.parametrize("n", [1, 60])
def test_all_metrics_together(n, rng):
    scores = (torch.randn(n, 4, generator=rng) * 5).round() / 5
    labels = (torch.rand(n, 4, generator=rng) < 0.4).float()
    labels[:, 3] = 0  # a class without positives
    labels[0, 0] = 1
    found = classification_metrics(scores, labels)
    kept = [c for c in range(4) if labels[:, c].sum()]
    expected = [average_precision_score(labels[:, c].numpy(), scores[:, c].numpy()) for c in kept]
    assert found.mean_average_precision == pytest.approx(100 * sum(expected) / len(kept), abs=1e-9)
    both = [c for c in range(4) if 0 < labels[:, c].sum() < n]
    record = found.record()
    assert record["clips"] == n
    if both:
        auc = sum(roc_auc_score(labels[:, c].numpy(), scores[:, c].numpy()) for c in both) / len(both)
        assert found.auc == pytest.approx(auc, abs=1e-9)
        assert found.d_prime == pytest.approx(2**0.5 * norm.ppf(auc), abs=1e-6)
    else:
        assert record["AUC"] is None
        assert record["d_prime"] is None
    assert math.isnan(found.class_average_precision[3])
