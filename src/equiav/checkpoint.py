"""A checkpoint is one folder: weights, banks, state of the run, recipe, facts; written whole or not at all."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import torch
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import Tensor

from equiav import __version__, hub
from equiav.build import build_bank, encoder_size, modalities_of
from equiav.config import (
    Config,
    EncoderConfig,
    ObjectiveConfig,
    canonical_dump,
    dump_config,
    parse_config,
    read_yaml,
    refusal,
)
from equiav.errors import CheckpointError, EquiAVError
from equiav.io import SUMS, check_sums, replacing, write_sums
from equiav.models import read_safetensors

FORMAT = 1
WEIGHTS, STATE, CONFIG, META = "weights.safetensors", "state.safetensors", "config.yaml", "meta.json"
CHECKPOINTS = "checkpoints"  # the folder of a run that holds its checkpoints
STEP = "step-"
BEST = "best"  # in a fine-tuning run: the weights that validation chose
BANK = "bank."  # before the names of banks among the tensors of a weights file
NAMED = 5  # classes that `info` names
LONGEST_META = 1 << 24  # bytes of meta.json; a million names of classes fit in
RESTORE = f"restore it from a copy, or delete {SUMS} if you changed it on purpose"


class _Best(BaseModel):
    """The validation that chose the weights of a classifier."""

    step: int
    validation: dict[str, Any]


class _Meta(BaseModel):
    """What meta.json says as far as anybody reads it; whatever else it holds is kept."""

    model_config = ConfigDict(strict=True)

    format: Literal[1]
    kind: str = "unknown"
    step: int = Field(0, ge=0, le=10**9)
    total: int = Field(0, ge=0, le=10**9)
    clips: int = Field(0, ge=0)
    source: str = ""
    classes: list[str] = []
    best: _Best | None = None


@dataclass(frozen=True)
class Checkpoint:
    """What a checkpoint folder holds; `banks` are the fixed augmentation vectors by modality, none for classifiers."""

    config: Config
    weights: dict[str, Tensor]
    meta: dict[str, Any]
    banks: dict[str, Tensor] = field(default_factory=dict)


def save_checkpoint(
    path: Path,
    config: Config,
    weights: Mapping[str, Tensor],
    meta: Mapping[str, Any],
    *,
    banks: Mapping[str, Tensor] | None = None,
    state: Mapping[str, Tensor] | None = None,
) -> None:
    """Writes a checkpoint beside its place and moves it there, so that a reader never sees half of one.

    `weights` are for use; `state` is what only a resumed run needs (optimiser, weights under a moving average).
    """
    tensors = {WEIGHTS: {**weights, **_stored(banks or {})}, **({} if state is None else {STATE: state})}
    record = {"format": FORMAT, "equiav": __version__, "torch": torch.__version__, **meta}
    try:
        with replacing(path) as draft:
            draft.mkdir()
            (draft / CONFIG).write_text(dump_config(config), encoding="utf-8")
            for name, values in tensors.items():
                save_file({key: value.detach().contiguous().cpu() for key, value in values.items()}, draft / name)
                shutil.copymode(draft / CONFIG, draft / name)  # safetensors lets nobody but the owner read
            (draft / META).write_text(json.dumps(record, indent=1), encoding="utf-8")
            write_sums(draft)
    except (OSError, SafetensorError) as error:
        raise CheckpointError(f"{path}: cannot be written ({error})") from error


def save_model(
    path: Path,
    config: Config,
    weights: Mapping[str, Tensor],
    meta: Mapping[str, Any],
    *,
    state: Mapping[str, Tensor] | None = None,
) -> None:
    """Writes a checkpoint of a model's weights together with the banks that evaluation will use, if it has any."""
    banks = {m: build_bank(config, m) for m in modalities_of(config)} if config.objective.has_predictor else {}
    save_checkpoint(path, config, weights, meta, banks=banks, state=state)


def checkpoints_of(run: Path) -> list[tuple[int, Path]]:
    """The checkpoints of a run with their steps, oldest first; half-written ones are never among them."""
    steps = {path.name.removeprefix(STEP): path for path in (run / CHECKPOINTS).glob(f"{STEP}*")}
    return sorted((int(step), path) for step, path in steps.items() if step.isdigit())


def resolve(path: Path) -> Path:
    """A checkpoint folder as it is; of a run the one that validation chose, else its newest; hf:owner/name fetched."""
    if hub.on_hub(path):
        return hub.fetch(path)
    if (path / BEST / META).is_file():
        return path / BEST
    newest = checkpoints_of(path)
    return newest[-1][1] if newest else path


