"""What the pages say is true: frames round the right ones, ranks, shares of confusion, first guesses."""

import re
from dataclasses import replace
from html import unescape
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from PIL import Image

from equiav.build import build_bank, build_classifier, build_model
from equiav.build_data import build_clips, with_data
from equiav.build_labelled import build_splits, resolve_finetuning
from equiav.config import load_config
from equiav.evaluation.benchmark import RetrievalRun, Sides, figures
from equiav.evaluation.class_figures import confusion_figure, worst_confusions
from equiav.evaluation.classifying import Classified
from equiav.evaluation.classifying_report import classification_page, classification_record
from equiav.evaluation.localisation import localisation_record, localise_dataset
from equiav.evaluation.localisation_report import localisation_page
from equiav.evaluation.pointing import agreement
from equiav.evaluation.probe_report import evaluate_probe, probe_page
from equiav.evaluation.retrieval_report import retrieval_page
from equiav.inference import LoadedModel
from equiav.inference.classifier import LoadedClassifier
from equiav.types import Modality
from tests.data.test_paired import make_collection
from tests.training.small import small_config

FINETUNE = Path(__file__).parents[2] / "configs" / "finetune" / "smoke.yaml"


@pytest.fixture(autouse=True)
def figures_are_not_drawn(monkeypatch):
    """Drawing takes most of the time; figures are looked at by what they are given."""
    monkeypatch.setattr(Figure, "savefig", lambda self, to, **how: Image.new("RGB", (8, 8)).save(to, format="png"))


def rows(html):
    """Of each row of a page its pictures: caption, and whether it is framed."""
    cell = re.compile(r'<div class="cell( hit)?">(?:<img[^>]*>)?([^<]*)</div>')
    parts = re.split(r'<div class="row">', html)[1:]
    return [[(unescape(text), bool(hit)) for hit, text in cell.findall(part)] for part in parts]


def loaded(config):
    return LoadedModel(build_model(config).eval(), config, {m: build_bank(config, m) for m in Modality}, {"step": 0})


def retrieval_rows(clips, config, sides):
    run = RetrievalRun(sides, figures(clips, sides), {}, {}, ())
    return rows(retrieval_page(clips, config, run).html())


def test_ranks_and_frames_of_a_retrieval_page(rng):
    config = small_config("data.test=12")
    clips = build_clips(config, "test")
    a, noise = (torch.randn(12, 6, generator=rng) for _ in range(2))
    sides = Sides(a, 0.6 * a + 0.7 * noise)  # some partners come first, some do not
    cosine = F.cosine_similarity(sides.audio[:, None], sides.visual[None], dim=-1)
    found = [row[1:] for row in retrieval_rows(clips, config, sides)]  # the first cell shows the query

    def expected(scores, query):
        own = [(f"its own, rank {1 + sum(s > scores[query] for s in scores)}", True)]
        best = sorted(range(12), key=lambda j: -scores[j])[:5]
        return own + [(f"{place}. {scores[j]:.2f}", j == query) for place, j in enumerate(best, 1)]

    of_sounds = [expected(cosine[i].tolist(), i) for i in range(12)]
    assert len({row[0] for row in of_sounds}) > 2
    assert found[:8] == [of_sounds[i] for i in (0, 1, 3, 4, 6, 7, 9, 10)]
    ranks = sorted((int(row[0][0].split()[-1]) for row in of_sounds), reverse=True)
    assert [row[0][0] for row in found[8:12]] == [f"its own, rank {rank}" for rank in ranks[:4]]
    assert all(row in of_sounds for row in found[8:12])
    assert found[12:] == [expected(cosine[:, j].tolist(), j) for j in (0, 3, 6, 9)]


def test_frames_of_sounds_and_images_joined_by_class(tmp_path, rng):
    config = with_data(small_config(), make_collection(tmp_path / "made", classes=3, sounds=8, images=10))
    clips = build_clips(config, "test")
    sides = Sides(torch.randn(3, 4, generator=rng), torch.randn(6, 4, generator=rng))
    checked = []
    for query, *answers in retrieval_rows(clips, config, sides):
        for text, framed in answers:
            assert framed == (text.rsplit(", ", 1)[1] == query[0])
            checked.append(framed)
    assert set(checked) == {True, False}


