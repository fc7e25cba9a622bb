"""`equiav demo`: the method from nothing to a report, on the generated world."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch.nn.functional as F

from equiav.build import build_dataset
from equiav.checkpoint import checkpoints_of
from equiav.config import load_config, shipped_recipes
from equiav.data import Dataset, Subset
from equiav.errors import ConfigError
from equiav.evaluation import Equivariance, Localisation, Probe, Results, Retrieval, embed_dataset
from equiav.inference import LoadedModel, load_model
from equiav.io import cores, provenance
from equiav.training import LOG, train_on_cores
from equiav.types import AUDIO, VISUAL

PROBE_CLIPS = 2000
SQUARE = 60  # scenes in the matrix of similarities
MAPS = 6
EQUIVARIANCE = Equivariance(count=200, draws=4, centroid_clips=20, examples=0)
PROCESSES = 2  # fixed, so that every machine with two cores or more gets the same numbers


def run_demo(out: Path, overrides: tuple[str, ...] = (), report: Callable[[str], None] = lambda line: None) -> Results:
    """Trains (or resumes), evaluates on held-out scenes and writes results and page into `out`."""
    recipe = shipped_recipes()["pretrain/world"]
    if load_config(recipe, overrides).data.kind != "world":
        raise ConfigError("the demo shows the generated world; use equiav pretrain for other data")
    began = time.monotonic()
    processes = min(PROCESSES, cores())
    train_on_cores(recipe, overrides, out, processes=processes, say=report)
    seconds = round(time.monotonic() - began, 1)
    report("training is done; embedding the held-out scenes")
    model = load_model(out)
    facts = {
        "steps": model.meta["step"],
        "seconds_of_training": seconds,
        "seed": model.config.seed,
        "bank_seed": model.config.bank.seed,
        "checkpoint": checkpoints_of(out)[-1][1].name,
        "provenance": provenance(processes=processes),
    }
    results = evaluate_demo(model, facts, training_curves(out / LOG), report)
    results.write(out)
    return results


def evaluate_demo(
    model: LoadedModel, facts: dict[str, Any], curves: dict[str, Any], report: Callable[[str], None]
) -> Results:
    """Retrieval among the test scenes, a linear probe per modality, localisation and equivariance, as one record."""
    train, validation, test = (build_dataset(model.config, split) for split in ("train", "validation", "test"))
    retrieval = Retrieval(report=report)(model, test)
    few = Subset(train, range(min(PROBE_CLIPS, len(train))))
    # Objects sound together: every class has an answer of its own, even where no two do among the clips at hand.
    probe = Probe(few, validation, single=False, neighbours=False, examples=0, report=report)(model, test)
    localisation = Localisation(examples=MAPS, report=report)(model, test)
    found, guess = retrieval["retrieval"], retrieval["chance"]
    equivariance = None  # where no predictor was trained
    if model.config.objective.intra == "equivariant":
        told = replace(EQUIVARIANCE, report=report)(model, test).record
        equivariance = {name: value for name, value in told.items() if name not in ("split", "examples")}
    record = {
        "task": "demo",
        "retrieval": found,
        "chance": guess,
        "probe_mAP": {view: ways["linear probe"]["mAP"] for view, ways in probe["probe"].items()},
        "localisation": localisation["localisation"],
        "equivariance": equivariance,
        "pool": len(test),
        **facts,
        "curves": curves,
        "similarity": _similarity(model, Subset(test, range(min(SQUARE, len(test))))),
        "examples": {
            "retrieval": retrieval["examples"][0]["queries"],
            "localisation": localisation["examples"],
        },
    }
    lines = []
    for way, name in (("audio_to_video", "audio to video"), ("video_to_audio", "video to audio")):
        recalls = ", ".join(f"{k} {found[way][k]:.1f} %" for k in guess)
        pool = f"among {len(test)} held-out scenes (chance R@10 {guess['R@10']:.1f} %)"
        lines.append(f"{name}: {recalls} {pool}")
    named = json.dumps(record["examples"])  # of the retrieval examples only some are shown
    assets = {name: of for name, of in {**retrieval.assets, **localisation.assets}.items() if f'"{name}"' in named}
    return Results(record, primary=retrieval.primary, lines=tuple(lines), template="demo.html", assets=assets)


def _similarity(model: LoadedModel, scenes: Dataset) -> list[list[float]]:
    """Cosines of all audio (rows) with all images (columns)."""
    embeddings = embed_dataset(model, scenes)
    a, v = (F.normalize(embeddings[m], dim=1) for m in (AUDIO, VISUAL))
    return [[round(value, 3) for value in row] for row in (a @ v.T).tolist()]


def training_curves(log: Path) -> dict[str, dict[str, list[tuple[int, float]]]]:
    """Losses and retrieval on validation against the step, by axis and name, from a run's log."""
    records = [json.loads(line) for line in log.read_text(encoding="utf-8").splitlines()]
    train = [r for r in records if r["kind"] == "train"]
    checks = [r for r in records if r["kind"] == "validation"]
    losses = {"inter": "inter-modal", "intra_audio": "intra-modal, audio", "intra_visual": "intra-modal, visual"}
    ways = {"audio_to_video/R@10": "audio to video", "video_to_audio/R@10": "video to audio"}
    return {
        "loss": {name: [(r["step"], r[k]) for r in train] for k, name in losses.items()},
        "R@10 on validation, per cent": {name: [(r["step"], r[k]) for r in checks] for k, name in ways.items()},
    }