def load_state(path: Path) -> dict[str, Tensor]:
    """What a resumed run needs beside the weights."""
    try:
        _refuse_damaged(path, STATE)
        return read_safetensors(path / STATE)
    except EquiAVError as error:
        raise CheckpointError(f"{error}; the run cannot be resumed from it") from error


def load_checkpoint(path: Path) -> Checkpoint:
    """Reads a checkpoint (of a run: its newest); every way in which it can be wrong has its own sentence.

    Files are compared with their checksums first; checkpoints of versions that wrote none are read without.
    """
    path = resolve(path)
    if not path.is_dir():
        raise CheckpointError(f"{path}: no such checkpoint folder")
    missing = [name for name in (WEIGHTS, CONFIG, META) if not (path / name).is_file()]
    if missing:
        raise CheckpointError(f"{path}: not a checkpoint, it lacks {', '.join(missing)}")
    meta = _read_meta(path / META)
    _refuse_damaged(path, WEIGHTS, CONFIG, META)
    try:
        tree = read_yaml(path / CONFIG)
        tensors = read_safetensors(path / WEIGHTS)
    except EquiAVError as error:
        raise CheckpointError(f"{path}: damaged ({error})") from error
    weights = {key: value for key, value in tensors.items() if not key.startswith(BANK)}
    banks = {key.removeprefix(BANK): value for key, value in tensors.items() if key.startswith(BANK)}
    return Checkpoint(parse_config(tree, str(path / CONFIG)), weights, meta, banks)


def _read_meta(path: Path) -> dict[str, Any]:
    try:
        if path.stat().st_size > LONGEST_META:
            raise CheckpointError(f"{path}: damaged (longer than {LONGEST_META} bytes)")
        meta = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise CheckpointError(f"{path}: damaged ({error})") from error
    found = meta.get("format") if isinstance(meta, dict) else None
    if found != FORMAT:
        raise CheckpointError(f"{path}: checkpoint format {str(found)[:80]}, this version reads format {FORMAT}")
    try:
        _Meta.model_validate(meta)
    except ValidationError as error:
        raise CheckpointError(f"damaged: {refusal(error, str(path))}") from error
    return dict(meta)


def _refuse_damaged(path: Path, *names: str) -> None:
    for problem in check_sums(path, names):
        raise CheckpointError(f"{problem}; {RESTORE}")


def verify_checkpoint(path: Path) -> list[str]:
    """What is damaged in a checkpoint, an exported folder or all checkpoints of a run: a line each, with what to do.

    Every file is compared with its checksum; a checkpoint of a version that wrote none is read instead.
    """
    if (path / META).is_file() or (path / SUMS).is_file():
        folders = [path]
    else:
        folders = [folder for _, folder in checkpoints_of(path)] + [path / BEST] * (path / BEST).is_dir()
        if not folders:
            return [f"{path}: neither a checkpoint nor a run with one"]
    problems = []
    for folder in folders:
        if found := [f"{problem}; {RESTORE}" for problem in check_sums(folder)]:
            problems += found
            continue
        try:
            load_checkpoint(folder)
            if (folder / STATE).is_file():
                load_state(folder)
        except EquiAVError as error:
            problems.append(str(error))
    return problems


