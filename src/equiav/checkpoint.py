"""A checkpoint is one folder: weights, state of the run, recipe, facts; written whole or not at all."""

from __future__ import annotations

import json
import os
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import yaml
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from equiav import __version__
from equiav.config import Config, dump_config, parse_config
from equiav.errors import CheckpointError

FORMAT = 1
WEIGHTS, STATE, CONFIG, META = "weights.safetensors", "state.safetensors", "config.yaml", "meta.json"
CHECKPOINTS = "checkpoints"  # the folder of a run that holds its checkpoints
STEP = "step-"
BEST = "best"  # in a fine-tuning run: the weights that validation chose


@dataclass(frozen=True)
class Checkpoint:
    """What a checkpoint folder holds; banks of augmentation vectors are among the tensors, under `bank.`."""

    config: Config
    weights: dict[str, Tensor]
    meta: dict[str, Any]


def save_checkpoint(
    path: Path,
    config: Config,
    weights: dict[str, Tensor],
    meta: dict[str, Any],
    *,
    state: dict[str, Tensor] | None = None,
) -> None:
    """Writes a checkpoint beside its place and moves it there, so that a reader never sees half of one.

    `weights` are for use; `state` is what only a resumed run needs (optimiser, weights under a moving average).
    """
    draft = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        shutil.rmtree(draft, ignore_errors=True)
        draft.mkdir()
        for name, tensors in ((WEIGHTS, weights), (STATE, state)):
            if tensors is not None:
                save_file({key: value.detach().contiguous().cpu() for key, value in tensors.items()}, draft / name)
        (draft / CONFIG).write_text(dump_config(config), encoding="utf-8")
        record = {"format": FORMAT, "equiav": __version__, "torch": torch.__version__, **meta}
        (draft / META).write_text(json.dumps(record, indent=1), encoding="utf-8")
        _flush(draft)
        _replace(draft, path)
    except (OSError, SafetensorError) as error:
        shutil.rmtree(draft, ignore_errors=True)
        raise CheckpointError(f"{path}: cannot be written ({error})") from error


def _flush(folder: Path) -> None:
    """Pushes every file of the folder, and the folder itself, to the disk."""
    for item in [*folder.rglob("*"), folder]:
        handle = os.open(item, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def _replace(draft: Path, path: Path) -> None:
    """Puts `draft` in the place of `path`; a folder that stood there goes only once the new one is in place."""
    if not path.exists():
        draft.rename(path)
        return
    old = path.with_name(f".{path.name}.{os.getpid()}.old")
    path.rename(old)
    draft.rename(path)
    shutil.rmtree(old, ignore_errors=True)


def checkpoints_of(run: Path) -> list[tuple[int, Path]]:
    """The checkpoints of a run with their steps, oldest first; half-written ones are never among them."""
    found = [
        (int(p.name[len(STEP) :]), p) for p in (run / CHECKPOINTS).glob(f"{STEP}*") if p.name[len(STEP) :].isdigit()
    ]
    return sorted(found)


def resolve(path: Path) -> Path:
    """A checkpoint folder as it is; for a run's folder the one that validation chose, else its newest."""
    if (path / BEST / META).is_file():
        return path / BEST
    newest = checkpoints_of(path)
    return newest[-1][1] if newest else path


def load_state(path: Path) -> dict[str, Tensor]:
    """What a resumed run needs beside the weights."""
    try:
        return load_file(path / STATE)
    except (OSError, SafetensorError) as error:
        raise CheckpointError(f"{path / STATE}: cannot be read, the run cannot be resumed from it ({error})") from error


def load_checkpoint(path: Path) -> Checkpoint:
    """Reads a checkpoint (of a run: its newest); every way in which it can be wrong has its own sentence."""
    path = resolve(path)
    if not path.is_dir():
        raise CheckpointError(f"{path}: no such checkpoint folder")
    missing = [name for name in (WEIGHTS, CONFIG, META) if not (path / name).is_file()]
    if missing:
        raise CheckpointError(f"{path}: not a checkpoint, it lacks {', '.join(missing)}")
    try:
        meta = json.loads((path / META).read_text(encoding="utf-8"))
        tree = yaml.safe_load((path / CONFIG).read_text(encoding="utf-8"))
        weights = load_file(path / WEIGHTS)
    except (OSError, ValueError, yaml.YAMLError, SafetensorError) as error:
        raise CheckpointError(f"{path}: damaged ({str(error).splitlines()[0]})") from error
    if not isinstance(meta, dict) or meta.get("format") != FORMAT:
        found = meta.get("format") if isinstance(meta, dict) else None
        raise CheckpointError(f"{path}: checkpoint format {found}, this version reads format {FORMAT}")
    return Checkpoint(parse_config(tree, str(path / CONFIG)), weights, meta)
