"""The probe finds what is linear and nothing where nothing is; validation chooses; bad data are named."""

import json
import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from sklearn.linear_model import LogisticRegression

from equiav.build import build_bank, build_model
from equiav.build_data import with_data
from equiav.data import Source, label_names, multi_hot, one_each, prepare, vocabulary
from equiav.errors import DataError
from equiav.evaluation import (
    View,
    evaluate_probe,
    features,
    fit_probe,
    guessing,
    judge,
    judge_views,
    labelled_data,
    linear_probe,
    neighbours,
    probe,
    probe_lines,
    probe_page,
    probe_record,
    thin,
    write_evaluation,
)
from equiav.inference import LoadedModel
from equiav.types import Modality
from tests.data.test_paired import make_collection, write_sound
from tests.training.small import small_config


def loaded(config):
    return LoadedModel(build_model(config).eval(), config, {m: build_bank(config, m) for m in Modality}, {"step": 0})


def separable(rng, n=90, classes=3, noise=0.3):
    y = torch.arange(n) % classes
    x = F.one_hot(y, 8).float() * 2 + noise * torch.randn(n, 8, generator=rng)
    return x, F.one_hot(y, classes).float()


def test_probe_finds_what_is_linear(rng):
    x = torch.randn(300, 8, generator=rng)
    y = (x[:, :2] + 0.1 * torch.randn(300, 2, generator=rng) > 0.5).float()
    parts = [(x[i : i + 100], y[i : i + 100]) for i in (0, 100, 200)]
    assert probe(*parts)[0] > 95
    first, again = (fit_probe(*parts[0], 1e-3) for _ in range(2))
    assert torch.equal(first.weight, again.weight)


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
    judged = way(*parts, single=True)
    assert judged.accuracy == 100
    assert judged.mean_average_precision > 99
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
    judged = judge({1.0: bad, 2.0: good}, {1.0: good, 2.0: bad}, (truth, truth), single=True)
    assert (judged.setting, judged.validation, judged.accuracy) == (2.0, 100, 0)


def test_degenerate_figures():
    one = torch.tensor([[0.3, 0.3]])  # one clip, a tie, a class that does not occur
    truth = torch.tensor([[1.0, 0.0]])
    judged = judge({1.0: one}, {1.0: one}, (truth, truth), single=True)
    assert judged.mean_average_precision == 100
    assert math.isnan(judged.class_average_precision[1])
    assert judged.accuracy == 100
    assert guessing(truth, truth, single=False) == {"mAP": 100}
    constant = fit_probe(torch.ones(4, 3), torch.tensor([[1.0, 0.0], [0.0, 1.0]] * 2), 1e-3)
    assert bool(constant(torch.ones(1, 3)).isfinite().all())


def test_both_sides_weigh_the_same(rng):
    """A modality of large numbers that say nothing does not drown the other."""
    x, y = separable(rng)
    views = [View(torch.cat([x, 50 * torch.randn(90, 8, generator=rng)], dim=1), x, y) for _ in range(3)]
    names = ("train", "validation", "test")
    judged = judge_views(dict(zip(names, ({"audiovisual": v} for v in views), strict=True)), single=True)
    assert judged["audiovisual"]["neighbours, pooled tokens"].accuracy > 90


def test_labels_of_the_world():
    config = small_config("data.validation=6")
    clips = features.build_clips(config, "validation")
    names = label_names(clips)
    assert names == [clips.scene(i).labels for i in range(6)]
    targets = multi_hot(names, vocabulary(clips))
    assert [tuple(vocabulary(clips)[c] for c in row.nonzero()[:, 0]) for row in targets] == [
        tuple(sorted(set(n), key=vocabulary(clips).index)) for n in names
    ]
    assert not one_each([("a",), ("a", "b")])
    with pytest.raises(DataError, match="clip 0 has the label bell"):
        multi_hot([("bell",)], ("drum",))


def test_limits_are_evenly_spaced():
    assert thin(range(10), 4) == [0, 2, 5, 7]
    assert thin(range(3), 4) == [0, 1, 2]


