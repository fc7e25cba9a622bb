"""Linear probe and nearest neighbours on frozen features: what the encoders know, chosen on validation only."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from equiav.build import build_dataset, present_splits
from equiav.config import CavMaeConfig, Config, WorldConfig
from equiav.data import Dataset, Labels, Subset, evenly_spaced, hold_out, labels_of, multi_hot, vocabulary
from equiav.errors import DataError, ShapeError
from equiav.evaluation.base import Examples, Report, Results, of_list, of_list_lines, silent
from equiav.evaluation.classification import (
    accuracy,
    by_class,
    class_shares,
    confusion_record,
    guesses,
    mean_average_precision,
)
from equiav.evaluation.embed import read_tokens
from equiav.inference import LoadedModel
from equiav.models import Tokens, mean_pool
from equiav.types import AUDIO, SPLITS, VISUAL, Modality, Split

PENALTIES = (1e-6, 1e-5, 1e-4, 1e-3, 1e-2)
NEIGHBOURS = (1, 5, 10, 20, 50, 100, 200)
TEMPERATURE = 0.07
CHUNK = 1024
HELD_OUT = 0.1
LINEAR, NEAREST, NEAREST_SHARED = "linear probe", "neighbours, pooled tokens", "neighbours, shared space"

Labelled = tuple[Tensor, Tensor]  # features (N, width), targets (N, classes)


# A classifier on given features


def _mean_and_std(features: Float[Tensor, "n width"]) -> tuple[Float[Tensor, " width"], Float[Tensor, " width"]]:
    """What features are standardised with; one that never changes stays as it is."""
    return features.mean(dim=0), features.std(dim=0, correction=0).clamp(min=1e-6)


def fit_probe(
    features: Float[Tensor, "n width"], targets: Float[Tensor, "n classes"], penalty: float, *, single: bool = False
) -> Callable[[Float[Tensor, "m width"]], Float[Tensor, "m classes"]]:
    """Logistic regression by L-BFGS from zero, deterministic: one output per class, or one class of all (`single`).

    Returns what gives the logits of features; it standardises them as it did those it was fitted on.
    """
    mean, std = _mean_and_std(features)
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
    weight, bias = weight.detach(), bias.detach()
    return lambda features: ((features - mean) / std) @ weight + bias


@dataclass(frozen=True)
class ProbeResult:
    """One classifier on one kind of features: what validation chose, and the metrics on test, per cent."""

    setting: float  # the penalty, or the number of neighbours
    validation: float  # the metric that chose it: accuracy where each has one class, else mean AP
    mean_average_precision: float
    accuracy: float | None  # where each has one class
    class_average_precision: list[float]  # NaN where the test split has none of a class
    scores: Float[Tensor, "n classes"]


def choose(
    validation: Mapping[float, Tensor], test: Mapping[float, Tensor], targets: tuple[Tensor, Tensor], *, single: bool
) -> ProbeResult:
    """From scores by setting on both splits: the best on validation, measured on test; of equals, the first."""
    known, truth = targets
    found = {s: accuracy(x, known) if single else mean_average_precision(x, known)[0] for s, x in validation.items()}
    best = max(found, key=lambda s: -math.inf if math.isnan(found[s]) else found[s])
    scores = test[best]
    mean, each = mean_average_precision(scores, truth)
    return ProbeResult(best, found[best], mean, accuracy(scores, truth) if single else None, each, scores)


def linear_probes(
    train: Labelled, validation: Labelled, tests: Sequence[Labelled], *, single: bool = False
) -> list[ProbeResult]:
    """A linear classifier fitted with each penalty; the one that validation chose, measured on each of the tests."""
    fitted = {penalty: fit_probe(*train, penalty, single=single) for penalty in PENALTIES}

    def scores(features: Tensor) -> dict[float, Tensor]:
        logits = {penalty: probe(features) for penalty, probe in fitted.items()}
        # Average precision compares clips, and only probabilities compare between them.
        return {p: x.log_softmax(dim=1) for p, x in logits.items()} if single else logits

    on_validation = scores(validation[0])
    return [choose(on_validation, scores(x), (validation[1], y), single=single) for x, y in tests]


def linear_probe(train: Labelled, validation: Labelled, test: Labelled, *, single: bool = False) -> ProbeResult:
    """The same on one test part."""
    return linear_probes(train, validation, [test], single=single)[0]


def nearest_votes(
    queries: Float[Tensor, "n width"],
    features: Float[Tensor, "m width"],
    targets: Float[Tensor, "m classes"],
    counts: Sequence[int] = NEIGHBOURS,
    *,
    temperature: float = TEMPERATURE,
) -> dict[int, Float[Tensor, "n classes"]]:
    """For each k: the share of every class in the votes of the k features with the greatest cosine.

    A neighbour's vote weighs exp(cosine / temperature). One search serves all k; those beyond m are left out.
    """
    counts = [k for k in counts if k <= len(features)]
    if not counts:
        raise ShapeError(f"{len(features)} features are fewer than the least number of neighbours asked for")
    q, x = F.normalize(queries, dim=1), F.normalize(features, dim=1)
    votes: dict[int, list[Tensor]] = {k: [] for k in counts}
    for start in range(0, len(q), CHUNK):
        cosine, place = (q[start : start + CHUNK] @ x.T).topk(max(counts), dim=1)
        weight = ((cosine - cosine[:, :1]) / temperature).exp()  # the nearest weighs 1: nothing overflows
        for k in counts:
            share = weight[:, :k] / weight[:, :k].sum(dim=1, keepdim=True)
            votes[k].append(torch.einsum("nk,nkc->nc", share, targets[place[:, :k]]))
    return {k: torch.cat(parts) for k, parts in votes.items()}


def neighbours(train: Labelled, validation: Labelled, test: Labelled, *, single: bool = False) -> ProbeResult:
    """Votes of the k nearest, with the k that validation chose."""
    on = [{float(k): v for k, v in nearest_votes(part[0], *train).items()} for part in (validation, test)]
    return choose(on[0], on[1], (validation[1], test[1]), single=single)


def guessing(train: Float[Tensor, "n classes"], test: Float[Tensor, "m classes"], *, single: bool) -> dict[str, float]:
    """Without looking: mean AP of random scores (the share of each class) and accuracy of the commonest class."""
    share = test.mean(dim=0)
    found = {"mAP": 100 * float(share[share > 0].mean())}
    if single:
        found["accuracy"] = 100 * float(share[int(train.sum(dim=0).argmax())])
    return found


# Frozen features


@dataclass(frozen=True)
class View:
    """One modality, or all, of a split: pooled tokens, embeddings in the shared space, and what is true."""

    pooled: Float[Tensor, "n width"]
    shared: Float[Tensor, "n d"]
    targets: Float[Tensor, "n classes"]


def frozen_features(
    model: LoadedModel,
    sides: Mapping[Modality, Dataset],
    classes: Sequence[str],
    *,
    joint: bool = True,
    report: Report = silent,
) -> dict[str, View]:
    """The views of labelled clips, by modality; `joint`: also all of a clip's modalities side by side.

    `sides` are a dataset's `sides()`; a dataset that stands for several modalities is read once.
    """

    def reader(m: Modality, h: Tokens) -> list[Tensor]:
        return [mean_pool(h), model.model.embed_tokens(m, h, model.banks.get(m))]

    views: dict[str, View] = {}
    for side in {id(side): side for side in sides.values()}.values():
        modalities = [m for m in sides if sides[m] is side]
        targets = multi_hot(labels_of(side), classes, [side.clip(i).id for i in range(len(side))])
        read = read_tokens(model, side, reader, modalities=modalities, what="encoding", report=report)
        views |= {m: View(pooled, F.normalize(shared, dim=1), targets) for m, (pooled, shared) in read.items()}
    if joint and len(views) > 1:
        parts = list(views.values())
        pooled, shared = torch.cat([v.pooled for v in parts], dim=1), torch.cat([v.shared for v in parts], dim=1)
        name = "audiovisual" if set(sides) == {AUDIO, VISUAL} else "+".join(sides)
        views[name] = View(pooled, shared, parts[0].targets)
    return views


def probe_splits(config: Config) -> tuple[dict[Split, Dataset], str]:
    """The three splits of a recipe's data, and where the validation part comes from.

    Without a validation or test split, a tenth of the training sources stands in.
    """
    if isinstance(config.data, WorldConfig):  # labels say what is seen to sound: mismatched audio would belie them
        config = config.model_copy(update={"data": config.data.model_copy(update={"mismatched": 0.0})})
    if isinstance(config.data, CavMaeConfig) and config.data.train == config.data.test:
        raise DataError(f"{config.data.train}: one list cannot train and judge a probe; give another with --test")
    there = present_splits(config)
    if there == set(SPLITS):
        return {name: build_dataset(config, name) for name in SPLITS}, "its own split"
    if not there & {"validation", "test"}:
        raise DataError("there are only training clips; a probe needs a validation or test split to be judged on")
    train = build_dataset(config, "train")
    test = build_dataset(config, "test" if "test" in there else "validation")
    held = hold_out([train.clip(i).group for i in range(len(train))], HELD_OUT)
    rest, kept = (Subset(train, np.flatnonzero(which)) for which in (~held, held))
    said = "a tenth of the training sources" + ("" if "test" in there else "; the validation split is the test")
    return {"train": rest, "validation": kept, "test": test}, said


def _labelled(
    dataset: Dataset, name: str, modalities: Sequence[Modality], limit: int | None
) -> tuple[dict[Modality, Dataset], int]:
    """The clips of a split that have labels, at most `limit` of each side, evenly spaced; and how many there are."""
    given = {m: side for m, side in dataset.sides().items() if m in modalities}
    sides: dict[Modality, Dataset] = {}
    counts = []
    for side in {id(side): side for side in given.values()}.values():
        rows = [i for i, labels in enumerate(labels_of(side)) if labels]
        if not rows:
            raise DataError(f"no clip of the {name} split has a label; prepare the data from a list that gives some")
        used = [rows[k] for k in evenly_spaced(len(rows), limit or len(rows))]
        chosen = Subset(side, used, [m for m in given if given[m] is side])
        sides |= dict.fromkeys(chosen.modalities, chosen)
        counts.append(len(rows))
    return {m: sides[m] for m in modalities}, counts[0]


def _refuse_unseen(parts: Mapping[str, Mapping[Modality, Dataset]], classes: Labels) -> None:
    """Refuses labels that no training clip has: no probe could learn them."""
    for m, train in parts["train"].items():
        seen = set(chain(*labels_of(train)))
        for split in ("validation", "test"):
            unseen = sorted(set(chain(*labels_of(parts[split][m]))) - seen)
            if strange := [label for label in unseen if label not in classes]:
                what = f"{len(strange)} labels of the {split} split do not occur in training"
                raise DataError(f"{what}: {', '.join(strange[:5])}")
            if unseen:
                raise DataError(
                    f"{len(unseen)} labels of the {split} split do not occur among the {len(train)} training "
                    f"clips used ({m}): {', '.join(unseen[:5])}; raise --limit or relabel"
                )


@dataclass(frozen=True)
class Probe:
    """The evaluator of frozen features: linear probe and nearest neighbours, trained on `train`.

    `validation` chooses the penalty and the number of neighbours; see `probe_splits`. At most `limit` labelled clips
    of each split take part, evenly spaced (None: all). `single` None: one class is chosen of all where every clip has
    exactly one. `neighbours` False: the linear probe alone. `validation_part` and `listed` are for the record.
    """

    train: Dataset
    validation: Dataset
    limit: int | None = None
    single: bool | None = None
    neighbours: bool = True
    validation_part: str = "its own split"
    listed: int | None = None
    examples: int = 6
    report: Report = silent

    primary = "probe/audiovisual/linear probe/mAP"
    greater_is_better = True

    def __call__(self, model: LoadedModel, dataset: Dataset) -> Results:
        """Every modality by itself, and all together where those of a clip belong together."""
        modalities = [m for m in model.modalities if m in dataset.modalities]
        classes = vocabulary(self.train)
        splits = {"train": self.train, "validation": self.validation, "test": dataset}
        parts = {name: _labelled(of, name, modalities, self.limit) for name, of in splits.items()}
        sides = {name: of for name, (of, _) in parts.items()}
        _refuse_unseen(sides, classes)
        views = {}
        for name, of in sides.items():
            self.report(f"encoding the {name} split")
            views[name] = frozen_features(model, of, classes, joint=dataset.one_to_one, report=self.report)
        single = self.single
        if single is None:
            single = all(bool((v.targets.sum(dim=1) == 1).all()) for of in views.values() for v in of.values())
        found = {view: self._results(views, view, single) for view in views["test"]}
        metric = "accuracy" if single else "mAP"
        truth = {view: v.targets for view, v in views["test"].items()}
        shown = Examples(sides["test"], model.config)
        record: dict[str, Any] = {
            "task": "probe",
            "limit": self.limit or 0,
            **of_list(dataset, self.listed),
            "probe": {
                view: {
                    way: {
                        "setting": r.setting,
                        "validation": r.validation,
                        "mAP": r.mean_average_precision,
                        "accuracy": r.accuracy,
                    }
                    for way, r in ways.items()
                }
                for view, ways in found.items()
            },
            "chance": {view: guessing(views["train"][view].targets, truth[view], single=single) for view in found},
            "class_AP": {view: by_class(ways[LINEAR].class_average_precision, classes) for view, ways in found.items()},
            "class_share": class_shares(list(truth.values())[-1], classes),
            "counts": {
                name: {m: len(side) for m, side in of.items()} | {"labelled": labelled}
                for name, (of, labelled) in parts.items()
            },
            "validation_part": self.validation_part,
            "chosen_by": f"{metric} on validation",
            "metric": metric,
            "confusion": {
                view: confusion_record(ways[LINEAR].scores, truth[view], classes)
                for view, ways in found.items()
                if single
            },
            "checkpoint": model.meta,
        }
        if len(modalities) == 1:
            record["remark"] = f"the data hold only one modality: {modalities[0]}"
        elif not dataset.one_to_one:
            record["remark"] = "audio-visual: not defined, because no sound of this set belongs to one image"
        record["examples"] = self._examples(shown, found, truth, classes, single=single)
        return Results(
            record,
            primary=f"probe/{list(found)[-1]}/{LINEAR}/{metric}",
            lines=tuple(_lines(record)),
            template="probe.html",
            assets=shown.assets,
            watch="probe",
        )

    def _results(self, views: Mapping[str, Mapping[str, View]], name: str, single: bool) -> dict[str, ProbeResult]:
        """All classifiers on one view."""
        self.report(f"fitting the probe on {name} features")
        parts = [views[split][name] for split in SPLITS]
        train, validation, test = ((p.pooled, p.targets) for p in parts)
        found = {LINEAR: linear_probe(train, validation, test, single=single)}
        if self.neighbours:
            mean, std = _mean_and_std(parts[0].pooled)
            alike = [((p.pooled - mean) / std, p.targets) for p in parts]  # else the larger modality alone decides
            found[NEAREST] = neighbours(*alike, single=single)
            found[NEAREST_SHARED] = neighbours(*((p.shared, p.targets) for p in parts), single=single)
        return found

    def _examples(
        self,
        shown: Examples,
        found: Mapping[str, Mapping[str, ProbeResult]],
        truth: Mapping[str, Tensor],
        classes: Labels,
        *,
        single: bool,
    ) -> list[dict[str, Any]]:
        """Evenly spaced clips and what the linear probe takes them for; where modalities stand apart, of each some."""
        sides = shown.sides
        groups = [tuple(sides)] if len({id(side) for side in sides.values()}) == 1 else [(m,) for m in sides]
        examples = []
        for group in groups:
            side = sides[group[0]]
            views = [view for view in found if view in group or len(groups) == 1]
            for i in evenly_spaced(len(side), self.examples):
                clip = side.clip(i)
                said = {v: guesses(found[v][LINEAR].scores[i], truth[v][i], classes, single=single) for v in views}
                items = {m: shown.item(m, i, play=True) for m in group}
                examples.append({"id": clip.id, "labels": list(clip.labels), "items": items, "views": said})
        return examples


def _lines(record: Mapping[str, Any]) -> list[str]:
    """The metrics for a terminal."""
    lines = []
    for view, ways in record["probe"].items():
        for way, r in ways.items():
            second = "" if r["accuracy"] is None else f", accuracy {r['accuracy']:.1f}"
            setting = f"penalty {r['setting']:g}" if way == LINEAR else f"k = {r['setting']:g}"
            lines.append(f"{view}, {way}: mAP {r['mAP']:.1f}{second} ({setting})")
        lines.append(f"{view}, chance: " + ", ".join(f"{k} {v:.1f}" for k, v in record["chance"][view].items()))
    return [*lines, *of_list_lines(record), *([record["remark"]] if "remark" in record else [])]
