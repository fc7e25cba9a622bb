"""What is measured on a trained run: retrieval, linear probes, the predictor's similarity, other datasets, cost."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import chain
from pathlib import Path
from statistics import fmean
from typing import Any

import torch
from torch import Tensor

from equiav.build import build_bank, build_dataset, listed_clips, present_splits, with_data
from equiav.config import Config, WorldConfig
from equiav.data import Dataset, labels_of, multi_hot, read_retrieval_list, vocabulary
from equiav.evaluation import (
    Retrieval,
    ZeroShot,
    cost_of,
    evenly,
    linear_probes,
    predictor_similarity,
    read_tokens,
)
from equiav.inference import LoadedModel, load_model
from equiav.models import mean_pool
from equiav.reproduction.tables import RetrievalSet
from equiav.types import AUDIO, VISUAL, Split

PROBE_CLIPS = 2000  # labelled clips of a linear probe, the same for every row
SIMILARITY_CLIPS, SIMILARITY_DRAWS = 250, 4
HELD_OUT: tuple[Split, ...] = ("validation", "test")
# On the run's own data:
OWN = frozenset({"retrieval", "retrieval_bank_s", "retrieval_best", "similarity", "probe", "zeroshot"})
Progress = Callable[[str], None]


def measure_own(
    loaded: LoadedModel, tasks: frozenset[str], progress: Progress, instead: RetrievalSet | None = None
) -> dict[str, dict[str, Any]]:
    """What is asked for, on the held-out splits that the run's data have, by split and task.

    Without any (AudioSet-2M is prepared for training only), the similarity is that on the dataset `instead`, and the
    rest is left out.
    """
    if not tasks & OWN:
        return {}
    config = loaded.config
    if isinstance(config.data, WorldConfig):  # a probe's labelled clips do not depend on what was trained on
        data = config.data.model_copy(update={"used": None, "mismatched": 0.0})
        config = config.model_copy(update={"data": data})
    there = present_splits(config)
    clips = {split: build_dataset(config, split) for split in HELD_OUT if split in there}
    if not clips:
        if left := sorted((tasks & OWN) - ({"similarity"} if instead else set())):
            progress(f"not measured, the data hold training clips only: {', '.join(left)}")
        if "similarity" not in tasks or instead is None:
            return {}
        progress(f"measuring the predictor's similarity on {instead.data}")
        return {"test": {"similarity": _similarity(loaded, set_clips(loaded, instead)[0])}}
    found: dict[str, dict[str, Any]] = {split: {} for split in clips}
    for task, bank_size in (("retrieval", None), ("retrieval_bank_s", vectors_in_training(config))):
        if task in tasks:
            progress(f"measuring retrieval{'' if bank_size is None else f' with a bank of {bank_size}'}")
            for split, held in clips.items():
                found[split][task] = measure_retrieval(loaded, held, bank_size=bank_size)
    if "similarity" in tasks:
        progress("measuring the predictor's similarity")
        for split, held in clips.items():
            found[split]["similarity"] = _similarity(loaded, held)
    if "zeroshot" in tasks:
        progress("measuring zero-shot classification")
        for split, held in clips.items():
            found[split]["zeroshot"] = ZeroShot()(loaded, held)["zeroshot"]
    if "probe" in tasks and "validation" not in clips:
        progress("no linear probes: there is no validation split to choose their penalty on")
    elif "probe" in tasks:
        progress("fitting linear probes")
        for split, values in _probes(loaded, build_dataset(config, "train"), clips).items():
            found[split]["probe"] = values
    return found


def vectors_in_training(config: Config) -> int:
    """S, the number of vectors whose centroid was contrasted in training."""
    return 1 if config.objective.inter == "equivariant" else config.objective.representations


def measure_retrieval(
    loaded: LoadedModel, clips: Dataset, *, bank_size: int | None = None
) -> dict[str, dict[str, float]]:
    """Retrieval in both directions on the model's stored bank, or on a bank of `bank_size` vectors of the same seed."""
    config, banks = loaded.config, loaded.banks
    if bank_size is not None:
        small = config.model_copy(update={"bank": config.bank.model_copy(update={"size": bank_size})})
        banks = {m: build_bank(small, m) for m in banks}
    found: dict[str, dict[str, float]] = Retrieval(examples=0)(replace(loaded, banks=banks), clips)["retrieval"]
    return found


