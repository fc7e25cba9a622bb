"""`equiav convert`: foreign weights into checkpoint folders, and checkpoints into the formats of others."""

from __future__ import annotations

import io
from pathlib import Path

import torch
from pydantic import ValidationError
from safetensors.torch import save

from equiav import models
from equiav.build import build_classifier, build_encoder, build_model, encoder_size, modalities_of
from equiav.checkpoint import Checkpoint, load_checkpoint, save_checkpoint, save_model
from equiav.config import (
    AudioConfig,
    AugmentConfig,
    ClassifierConfig,
    Config,
    DecoderConfig,
    EncoderConfig,
    HeadsConfig,
    MaskedConfig,
    ModelConfig,
    ObjectiveConfig,
    PredictorConfig,
    VisualConfig,
    refusal,
)
from equiav.errors import CheckpointError, ConfigError, WeightsError
from equiav.hub import on_hub
from equiav.io import sweep, write_whole

EPS = 1e-5  # of the norms in released models


def convert(
    source: Path,
    out: Path,
    *,
    mode: models.Mode | None = None,
    heads: int | None = None,
    seed: int = 0,
    class_token: bool = True,
) -> str:
    """Converts by what the source is; returns one sentence saying what was written."""
    if out.exists():
        raise CheckpointError(f"{out}: exists already; name a new place")
    sweep(out)
    if source.is_dir() or on_hub(source):
        return _export(source, out, mode, class_token)
    state = models.read_state(source)
    if models.kind_of_cavmae(state):
        config = cavmae_config(models.cavmae_sizes(state, heads=heads), mode)
        return _import(models.read_cavmae(state), config, source, out, "cavmae", "CAV-MAE")
    kind = models.kind_of_released(state)
    if kind is not None:
        try:
            config = released_config(models.released_sizes(state, heads), mode)
        except ValidationError as error:  # sizes that no recipe may have
            raise refusal(error, str(source)) from error
        if kind == "pretrained":
            own = models.from_released(state, torch.float32)
        else:
            assert mode is not None  # released_config refuses a fine-tuned checkpoint without it
            own = models.finetuned_from_released(state, mode, torch.float32)
        return _import(own, config, source, out, "released", "released")
    if models.is_mae(state):
        config = Config(seed=seed)
        model = build_model(config)
        models.load_strict(model, models.from_mae(state, model.state_dict(), torch.float32), str(source))
        save_model(out, config, model.state_dict(), {"kind": "mae", "source": source.name})
        return f"{out}: both encoders from MAE, predictor and heads drawn with seed {seed}: a start for pre-training"
    shown = ", ".join(sorted(state)[:3])
    raise WeightsError(
        f"{source}: weights of no known model (MAE ViT, CAV-MAE, released EquiAV); they begin with {shown}"
    )


def _import(own: models.State, config: Config, source: Path, out: Path, kind: str, whose: str) -> str:
    """Weights under our names as a checkpoint: a model with its banks, or a classifier."""
    own, cfg = {key: value.float() for key, value in own.items()}, config.classifier
    model = models.load_fitting(lambda: build_classifier(config) if cfg else build_model(config), own, str(source))
    meta = {"kind": f"{kind}, fine-tuned" if cfg else kind, "source": source.name}
    (save_checkpoint if cfg else save_model)(out, config, model.state_dict(), meta)
    what = f"{cfg.mode} classifier of {cfg.classes} classes" if cfg else "pre-training checkpoint"
    return f"{out}: a {whose} {what}, {sum(p.numel() for p in model.parameters()) / 1e6:.1f} M parameters"


def cavmae_config(sizes: models.CavMaeSizes, mode: str | None = None) -> Config:
    """The recipe of a model imported from CAV-MAE's authors: their statistics, padding and eps."""
    encoder = EncoderConfig(
        size=None, width=sizes.width, depth=sizes.depth + sizes.joint_depth, heads=sizes.heads,
        mlp_ratio=sizes.mlp_ratio, norm_eps=EPS,
    )  # fmt: skip
    decoder = DecoderConfig(width=sizes.decoder_width, depth=sizes.decoder_depth or 8, heads=sizes.decoder_heads)
    classifier = None
    if sizes.classes:
        classifier = ClassifierConfig.model_validate({"mode": mode or "audiovisual", "classes": sizes.classes})
    return Config(
        objective=ObjectiveConfig(kind="cavmae", masked=MaskedConfig(decoder=decoder)),
        model=ModelConfig(encoder=encoder, joint_depth=sizes.joint_depth),
        classifier=classifier,
        audio=AudioConfig(
            frames=sizes.frames, bins=sizes.bins, patch=sizes.patch, padding="zero", mean=-5.081, std=4.4849
        ),
        visual=VisualConfig(size=sizes.image, patch=sizes.patch),
    )


