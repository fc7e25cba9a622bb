"""The probe finds what is linear and nothing where nothing is; validation chooses; bad data are named."""

import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from sklearn.linear_model import LogisticRegression
from sklearn.neighbors import KNeighborsClassifier

from equiav.build import build_dataset, with_data
from equiav.data import prepare
from equiav.errors import DataError, ShapeError
from equiav.evaluation import (
    Probe,
    fit_probe,
    frozen_features,
    guessing,
    linear_probe,
    linear_probes,
    nearest_votes,
    neighbours,
    probe_splits,
)
from equiav.evaluation.probe import TEMPERATURE, choose
from equiav.types import Clip
from tests.evaluation.made import Vectors, loaded, make_collection, passing_model, write_wav, written
from tests.training.small import small_config


def separable(rng, n=90, classes=3, noise=0.3):
    y = torch.arange(n) % classes
    x = F.one_hot(y, 8).float() * 2 + noise * torch.randn(n, 8, generator=rng)
    return x, F.one_hot(y, classes).float()


# Classifiers on given features


def test_probe_finds_what_is_linear(rng):
    x = torch.randn(300, 8, generator=rng)
    y = (x[:, :2] + 0.1 * torch.randn(300, 2, generator=rng) > 0.5).float()
    parts = [(x[i : i + 100], y[i : i + 100]) for i in (0, 100, 200)]
    found = linear_probe(*parts)
    assert found.mean_average_precision > 95
    first, again = (fit_probe(*parts[0], 1e-3) for _ in range(2))
    assert torch.equal(first(x), again(x))
    on_both = linear_probes(parts[0], parts[1], [parts[1], parts[2]])
    assert on_both[0].validation == on_both[0].mean_average_precision  # of the part that chose
    assert on_both[1].mean_average_precision == found.mean_average_precision


def test_one_class_each_is_scikit_learns_regression(rng):
    x, y = separable(rng, noise=1.5)
    ours = fit_probe(x, y, 1e-2, single=True)
    z = (x - x.mean(dim=0)) / x.std(dim=0, correction=0)
    # Theirs: 1/2 |w|^2 + C * sum of losses; ours: mean of losses + penalty |w|^2.
    theirs = LogisticRegression(C=1 / (2 * 1e-2 * len(x)), tol=1e-8, max_iter=1000).fit(z.numpy(), y.argmax(1).numpy())
    np.testing.assert_allclose(ours(x).softmax(1).numpy(), theirs.predict_proba(z.numpy()), atol=2e-3)


@pytest.mark.parametrize("way", [linear_probe, neighbours])
def test_far_above_chance_where_classes_are_apart_and_at_chance_where_not(way, rng):
    parts = [separable(rng) for _ in range(3)]
    found = way(*parts, single=True)
    assert found.accuracy == 100
    assert found.mean_average_precision > 99
    guess = guessing(parts[0][1], parts[2][1], single=True)
    assert guess == {"mAP": pytest.approx(100 / 3), "accuracy": pytest.approx(100 / 3)}
    blind = [(torch.randn(90, 8, generator=rng), y) for _, y in parts]
    assert way(*blind, single=True).accuracy < 55


def test_guessing_knows_the_training_part_only():
    train, test = torch.eye(3)[[0, 0, 1]], torch.eye(3)[[0, 1, 1, 1]]
    guess = guessing(train, test, single=True)
    assert guess == {"mAP": pytest.approx((25 + 75) / 2), "accuracy": pytest.approx(25)}  # class 2 has no share


def test_the_test_part_chooses_nothing():
    truth = torch.eye(2)
    good, bad = torch.eye(2), 1 - torch.eye(2)
    found = choose({1.0: bad, 2.0: good}, {1.0: good, 2.0: bad}, (truth, truth), single=True)
    assert (found.setting, found.validation, found.accuracy) == (2.0, 100, 0)


def test_degenerate_metrics():
    one = torch.tensor([[0.3, 0.3]])  # one clip, a tie, a class that does not occur
    truth = torch.tensor([[1.0, 0.0]])
    found = choose({1.0: one}, {1.0: one}, (truth, truth), single=True)
    assert found.mean_average_precision == 100
    assert math.isnan(found.class_average_precision[1])
    assert found.accuracy == 100
    assert guessing(truth, truth, single=False) == {"mAP": 100}
    constant = fit_probe(torch.ones(4, 3), torch.tensor([[1.0, 0.0], [0.0, 1.0]] * 2), 1e-3)
    assert bool(constant(torch.ones(1, 3)).isfinite().all())


def scikit_votes(k, x, y, queries):
    weigh = lambda distance: np.exp((1 - distance) / TEMPERATURE)  # noqa: E731
    model = KNeighborsClassifier(k, weights=weigh, metric="cosine", algorithm="brute")
    return model.fit(x.double().numpy(), y.numpy()).predict_proba(queries.double().numpy())


