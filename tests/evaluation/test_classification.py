"""Metrics equal scikit-learn's on random and on degenerate inputs; the evaluator says what a classifier does."""

import math

import pytest
import torch
from scipy.stats import norm
from sklearn.metrics import accuracy_score, average_precision_score, confusion_matrix, roc_auc_score

from equiav.data import Dataset
from equiav.errors import DataError
from equiav.evaluation import (
    Classification,
    accuracy,
    average_precision,
    classification_metrics,
    confusion,
    d_prime,
    mean_average_precision,
    roc_auc,
)
from equiav.inference import LoadedClassifier
from equiav.models import Classifier
from equiav.types import Clip, Sample
from tests.evaluation.made import written
from tests.training.small import small_config


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
    found, each = classification_metrics(scores, labels)
    kept = [c for c in range(4) if labels[:, c].sum()]
    expected = [average_precision_score(labels[:, c].numpy(), scores[:, c].numpy()) for c in kept]
    assert found["mAP"] == pytest.approx(100 * sum(expected) / len(kept), abs=1e-9)
    both = [c for c in range(4) if 0 < labels[:, c].sum() < n]
    assert found["clips"] == n
    if both:
        auc = sum(roc_auc_score(labels[:, c].numpy(), scores[:, c].numpy()) for c in both) / len(both)
        assert found["AUC"] == pytest.approx(auc, abs=1e-9)
        assert found["d_prime"] == pytest.approx(2**0.5 * norm.ppf(auc), abs=1e-6)
    else:
        assert found["AUC"] is None
        assert found["d_prime"] is None
    assert math.isnan(each[3])


# The evaluator, on frames whose grey value is the number of a class

CLASSES = ("bell", "drum", "wind", "gong")


class Greys(Dataset):
    """Clips whose frame k shows a class by its grey value; labels may say otherwise."""

    modalities = ("visual",)
    frames = 3

    def __init__(self, shown, labels):
        self.shown, self._labels = shown, labels

    def __len__(self):
        return len(self.shown)

    def clip(self, index):
        return Clip(f"clip {index}", labels=self._labels[index])

    def sample(self, index, frame):
        grey = 10 * (self.shown[index] if frame == 1 else 3)  # the other frames look like a gong
        return Sample(f"clip {index}", {"visual": torch.full((3, 8, 8), grey, dtype=torch.uint8)})


class Reader(Classifier):
    """Scores the class that the grey value says."""

    modalities = ("visual",)

    def __init__(self):
        torch.nn.Module.__init__(self)
        self.weight = torch.nn.Parameter(torch.zeros(1))

    def forward(self, inputs, paths=None):
        grey = (inputs["visual"][:, 0].mean(dim=(1, 2)) * 0.229 + 0.485) * 255
        return 5 * torch.nn.functional.one_hot((grey / 10).round().long(), 4).float()


def classifier(**meta):
    config = small_config()
    return LoadedClassifier(Reader(), config, CLASSES, {"step": 7, "secret": "no", **meta})


def greys():
    """Of six bells two look like drums, of three drums none like a bell, of three winds one like a bell."""
    truth, shown = [0] * 6 + [1] * 3 + [2] * 3, [0, 0, 0, 0, 1, 1, 1, 1, 1, 2, 2, 0]
    return Greys(shown, [(CLASSES[c],) for c in truth])


def test_what_is_taken_for_what_is_a_share_of_the_true_class():
    record = Classification(split="test", all_frames=False)(classifier(), greys()).record
    assert record["confusion"]["per_cent"] == {
        "bell": {"bell": pytest.approx(400 / 6), "drum": pytest.approx(200 / 6)},
        "drum": {"drum": 100.0},
        "wind": {"wind": pytest.approx(200 / 3), "bell": pytest.approx(100 / 3)},
    }
    assert record["confusion"]["worst"][0] == {"true": "bell", "taken_for": "drum", "times": 2}
    assert record["confusion"]["clips"] == 12
    assert record["metrics"]["accuracy"] == pytest.approx(900 / 12)
    assert record["chance"] == {"mAP": pytest.approx(100 / 3), "accuracy": 50.0}
    assert record["class_share"] == {"bell": 50.0, "drum": 25.0, "wind": 25.0, "gong": 0.0}
    assert record["class_AP"]["gong"] is None
    assert record["checkpoint"] == {"step": 7}


def test_examples_say_what_was_scored_highest_and_whether_it_is_right(tmp_path):
    results = Classification(split="test", all_frames=False)(classifier(), greys())
    assert [e["right"] for e in results["examples"]] == [True] * 4 + [False] * 2 + [True] * 5 + [False]
    assert results["examples"][4]["guesses"][0]["class"] == "drum"
    assert results["examples"][4]["labels"] == ["bell"]
    record, html = written(results, tmp_path)
    assert html.count('class="cell hit"') == 9
    assert all((tmp_path / e["items"]["visual"]["image"]).is_file() for e in record["examples"])


def test_all_frames_are_averaged():
    found = Classification(all_frames=True)(classifier(), greys())
    assert found["frames"] == "all"
    assert found["metrics/accuracy"] == 0  # two frames of three say gong


def test_only_of_its_own_test_clips_it_is_known_that_they_took_no_part():
    best = {"best": {"validation": {"mAP": 50.0, "accuracy": 40.0}}}
    own = Classification(split="test")(classifier(**best), greys())
    assert own["chosen_without_these"]
    assert own["validation"]["mAP"] == 50.0
    for evaluator, model in (
        (Classification(split="test", own_data=False), classifier(**best)),
        (Classification(split="validation"), classifier(**best)),
        (Classification(split="test"), classifier()),
    ):
        assert not evaluator(model, greys())["chosen_without_these"]


def test_a_label_that_is_no_class_is_named():
    with pytest.raises(DataError, match="clip 0 has the label 'rain'"):
        Classification()(classifier(), Greys([0], [("rain",)]))
