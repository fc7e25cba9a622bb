"""`equiav demo`: the method from nothing to a report, on the generated world."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from equiav.build import build_inputs
from equiav.build_data import build_clips
from equiav.checkpoint import checkpoints_of
from equiav.config import load_config, shipped_recipe
from equiav.data import KINDS, WorldDataset, evenly_spaced, label_names, multi_hot
from equiav.errors import ConfigError
from equiav.evaluation import (
    EXAMPLES,
    REPORT,
    RESULTS,
    Localised,
    RetrievalResult,
    Sides,
    against_chance,
    chance,
    embed_dataset,
    equivariance_record,
    example_rows,
    exhibits,
    figures_table,
    localisation_record,
    localise_dataset,
    part_table,
    pooled_features,
    probe,
    retrieve,
    similarity_table,
    sound_row,
    subsets,
)
from equiav.inference import LoadedModel, load_model
from equiav.provenance import provenance, write_json
from equiav.report import Page, cards, curves, matrix, new_figure, png, table
from equiav.training import train_on_cores
from equiav.types import Embeddings, Modality

PROBE_CLIPS = 2000
SQUARE = 60
MAPS = 6
EQUIVARIANCE_CLIPS = 200
PROCESSES = 2  # fixed, so that every machine with two cores or more gets the same numbers


@dataclass(frozen=True)
class Measured:
    """What the demo found on held-out scenes."""

    embeddings: Embeddings
    retrieval: RetrievalResult
    probes: dict[str, float]
    localised: Localised
    localisation: dict[str, Any]
    equivariance: dict[str, Any] | None  # only where a predictor was trained


def run_demo(out: Path, overrides: tuple[str, ...] = (), say: Callable[[str], None] = lambda line: None) -> Path:
    """Trains (or resumes), evaluates and writes results and report into `out`; returns the report's path."""
    recipe = shipped_recipe("pretrain/world.yaml")
    if load_config(recipe, overrides).data.kind != "world":
        raise ConfigError("the demo shows the generated world; use equiav pretrain for other data")
    began = time.monotonic()
    train_on_cores(recipe, overrides, out, processes=min(PROCESSES, os.cpu_count() or 1), say=say)
    seconds = time.monotonic() - began
    say("training is done; embedding the held-out scenes")
    loaded = load_model(out)
    test = build_clips(loaded.config, "test")
    assert isinstance(test, WorldDataset)
    measured = measure(loaded, test, say)
    results = results_record(loaded, measured, out, seconds)
    write_json(out / RESULTS, results)
    write_report(out, loaded, test, measured, results)
    return out / REPORT


def measure(loaded: LoadedModel, test: WorldDataset, say: Callable[[str], None]) -> Measured:
    """Retrieval among the test scenes, a linear probe per modality, localisation and equivariance."""
    config = loaded.config
    inputs = build_inputs(config.audio)
    embeddings = embed_dataset(loaded.model, test, inputs, loaded.banks, config.objective.representation)
    say("fitting linear probes")
    parts = {}
    for split, limit in (("train", PROBE_CLIPS), ("validation", None), ("test", None)):
        clips = build_clips(config, split)  # type: ignore[arg-type]
        assert isinstance(clips, WorldDataset)
        clips = WorldDataset(clips.world, clips.start, min(len(clips), limit or len(clips)))
        features = pooled_features(loaded.model, clips, inputs)
        parts[split] = (features, multi_hot(label_names(clips), KINDS))
    localised = localise_dataset(loaded, test, say=say)
    return Measured(
        embeddings,
        retrieve(embeddings),
        _probes(parts),
        localised,
        localisation_record(test, localised),
        _equivariance(loaded, test, say),
    )


def _equivariance(loaded: LoadedModel, test: WorldDataset, say: Callable[[str], None]) -> dict[str, Any] | None:
    if loaded.config.objective.intra != "equivariant":
        return None
    return equivariance_record(loaded, test, count=EQUIVARIANCE_CLIPS, draws=4, centroid_clips=20, say=say)


def _probes(parts: dict[str, tuple[dict[Modality, Tensor], Tensor]]) -> dict[str, float]:
    def of(pick: Callable[[dict[Modality, Tensor]], Tensor]) -> float:
        train, validation, test = ((pick(f), y) for f, y in (parts[s] for s in ("train", "validation", "test")))
        return probe(train, validation, test)[0]

    return {
        "audio": of(lambda f: f[Modality.AUDIO]),
        "visual": of(lambda f: f[Modality.VISUAL]),
        "audiovisual": of(lambda f: torch.cat([f[m] for m in Modality], dim=1)),
    }


def results_record(loaded: LoadedModel, measured: Measured, out: Path, seconds: float) -> dict[str, Any]:
    """What results.json holds."""
    pool = len(measured.embeddings.names)
    return {
        "task": "demo",
        "retrieval": measured.retrieval.record(),
        "chance": {f"R@{k}": chance(k, pool) for k in (1, 5, 10)},
        "probe_mAP": measured.probes,
        "localisation": measured.localisation,
        "equivariance": measured.equivariance,
        "pool": pool,
        "steps": loaded.meta["step"],
        "seconds_of_training": round(seconds, 1),
        "seed": loaded.config.seed,
        "bank_seed": loaded.config.bank.seed,
        "checkpoint": checkpoints_of(out)[-1][1].name,
        "provenance": provenance(processes=min(PROCESSES, os.cpu_count() or 1)),
    }


