"""Zero-shot classification: clips by the nearest name of a class, written into prompts; nothing is trained."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from equiav.data import Dataset, Labels, Subset, evenly_spaced, labels_of, multi_hot, vocabulary
from equiav.errors import ConfigError, DataError
from equiav.evaluation.base import Report, Results, silent
from equiav.evaluation.classification import classification_metrics
from equiav.evaluation.embed import embed_dataset
from equiav.inference import Embedder, LoadedModel
from equiav.text import TEXT, fill, text_options
from equiav.types import AUDIO, VISUAL

BOTH = "both"
Texts = Callable[[list[str]], Any]  # unit vectors (N, D) of texts in the model's space


def prompts_of(model: LoadedModel) -> tuple[str, ...]:
    """The templates of the model's recipe; those of any recipe where it has no text."""
    cfg = model.config.modalities.get(TEXT)
    return text_options(cfg.options if cfg is not None and cfg.kind == "text" else {}).templates


def class_vectors(texts: Texts, classes: Sequence[str], templates: Sequence[str]) -> Float[Tensor, "classes d"]:
    """One unit vector for each class: the direction of the mean over the templates."""
    if not templates or not all("{}" in template for template in templates):
        raise ConfigError("a prompt is a sentence with {} in place of the class, such as 'a photo of {}'")
    rows = torch.as_tensor(texts([fill(template, name) for name in classes for template in templates]))
    return F.normalize(rows.view(len(classes), len(templates), -1).mean(dim=1), dim=1)


@dataclass(frozen=True)
class ZeroShot:
    """The evaluator of zero-shot classification by sound, by frame, and by both where clips have both.

    Args:
        templates: prompts with {} in place of the class; without any, those of the model's recipe.
        classes: all of them; without any, those of the dataset.
        texts: what embeds prompts; without it the model itself.
        limit: labelled clips of each modality, evenly spaced; None takes all of them.
        split: for the record.
    """

    templates: tuple[str, ...] | None = None
    classes: Labels | None = None
    texts: Texts | None = None
    limit: int | None = None
    split: str | None = None
    report: Report = silent

    greater_is_better = True
    primary = "zeroshot/audio/accuracy"

    def __call__(self, model: LoadedModel, dataset: Dataset) -> Results:
        """mAP and accuracy by modality, beside chance; average precision by class."""
        templates, classes = self.templates or prompts_of(model), self.classes or vocabulary(dataset)
        prompts = class_vectors(self.texts or Embedder(model).text, classes, templates)
        scores: dict[str, Tensor] = {}
        targets: dict[str, Tensor] = {}
        sides = dataset.sides()
        for m in (m for m in (AUDIO, VISUAL) if m in model.modalities and m in sides):
            side = sides[m]
            labels = labels_of(side)
            rows = [i for i, of in enumerate(labels) if of]
            rows = [rows[k] for k in evenly_spaced(len(rows), self.limit or len(rows))] if rows else []
            if not rows:
                raise DataError(f"no {m} clip of these data has a label to compare with")
            chosen = Subset(side, rows, (m,))
            ids = [chosen.clip(i).id for i in range(len(rows))]
            targets[m] = multi_hot([labels[i] for i in rows], classes, ids)
            scores[m] = F.normalize(embed_dataset(model, chosen, report=self.report)[m], dim=1) @ prompts.T
        if dataset.one_to_one and len(scores) > 1:
            scores[BOTH], targets[BOTH] = torch.stack(list(scores.values())).mean(dim=0), targets[AUDIO]
        record: dict[str, Any] = {
            "task": "zeroshot",
            "split": self.split,
            "templates": list(templates),
            "classes": list(classes),
            "zeroshot": {},
            "by_class": {},
            "checkpoint": model.meta,
        }
        for m, found in scores.items():
            metrics, each = classification_metrics(found, targets[m])
            of = targets[m].double()
            chance = {"accuracy": 100 * float(of.mean(dim=1).mean()), "mAP": 100 * float(of.mean(dim=0).mean())}
            record["zeroshot"][m] = {**metrics, "chance": chance}
            known = of.sum(dim=0) > 0
            record["by_class"][m] = {c: each[k] for k, c in enumerate(classes) if bool(known[k])}
        lines = [
            f"{m}: accuracy {of['accuracy']:.1f} % (chance {of['chance']['accuracy']:.1f} %), "
            f"mAP {of['mAP']:.1f} % (chance {of['chance']['mAP']:.1f} %), {of['clips']} clips, {len(classes)} classes"
            for m, of in record["zeroshot"].items()
        ]
        primary = f"zeroshot/{next(iter(scores))}/accuracy"
        return Results(record, primary=primary, lines=tuple(lines), watch="zeroshot")