def measure_best(
    loaded: LoadedModel, checkpoints: Sequence[tuple[int, Path]], progress: Progress
) -> dict[str, dict[str, Any]]:
    """Retrieval of the kept checkpoint with the greatest mean reciprocal rank on validation, by split, and its step.

    `train.keep` says how many checkpoints a run keeps.
    """

    def measured(step: int, split: Split) -> dict[str, dict[str, float]]:
        progress(f"measuring retrieval on {split} after step {step}")
        model = load_model(dict(checkpoints)[step], str(loaded.device))
        return measure_retrieval(replace(model, config=loaded.config), build_dataset(loaded.config, split))

    found = {step: measured(step, "validation") for step, _ in checkpoints}
    best = max(found, key=lambda step: fmean(way.get("MRR", way.get("mAP", 0.0)) for way in found[step].values()))
    return {"validation": {**found[best], "step": best}, "test": {**measured(best, "test"), "step": best}}


def set_clips(loaded: LoadedModel, chosen: RetrievalSet) -> tuple[Dataset, dict[str, dict[str, int]]]:
    """The clips of another dataset: its test split, or those of a published list, and how many of it were found."""
    clips = build_dataset(with_data(loaded.config, Path(chosen.data)), "test")
    if chosen.list is None:
        return clips, {}
    found = listed_clips(clips, Path(chosen.list))[0]
    return found, {"clips": {"found": len(found), "listed": len(read_retrieval_list(Path(chosen.list)))}}


def _similarity(loaded: LoadedModel, clips: Dataset) -> dict[str, float]:
    """Mean cosine of z_hat and z' of each modality."""
    return predictor_similarity(loaded, clips, seed=0, count=SIMILARITY_CLIPS, draws=SIMILARITY_DRAWS)


def _probes(loaded: LoadedModel, train: Dataset, held: dict[Split, Dataset]) -> dict[Split, dict[str, float]]:
    """Mean AP of linear classifiers on each modality's pooled tokens and on both, where they belong together."""
    classes = vocabulary(train)
    labels = {split: labels_of(clips) for split, clips in held.items()}
    # Objects of the world sound together in most recipes: there, every class has an answer of its own.
    everything = [*labels_of(train), *chain(*labels.values())]
    single = not isinstance(loaded.config.data, WorldConfig) and all(len(of_clip) == 1 for of_clip in everything)
    few = evenly(train, PROBE_CLIPS)  # evenly spaced: datasets are often sorted by class
    known, targets = _views(loaded, few), multi_hot(labels_of(few), classes)
    views = {split: _views(loaded, clips) for split, clips in held.items()}
    truth = {split: multi_hot(labels[split], classes) for split in held}
    found: dict[Split, dict[str, float]] = {split: {} for split in held}
    for name, features in known.items():
        tests = {split: (views[split][name], truth[split]) for split in held}
        results = linear_probes((features, targets), tests["validation"], list(tests.values()), single=single)
        for split, result in zip(tests, results, strict=True):
            found[split][name] = result.mean_average_precision
    return found


def _views(loaded: LoadedModel, clips: Dataset) -> dict[str, Tensor]:
    """Pooled tokens of each modality, and of all unless pairs by class would show the probe the class twice."""
    read = read_tokens(loaded, clips, lambda m, h: [mean_pool(h)])
    found = {m: values for m, (values,) in read.items()}
    if clips.one_to_one:
        found["audiovisual"] = torch.cat([found[m] for m in (AUDIO, VISUAL)], dim=1)
    return found


def measure_cost(config: Config) -> dict[str, dict[str, float]]:
    """10^9 multiply-adds of one clip per modality: the baseline, and with S representations."""
    found = {}
    for m in (AUDIO, VISUAL):
        cost = cost_of(config, m, repeats=0)
        more = {str(s): cost.baseline_gmac + value for s, value in cost.increase_gmac.items()}
        found[m] = {"baseline": cost.baseline_gmac, **more}
    return found


def validation_curve(log: Path) -> list[dict[str, int | float]]:
    """Retrieval on validation as training went on, from the run's log."""
    if not log.exists():
        return []
    records = [json.loads(line) for line in log.read_text(encoding="utf-8").splitlines()]
    kept = ("/R@1", "/R@10", "/MRR", "/P@1", "/mAP")
    return [
        {k: v for k, v in record.items() if k == "step" or k.endswith(kept)}
        for record in records
        if record["kind"] == "validation"
    ]