@pytest.fixture
def points(rng):
    return torch.randn(80, 6, generator=rng) + 1, torch.randn(30, 6, generator=rng) + 1


def test_neighbours_vote_as_scikit_learns(points, rng):
    x, queries = points
    classes = torch.randint(4, (80,), generator=rng)
    votes = nearest_votes(queries, x, F.one_hot(classes, 4).float(), (1, 5, 20))
    assert list(votes) == [1, 5, 20]
    for k, ours in votes.items():
        np.testing.assert_allclose(ours.numpy(), scikit_votes(k, x, classes, queries), atol=1e-5)


def test_neighbours_of_several_classes(points, rng):
    x, queries = points
    targets = (torch.rand(80, 3, generator=rng) < 0.4).float()
    expected = np.stack([p[:, 1] for p in scikit_votes(10, x, targets.int(), queries)], axis=1)
    np.testing.assert_allclose(nearest_votes(queries, x, targets, (10,))[10].numpy(), expected, atol=1e-5)


def test_more_neighbours_than_there_are(points):
    x, queries = points
    assert list(nearest_votes(queries, x, torch.ones(80, 1))) == [1, 5, 10, 20, 50]
    with pytest.raises(ShapeError, match="fewer"):
        nearest_votes(queries, x, torch.ones(80, 1), (81,))


# The evaluator on vectors of which everything is known

NAMES = ("bell", "drum", "wind")


def clips(rng, n=60, *, told=None, labels=None):
    """One vector a clip that gives its class away; `told` are the classes shown where they are not the true ones."""
    truth = [i % 3 for i in range(n)]
    x = 4 * F.one_hot(torch.tensor(told or truth), 8).float() + 0.1 * torch.randn(n, 8, generator=rng)
    return Vectors({"touch": x}, labels or [(NAMES[c],) for c in truth])


def test_confusions_are_shares_of_the_true_class(rng):
    """Of six bells two are taken for drums, of six drums none for a bell: rows sum to 100, columns do not."""
    told = [i % 3 for i in range(18)]
    told[0] = told[3] = 1  # bells that look like drums
    told[2] = 0  # wind that looks like a bell
    test = clips(rng, 18, told=told)
    record = Probe(clips(rng), clips(rng))(passing_model(["touch"], 8), test).record
    confusion = record["confusion"]["touch"]
    assert confusion["per_cent"] == {
        "bell": {"bell": pytest.approx(400 / 6), "drum": pytest.approx(200 / 6)},
        "drum": {"drum": 100.0},
        "wind": {"bell": pytest.approx(100 / 6), "wind": pytest.approx(500 / 6)},
    }
    assert confusion["worst"] == [
        {"true": "bell", "taken_for": "drum", "times": 2}, {"true": "wind", "taken_for": "bell", "times": 1},
    ]  # fmt: skip
    assert record["class_share"] == dict.fromkeys(NAMES, pytest.approx(100 / 3))
    assert record["probe"]["touch"]["linear probe"]["accuracy"] == pytest.approx(1500 / 18)
    assert record["remark"] == "the data hold only one modality: touch"


def test_examples_say_what_was_guessed_and_whether_it_is_right(rng):
    told = [i % 3 for i in range(18)]
    told[0] = 1
    test = clips(rng, 18, told=told)
    results = Probe(clips(rng), clips(rng), examples=6)(passing_model(["touch"], 8), test)
    examples = results["examples"]
    assert [e["id"] for e in examples] == [f"clip {i}" for i in (0, 3, 6, 9, 12, 15)]
    for example in examples:
        guess = example["views"]["touch"]
        shown = told[int(example["id"].removeprefix("clip "))]
        assert guess["guesses"][0]["class"] == NAMES[shown]
        assert guess["guesses"][0]["per_cent"] > guess["guesses"][1]["per_cent"]
        assert guess["right"] == (example["labels"] == [NAMES[shown]])
    assert [e["views"]["touch"]["right"] for e in examples] == [False, True, True, True, True, True]


def test_both_sides_weigh_the_same(rng):
    """A modality of large numbers that say nothing does not drown the other."""

    def pairs():
        x, _ = separable(rng)
        return Vectors(
            {"touch": x, "smell": 50 * torch.randn(90, 8, generator=rng)}, [(NAMES[i % 3],) for i in range(90)]
        )

    found = Probe(pairs(), pairs())(passing_model(["touch", "smell"], 8), pairs())
    assert found["probe/touch+smell/neighbours, pooled tokens/accuracy"] > 90


