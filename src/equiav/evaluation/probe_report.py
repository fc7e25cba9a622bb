"""`equiav evaluate probe`: from a model and labelled data to figures and their page."""

from __future__ import annotations

import math
from dataclasses import dataclass
from html import escape
from typing import Any

from torch import Tensor

from equiav.build import build_filter_bank, build_inputs
from equiav.config import Config
from equiav.data import Labels, evenly_spaced
from equiav.evaluation.class_plots import class_bars, confusion_figure, worst_confusions
from equiav.evaluation.classification import confusion
from equiav.evaluation.embed import Say, silent
from equiav.evaluation.exhibits import small_picture, small_spectrogram
from equiav.evaluation.features import BOTH, Apart, LabelledData, frozen_features, labelled_data
from equiav.evaluation.probe import LINEAR, Judged, guessing, judge_views
from equiav.inference import LoadedModel
from equiav.report import Page, bars, cards, image, new_figure, player, png, row, table
from equiav.types import Modality

EXAMPLES, GUESSES = 6, 2
NOT_JOINED = "audio-visual: not defined, because no sound of this set belongs to one image"


@dataclass(frozen=True)
class ProbeRun:
    """What was found: [view][way], on data with these classes."""

    data: LabelledData
    judged: dict[str, dict[str, Judged]]
    guess: dict[str, dict[str, float]]  # by view

    @property
    def figure(self) -> str:
        """The figure that counts: accuracy where each has one class, else mean AP."""
        return "accuracy" if self.data.single else "mAP"

    def targets(self, view: str) -> Tensor:
        """What is true of the test rows of a view."""
        truth = self.data.splits["test"].targets
        return next(iter(truth.values())) if view == BOTH else truth[Modality(view)]


def evaluate_probe(loaded: LoadedModel, config: Config, *, limit: int | None = None, say: Say = silent) -> ProbeRun:
    """Frozen features of all splits, then linear probes and neighbours on each view.

    `config` is the model's recipe, perhaps with its data elsewhere.
    """
    data, inputs = labelled_data(config, limit=limit), build_inputs(config.audio)
    views = {}
    for name, split in data.splits.items():
        say(f"encoding the {name} split")
        views[name] = frozen_features(loaded, split, inputs, say)
    judged = judge_views(views, single=data.single, say=say)
    guess = {
        view: guessing(views["train"][view].targets, views["test"][view].targets, single=data.single) for view in judged
    }
    return ProbeRun(data, judged, guess)


def probe_record(run: ProbeRun) -> dict[str, Any]:
    """What results.json holds of it."""
    counts = {
        name: {m.value: len(t) for m, t in split.targets.items()} | {"labelled": split.of}
        for name, split in run.data.splits.items()
    }
    return {
        "probe": {view: {way: j.record() for way, j in ways.items()} for view, ways in run.judged.items()},
        "chance": run.guess,
        "class_AP": {view: _class_ap(run.data.classes, ways[LINEAR]) for view, ways in run.judged.items()},
        "counts": counts,
        "validation_part": run.data.validation,
        "chosen_by": f"{run.figure} on validation",
        **({} if run.data.splits["test"].joined else {"remark": _absent(run)}),
    }


def _class_ap(classes: Labels, judged: Judged) -> dict[str, float | None]:
    values = zip(classes, judged.class_average_precision, strict=True)
    return {name: None if math.isnan(v) else v for name, v in values}


def _absent(run: ProbeRun) -> str:
    if len(run.judged) > 1:
        return NOT_JOINED
    return f"the data hold only one modality: {next(iter(run.judged))}"


def probe_lines(run: ProbeRun) -> list[str]:
    """The figures for a terminal."""
    lines = []
    for view, ways in run.judged.items():
        for way, j in ways.items():
            second = "" if j.accuracy is None else f", accuracy {j.accuracy:.1f}"
            lines.append(f"{view}, {way}: mAP {j.mean_average_precision:.1f}{second} ({_setting(way, j)})")
        lines.append(f"{view}, chance: " + ", ".join(f"{k} {v:.1f}" for k, v in run.guess[view].items()))
    return lines if run.data.splits["test"].joined else [*lines, _absent(run)]


def _setting(way: str, judged: Judged) -> str:
    return f"penalty {judged.setting:g}" if way == LINEAR else f"k = {judged.setting:g}"