def write_report(
    out: Path, loaded: LoadedModel, test: WorldDataset, measured: Measured, results: dict[str, Any]
) -> None:
    """The report: curves, retrieval against chance, sounds with the pictures found for them, similarities."""
    forth, back = measured.retrieval.audio_to_video, measured.retrieval.video_to_audio
    page = Page("EquiAV on a generated world")
    page.text(
        "A very small model learnt, without labels, which sound belongs to which picture. In this world the kind of "
        "a thing gives its timbre, its size the pitch, its colour the rhythm; silent things look no different."
    )
    at_a_glance = [
        ("R@10, sound to picture", f"{forth.r10:.1f} %"),
        ("R@10, picture to sound", f"{back.r10:.1f} %"),
        (f"by chance among {forth.pool} scenes", f"{chance(10, forth.pool):.1f} %"),
        ("steps", str(results["steps"])),
    ]
    page.add(cards(at_a_glance))
    page.heading("Sounds, and the pictures found for them")
    page.text(
        "Each row: a held-out sound, its own picture, then the best pictures of all held-out scenes. Green is its own.",
        note=True,
    )
    shown, sides = exhibits(test, loaded.config), Sides(measured.embeddings.audio, measured.embeddings.visual)
    page.add(*(sound_row(shown, sides, query) for query in evenly_spaced(len(test), EXAMPLES)))
    _localisation(page, loaded, test, measured)
    page.heading("Retrieval among held-out scenes").figure(against_chance(measured.retrieval.record()))
    page.heading("Training").figure(_training_figure(out), "Losses and validation as training went on.")
    page.heading("Similarity of every sound with every picture")
    page.figure(
        _similarity_figure(measured.embeddings), f"The first {SQUARE} held-out scenes; the diagonal is the truth."
    )
    page.heading("What the frozen encoders know").add(
        table(
            ["linear probe for the kinds that sound", "mAP, %"],
            [[name, f"{value:.1f}"] for name, value in measured.probes.items()],
        )
    )
    if measured.equivariance:
        _follows(page, measured.equivariance)
    page.heading("Where the numbers come from")
    facts = {**{k: results[k] for k in ("steps", "seconds_of_training", "seed", "checkpoint")}, **results["provenance"]}
    page.add(table(["fact", "value"], [[k, str(v)] for k, v in facts.items()]))
    page.write(out / REPORT)


def _localisation(page: Page, loaded: LoadedModel, test: WorldDataset, measured: Measured) -> None:
    """Where the sound comes from: figures beside the controls, and maps of scenes in which the sound must choose."""
    page.heading("Where the sound comes from")
    page.text(
        "Each row: a held-out sound, its picture with a frame round what sounds, and the model's map under this sound "
        "and under another scene's. A green rim: the hottest spot lies in the frame.",
        note=True,
    )
    *_, (subset, places) = subsets(test, measured.localised.rows).items()
    chosen = [places[k] for k in evenly_spaced(len(places), EXAMPLES)][:MAPS]
    page.add(*example_rows(test, measured.localised, chosen, loaded.config.audio.sample_rate))
    for name, values in measured.localisation.items():
        page.text(f"Scenes: {name} ({values['sound']['pictures']})", note=name != subset).add(figures_table(values))


def _follows(page: Page, record: dict[str, Any]) -> None:
    """Whether the predictor follows the augmentation."""
    page.heading("Does the predictor follow the augmentation?")
    page.text(
        "Cosine of the predicted embedding with that of the really augmented input: with the true vector, with the "
        "input as it is (identity), and with the vector of another draw.",
        note=True,
    )
    page.add(similarity_table(record))
    for m, rows in record["augmentations"].items():
        page.text(f"Augmentation by augmentation, {m}:").add(part_table(rows))


def _training_figure(out: Path) -> bytes:
    records = [json.loads(line) for line in (out / "log.jsonl").read_text(encoding="utf-8").splitlines()]
    train = [r for r in records if r["kind"] == "train"]
    figure = new_figure(10, 3.2)
    left, right = figure.subplots(1, 2)
    steps = [r["step"] for r in train]
    names = {"inter": "inter-modal", "intra_audio": "intra-modal, sound", "intra_visual": "intra-modal, picture"}
    curves(left, {label: (steps, [r[k] for r in train]) for k, label in names.items()}, "step", "loss")
    checks = [r for r in records if r["kind"] == "validation"]
    series = {
        label: ([r["step"] for r in checks], [r[f"{way}/R@10"] for r in checks])
        for way, label in (("audio_to_video", "sound to picture"), ("video_to_audio", "picture to sound"))
    }
    curves(right, series, "step", "R@10 on validation, per cent")
    return png(figure)


def _similarity_figure(embeddings: Embeddings) -> bytes:
    a, v = (F.normalize(x[:SQUARE], dim=1) for x in (embeddings.audio, embeddings.visual))
    figure = new_figure(5.4, 4.6)
    matrix(figure.add_subplot(), (a @ v.T).numpy(), "picture", "sound")
    return png(figure)
