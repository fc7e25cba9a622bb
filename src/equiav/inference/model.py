"""Trained models and classifiers with their recipes: loading, and the digest that tells one from another."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from equiav.build import build_bank, build_classifier, build_inputs, build_model
from equiav.checkpoint import Checkpoint, Digest, load_checkpoint, model_digest
from equiav.config import Config
from equiav.errors import CheckpointError, EquiAVError, WeightsError
from equiav.media import Inputs, square
from equiav.models import ClassifierModel, EmbeddingModel, load_fitting
from equiav.types import VISUAL, Modality

Banks = Mapping[Modality, Tensor]


@dataclass(frozen=True)
class LoadedModel:
    """A model in evaluation mode with its recipe, how its inputs are made, and its fixed banks of vectors."""

    model: EmbeddingModel
    config: Config
    banks: Banks
    meta: dict[str, Any]

    @cached_property
    def inputs(self) -> Inputs:
        """How raw inputs become encoder inputs, by modality."""
        return build_inputs(self.config)

    @property
    def modalities(self) -> tuple[Modality, ...]:
        """The modalities it embeds."""
        return self.model.modalities

    @property
    def device(self) -> torch.device:
        """Where its weights are."""
        return next(self.model.parameters()).device

    @property
    def width(self) -> int:
        """Length of an embedding."""
        return self.model.width

    @property
    def uses_banks(self) -> bool:
        """Whether its embedding depends on a bank of augmentation vectors."""
        return self.config.objective.representation == "centroid"

    @cached_property
    def digest(self) -> Digest:
        """The same for models that give the same embeddings: of weights, banks, and what else decides them."""
        return model_digest(self.config, self.model.state_dict(), self.banks)

    @torch.inference_mode()
    def embed(self, modality: Modality, x: Tensor) -> Tensor:
        """Unnormalised embeddings of encoder inputs: spectrograms (N, 1, T, F), frames (N, 3, H, W) and so on."""
        return self.model.embed(modality, x, self.banks.get(modality))

    def frames(self, frames: Tensor) -> Tensor:
        """Frames (N, 3, H, W), uint8, of any size as the visual encoder takes them: square and normalised."""
        transform = self.inputs[VISUAL]
        return transform.finish(transform.prepare(square(frames, self.config.visual.size)))


def with_banks(model: EmbeddingModel, config: Config) -> LoadedModel:
    """A model that is still being trained, as it would be used."""
    device = next(model.parameters()).device
    modalities = model.modalities if config.objective.has_predictor else ()
    return LoadedModel(model, config, {m: build_bank(config, m).to(device) for m in modalities}, {})


def load_model(path: str | Path, device: str = "cpu", *, shared_space: bool = True) -> LoadedModel:
    """Loads a checkpoint folder for use; with `shared_space=False` also encoders that share none."""
    path = Path(path)
    checkpoint = load_checkpoint(path)
    if checkpoint.config.classifier is not None:
        raise CheckpointError(f"{path}: holds a classifier, not a model with a shared space")
    if shared_space and checkpoint.config.objective.kind == "masked":
        raise CheckpointError(f"{path}: holds masked autoencoders, which have no shared space; pre-train from it first")
    return from_checkpoint(checkpoint, path, device)


def from_checkpoint(checkpoint: Checkpoint, path: Path, device: str = "cpu") -> LoadedModel:
    """The model of a checkpoint already read; `path` is for messages."""
    try:
        torch.empty(1, device=device)
    except (RuntimeError, AssertionError, NotImplementedError) as error:  # whichever the build of torch prefers
        raise EquiAVError(f"device {device!r}: this machine, or this build of torch, has none; try cpu") from error
    try:
        model = load_fitting(lambda: build_model(checkpoint.config), checkpoint.weights, str(path))
    except WeightsError as error:
        raise CheckpointError(str(error)) from error
    banks = {m: checkpoint.banks[m].to(device) for m in model.modalities if m in checkpoint.banks}
    if checkpoint.config.objective.has_predictor and len(banks) < len(model.modalities):
        raise CheckpointError(f"{path}: lacks its banks of augmentation vectors")
    return LoadedModel(model.to(device).eval(), checkpoint.config, banks, checkpoint.meta)


@dataclass(frozen=True)
class LoadedClassifier:
    """A classifier in evaluation mode, with its recipe and the names of its classes."""

    model: ClassifierModel
    config: Config
    classes: tuple[str, ...]
    meta: dict[str, Any]

    @property
    def single(self) -> bool:
        """Whether it was trained to choose one class a clip (cross-entropy)."""
        return self.config.finetune is not None and self.config.finetune.loss == "ce"

    def named(self, classes: tuple[str, ...]) -> LoadedClassifier:
        """The same with other names of its classes."""
        if len(classes) != len(self.classes):
            raise CheckpointError(f"{len(classes)} names were given for a classifier of {len(self.classes)} classes")
        return replace(self, classes=classes)


def load_classifier(path: str | Path, device: str = "cpu") -> LoadedClassifier:
    """Loads a fine-tuned checkpoint (of a run: the weights that validation chose)."""
    checkpoint = load_checkpoint(Path(path))
    if checkpoint.config.classifier is None:
        raise CheckpointError(f"{path}: holds no classifier; fine-tune it first (equiav finetune)")
    try:
        model = load_fitting(lambda: build_classifier(checkpoint.config), checkpoint.weights, str(path))
    except WeightsError as error:
        raise CheckpointError(str(error)) from error
    # Imported classifiers do not say what their classes are called.
    classes = tuple(checkpoint.meta.get("classes", (f"class {i}" for i in range(model.classes))))
    return LoadedClassifier(model.to(device).eval(), checkpoint.config, classes, checkpoint.meta)