def test_from_model_to_page_on_the_world(tmp_path):
    config = small_config("data.count=40", "data.validation=30", "data.test=30")
    run = evaluate_probe(loaded(config), config, limit=25)
    record = probe_record(run)
    assert set(record["probe"]) == {"audio", "visual", "audiovisual"}
    assert record["counts"]["test"] == {"audio": 25, "visual": 25, "labelled": 30}
    assert run.judged["audiovisual"]["linear probe"].accuracy is None
    html = write_evaluation(tmp_path, {"task": "probe", **record}, probe_page(config, run)).read_text()
    assert html.count("<audio") == 6
    assert "audiovisual, neighbours, shared space" in html
    assert "taken for" not in html  # several classes each: no confusions
    stored = json.loads((tmp_path / "results.json").read_text())
    assert stored["chosen_by"] == "mAP on validation"
    assert "NaN" not in (tmp_path / "results.json").read_text()


def test_sounds_and_images_that_only_classes_join(tmp_path):
    data = make_collection(tmp_path / "made", classes=3, sounds=8, images=10)
    config = with_data(small_config(), data)
    run = evaluate_probe(loaded(config), config)
    record = probe_record(run)
    assert set(record["probe"]) == {"audio", "visual"}
    assert record["counts"]["test"]["audio"] == 3
    assert record["counts"]["test"]["visual"] == 6
    assert "audio-visual: not defined" in record["remark"]
    assert "audio-visual: not defined" in probe_lines(run)[-1]
    assert record["chosen_by"] == "accuracy on validation"
    html = probe_page(config, run).html()
    assert html.count("<audio") == 3
    assert html.count("per cent of each class") == 4  # caption and alternative text, two views
    few = labelled_data(config, limit=4).splits["train"].targets
    assert {m: len(t) for m, t in few.items()} == {Modality.AUDIO: 4, Modality.VISUAL: 4}


@pytest.mark.process
def test_prepared_sounds_without_a_validation_split(tmp_path):
    sources = []
    for k in range(24):
        path = tmp_path / "media" / f"{k:02d}.wav"
        write_sound(path, 9000 * np.sin(k + np.arange(16000) * 0.02 * (1 + k % 2 * 5)))
        sources.append(
            Source(path.name, path, labels=("low", "high")[k % 2 : k % 2 + 1], split=("train", "test")[k > 19])
        )
    prepare(sources, tmp_path / "out", workers=1, need=("audio",))
    config = with_data(small_config(), tmp_path / "out")
    run = evaluate_probe(loaded(config), config)
    record = probe_record(run)
    assert set(record["probe"]) == {"audio"}
    assert record["validation_part"] == "a tenth of the training sources"
    held, rest = (run.data.splits[s].items for s in ("validation", "train"))
    assert len(held) + len(rest) == 20
    assert not {held.name(i) for i in range(len(held))} & {rest.name(i) for i in range(len(rest))}
    assert record["probe"]["audio"]["linear probe"]["accuracy"] == 100
    assert "only one modality: audio" in probe_page(config, run).html().lower()


def test_labels_missing_from_training_are_named(monkeypatch):
    config = small_config("data.validation=6", "data.test=6")
    names = {"train": ("a",), "validation": ("a",), "test": ("bell",)}
    parts = {s: features.build_clips(config, s) for s in names}
    monkeypatch.setattr(features, "label_names", lambda clips: [_word(clips, parts, names)] * len(clips))
    monkeypatch.setattr(features, "vocabulary", lambda clips: ("a",))
    with pytest.raises(DataError, match="1 labels of the test split do not occur in training: bell"):
        labelled_data(config)
    monkeypatch.setattr(features, "vocabulary", lambda clips: ("a", "bell"))
    with pytest.raises(DataError, match="bell; raise --limit or relabel"):
        labelled_data(config)
    monkeypatch.setattr(features, "label_names", lambda clips: [()] * len(clips))
    with pytest.raises(DataError, match="no clip of the train split has a label"):
        labelled_data(config)


def _word(clips, parts, names):
    return next(names[s] for s, whole in parts.items() if clips.clips.start == whole.start)
