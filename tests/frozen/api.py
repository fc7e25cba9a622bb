"""All that the tests here use of `equiav`, in one file: when names inside the library move, only this file is edited.

Frozen values lie beside the tests as JSON. They say what the library did when they were written; a change of one is a
change of behaviour. Where it is meant, EQUIAV_REFREEZE=1 writes them again, and the difference is read before it is
committed.
"""

import contextlib
import io
import json
import math
import os
import sys
from pathlib import Path
from unittest import mock

import numpy as np
import torch

import equiav
from equiav.ablation import FINETUNING, SCALES, finetune_folder, load_experiments, row_run, row_seeds
from equiav.build import build_bank, build_inputs, build_model
from equiav.checkpoint import checkpoints_of, load_checkpoint
from equiav.cli import main
from equiav.config import load_config, parse_config
from equiav.data import ShardDataset, find_sources, prepare
from equiav.errors import EquiAVError
from equiav.inference import LoadedModel, load_classifier
from equiav.types import Modality

__all__ = ["EquiAVError", "ShardDataset", "checkpoints_of", "equiav", "load_checkpoint", "load_config"]

HERE = Path(__file__).parent
CONFIGS = HERE.parents[1] / "configs"
REFREEZE = os.environ.get("EQUIAV_REFREEZE") == "1"


def frozen(name, key, found, tolerance=0.0):
    """Compares plain data with what `name`.json holds under `key`; numbers with a fraction within the tolerance."""
    path = HERE / f"{name}.json"
    found = json.loads(json.dumps(found))
    if REFREEZE:
        kept = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
        kept[key] = found
        lines = (f"{json.dumps(k)}: {json.dumps(v, indent=1)}" for k, v in sorted(kept.items()))
        path.write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")
    changed = differences(stored(name, key), found, tolerance)
    assert not changed, f"{name}.json, {key}: {len(changed)} differences\n" + "\n".join(changed[:20])


def stored(name, key):
    """What was frozen."""
    return json.loads((HERE / f"{name}.json").read_text(encoding="utf-8"))[key]


def differences(expected, found, tolerance, where=""):
    """Each place where two trees of plain data differ, in words."""
    if isinstance(expected, dict) and isinstance(found, dict):
        keys = dict.fromkeys([*expected, *found])
        pairs = [(f"{where}/{k}", expected.get(k, "nothing"), found.get(k, "nothing")) for k in keys]
    elif isinstance(expected, list) and isinstance(found, list) and len(expected) == len(found):
        pairs = [(f"{where}/{i}", a, b) for i, (a, b) in enumerate(zip(expected, found, strict=True))]
    elif isinstance(expected, float) and isinstance(found, float):
        near = math.isclose(expected, found, rel_tol=tolerance, abs_tol=tolerance)
        return [] if near else [f"{where}: was {expected!r}, is {found!r}"]
    else:
        return [] if expected == found else [f"{where}: was {expected!r}, is {found!r}"]
    return [line for place, a, b in pairs for line in differences(a, b, tolerance, place)]


def cli(*arguments, err=None, code=0):
    """An `equiav` command in this process; its output. What it says on the way goes to `err`."""
    out, err = io.StringIO(), err or io.StringIO()
    with (
        mock.patch.object(sys, "argv", ["equiav", *map(str, arguments)]),
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
    ):
        found = 0
        try:
            main()
        except SystemExit as end:
            found = end.code or 0
    assert found == code, err.getvalue()
    return out.getvalue()


def prepare_small(source, out, **settings):
    """`equiav prepare` with the arguments that the command has no options for."""
    prepare(find_sources(Path(source)), Path(out), workers=1, **settings)


def seeded_model(recipe):
    """A model with the random weights of a recipe's seed, given as plain data."""
    config = parse_config(recipe, "the frozen recipe")
    return LoadedModel(build_model(config).eval(), config, {m: build_bank(config, m) for m in Modality}, {})


def embedder(model):
    """An embedder of a model, or of the checkpoint at a path."""
    return equiav.Embedder(equiav.load_model(model) if isinstance(model, str | Path) else model)


def logits(path, clips, indices, frame):
    """Classes of a fine-tuned checkpoint, and its scores of some clips."""
    loaded = load_classifier(path)
    inputs = build_inputs(loaded.config)
    rows = []
    for index in indices:
        sample = clips.sample(index, frame)
        with torch.inference_mode():
            heard, seen = inputs.spectrograms(sample.waveform[None]), inputs.pictures(sample.frame[None])
            rows.append(loaded.model({Modality.AUDIO: heard, Modality.VISUAL: seen})[0].tolist())
    return list(loaded.classes), rows


def tables(paths):
    """The tables of ablation recipes by name, as plain data."""
    return {e.name: e.table.model_dump(mode="json") for e in load_experiments(paths)}


def run_keys(path):
    """Under which keys the runs of an ablation recipe are stored, by scale, row and seed; and what is measured.

    A task that fine-tunes comes with the name of its folder, which has a digest of the recipe in it.
    """
    (experiment,) = load_experiments([path])
    found = {}
    for scale in SCALES:
        for row in experiment.table.rows:
            if scale in experiment.table.scales and row.runs_at(scale):
                seeds = row_seeds(row, scale, experiment.table.scales[scale], None)
                runs = {seed: row_run(experiment, row, scale, seed) for seed in seeds}
                record = {"keys": {seed: run.key for seed, run in runs.items()}}
                record["tasks"] = {task: _task_folder(runs[seeds[0]], task) for task in sorted(runs[seeds[0]].tasks)}
                found.setdefault(scale, {})[row.name] = record
    return found


def _task_folder(run, task):
    kind, *parts = task.split(".")
    return finetune_folder(run, Path(), *parts).name if kind == FINETUNING else None


def recipe_sections(recipe):
    """A recipe, from a file or plain data, written out whole, section by section."""
    config = load_config(recipe) if isinstance(recipe, Path) else parse_config(recipe, "the frozen recipe")
    return config.model_dump(mode="json")


def rounded(vector):
    """Numbers as they are stored: nine digits are all that a float32 has."""
    return [float(f"{x:.9g}") for x in np.asarray(vector, np.float64).ravel()]
