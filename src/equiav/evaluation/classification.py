"""Classifiers on labelled clips: metrics as scikit-learn defines them, and the evaluator of fine-tuned classifiers."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float, Int64
from torch import Tensor

from equiav.build import build_inputs
from equiav.data import Dataset, Subset, evenly_spaced, labels_of, multi_hot
from equiav.distributed import everyone
from equiav.evaluation.base import Examples, Results
from equiav.evaluation.embed import evaluating, own_batches
from equiav.inference import LoadedClassifier
from equiav.media import encoder_inputs
from equiav.types import VISUAL

GUESSES = 2  # classes named for an example
CONFUSIONS = 8  # pairs of classes listed


def average_precision(scores: Float[Tensor, " n"], positive: Float[Tensor, " n"]) -> float:
    """Area under precision over recall, one step per distinct score; NaN where nothing is positive."""
    total = float(positive.sum())
    if total == 0:
        return math.nan
    order = scores.argsort(descending=True, stable=True)
    scores, hits = scores[order], positive[order].double().cumsum(0)
    last = torch.ones(len(scores), dtype=torch.bool, device=scores.device)  # of its run of equal scores
    last[:-1] = scores[1:] != scores[:-1]
    hits, seen = hits[last], torch.arange(1, len(scores) + 1, device=scores.device)[last]
    gained = torch.diff(hits, prepend=hits.new_zeros(1))
    return float((gained / total * hits / seen).sum())


def mean_average_precision(
    scores: Float[Tensor, "n classes"], labels: Float[Tensor, "n classes"]
) -> tuple[float, list[float]]:
    """Mean over the classes that have positives, and each class's own value, both in per cent."""
    values = [100 * average_precision(scores[:, c], labels[:, c]) for c in range(scores.shape[1])]
    known = [v for v in values if not math.isnan(v)]
    return (sum(known) / len(known) if known else math.nan), values


def roc_auc(scores: Float[Tensor, " n"], positive: Float[Tensor, " n"]) -> float:
    """Chance that a positive is scored above a negative, ties counted half; NaN where either is missing."""
    from scipy.stats import mannwhitneyu  # half a second to load, which training without labels does without

    above, below = scores[positive > 0].cpu().numpy(), scores[positive <= 0].cpu().numpy()
    if not len(above) or not len(below):
        return math.nan
    return float(mannwhitneyu(above, below).statistic) / (len(above) * len(below))


def d_prime(auc: float) -> float:
    """How far two unit Gaussians lie apart whose ROC curve has this area; infinite at 1."""
    from scipy.special import ndtri

    return math.sqrt(2) * float(ndtri(auc))


def accuracy(scores: Float[Tensor, "n classes"], labels: Float[Tensor, "n classes"]) -> float:
    """Per cent of clips whose highest score is that of one of their classes; clips without a class do not count."""
    known = labels.sum(dim=1) > 0
    if not bool(known.any()):
        return math.nan
    first = scores[known].argmax(dim=1, keepdim=True)
    return 100 * float((labels[known].gather(1, first) > 0).double().mean())


def confusion(
    scores: Float[Tensor, "n classes"], labels: Float[Tensor, "n classes"]
) -> Int64[Tensor, "true taken_for"]:
    """How often each class (row) is taken for each (column), over the clips that have exactly one class."""
    single = labels.sum(dim=1) == 1
    classes = labels.shape[1]
    pairs = labels[single].argmax(dim=1) * classes + scores[single].argmax(dim=1)
    return torch.bincount(pairs, minlength=classes**2).view(classes, classes)


def finite(value: float) -> float | None:
    """As results files hold it: null where it is not defined or infinite."""
    return value if math.isfinite(value) else None


def classification_metrics(
    scores: Float[Tensor, "n classes"], labels: Float[Tensor, "n classes"]
) -> tuple[dict[str, float | int | None], list[float]]:
    """mAP and accuracy in per cent, AUC and d' of the mean AUC; and each class's own average precision.

    Each mean goes over the classes for which its metric is defined.
    """
    mean, each = mean_average_precision(scores, labels)
    areas = [a for c in range(scores.shape[1]) if not math.isnan(a := roc_auc(scores[:, c], labels[:, c]))]
    auc = sum(areas) / len(areas) if areas else math.nan
    values = {"mAP": mean, "accuracy": accuracy(scores, labels), "AUC": auc, "d_prime": d_prime(auc)}
    return {**{name: finite(value) for name, value in values.items()}, "clips": len(scores)}, each


# What results say class by class, and of single clips; the probe says the same.


def by_class(values: Sequence[float], classes: Sequence[str]) -> dict[str, float | None]:
    """Values of classes by name; null where a class has none."""
    return {name: finite(value) for name, value in zip(classes, values, strict=True)}


def class_shares(labels: Float[Tensor, "n classes"], classes: Sequence[str]) -> dict[str, float]:
    """Per cent of the clips that have each class: the average precision of random scores."""
    return dict(zip(classes, (100 * labels.double().mean(dim=0)).tolist(), strict=True))