def released_config(sizes: models.ReleasedSizes, mode: str | None = None) -> Config:
    """The recipe of a model imported from the authors' released code: its vectors, padding, norms and eps."""
    size = sizes.encoder
    if size.heads < 1 or size.width % size.heads:
        raise ConfigError(f"{size.heads} heads do not divide the width {size.width}; give another --heads")
    encoder = EncoderConfig(
        size=None, width=size.width, depth=size.depth, heads=size.heads,
        mlp_ratio=sizes.mlp_ratio, norm_eps=EPS, norm_augmented=sizes.classes == 0,
    )  # fmt: skip
    heads = HeadsConfig(hidden=sizes.head_hidden, inter=sizes.inter_out, intra=sizes.intra_out)
    classifier = None
    if sizes.classes:
        if mode is None:
            raise ConfigError("a fine-tuned checkpoint does not say its modality: give audio, visual or audiovisual")
        projection = "none" if mode == "visual" else sizes.projection
        classifier = ClassifierConfig.model_validate({"mode": mode, "classes": sizes.classes, "projection": projection})
    return Config(
        model=ModelConfig(encoder=encoder, predictor=PredictorConfig(query_width=sizes.query_width), heads=heads),
        classifier=classifier,
        audio=AudioConfig(frames=sizes.frames, padding="zero"),
        visual=VisualConfig(size=sizes.image),
        augment=AugmentConfig(layout="released"),
    )


def _export(source: Path, out: Path, mode: models.Mode | None, class_token: bool) -> str:
    checkpoint = load_checkpoint(source)
    if checkpoint.config.objective.kind == "cavmae":
        state, note = _to_cavmae(checkpoint, source)
    elif checkpoint.config.objective.kind == "masked" and checkpoint.config.classifier is None:
        state, note = _to_mae(checkpoint, source, mode, class_token)
    else:
        state, note = _to_released(checkpoint, source)
    if out.suffix == ".safetensors":
        write_whole(out, save(state))
    else:
        buffer = io.BytesIO()
        torch.save(state, buffer)
        write_whole(out, buffer.getvalue())
    return f"{out}: {len(state)} tensors in {note}"


def _to_released(checkpoint: Checkpoint, source: Path) -> tuple[models.State, str]:
    """The weights in the released format; the note says what the format does not record and a reader must know."""
    config, model = checkpoint.config, checkpoint.config.model
    if config.classifier is not None:
        raise CheckpointError(f"{source}: classifiers are not written in the released format")
    if config.audio.bins != 128:
        raise CheckpointError(f"{source}: released models have 128 mel bins, this one has {config.audio.bins}")
    if model.encoder.kind != "vit" or model.audio.encoder or model.visual.encoder:
        raise CheckpointError(f"{source}: released models have two ViTs of one size, this one has other encoders")
    if (model.predictor.heads, model.predictor.head_width) != models.PREDICTOR_HEADS:
        heads = model.predictor.heads
        raise CheckpointError(f"{source}: released predictors have 8 heads of 64, this one {heads} of others")
    notes, size, eps = ["the released format"], encoder_size(model.encoder), model.encoder.norm_eps
    if eps != EPS:
        notes.append(f"note: the released code norms with eps 1e-5, this model with {eps:g}")
    if size.heads * models.HEAD_WIDTH != size.width:
        notes.append(f"note: it has {size.heads} attention heads, which the format does not record")
    if config.augment.layout != "released":
        notes.append("note: its vectors are in the paper's layout")
    return models.to_released(checkpoint.weights, config.audio.frames, config.visual.size), "; ".join(notes)


def _to_cavmae(checkpoint: Checkpoint, source: Path) -> tuple[models.State, str]:
    audio, visual, eps = checkpoint.config.audio, checkpoint.config.visual, checkpoint.config.model.encoder.norm_eps
    if audio.patch != visual.patch or audio.bins != 8 * audio.patch:
        raise CheckpointError(
            f"{source}: released CAV-MAE has one size of patches and 8 rows of them in a spectrogram; this one has "
            f"patches of {audio.patch} and {visual.patch} and {audio.bins} mel bins"
        )
    note = "" if eps == EPS else f"; note: CAV-MAE norms with eps 1e-5, this model with {eps:g}"
    return models.write_cavmae(checkpoint.weights), f"CAV-MAE's format{note}"


def _to_mae(
    checkpoint: Checkpoint, source: Path, mode: models.Mode | None, class_token: bool
) -> tuple[models.State, str]:
    """MAE's format holds one encoder and its decoder: `mode` says which, where a run has trained several."""
    there = modalities_of(checkpoint.config)
    modality = there[0] if mode is None and len(there) == 1 else mode
    if modality not in there:
        raise CheckpointError(f"{source}: MAE's format holds one encoder; choose --mode {' or '.join(there)}")
    encoder, decoder = (
        {k.removeprefix(p): v for k, v in checkpoint.weights.items() if k.startswith(p)}
        for p in (f"{modality}.f.", f"{modality}.decoder.")
    )
    grid = build_encoder(checkpoint.config, modality).grid
    token = "with a neutral class token" if class_token else "without a class token"
    note = f"MAE's format, {token}: the {modality} encoder and its decoder"
    return models.write_mae(encoder, decoder, grid, class_token=class_token), note