def probe_page(config: Config, run: ProbeRun) -> Page:
    """The whole page."""
    page = Page("What the frozen encoders know")
    one = "each has one class" if run.data.single else "each may have several classes"
    page.text(f"Linear classifiers and nearest neighbours on frozen features; {len(run.data.classes)} classes, {one}.")
    page.add(
        cards([(f"{run.figure}, {v}, {LINEAR}", f"{_value(run, w[LINEAR]):.1f} %") for v, w in run.judged.items()])
    )
    page.heading("Against chance").figure(_overview(run))
    page.add(table(["view and way", "mAP, %", *_exact(run, "accuracy, %"), "chosen", "on validation, %"], _rows(run)))
    if not run.data.splits["test"].joined:
        page.text(_absent(run)[0].upper() + _absent(run)[1:] + ".", note=True)
    page.heading("Class by class").figure(
        _class_figure(run),
        "Average precision of the linear probe; the black line is the class's share of the test part.",
    )
    if run.data.single:
        page.heading("What is taken for what")
        for view, ways in run.judged.items():
            counts, classes = confusion(ways[LINEAR].scores, run.targets(view)), run.data.classes
            page.figure(confusion_figure(counts, classes), f"{view}: per cent of each class, linear probe.")
            page.add(table(["true", "taken for", "times"], worst_confusions(counts, classes)))
    page.heading("Examples")
    page.text("Evenly spaced through the test part. Green: the classifier's first guess is right.", note=True)
    return page.add(*_examples(config, run))


def _value(run: ProbeRun, judged: Judged) -> float:
    return judged.mean_average_precision if judged.accuracy is None else judged.accuracy


def _exact(run: ProbeRun, cell: str) -> list[str]:
    """The cell of a column that only data with one class each have."""
    return [cell] if run.data.single else []


def _rows(run: ProbeRun) -> list[list[str]]:
    rows = []
    for view, ways in run.judged.items():
        for way, j in ways.items():
            figures = [f"{j.mean_average_precision:.1f}", *_exact(run, f"{j.accuracy or 0:.1f}")]
            rows.append([f"{view}, {way}", *figures, _setting(way, j), f"{j.validation:.1f}"])
        rows.append([f"{view}, chance", *(f"{value:.1f}" for value in run.guess[view].values()), "", ""])
    return rows


def _overview(run: ProbeRun) -> bytes:
    figure = new_figure(7.5, 3.0)
    ways = list(next(iter(run.judged.values())))
    series = {way: [_value(run, of_view[way]) for of_view in run.judged.values()] for way in ways}
    series["chance"] = [run.guess[view][run.figure] for view in run.judged]
    axis = figure.add_subplot()
    bars(axis, list(run.judged), series, f"{run.figure}, per cent")
    axis.margins(y=0.1)
    return png(figure)


def _class_figure(run: ProbeRun) -> bytes:
    values = {view: ways[LINEAR].class_average_precision for view, ways in run.judged.items()}
    shares = 100 * run.targets(list(values)[-1]).mean(dim=0)
    return class_bars(values, run.data.classes, shares.tolist())


def _examples(config: Config, run: ProbeRun) -> list[str]:
    items = run.data.splits["test"].items
    if isinstance(items, Apart):
        sounds = [
            row(_sound_cells(config, run, i, items.sounds.waveform(i)))
            for i in evenly_spaced(len(items.sounds.names), EXAMPLES)
        ]
        numbers = evenly_spaced(len(items.images.names), EXAMPLES)
        return [*sounds, row([_picture_cell(run, i, items.images.pictures[i]) for i in numbers])]
    rows = []
    for i in evenly_spaced(len(items), EXAMPLES):
        sample = items.sample(i, items.frames // 2)
        cells = _sound_cells(config, run, i, sample.waveform) if Modality.AUDIO.value in run.judged else []
        if Modality.VISUAL.value in run.judged:
            cells.append(_picture_cell(run, i, sample.frame))
        if BOTH in run.judged:
            text, right = _guess(run, BOTH, i)
            cells.append(f'<div class="cell{" hit" if right else ""}">both: {escape(text)}</div>')
        rows.append(row(cells))
    return rows


def _sound_cells(config: Config, run: ProbeRun, index: int, waveform: Tensor) -> list[str]:
    text, right = _guess(run, Modality.AUDIO.value, index)
    picture = small_spectrogram(waveform, build_filter_bank(config.audio))
    return [player(waveform.numpy(), config.audio.sample_rate), image(picture, text, hit=right)]


def _picture_cell(run: ProbeRun, index: int, picture: Tensor) -> str:
    text, right = _guess(run, Modality.VISUAL.value, index)
    return small_picture(picture, text, hit=right)


def _guess(run: ProbeRun, view: str, index: int) -> tuple[str, bool]:
    """The truth and the first guesses of the linear probe, and whether the first is right."""
    scores, truth = run.judged[view][LINEAR].scores[index], run.targets(view)[index]
    chance = scores.softmax(dim=0) if run.data.single else scores.sigmoid()
    first = chance.topk(min(GUESSES, len(chance))).indices.tolist()
    names = run.data.classes
    true = " + ".join(names[c] for c in truth.nonzero()[:, 0].tolist())
    guesses = ", ".join(f"{names[c]} {100 * float(chance[c]):.0f} %" for c in first)
    return f"true: {true}; guessed: {guesses}", bool(truth[first[0]])
