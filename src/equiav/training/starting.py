"""Where a classifier's encoders come from: a pre-trained checkpoint, or a classifier of the same classes."""

from __future__ import annotations

from pathlib import Path

from torch import Tensor

from equiav.build import encoder_size
from equiav.checkpoint import Checkpoint, load_checkpoint
from equiav.config import Config
from equiav.errors import CheckpointError
from equiav.models import Classifier, load_strict


def load_encoders(model: Classifier, config: Config, classes: tuple[str, ...], path: Path) -> None:
    """Loads the encoders of a pre-trained checkpoint, its heads and predictor left behind, or a whole classifier.

    What does not fit is refused as a whole: encoders of another size or norm, a classifier for other classes.
    """
    checkpoint = load_checkpoint(path)
    _refuse_other_encoders(checkpoint.config, config, path)
    if checkpoint.config.classifier is not None:
        _refuse_other_classifier(checkpoint, config, classes, path)
        load_strict(model, checkpoint.weights, str(path))
        return
    for m in model.modalities:
        load_strict(model.encoders[m.value], _encoder(checkpoint.weights, f"{m.value}.f."), f"{path} ({m.value})")


def _encoder(weights: dict[str, Tensor], prefix: str) -> dict[str, Tensor]:
    """One encoder's weights; the augmented view's norm belongs to pre-training."""
    own = {k.removeprefix(prefix): v for k, v in weights.items() if k.startswith(prefix)}
    return {k: v for k, v in own.items() if not k.startswith("norm_augmented.")}


def _refuse_other_encoders(saved: Config, asked: Config, path: Path) -> None:
    a, b = encoder_size(saved.model.encoder), encoder_size(asked.model.encoder)
    if a != b:
        raise CheckpointError(
            f"{path}: its encoders have width {a.width}, depth {a.depth}, {a.heads} heads; the recipe asks for "
            f"{b.width}, {b.depth}, {b.heads}; set model.encoder to match"
        )
    eps, wanted = saved.model.encoder.norm_eps, asked.model.encoder.norm_eps
    if eps != wanted:
        raise CheckpointError(f"{path}: its norms have eps {eps:g}, the recipe {wanted:g}; set model.encoder.norm_eps")


def _refuse_other_classifier(checkpoint: Checkpoint, config: Config, classes: tuple[str, ...], path: Path) -> None:
    saved, asked = checkpoint.config.classifier, config.classifier
    assert saved is not None
    assert asked is not None
    if saved.classes != asked.classes:
        raise CheckpointError(
            f"{path}: holds a classifier of {saved.classes} classes, the data have {asked.classes}; "
            "give the pre-trained checkpoint it came from"
        )
    names = checkpoint.meta.get("classes", list(classes))
    if saved.mode != asked.mode or saved.projection != asked.projection or names != list(classes):
        raise CheckpointError(f"{path}: holds a classifier of other classes or of another mode ({saved.mode})")