def _stored(banks: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Banks under the names they have in a weights file."""
    return {BANK + name: bank for name, bank in banks.items()}


class Digest(str):
    """Names a model by what decides its embeddings; `source` is the model's recipe and its tensors."""

    source: tuple[Config, Mapping[str, Tensor]]

    @cached_property
    def legacy(self) -> str:
        """The digest by the rule before, which hashed all keys with their defaults; old indexes recorded it."""
        config, tensors = self.source
        tree = canonical_dump(config)
        facts = json.dumps([tree["model"], tree["audio"], tree["visual"]])
        return _hashed(facts + config.objective.representation, tensors)

    def __reduce__(self) -> tuple[type[str], tuple[str]]:
        return str, (str(self),)  # the name travels to other processes, the weights do not


def model_digest(config: Config, weights: Mapping[str, Tensor], banks: Mapping[str, Tensor]) -> Digest:
    """SHA-256 of weights, banks and what else decides the embeddings, as far as it is not at its default.

    So a release that adds a key does not make a stranger of every model that an index was built with.
    """
    tree = canonical_dump(config, exclude_defaults=True)
    facts = {key: tree[key] for key in ("model", "audio", "visual", "modalities") if tree.get(key)}
    for modality in ("audio", "visual"):  # where weights came from does not decide what they do
        encoder = facts.get("model", {}).get(modality, {}).get("encoder", {})
        for key in ("name", "revision"):
            encoder.pop(key, None)
    for further in facts.get("modalities", {}).values():
        options = further.get("options", {})
        if further["kind"] == "text" and "architecture" in options:
            further["options"] = {k: v for k, v in options.items() if k not in ("name", "revision")}
    about = json.dumps({**facts, "representation": config.objective.representation}, sort_keys=True)
    tensors = {**weights, **_stored(banks)}
    digest = Digest(_hashed(about, tensors))
    digest.source = config, tensors
    return digest


def same_model(digest: str, recorded: str) -> bool:
    """Whether a model's digest is the one that an index recorded, by today's rule or by the one before it."""
    return digest == recorded or (isinstance(digest, Digest) and digest.legacy == recorded)


def _hashed(about: str, tensors: Mapping[str, Tensor]) -> str:
    digest = hashlib.sha256(about.encode())
    for name, tensor in sorted(tensors.items()):
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        digest.update(tensor.detach().cpu().contiguous().numpy().tobytes())
    return digest.hexdigest()


def info(checkpoint: Checkpoint, path: Path) -> str:
    """Model, objective, data and origin of a checkpoint in a few lines."""
    config, meta = checkpoint.config, checkpoint.meta
    count = sum(v.numel() for v in checkpoint.weights.values())
    audio, visual, objective = config.audio, config.visual, config.objective
    encoders = dict.fromkeys(encoder_text(config.model.encoder_for(m)) for m in ("audio", "visual"))
    lines = [
        f"{path}",
        f"  kind        {meta.get('kind', 'unknown')}"
        + (f", step {meta['step']}/{meta['total']}" if "step" in meta else ""),
        f"  encoders    {'; '.join(encoders)}; {count / 1e6:.2f} M parameters",
        f"  audio       {audio.frames} x {audio.bins} log-mel at {audio.sample_rate} Hz, patches of {audio.patch}",
        f"  visual      {visual.size} x {visual.size}, patches of {visual.patch}",
        *(f"  {name:<11} {modality.kind}" for name, modality in config.modalities.items()),
    ]
    if config.classifier:
        names = meta.get("classes", [])
        shown = f": {', '.join(names[:NAMED])}{', ...' if len(names) > NAMED else ''}" if names else ""
        lines.append(f"  classifier  {config.classifier.mode}, {config.classifier.classes} classes{shown}")
        if best := meta.get("best"):
            scores = {k: v for k, v in best["validation"].items() if k in ("mAP", "accuracy")}
            values = [f"{k} {v:.1f} %" for k, v in scores.items() if v and isinstance(v, int | float)]
            lines.append(f"  validation  {', '.join(values)} at step {best['step']}")
    else:
        if objective.has_predictor:
            lines.append(f"  predictor   {config.model.predictor.kind}; vectors in the {config.augment.layout} layout")
        lines.append(f"  objective   {_objective_text(objective)}")
    lines.append(f"  written by  equiav {meta.get('equiav')}, torch {meta.get('torch')}")
    return "\n".join(lines)


def _objective_text(objective: ObjectiveConfig) -> str:
    masked, contrast = objective.masked, objective.contrast
    removed = f"{masked.ratio:.0%} of the patches removed{', standardised targets' if masked.norm_pix else ''}"
    match objective.kind:
        case "equiav":
            return (
                f"intra {objective.intra}, inter {objective.inter}, S = {objective.representations}, "
                f"tau = {objective.temperature}, {objective.strategy}"
            )
        case "masked":
            return f"masked autoencoding of {' and '.join(masked.modalities)}, {removed}"
        case "cavmae":
            ways = "both directions" if contrast.both else "one direction"
            return f"CAV-MAE, {removed}, {contrast.weight:g} x contrast at {contrast.temperature:g}, {ways}"
        case foreign:
            return foreign


def encoder_text(cfg: EncoderConfig) -> str:
    """An encoder in a few words."""
    if cfg.kind != "vit":
        return cfg.name or cfg.kind
    size = encoder_size(cfg)
    return f"width {size.width}, depth {size.depth}, {size.heads} heads"
