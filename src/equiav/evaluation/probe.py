"""Linear probe and nearest neighbours on frozen features: what the encoders know, chosen on validation only."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from equiav.data import ClipDataset, Split, evaluation_batches
from equiav.evaluation.classification import accuracy, mean_average_precision
from equiav.evaluation.embed import Say, device_of, read_tokens, silent
from equiav.evaluation.features import View
from equiav.evaluation.knn import nearest_votes
from equiav.media import Inputs
from equiav.models import EquiAV, mean_pool
from equiav.types import Modality

PENALTIES = (1e-6, 1e-5, 1e-4, 1e-3, 1e-2)
LINEAR, NEAREST, NEAREST_SHARED = "linear probe", "neighbours, pooled tokens", "neighbours, shared space"

Labelled = tuple[Tensor, Tensor]  # features (N, width), targets (N, classes)


def pooled_features(model: EquiAV, clips: ClipDataset, inputs: Inputs, *, batch: int = 64) -> dict[Modality, Tensor]:
    """MeanPool(h) of every clip and modality."""
    device = device_of(model)
    given = (inputs.of(loaded.to(device)) for loaded in evaluation_batches(clips, batch=batch))
    parts = read_tokens(model, given, lambda m, h: [mean_pool(h)])
    # Clones are ordinary tensors, which a probe can learn on.
    return {m: torch.cat(rows).clone() for m, (rows,) in parts.items()}


@dataclass(frozen=True)
class LinearProbe:
    """Weights of a linear classifier on standardised features."""

    weight: Float[Tensor, "width classes"]
    bias: Float[Tensor, " classes"]
    mean: Float[Tensor, " width"]
    std: Float[Tensor, " width"]

    def __call__(self, features: Float[Tensor, "n width"]) -> Float[Tensor, "n classes"]:
        """Logits."""
        return ((features - self.mean) / self.std) @ self.weight + self.bias


def mean_and_std(features: Float[Tensor, "n width"]) -> tuple[Float[Tensor, " width"], Float[Tensor, " width"]]:
    """What features are standardised with; one that never changes stays as it is."""
    return features.mean(dim=0), features.std(dim=0, correction=0).clamp(min=1e-6)


def fit_probe(
    features: Float[Tensor, "n width"], targets: Float[Tensor, "n classes"], penalty: float, *, single: bool = False
) -> LinearProbe:
    """Logistic regression by L-BFGS from zero, deterministic: one output per class, or one class of all (`single`)."""
    mean, std = mean_and_std(features)
    x = (features - mean) / std
    weight = torch.zeros(x.shape[1], targets.shape[1], requires_grad=True)
    bias = torch.zeros(targets.shape[1], requires_grad=True)
    optimiser = torch.optim.LBFGS([weight, bias], max_iter=200, line_search_fn="strong_wolfe")
    criterion = F.cross_entropy if single else F.binary_cross_entropy_with_logits

    def closure() -> Tensor:
        optimiser.zero_grad()
        loss: Tensor = criterion(x @ weight + bias, targets) + penalty * weight.square().sum()
        loss.backward()  # type: ignore[no-untyped-call]
        return loss

    optimiser.step(closure)  # type: ignore[no-untyped-call]
    return LinearProbe(weight.detach(), bias.detach(), mean, std)


@dataclass(frozen=True)
class Judged:
    """One way to classify one kind of features: what validation chose, and the figures on test, per cent."""

    setting: float  # the penalty, or the number of neighbours
    validation: float  # the figure that chose it: accuracy where each has one class, else mean AP
    mean_average_precision: float
    accuracy: float | None  # where each has one class
    class_average_precision: list[float]  # NaN where the test split has none of a class
    scores: Float[Tensor, "n classes"]

    def record(self) -> dict[str, Any]:
        """As written to results files, without classes and scores."""
        found = {"mAP": self.mean_average_precision, "accuracy": self.accuracy}
        return {"setting": self.setting, "validation": self.validation, **found}


def judge(
    validation: dict[float, Tensor], test: dict[float, Tensor], targets: tuple[Tensor, Tensor], *, single: bool
) -> Judged:
    """Scores by setting on both splits: the best on validation is judged on test; of equals, the first."""
    known, truth = targets
    figures = {s: accuracy(x, known) if single else mean_average_precision(x, known)[0] for s, x in validation.items()}
    best = max(figures, key=lambda s: -math.inf if math.isnan(figures[s]) else figures[s])
    scores = test[best]
    mean, each = mean_average_precision(scores, truth)
    return Judged(best, figures[best], mean, accuracy(scores, truth) if single else None, each, scores)


def fit_probes(train: Labelled, *, single: bool = False) -> dict[float, LinearProbe]:
    """A linear classifier with each penalty."""
    return {penalty: fit_probe(*train, penalty, single=single) for penalty in PENALTIES}


def judge_probes(
    fitted: dict[float, LinearProbe], validation: Labelled, test: Labelled, *, single: bool = False
) -> Judged:
    """Classifiers fitted with several penalties, judged with the one that validation chose."""
    on = [{p: f(features) for p, f in fitted.items()} for features in (validation[0], test[0])]
    if single:  # average precision compares clips, and only probabilities compare between them
        on = [{p: logits.log_softmax(dim=1) for p, logits in scores.items()} for scores in on]
    return judge(on[0], on[1], (validation[1], test[1]), single=single)


def linear_probe(train: Labelled, validation: Labelled, test: Labelled, *, single: bool = False) -> Judged:
    """A linear classifier fitted with each penalty, judged with the one that validation chose."""
    return judge_probes(fit_probes(train, single=single), validation, test, single=single)


def neighbours(train: Labelled, validation: Labelled, test: Labelled, *, single: bool = False) -> Judged:
    """Votes of the k nearest, with the k that validation chose."""
    on = [{float(k): v for k, v in nearest_votes(part[0], *train).items()} for part in (validation, test)]
    return judge(on[0], on[1], (validation[1], test[1]), single=single)


def probe(train: Labelled, validation: Labelled, test: Labelled) -> tuple[float, float]:
    """Mean AP of a linear probe on the test part, per cent, and the penalty that the validation part chose."""
    judged = linear_probe(train, validation, test)
    return judged.mean_average_precision, judged.setting


def judge_views(
    views: dict[Split, dict[str, View]], *, single: bool, say: Say = silent
) -> dict[str, dict[str, Judged]]:
    """Linear probe and neighbours on every view, the pooled tokens standardised for both: [view][way]."""
    found: dict[str, dict[str, Judged]] = {}
    for name in views["train"]:
        say(f"fitting the probe on {name} features")
        parts = [views[split][name] for split in ("train", "validation", "test")]
        pooled, shared = [(p.pooled, p.targets) for p in parts], [(p.shared, p.targets) for p in parts]
        mean, std = mean_and_std(parts[0].pooled)
        alike = [((p.pooled - mean) / std, p.targets) for p in parts]  # else the larger modality alone decides
        found[name] = {
            LINEAR: linear_probe(*pooled, single=single),
            NEAREST: neighbours(*alike, single=single),
            NEAREST_SHARED: neighbours(*shared, single=single),
        }
    return found


def guessing(train: Float[Tensor, "n classes"], test: Float[Tensor, "m classes"], *, single: bool) -> dict[str, float]:
    """Without looking: mean AP of random scores (the share of each class) and accuracy of the commonest class."""
    share = test.mean(dim=0)
    found = {"mAP": 100 * float(share[share > 0].mean())}
    if single:
        found["accuracy"] = 100 * float(share[int(train.sum(dim=0).argmax())])
    return found
