"""`equiav convert`: foreign weights into checkpoint folders, and checkpoints into the authors' format."""

from __future__ import annotations

from pathlib import Path

import torch
from safetensors.torch import save_file

from equiav.build import build_classifier, build_model, released_config
from equiav.checkpoint import load_checkpoint, save_checkpoint
from equiav.config import Config
from equiav.errors import CheckpointError, WeightsError
from equiav.inference import BANK, save_model
from equiav.models.classifier import Mode
from equiav.models.released import (
    finetuned_from_released,
    from_released,
    kind_of_released,
    released_sizes,
    to_released,
)
from equiav.models.weights import State, from_mae, is_mae, load_strict, read_state


def convert(source: Path, out: Path, *, mode: Mode | None = None, heads: int | None = None, seed: int = 0) -> str:
    """Converts by what the source is; returns one sentence saying what was written."""
    if out.exists():
        raise CheckpointError(f"{out}: exists already; name a new place")
    if source.is_dir():
        return _export(source, out)
    state = read_state(source)
    kind = kind_of_released(state)
    if kind == "pretrained":
        return _import_pretrained(state, source, out, heads)
    if kind == "finetuned":
        return _import_finetuned(state, source, out, heads, mode)
    if is_mae(state):
        return _import_mae(state, source, out, seed)
    shown = ", ".join(sorted(state)[:3])
    raise WeightsError(f"{source}: weights of no known model (MAE ViT or released EquiAV); they begin with {shown}")


def _import_pretrained(state: State, source: Path, out: Path, heads: int | None) -> str:
    config = released_config(released_sizes(state, heads))
    model = build_model(config)
    load_strict(model, from_released(state, torch.float32), str(source))
    save_model(out, config, model.state_dict(), {"kind": "released", "source": source.name})
    return f"{out}: a released pre-training checkpoint, {_millions(model)} parameters"


def _import_finetuned(state: State, source: Path, out: Path, heads: int | None, mode: Mode | None) -> str:
    config = released_config(released_sizes(state, heads), mode)
    model = build_classifier(config)
    assert mode is not None  # released_config refuses a fine-tuned checkpoint without it
    load_strict(model, finetuned_from_released(state, mode, torch.float32), str(source))
    save_checkpoint(out, config, model.state_dict(), {"kind": "released, fine-tuned", "source": source.name})
    classes = config.classifier.classes if config.classifier else 0
    return f"{out}: a released {mode} classifier of {classes} classes, {_millions(model)} parameters"


def _import_mae(state: State, source: Path, out: Path, seed: int) -> str:
    config = Config(seed=seed)
    model = build_model(config)
    load_strict(model, from_mae(state, model.state_dict(), torch.float32), str(source))
    save_model(out, config, model.state_dict(), {"kind": "mae", "source": source.name})
    return f"{out}: both encoders from MAE, predictor and heads drawn with seed {seed}: a start for pre-training"


def _export(source: Path, out: Path) -> str:
    checkpoint = load_checkpoint(source)
    config = checkpoint.config
    if config.classifier is not None:
        raise CheckpointError(f"{source}: classifiers are not written in the released format")
    if config.audio.bins != 128:
        raise CheckpointError(f"{source}: released models have 128 mel bins, this one has {config.audio.bins}")
    weights = {key: value for key, value in checkpoint.weights.items() if not key.startswith(BANK)}
    state = to_released(weights, config.audio.frames, config.visual.size)
    out.parent.mkdir(parents=True, exist_ok=True)
    draft = out.with_name(f".{out.name}.tmp")
    if out.suffix == ".safetensors":
        save_file(state, draft)
    else:
        torch.save(state, draft)
    draft.replace(out)
    eps = config.model.encoder.norm_eps
    note = "" if eps == 1e-5 else f"; note that the released code norms with eps 1e-5, this model with {eps:g}"
    return f"{out}: {len(state)} tensors in the released format{note}"


def _millions(model: torch.nn.Module) -> str:
    return f"{sum(p.numel() for p in model.parameters()) / 1e6:.1f} M"
