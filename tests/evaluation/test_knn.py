"""Neighbours vote as scikit-learn's do, with one class each and with several."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from sklearn.neighbors import KNeighborsClassifier

from equiav.errors import ShapeError
from equiav.evaluation import TEMPERATURE, nearest_votes


def theirs(k, x, y, queries):
    weigh = lambda distance: np.exp((1 - distance) / TEMPERATURE)  # noqa: E731
    model = KNeighborsClassifier(k, weights=weigh, metric="cosine", algorithm="brute")
    return model.fit(x.double().numpy(), y.numpy()).predict_proba(queries.double().numpy())


@pytest.fixture
def data(rng):
    return torch.randn(80, 6, generator=rng) + 1, torch.randn(30, 6, generator=rng) + 1


def test_one_class_each(data, rng):
    x, queries = data
    classes = torch.randint(4, (80,), generator=rng)
    votes = nearest_votes(queries, x, F.one_hot(classes, 4).float(), (1, 5, 20))
    assert list(votes) == [1, 5, 20]
    for k, ours in votes.items():
        np.testing.assert_allclose(ours.numpy(), theirs(k, x, classes, queries), atol=1e-5)


def test_several_classes(data, rng):
    x, queries = data
    targets = (torch.rand(80, 3, generator=rng) < 0.4).float()
    expected = np.stack([p[:, 1] for p in theirs(10, x, targets.int(), queries)], axis=1)
    np.testing.assert_allclose(nearest_votes(queries, x, targets, (10,))[10].numpy(), expected, atol=1e-5)


def test_more_neighbours_than_there_are(data):
    x, queries = data
    assert list(nearest_votes(queries, x, torch.ones(80, 1))) == [1, 5, 10, 20, 50]
    with pytest.raises(ShapeError, match="fewer"):
        nearest_votes(queries, x, torch.ones(80, 1), (81,))
