"""Classifiers on the encoders: one modality, or several concatenated."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Literal, cast

import torch
from jaxtyping import Float
from torch import Tensor, nn

from equiav.errors import ShapeError
from equiav.models.encoder import Encoder
from equiav.models.equiav import mean_pool
from equiav.types import AUDIO, VISUAL, Modality

Mode = Literal["audio", "visual", "audiovisual"]


def modalities(mode: Mode) -> tuple[Modality, ...]:
    """The modalities a classifier of this mode looks at."""
    return (AUDIO, VISUAL) if mode == "audiovisual" else (mode,)


class ClassifierModel(nn.Module, ABC):
    """What fine-tuning and evaluation need of any classifier: features of its modalities, and `head` on them."""

    modalities: tuple[Modality, ...]
    classes: int
    head: nn.Module

    @abstractmethod
    def features(
        self, inputs: Mapping[Modality, Tensor], paths: Mapping[Modality, Tensor] | None = None
    ) -> Float[Tensor, "batch width"]:
        """What the head classifies; `paths` are the weights of drop path, for training."""

    @abstractmethod
    def layers(self) -> list[list[list[str]]]:
        """Names of its parameters below the head, for each modality in groups from input to output."""

    @abstractmethod
    def encoder_parts(self) -> dict[str, nn.Module]:
        """What it takes over from pre-training, by the name that the pre-trained model has for it."""

    def forward(
        self, inputs: Mapping[Modality, Tensor], paths: Mapping[Modality, Tensor] | None = None
    ) -> Float[Tensor, "batch classes"]:
        """Logits."""
        return self.head(self.features(inputs, paths))  # type: ignore[no-any-return]


class Classifier(ClassifierModel):
    """Encoders, pooled tokens, concatenation, one linear layer; the pre-training heads are gone.

    `projections` (one module per modality, released checkpoints only) stand between pooling and concatenation.
    """

    def __init__(
        self,
        encoders: Mapping[Modality, Encoder],
        classes: int,
        *,
        projections: Mapping[Modality, nn.Module] | None = None,
        projected_width: int = 0,
    ) -> None:
        super().__init__()
        self.modalities, self.classes = tuple(encoders), classes
        self.encoders = nn.ModuleDict(encoders)
        self.projections = nn.ModuleDict(projections or {})
        widths = [projected_width if m in self.projections else encoders[m].width for m in self.modalities]
        self.head = nn.Linear(sum(widths), classes)

    def encoder(self, modality: Modality) -> Encoder:
        """The encoder of a modality."""
        return cast(Encoder, self.encoders[modality])

    def features(
        self, inputs: Mapping[Modality, Tensor], paths: Mapping[Modality, Tensor] | None = None
    ) -> Float[Tensor, "batch width"]:
        """Pooled tokens of each modality, side by side; `paths` are the weights of drop path, for training."""
        parts = []
        for m in self.modalities:
            if m not in inputs:
                raise ShapeError(f"this classifier needs {m} input")
            pooled = mean_pool(self.encoders[m](inputs[m], paths=(paths or {}).get(m)))
            parts.append(self.projections[m](pooled) if m in self.projections else pooled)
        return torch.cat(parts, dim=-1)

    def encoder_parts(self) -> dict[str, nn.Module]:
        """The encoder of each modality."""
        return {f"{m}.f": self.encoder(m) for m in self.modalities}

    def layers(self) -> list[list[list[str]]]:
        """As the encoders say."""
        return [
            [[f"encoders.{m}.{name}" for name in group] for group in self.encoder(m).layers()] for m in self.modalities
        ]
