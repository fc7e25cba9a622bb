"""What is measured on a trained run: retrieval, linear probes, the predictor's similarity, other sets, cost."""

from __future__ import annotations

import json
from collections.abc import Callable
from itertools import chain
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from equiav.ablation.experiment import RetrievalSet
from equiav.build import build_inputs
from equiav.build_data import build_clips, listed_clips, present_splits, with_data
from equiav.config import Config, WorldConfig
from equiav.data import ClipDataset, PairedDataset, Split, WorldDataset, label_names, multi_hot, one_each, vocabulary
from equiav.evaluation import (
    cost_of,
    evenly,
    fit_probes,
    judge_probes,
    pooled_features,
    predictor_similarity,
    retrieval_record,
)
from equiav.inference import LoadedModel
from equiav.types import Modality

PROBE_CLIPS = 2000  # labelled clips of a linear probe, the same for every row
SIMILARITY_CLIPS, SIMILARITY_DRAWS = 250, 4
HELD_OUT: tuple[Split, ...] = ("validation", "test")
OWN = frozenset({"retrieval", "similarity", "probe"})  # tasks on the run's own data
Say = Callable[[str], None]
Features = tuple[dict[Modality, Tensor], Tensor]


def measure_own(
    loaded: LoadedModel, tasks: frozenset[str], say: Say, instead: RetrievalSet | None = None
) -> dict[str, dict[str, Any]]:
    """Retrieval, probes and similarity on the held-out splits that the run's data have, by split and task.

    Without any (AudioSet-2M is prepared for training only), the similarity is that on the set `instead`.
    """
    if not tasks & OWN:
        return {}
    config = whole_training_set(loaded.config)
    there = present_splits(config)
    clips = {split: build_clips(config, split) for split in HELD_OUT if split in there}
    if not clips:
        return _without_held_out(loaded, tasks, say, instead)
    found: dict[str, dict[str, Any]] = {split: {} for split in clips}
    if "retrieval" in tasks:
        say("measuring retrieval")
        for split, held in clips.items():
            found[split]["retrieval"] = _retrieval(loaded, held)
    if "similarity" in tasks:
        say("measuring the predictor's similarity")
        for split, held in clips.items():
            found[split]["similarity"] = _similarity(loaded, held)
    if "probe" in tasks and "validation" not in clips:
        say("no linear probes: there is no validation split to choose their penalty on")
    elif "probe" in tasks:
        say("fitting linear probes")
        for split, values in _probes(loaded, build_clips(config, "train"), clips).items():
            found[split]["probe"] = values
    return found


def _without_held_out(
    loaded: LoadedModel, tasks: frozenset[str], say: Say, instead: RetrievalSet | None
) -> dict[str, dict[str, Any]]:
    """The similarity on the clips of another set; what only held-out splits of the run's data could tell is not."""
    if left := sorted((tasks & OWN) - ({"similarity"} if instead else set())):
        say(f"not measured, the data hold training clips only: {', '.join(left)}")
    if "similarity" not in tasks or instead is None:
        return {}
    say(f"measuring the predictor's similarity on {instead.data}")
    return {"test": {"similarity": _similarity(loaded, _set_clips(loaded, instead))}}


def whole_training_set(config: Config) -> Config:
    """The recipe as the measurements see it: the probe's labelled clips do not depend on how many were trained on."""
    if isinstance(config.data, WorldConfig) and config.data.used is not None:
        return config.model_copy(update={"data": config.data.model_copy(update={"used": None})})
    return config


def _retrieval(loaded: LoadedModel, clips: ClipDataset) -> dict[str, dict[str, float]]:
    config = loaded.config
    return retrieval_record(
        loaded.model, clips, build_inputs(config.audio), loaded.banks, config.objective.representation
    )


def _similarity(loaded: LoadedModel, clips: ClipDataset) -> dict[str, float]:
    """Mean cosine of z_hat and z' of each modality."""
    found = predictor_similarity(loaded, clips, seed=0, count=SIMILARITY_CLIPS, draws=SIMILARITY_DRAWS)
    return {"audio": found["A"], "visual": found["V"]}


def _probes(loaded: LoadedModel, train: ClipDataset, held: dict[Split, ClipDataset]) -> dict[Split, dict[str, float]]:
    """Mean AP of linear classifiers on each modality's pooled tokens and on both, where they belong together."""
    inputs = build_inputs(loaded.config.audio)
    classes = vocabulary(train)
    labels = {split: label_names(clips) for split, clips in held.items()}
    # Things of the world sound together in most recipes: there, every class has an answer of its own.
    single = not isinstance(train, WorldDataset) and one_each([*label_names(train), *chain(*labels.values())])
    # Evenly spaced: sets are often sorted by class.
    few = evenly(train, PROBE_CLIPS)
    known = pooled_features(loaded.model, few, inputs), multi_hot(label_names(few), classes)
    parts: dict[Split, Features] = {
        split: (pooled_features(loaded.model, clips, inputs), multi_hot(labels[split], classes))
        for split, clips in held.items()
    }
    views: dict[str, Callable[[dict[Modality, Tensor]], Tensor]] = {
        "audio": lambda f: f[Modality.AUDIO],
        "visual": lambda f: f[Modality.VISUAL],
    }
    if not isinstance(train, PairedDataset):  # a pair by class would show the probe the class twice
        views["audiovisual"] = lambda f: torch.cat([f[m] for m in Modality], dim=1)
    found: dict[Split, dict[str, float]] = {split: {} for split in held}
    for name, view in views.items():
        fitted = fit_probes((view(known[0]), known[1]), single=single)
        seen = {split: (view(features), targets) for split, (features, targets) in parts.items()}
        for split, part in seen.items():
            judged = judge_probes(fitted, seen["validation"], part, single=single)
            found[split][name] = judged.mean_average_precision
    return found


def measure_set(loaded: LoadedModel, chosen: RetrievalSet) -> dict[str, dict[str, float]]:
    """Zero-shot retrieval on another set, on the published list of its clips where there is one."""
    return _retrieval(loaded, _set_clips(loaded, chosen))


def _set_clips(loaded: LoadedModel, chosen: RetrievalSet) -> ClipDataset:
    clips = build_clips(with_data(loaded.config, Path(chosen.data)), "test")
    return listed_clips(clips, Path(chosen.list))[0] if chosen.list else clips


def measure_cost(config: Config) -> dict[str, dict[str, float]]:
    """10^9 multiply-adds of one clip per modality: the baseline, and with S representations."""
    found = {}
    for m in Modality:
        cost = cost_of(config, m, repeats=0)
        more = {str(s): cost.baseline_gmac + value for s, value in cost.increase_gmac.items()}
        found[m.value] = {"baseline": cost.baseline_gmac, **more}
    return found


def validation_curve(log: Path) -> list[dict[str, int | float]]:
    """Retrieval on validation as training went on, from the run's log."""
    if not log.exists():
        return []
    records = [json.loads(line) for line in log.read_text(encoding="utf-8").splitlines()]
    kept = ("/R@1", "/R@10", "/P@1", "/mAP")
    return [
        {k: v for k, v in record.items() if k == "step" or k.endswith(kept)}
        for record in records
        if record["kind"] == "validation"
    ]