def test_labels_that_training_lacks_are_named(rng):
    model, train = passing_model(["touch"], 8), clips(rng)
    strange = clips(rng, 6, labels=[("bell",)] * 5 + [("gong",)])
    with pytest.raises(DataError, match="1 labels of the test split do not occur in training: gong"):
        Probe(train, train)(model, strange)
    train.classes = (*NAMES, "gong")
    with pytest.raises(DataError, match=r"among the 60 training clips used .*: gong; raise --limit or relabel"):
        Probe(train, train)(model, strange)
    with pytest.raises(DataError, match="no clip of the validation split has a label"):
        Probe(train, clips(rng, 6, labels=[()] * 6))(model, train)


def test_limits_are_evenly_spaced(rng):
    results = Probe(clips(rng, 30), clips(rng, 30), limit=9)(passing_model(["touch"], 8), clips(rng, 10))
    assert results["counts"]["test"] == {"touch": 9, "labelled": 10}
    assert results["examples"][1]["id"] == "clip 1"
    assert results["limit"] == 9


# The world and prepared data


def test_from_model_to_page_on_the_world(tmp_path):
    config = small_config("data.count=40", "data.validation=30", "data.test=30")
    splits, validation = probe_splits(config)
    assert validation == "its own split"
    results = Probe(splits["train"], splits["validation"], limit=25)(loaded(config), splits["test"])
    assert set(results["probe"]) == {"audio", "visual", "audiovisual"}
    assert results["counts"]["test"] == {"audio": 25, "visual": 25, "labelled": 30}
    assert results["probe/audiovisual/linear probe/accuracy"] is None
    record, html = written(results, tmp_path)
    assert html.count("<audio") == 6
    assert "audiovisual, neighbours, shared space" in html
    assert record["confusion"] == {}  # several classes each
    assert "taken for" not in html
    assert record["chosen_by"] == "mAP on validation"
    assert "NaN" not in (tmp_path / "results.json").read_text()
    for example in record["examples"]:
        assert set(example["views"]) == {"audio", "visual", "audiovisual"}
        assert all((tmp_path / item["image"]).is_file() for item in example["items"].values())


def test_features_of_both_are_those_of_each_side_by_side():
    config = small_config("data.validation=6")
    dataset = build_dataset(config, "validation")
    views = frozen_features(loaded(config), dataset.sides(), dataset.classes)
    both = views["audiovisual"]
    assert torch.equal(both.pooled, torch.cat([views["audio"].pooled, views["visual"].pooled], dim=1))
    torch.testing.assert_close(views["audio"].shared.norm(dim=1), torch.ones(6))
    for i in range(6):
        names = {dataset.classes[c] for c in both.targets[i].nonzero()[:, 0]}
        assert names == set(dataset.clip(i).labels)


def test_sounds_and_images_that_only_classes_join(tmp_path):
    config = with_data(small_config(), make_collection(tmp_path / "made"))
    splits, _ = probe_splits(config)
    results = Probe(splits["train"], splits["validation"])(loaded(config), splits["test"])
    assert set(results["probe"]) == {"audio", "visual"}
    assert results["counts"]["test"] == {"audio": 3, "visual": 6, "labelled": 3}
    assert "audio-visual: not defined" in results["remark"]
    assert results.lines[-1] == results["remark"]
    assert results["chosen_by"] == "accuracy on validation"
    _, html = written(results, tmp_path / "out")
    assert html.count("<audio") == 3
    assert html.count("per cent of each class") == 4  # caption and alternative text, two views
    few = Probe(splits["train"], splits["validation"], limit=4)(loaded(config), splits["test"])
    assert few["counts"]["train"] == {"audio": 4, "visual": 4, "labelled": 18}


@pytest.mark.process
def test_prepared_sounds_without_a_validation_split(tmp_path):
    sources = []
    for k in range(24):
        path = tmp_path / "media" / f"{k:02d}.wav"
        write_wav(path, 9000 * np.sin(k + np.arange(16000) * 0.02 * (1 + k % 2 * 5)))
        sources.append(
            Clip(path.name, path=path, labels=("low", "high")[k % 2 : k % 2 + 1], split=("train", "test")[k > 19])
        )
    prepare(sources, tmp_path / "out", workers=1, need=("audio",))
    config = with_data(small_config(), tmp_path / "out")
    splits, validation = probe_splits(config)
    assert validation == "a tenth of the training sources"
    ids = [{part.clip(i).id for i in range(len(part))} for part in (splits["train"], splits["validation"])]
    assert len(ids[0]) + len(ids[1]) == 20
    assert not ids[0] & ids[1]
    results = Probe(splits["train"], splits["validation"], validation_part=validation)(loaded(config), splits["test"])
    assert set(results["probe"]) == {"audio"}
    assert results["validation_part"] == "a tenth of the training sources"
    assert results["probe/audio/linear probe/accuracy"] == 100
    assert "The data hold only one modality: audio." in written(results, tmp_path / "page")[1]
