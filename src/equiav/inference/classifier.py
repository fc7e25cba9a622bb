"""A trained classifier with its recipe and the names of its classes."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from equiav.build import build_classifier
from equiav.checkpoint import load_checkpoint
from equiav.config import Config
from equiav.errors import CheckpointError, WeightsError
from equiav.models import ClassifierModel, load_fitting


@dataclass(frozen=True)
class LoadedClassifier:
    """A classifier in evaluation mode."""

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
    path = Path(path)
    checkpoint = load_checkpoint(path)
    if checkpoint.config.classifier is None:
        raise CheckpointError(f"{path}: holds no classifier; fine-tune it first (equiav finetune)")
    try:
        model = load_fitting(lambda: build_classifier(checkpoint.config), checkpoint.weights, str(path))
    except WeightsError as error:
        raise CheckpointError(str(error)) from error
    # Imported classifiers do not say what their classes are called.
    numbers = tuple(f"class {i}" for i in range(model.classes))
    classes = tuple(checkpoint.meta.get("classes", numbers))
    return LoadedClassifier(model.to(device).eval(), checkpoint.config, classes, checkpoint.meta)
