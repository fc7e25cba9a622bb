"""What is measured on a trained run: retrieval, linear probes, the predictor's similarity, other sets, cost."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from equiav.ablation.experiment import RetrievalSet
from equiav.build import build_inputs
from equiav.build_data import build_clips, listed_clips, with_data
from equiav.config import Config, WorldConfig
from equiav.data.dataset import ClipDataset
from equiav.data.labels import label_names, multi_hot, vocabulary
from equiav.data.manifest import Split
from equiav.evaluation.benchmark import retrieval_record
from equiav.evaluation.cost import cost_of
from equiav.evaluation.equivariance import evenly, predictor_similarity
from equiav.evaluation.probe import pooled_features, probe
from equiav.inference import LoadedModel
from equiav.types import Modality

PROBE_CLIPS = 2000  # labelled clips of a linear probe, the same for every row
SIMILARITY_CLIPS, SIMILARITY_DRAWS = 250, 4
HELD_OUT: tuple[Split, ...] = ("validation", "test")
SPLITS: tuple[Split, ...] = ("train", *HELD_OUT)
Say = Callable[[str], None]
Features = tuple[dict[Modality, Tensor], Tensor]


def measure_own(loaded: LoadedModel, tasks: frozenset[str], say: Say) -> dict[str, dict[str, Any]]:
    """Retrieval, probes and similarity on the run's own held-out splits, by split and task."""
    config = whole_training_set(loaded.config)
    clips: dict[Split, ClipDataset] = {split: build_clips(config, split) for split in SPLITS}
    found: dict[str, dict[str, Any]] = {split: {} for split in HELD_OUT}
    if "retrieval" in tasks:
        say("measuring retrieval")
        for split in HELD_OUT:
            found[split]["retrieval"] = _retrieval(loaded, clips[split])
    if "similarity" in tasks:
        say("measuring the predictor's similarity")
        for split in HELD_OUT:
            found[split]["similarity"] = _similarity(loaded, clips[split])
    if "probe" in tasks:
        say("fitting linear probes")
        probes = _probes(loaded, clips)
        for split in HELD_OUT:
            found[split]["probe"] = probes[split]
    return found


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


def _probes(loaded: LoadedModel, clips: dict[Split, ClipDataset]) -> dict[Split, dict[str, float]]:
    """Mean AP of linear classifiers on each modality's pooled tokens and on both."""
    inputs = build_inputs(loaded.config.audio)
    classes = vocabulary(clips["train"])
    parts: dict[Split, Features] = {}
    for split, whole in clips.items():
        # Evenly spaced: sets are often sorted by class.
        chosen = evenly(whole, PROBE_CLIPS) if split == "train" else whole
        features = pooled_features(loaded.model, chosen, inputs)
        parts[split] = (features, multi_hot(label_names(chosen), classes))
    views: dict[str, Callable[[dict[Modality, Tensor]], Tensor]] = {
        "audio": lambda f: f[Modality.AUDIO],
        "visual": lambda f: f[Modality.VISUAL],
        "audiovisual": lambda f: torch.cat([f[m] for m in Modality], dim=1),
    }
    found: dict[Split, dict[str, float]] = {split: {} for split in HELD_OUT}
    for name, view in views.items():
        seen = {split: (view(features), labels) for split, (features, labels) in parts.items()}
        for split in HELD_OUT:
            found[split][name] = probe(seen["train"], seen["validation"], seen[split])[0]
    return found


def measure_set(loaded: LoadedModel, chosen: RetrievalSet) -> dict[str, dict[str, float]]:
    """Zero-shot retrieval on another set, on the published list of its clips where there is one."""
    clips = build_clips(with_data(loaded.config, Path(chosen.data)), "test")
    if chosen.list:
        clips, _ = listed_clips(clips, Path(chosen.list))
    return _retrieval(loaded, clips)


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
