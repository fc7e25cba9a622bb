"""All that the tests here use of `equiav`, in one file: when names inside the library move, only this file is edited.

Frozen values lie beside the tests as JSON. They say what the library did when they were written; a change of one is a
change of behaviour. Where it is meant, EQUIAV_REFREEZE=1 writes them again, and the difference is read before it is
committed.
"""

import contextlib
import copy
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
from equiav.build import build_inputs, build_model
from equiav.checkpoint import checkpoints_of, load_checkpoint
from equiav.cli import main
from equiav.config import canonical_dump, load_config, parse_config
from equiav.data import ShardDataset, collate, find_sources, prepare
from equiav.errors import EquiAVError
from equiav.inference import load_classifier, with_banks
from equiav.media import encoder_inputs
from equiav.models import initialise, load_strict
from equiav.randomness import generator
from equiav.reproduction import finetune_folder, load_table, plan
from equiav.types import AUDIO

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
    return with_banks(build_model(config).eval(), config)


def stored_before_the_residual_form(model):
    """Loads the weights that its seed drew for a hypernetwork before it had a residual, as checkpoints held them."""
    old = copy.deepcopy(model.model)
    for u in (old[m].u for m in old.modalities):
        u.coefficients[2] = torch.nn.Linear(u.coefficients[2].in_features, u.bases)
        u.maps = u.moves
        del u.moves
    initialise(old, generator(model.config.seed, 0, "weights"))
    load_strict(model.model, old.state_dict(), "the frozen checkpoint")


def embedder(model):
    """An embedder of a model, or of the checkpoint at a path."""
    return equiav.Embedder(equiav.load_model(model) if isinstance(model, str | Path) else model)


def logits(path, clips, indices, frame):
    """Classes of a fine-tuned checkpoint, and its scores of some clips."""
    loaded = load_classifier(path)
    inputs = build_inputs(loaded.config)
    rows = []
    for index in indices:
        with torch.inference_mode():
            rows.append(loaded.model(encoder_inputs(inputs, collate([clips.sample(index, frame)])))[0].tolist())
    return list(loaded.classes), rows


def served(clips, index):
    """What a prepared folder gives of a clip: its record, its waveform and all of its frames."""
    return clips.clip(index), clips.sample(index, 1).inputs[AUDIO], clips.video(index)


def table(path):
    """A table of the paper as plain data: what is not the default, without the place of its file and its notes."""
    return load_table(path).model_dump(mode="json", exclude={"path", "notes"}, exclude_defaults=True)


def run_keys(path):
    """Under which keys the runs of an ablation recipe are stored, by scale, row and seed; and what is measured.

    A task that fine-tunes comes with the name of its folder, which has a digest of the recipe in it.
    """
    found, of_file = {}, load_table(path)
    for scale in of_file.scales:
        for row in of_file.rows:
            if runs := plan([of_file], scale, rows=(row.name,)):
                folders = {task: _task_folder(runs[0], task) for task in sorted(runs[0].tasks)}
                record = {"keys": {run.seed: run.key for run in runs}, "tasks": folders}
                found.setdefault(scale, {})[row.name] = record
    return found


def _task_folder(run, task):
    kind, *parts = task.split(".")
    return finetune_folder(run, Path(), *parts).name if kind == "finetune" else None


def recipe_sections(recipe):
    """A recipe, from a file or plain data, written out whole, section by section."""
    config = load_config(recipe) if isinstance(recipe, Path) else parse_config(recipe, "the frozen recipe")
    return canonical_dump(config)


def rounded(vector):
    """Numbers as they are stored: nine digits are all that a float32 has."""
    return [float(f"{x:.9g}") for x in np.asarray(vector, np.float64).ravel()]
