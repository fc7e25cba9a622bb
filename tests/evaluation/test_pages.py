"""Pages say what their results say: captions, ranks, which cells are framed, shares of confusion.

The results themselves are compared with slow counts in the tests of each evaluator.
"""

import re
from html import unescape

import pytest
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from PIL import Image

from equiav.build import build_dataset, with_data
from equiav.evaluation import Localisation, Probe, Retrieval, probe_splits
from equiav.report import confusion_plot
from tests.evaluation.made import Vectors, loaded, make_collection, passing_model, written
from tests.training.small import small_config


@pytest.fixture(autouse=True)
def figures_are_not_drawn(monkeypatch):
    """Drawing takes most of the time; plots are looked at by what they are given."""
    monkeypatch.setattr(Figure, "savefig", lambda self, to, **how: Image.new("RGB", (8, 8)).save(to, format="png"))


def rows(html):
    """Of each row of a page its cells: caption, and whether it is framed."""
    cell = re.compile(r'<div class="cell( hit)?">(?:<img[^>]*>|[^<]*<br>)?\s*([^<]*)</div>')
    parts = re.split(r'<div class="row">', html)[1:]
    return [[(unescape(text).strip(), bool(hit)) for hit, text in cell.findall(part)] for part in parts]


def test_ranks_and_frames_of_a_retrieval_page(rng, tmp_path):
    a, noise = (torch.randn(12, 6, generator=rng) for _ in range(2))
    vectors = {"touch": a, "smell": 0.6 * a + 0.7 * noise}  # some partners come first, some do not
    record, html = written(Retrieval()(passing_model(vectors, 6), Vectors(vectors)), tmp_path)
    expected = []
    for section in record["examples"]:
        for asked in section["queries"]:
            found = [(f"{k}. {f['score']:.2f}", f["right"]) for k, f in enumerate(asked["found"], 1)]
            expected.append([(asked["query"]["id"], False), (f"its own, rank {asked['rank']}", True), *found])
    assert len({row[1] for row in expected}) > 2
    assert rows(html) == expected


def test_frames_of_sounds_and_images_joined_by_class(tmp_path):
    config = with_data(small_config(), make_collection(tmp_path / "made"))
    _, html = written(Retrieval()(loaded(config), build_dataset(config, "test")), tmp_path / "out")
    checked = []
    for query, *answers in rows(html):
        for text, framed in answers:
            assert framed == (text.rsplit(", ", 1)[1] == query[0])
            checked.append(framed)
    assert set(checked) == {True, False}


def test_confusions_are_drawn_row_by_row(monkeypatch):
    drawn, draw = [], Axes.imshow
    monkeypatch.setattr(Axes, "imshow", lambda self, values, **how: drawn.append(values) or draw(self, values, **how))
    confusion_plot({"a": {"a": 75.0, "b": 25.0}, "c": {"a": 25.0, "b": 25.0, "c": 50.0}}, ("a", "b", "c"))
    assert drawn[0].tolist() == [[75.0, 25.0, 0.0], [0.0, 0.0, 0.0], [25.0, 25.0, 50.0]]


def test_first_guesses_of_a_probe(tmp_path):
    config = with_data(small_config(), make_collection(tmp_path / "made"))
    splits, _ = probe_splits(config)
    results = Probe(splits["train"], splits["validation"])(loaded(config), splits["test"])
    record, html = written(results, tmp_path / "out")
    found = [cell for row in rows(html) for cell in row]
    assert len(found) == len(record["examples"]) == 3 + 6
    for (text, framed), example in zip(found, record["examples"], strict=True):
        true, guessed = re.fullmatch(r"true: (\w+); guessed: (\w+) \d+ %, .*", text).groups()
        (guess,) = example["views"].values()
        assert (true, guessed) == (example["labels"][0], guess["guesses"][0]["class"])
        assert framed == guess["right"] == (true == guessed)
    assert {framed for _, framed in found} == {True, False}


def test_frames_of_a_localisation_page(tmp_path):
    config = small_config("data.test=24")
    record, html = written(Localisation(examples=24)(loaded(config), build_dataset(config, "test")), tmp_path)
    shown = [[framed for _, framed in cells[2:]] for cells in rows(html)]  # after the spectrogram and the plain frame
    assert shown == [
        [example["maps"][name]["hit"] for name in ("sound", "other sound")] for example in record["examples"]
    ]
    assert {hit for pair in shown for hit in pair} == {True, False}
    assert [cells[1][0] for cells in rows(html)] == [example["id"] for example in record["examples"]]