def test_confusions_are_shares_of_the_true_class(monkeypatch):
    counts = torch.tensor([[6, 2, 0], [0, 1, 0], [1, 1, 2]])
    drawn, draw = [], Axes.imshow
    monkeypatch.setattr(Axes, "imshow", lambda self, values, **how: drawn.append(values) or draw(self, values, **how))
    confusion_figure(counts, ("a", "b", "c"))
    assert drawn[0].tolist() == [[75.0, 25.0, 0.0], [0.0, 100.0, 0.0], [25.0, 25.0, 50.0]]
    assert worst_confusions(counts, ("a", "b", "c"), most=2)[0] == ["a", "b", "2"]


def test_first_guesses_of_a_probe(tmp_path):
    config = with_data(small_config(), make_collection(tmp_path / "made", classes=3, sounds=8, images=10))
    run = evaluate_probe(loaded(config), config)
    found = [cell for row in rows(probe_page(config, run).html()) for cell in row]
    assert len(found) == 3 + 6
    for text, framed in found:
        true, guessed = re.fullmatch(r"true: (\w+); guessed: (\w+) \d+ %, .*", text).groups()
        assert framed == (true == guessed)
    right = [
        int((ways["linear probe"].scores.argmax(1) == run.targets(view).argmax(1)).sum())
        for view, ways in run.judged.items()
    ]
    assert sum(framed for _, framed in found) == sum(right)
    assert 0 < sum(right) < 9


@pytest.mark.parametrize("mode", ["audio", "visual", "audiovisual"])
def test_examples_of_a_classifier(mode):
    config = load_config(FINETUNE, ("data.count=16", "data.validation=4", "data.test=6", f"classifier.mode={mode}"))
    splits = build_splits(config)
    config = resolve_finetuning(config, splits, 1)[0]
    classifier = LoadedClassifier(build_classifier(config), config, splits.classes, {})
    labels = splits.test.targets.rows(range(6))
    scores = labels.roll(1, 0) + torch.linspace(0, 0.5, len(splits.classes))  # of the clip before: some are right
    found = Classified(scores, labels)
    record = classification_record(classifier, found, split="test")
    shown = rows(classification_page(classifier, splits.test, found, record).html())
    assert len(shown) == 6
    right = [bool(labels[i, int(scores[i].argmax())]) for i in range(6)]
    assert set(right) == {True, False}
    assert [{framed for _, framed in cells} for cells in shown] == [{r} for r in right]
    for i, cells in enumerate(shown):
        true = ", ".join(name for name, holds in zip(splits.classes, labels[i], strict=True) if holds)
        assert cells[-1][0].startswith(f"{true}; scored highest: {splits.classes[int(scores[i].argmax())]},")


def test_frames_of_a_localisation_page():
    config = small_config("data.test=12")
    clips = build_clips(config, "test")
    result = localise_dataset(loaded(config), clips)
    # Random weights hardly mind which sound it is: another map, so that the two frames differ somewhere.
    other = torch.flip(result.maps["sound"], (1, 2))
    maps, found = {**result.maps, "other sound": other}, {**result.found, "other sound": agreement(other, result.boxes)}
    result = replace(result, maps=maps, found=found)
    page = localisation_page(clips, result, localisation_record(clips, result), config.audio.sample_rate, "blend")
    place = {clips.name(index): place for place, index in enumerate(result.rows)}
    shown = rows(page.html())
    assert {own[1] != other[1] for _, own, other in shown} == {True, False}
    for plain, *cells in shown:
        for name, (_, framed) in zip(("sound", "other sound"), cells, strict=True):
            heat, boxes = result.maps[name][place[plain[0]]], result.boxes[place[plain[0]]]
            y, x = divmod(int(heat.argmax()), heat.shape[1])
            assert framed == any(x0 <= x < x1 and y0 <= y < y1 for x0, y0, x1, y1 in boxes.tolist())
