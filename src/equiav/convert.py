"""`equiav convert`: foreign weights into checkpoint folders, and checkpoints into the formats of others."""

from __future__ import annotations

import io
from pathlib import Path

import torch
from pydantic import ValidationError
from safetensors.torch import save

from equiav.build import (
    build_classifier,
    build_encoder,
    build_model,
    cavmae_config,
    encoder_size,
    modalities_of,
    released_config,
)
from equiav.checkpoint import Checkpoint, load_checkpoint, save_checkpoint, save_model
from equiav.config import Config, refusal
from equiav.errors import CheckpointError, WeightsError
from equiav.io import sweep, write_whole
from equiav.models import (
    HEAD_WIDTH,
    PREDICTOR_HEADS,
    Mode,
    State,
    cavmae_sizes,
    finetuned_from_released,
    from_mae,
    from_released,
    is_mae,
    kind_of_cavmae,
    kind_of_released,
    load_fitting,
    load_strict,
    read_cavmae,
    read_state,
    released_sizes,
    to_released,
    write_cavmae,
    write_mae,
)


def convert(
    source: Path,
    out: Path,
    *,
    mode: Mode | None = None,
    heads: int | None = None,
    seed: int = 0,
    class_token: bool = True,
) -> str:
    """Converts by what the source is; returns one sentence saying what was written."""
    if out.exists():
        raise CheckpointError(f"{out}: exists already; name a new place")
    sweep(out)
    if source.is_dir():
        return _export(source, out, mode, class_token)
    state = read_state(source)
    if kind_of_cavmae(state):
        return _import_cavmae(state, source, out, heads, mode)
    kind = kind_of_released(state)
    if kind == "pretrained":
        return _import_pretrained(state, source, out, heads)
    if kind == "finetuned":
        return _import_finetuned(state, source, out, heads, mode)
    if is_mae(state):
        return _import_mae(state, source, out, seed)
    shown = ", ".join(sorted(state)[:3])
    raise WeightsError(
        f"{source}: weights of no known model (MAE ViT, CAV-MAE, released EquiAV); they begin with {shown}"
    )


def _import_pretrained(state: State, source: Path, out: Path, heads: int | None) -> str:
    config = _config(state, source, heads)
    model = load_fitting(lambda: build_model(config), from_released(state, torch.float32), str(source))
    save_model(out, config, model.state_dict(), {"kind": "released", "source": source.name})
    return f"{out}: a released pre-training checkpoint, {_millions(model)} parameters"


def _import_finetuned(state: State, source: Path, out: Path, heads: int | None, mode: Mode | None) -> str:
    config = _config(state, source, heads, mode)
    assert mode is not None  # released_config refuses a fine-tuned checkpoint without it
    own = finetuned_from_released(state, mode, torch.float32)
    model = load_fitting(lambda: build_classifier(config), own, str(source))
    save_checkpoint(out, config, model.state_dict(), {"kind": "released, fine-tuned", "source": source.name})
    classes = config.classifier.classes if config.classifier else 0
    return f"{out}: a released {mode} classifier of {classes} classes, {_millions(model)} parameters"


def _config(state: State, source: Path, heads: int | None, mode: Mode | None = None) -> Config:
    try:
        return released_config(released_sizes(state, heads), mode)
    except ValidationError as error:  # sizes that no recipe may have
        raise refusal(error, str(source)) from error


def _import_cavmae(state: State, source: Path, out: Path, heads: int | None, mode: Mode | None) -> str:
    config = cavmae_config(cavmae_sizes(state, heads=heads), mode)
    weights = {key: value.float() for key, value in read_cavmae(state).items()}
    if config.classifier is None:
        model: torch.nn.Module = load_fitting(lambda: build_model(config), weights, str(source))
        save_model(out, config, weights, {"kind": "cavmae", "source": source.name})
        return f"{out}: a CAV-MAE pre-training checkpoint, {_millions(model)} parameters"
    model = load_fitting(lambda: build_classifier(config), weights, str(source))
    save_checkpoint(out, config, weights, {"kind": "cavmae, fine-tuned", "source": source.name})
    classes = config.classifier.classes
    return f"{out}: a CAV-MAE {config.classifier.mode} classifier of {classes} classes, {_millions(model)} parameters"


