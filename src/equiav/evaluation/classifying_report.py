"""`equiav evaluate classification`: the record of a classifier on a set, and its page."""

from __future__ import annotations

import math
from typing import Any

from torch import Tensor

from equiav.build import build_filter_bank
from equiav.data import LabelledClips, evenly_spaced
from equiav.evaluation.class_plots import class_bars, confusion_figure, worst_confusions
from equiav.evaluation.classification import confusion
from equiav.evaluation.classifying import Classified
from equiav.evaluation.exhibits import small_picture, small_spectrogram
from equiav.inference.classifier import LoadedClassifier
from equiav.report import Page, cards, image, player, row, table
from equiav.types import Modality

EXAMPLES, GUESSES = 12, 2


def classification_record(
    loaded: LoadedClassifier, found: Classified, *, split: str, all_frames: bool = False
) -> dict[str, Any]:
    """What results.json holds; `chance` guesses the most frequent class, or scores at random."""
    metrics, classifier = found.metrics(), loaded.config.classifier
    each = zip(loaded.classes, metrics.class_average_precision, strict=True)
    share = 100 * found.labels.double().mean(dim=0)
    present = share[share > 0]
    chance = {"mAP": float(present.mean()), "accuracy": float(share.max())} if len(present) else {}
    facts = ("kind", "step", "total", "equiav", "torch")
    return {
        "task": "classification",
        "mode": classifier.mode if classifier else "",
        "split": split,
        "frames": "all" if all_frames else "middle",
        "seed": loaded.config.seed,
        "metrics": metrics.record(),
        "chance": chance,
        "class_AP": {name: None if math.isnan(v) else v for name, v in each},
        "validation": (loaded.meta.get("best") or {}).get("validation"),
        "weights": loaded.config.weights or "none: from scratch",
        "checkpoint": {k: loaded.meta[k] for k in facts if k in loaded.meta},
    }


def classification_page(
    loaded: LoadedClassifier, clips: LabelledClips, found: Classified, record: dict[str, Any], *, own: bool = True
) -> Page:
    """Figures, class by class, confusions where each clip has one class, examples; `own`: the data it was trained on.

    Only of those is it known that the test clips had no part in choosing the weights.
    """
    page = Page(f"A classifier of {record['mode']} clips")
    apart = record["split"] == "test" and own and bool(loaded.meta.get("best"))
    page.text(
        f"{len(clips)} clips of the {record['split']} split, {len(loaded.classes)} classes."
        + (" The weights were chosen on validation; these clips took no part in it." if apart else "")
    )
    metrics, chance = record["metrics"], record["chance"]
    shown = [("mAP", "mAP", "{:.1f} %"), ("accuracy", "accuracy", "{:.1f} %"), ("d_prime", "d'", "{:.2f}")]
    page.add(cards([(name, form.format(metrics[k]) if metrics[k] is not None else "-") for k, name, form in shown]))
    page.add(
        table(
            ["", "mAP, %", "accuracy, %"],
            [[who, *(_percent(of.get(k)) for k in ("mAP", "accuracy"))] for who, of in (
                (record["split"], metrics), ("validation, when chosen", record["validation"] or {}), ("chance", chance),
            )],
        )
    )  # fmt: skip
    values = {record["mode"]: found.metrics().class_average_precision}
    shares = (100 * found.labels.mean(dim=0)).tolist()
    page.heading("Class by class").figure(
        class_bars(values, loaded.classes, shares), "Average precision; the black line is the class's share of the set."
    )
    counts = confusion(found.scores, found.labels)
    if int(counts.sum()):
        page.heading("What is taken for what").figure(
            confusion_figure(counts, loaded.classes),
            f"Per cent of each class, over the {int(counts.sum())} clips with one class.",
        )
        page.add(table(["true", "taken for", "times"], worst_confusions(counts, loaded.classes)))
    page.heading("Examples")
    page.text("Evenly spaced through the set. Green: the highest score belongs to a class of the clip.", note=True)
    return page.add(*(_example(loaded, clips, found, i) for i in evenly_spaced(len(clips), EXAMPLES)))


def _percent(value: float | None) -> str:
    return "" if value is None else f"{value:.1f}"


def _example(loaded: LoadedClassifier, clips: LabelledClips, found: Classified, index: int) -> str:
    sample = clips.sample(index, clips.frames // 2)
    right = bool(found.labels[index, int(found.scores[index].argmax())] > 0)
    text = f"{_true(loaded, found.labels[index])}; scored highest: {_guesses(loaded, found.scores[index])}"
    cells = []
    if Modality.AUDIO in clips.wanted:
        cells.append(player(sample.waveform.numpy(), loaded.config.audio.sample_rate))
        spectrogram = small_spectrogram(sample.waveform, build_filter_bank(loaded.config.audio))
        cells.append(image(spectrogram, "" if Modality.VISUAL in clips.wanted else text, hit=right))
    if Modality.VISUAL in clips.wanted:
        cells.append(small_picture(sample.frame, text, hit=right))
    return row(cells)


def _true(loaded: LoadedClassifier, labels: Tensor) -> str:
    return ", ".join(loaded.classes[int(c)] for c in labels.nonzero()[:, 0]) or "no class"


def _guesses(loaded: LoadedClassifier, scores: Tensor) -> str:
    top = scores.topk(min(GUESSES, len(scores))).indices.tolist()
    return ", ".join(loaded.classes[c] for c in top)