def confusion_record(
    scores: Float[Tensor, "n classes"], labels: Float[Tensor, "n classes"], classes: Sequence[str]
) -> dict[str, Any]:
    """What is taken for what, over the clips with one class: per cent of each true class, and the worst pairs.

    What does not occur is left out: of many classes, few pairs do.
    """
    counts = confusion(scores, labels)
    total = counts.sum(dim=1)
    wrong = counts.clone().fill_diagonal_(0).flatten().topk(min(CONFUSIONS, counts.numel()))
    pairs = [(*divmod(i, len(classes)), n) for i, n in zip(wrong.indices.tolist(), wrong.values.tolist(), strict=True)]
    shares: dict[str, dict[str, float]] = {}
    for a, b in counts.nonzero().tolist():
        shares.setdefault(classes[a], {})[classes[b]] = 100 * int(counts[a, b]) / int(total[a])
    return {
        "clips": int(total.sum()),
        "per_cent": shares,
        "worst": [{"true": classes[a], "taken_for": classes[b], "times": n} for a, b, n in pairs if n],
    }


def guesses(
    scores: Float[Tensor, " classes"], labels: Float[Tensor, " classes"], classes: Sequence[str], *, single: bool
) -> dict[str, Any]:
    """The classes scored highest for one clip with their probabilities, and whether the first is right."""
    probability = scores.softmax(dim=0) if single else scores.sigmoid()
    first = probability.topk(min(GUESSES, len(classes))).indices.tolist()
    return {
        "guesses": [{"class": classes[c], "per_cent": round(100 * float(probability[c]), 2)} for c in first],
        "right": bool(labels[first[0]] > 0),
    }


# Fine-tuned classifiers


@torch.inference_mode()
def classify_dataset(
    classifier: LoadedClassifier, dataset: Dataset, *, all_frames: bool = False
) -> Float[Tensor, "n classes"]:
    """Scores of every clip, each process doing a share and all getting the whole; nothing dropped or padded.

    Scores are logits; of a classifier trained to choose one class a clip, logarithms of probabilities: only they
    compare between clips. The frame is the middle one, or with `all_frames` every one in turn, and scores are averaged.
    """
    model, inputs = classifier.model, build_inputs(classifier.config)
    device = next(model.parameters()).device
    if dataset.modalities != model.modalities:
        dataset = Subset(dataset, range(len(dataset)), model.modalities)
    looks = []
    with evaluating(model):
        for frame in range(dataset.frames) if all_frames and VISUAL in model.modalities else [None]:
            parts = []
            for _, batch in own_batches(dataset, frame=frame):
                logits = model(encoder_inputs(inputs, batch.to(device))).float().cpu()
                parts.append(logits.log_softmax(dim=1) if classifier.single else logits)
            looks.append(torch.cat(everyone(parts)))
    scores = torch.stack(looks).mean(dim=0) if len(looks) > 1 else looks[0]
    return scores.clone()  # an ordinary tensor, free of inference mode


@dataclass(frozen=True)
class Classification:
    """The evaluator of fine-tuned classifiers on labelled clips.

    `all_frames` None: as the classifier's recipe says. `own_data`: the clips are of the data it was trained on; only of
    those is it known that test clips had no part in choosing the weights. `split` is for the record.
    """

    split: str | None = None
    all_frames: bool | None = None
    own_data: bool = True
    examples: int = 12

    primary = "metrics/mAP"
    greater_is_better = True

    def __call__(self, model: LoadedClassifier, dataset: Dataset) -> Results:
        """All metrics from the same scores; `chance` guesses the most frequent class, or scores at random."""
        config, classes = model.config, model.classes
        every = bool(config.finetune and config.finetune.all_frames) if self.all_frames is None else self.all_frames
        scores = classify_dataset(model, dataset, all_frames=every)
        ids = [dataset.clip(i).id for i in range(len(dataset))]
        labels = multi_hot(labels_of(dataset), classes, ids)
        metrics, each = classification_metrics(scores, labels)
        shares = class_shares(labels, classes)
        present = [share for share in shares.values() if share > 0]
        facts = ("kind", "step", "total", "equiav", "torch")
        shown = Examples(dataset.sides(), config)
        record = {
            "task": "classification",
            "mode": config.classifier.mode if config.classifier else "",
            "split": self.split,
            "frames": "all" if every else "middle",
            "seed": config.seed,
            "metrics": metrics,
            "chance": {"mAP": sum(present) / len(present), "accuracy": max(present)} if present else {},
            "class_AP": by_class(each, classes),
            "class_share": shares,
            "confusion": confusion_record(scores, labels, classes),
            "validation": (model.meta.get("best") or {}).get("validation"),
            "chosen_without_these": self.split == "test" and self.own_data and bool(model.meta.get("best")),
            "weights": config.weights or "none: from scratch",
            "checkpoint": {k: model.meta[k] for k in facts if k in model.meta},
            "examples": [
                {
                    "id": ids[i],
                    "labels": list(dataset.clip(i).labels),
                    "items": {m: shown.item(m, i, play=True) for m in model.model.modalities},
                    **guesses(scores[i], labels[i], classes, single=model.single),
                }
                for i in evenly_spaced(len(dataset), self.examples)
            ],
        }
        return Results(
            record,
            primary=self.primary,
            lines=(f"{self.split or 'clips'}, {len(dataset)} clips: {metrics_line(metrics)}",),
            template="classification.html",
            assets=shown.assets,
            watch="metrics",
        )


def metrics_line(metrics: dict[str, Any]) -> str:
    """The metrics of a classifier in a line; those without a value are left out."""
    shown = {"mAP": "{:.1f} %", "accuracy": "{:.1f} %", "d_prime": "{:.2f}"}
    return ", ".join(f"{k} {form.format(metrics[k])}" for k, form in shown.items() if metrics.get(k) is not None)