def _import_mae(state: State, source: Path, out: Path, seed: int) -> str:
    config = Config(seed=seed)
    model = build_model(config)
    load_strict(model, from_mae(state, model.state_dict(), torch.float32), str(source))
    save_model(out, config, model.state_dict(), {"kind": "mae", "source": source.name})
    return f"{out}: both encoders from MAE, predictor and heads drawn with seed {seed}: a start for pre-training"


def _export(source: Path, out: Path, mode: Mode | None, class_token: bool) -> str:
    checkpoint = load_checkpoint(source)
    config = checkpoint.config
    if config.objective.kind == "cavmae":
        return _export_cavmae(checkpoint, source, out)
    if config.objective.kind == "masked" and config.classifier is None:
        return _export_mae(checkpoint, source, out, mode, class_token)
    if config.classifier is not None:
        raise CheckpointError(f"{source}: classifiers are not written in the released format")
    if config.audio.bins != 128:
        raise CheckpointError(f"{source}: released models have 128 mel bins, this one has {config.audio.bins}")
    if config.model.encoder.kind != "vit" or config.model.audio.encoder or config.model.visual.encoder:
        raise CheckpointError(f"{source}: released models have two ViTs of one size, this one has other encoders")
    predictor = config.model.predictor
    if (predictor.heads, predictor.head_width) != PREDICTOR_HEADS:
        raise CheckpointError(f"{source}: released predictors have 8 heads of 64, this one {predictor.heads} of others")
    state = to_released(checkpoint.weights, config.audio.frames, config.visual.size)
    write_whole(out, _packed(state, safe=out.suffix == ".safetensors"))
    return f"{out}: {len(state)} tensors in the released format{_differences(config)}"


def _export_cavmae(checkpoint: Checkpoint, source: Path, out: Path) -> str:
    config = checkpoint.config
    audio, visual, eps = config.audio, config.visual, config.model.encoder.norm_eps
    if audio.patch != visual.patch or audio.bins != 8 * audio.patch:
        raise CheckpointError(
            f"{source}: released CAV-MAE has one size of patches and 8 rows of them in a spectrogram; this one has "
            f"patches of {audio.patch} and {visual.patch} and {audio.bins} mel bins"
        )
    state = write_cavmae(checkpoint.weights)
    write_whole(out, _packed(state, safe=out.suffix == ".safetensors"))
    note = "" if eps == 1e-5 else f"; note: CAV-MAE norms with eps 1e-5, this model with {eps:g}"
    return f"{out}: {len(state)} tensors in CAV-MAE's format{note}"


def _export_mae(checkpoint: Checkpoint, source: Path, out: Path, mode: Mode | None, class_token: bool) -> str:
    """MAE's format holds one encoder and its decoder: `mode` says which, where a run has trained several."""
    there = modalities_of(checkpoint.config)
    modality = there[0] if mode is None and len(there) == 1 else mode
    if modality not in there:
        raise CheckpointError(f"{source}: MAE's format holds one encoder; choose --mode {' or '.join(there)}")
    parts = []
    for part in ("f", "decoder"):
        prefix = f"{modality}.{part}."
        parts.append({k.removeprefix(prefix): v for k, v in checkpoint.weights.items() if k.startswith(prefix)})
    grid = build_encoder(checkpoint.config, modality).grid
    state = write_mae(parts[0], parts[1], grid, class_token=class_token)
    write_whole(out, _packed(state, safe=out.suffix == ".safetensors"))
    token = "with a neutral class token" if class_token else "without a class token"
    return f"{out}: {len(state)} tensors in MAE's format, {token}: the {modality} encoder and its decoder"


def _packed(state: State, *, safe: bool) -> bytes:
    if safe:
        return save(state)
    buffer = io.BytesIO()
    torch.save(state, buffer)
    return buffer.getvalue()


def _differences(config: Config) -> str:
    """What the format does not record, and a reader must know."""
    notes = []
    size, eps = encoder_size(config.model.encoder), config.model.encoder.norm_eps
    if eps != 1e-5:
        notes.append(f"the released code norms with eps 1e-5, this model with {eps:g}")
    if size.heads * HEAD_WIDTH != size.width:
        notes.append(f"it has {size.heads} attention heads, which the format does not record")
    if config.augment.layout != "released":
        notes.append("its vectors are in the paper's layout")
    return "".join(f"; note: {note}" for note in notes)


def _millions(model: torch.nn.Module) -> str:
    return f"{sum(p.numel() for p in model.parameters()) / 1e6:.1f} M"
