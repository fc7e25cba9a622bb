"""Classifiers on the encoders: audio, visual, or both concatenated."""

from __future__ import annotations

from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor, nn

from equiav.errors import ShapeError
from equiav.models.equiav import mean_pool
from equiav.models.vit import ViT
from equiav.types import Modality

Mode = Literal["audio", "visual", "audiovisual"]


def modalities(mode: Mode) -> tuple[Modality, ...]:
    """The modalities a classifier of this mode looks at."""
    return tuple(m for m in Modality if mode in (m.value, "audiovisual"))


class Classifier(nn.Module):
    """Encoders, pooled tokens, concatenation, one linear layer; the pre-training heads are gone.

    `projections` (one module per modality, released checkpoints only) stand between pooling and concatenation.
    """

    def __init__(
        self,
        encoders: dict[Modality, ViT],
        classes: int,
        *,
        projections: dict[Modality, nn.Module] | None = None,
        projected_width: int = 0,
    ) -> None:
        super().__init__()
        self.modalities = tuple(m for m in Modality if m in encoders)
        self.encoders = nn.ModuleDict({m.value: encoders[m] for m in self.modalities})
        self.projections = nn.ModuleDict({m.value: p for m, p in (projections or {}).items()})
        widths = [projected_width if m.value in self.projections else encoders[m].width for m in self.modalities]
        self.head = nn.Linear(sum(widths), classes)

    def features(
        self, inputs: dict[Modality, Tensor], kept: dict[Modality, Tensor] | None = None
    ) -> Float[Tensor, "batch width"]:
        """Pooled tokens of each modality, side by side. Spectrograms are (B, 1, T, F), pictures (B, 3, H, W).

        `kept` are drop path's weights, for training.
        """
        parts = []
        for m in self.modalities:
            if m not in inputs:
                raise ShapeError(f"this classifier needs {m.value} input")
            x = inputs[m].transpose(2, 3) if m is Modality.AUDIO else inputs[m]
            pooled = mean_pool(self.encoders[m.value](x, (kept or {}).get(m)))
            parts.append(self.projections[m.value](pooled) if m.value in self.projections else pooled)
        return torch.cat(parts, dim=-1)

    def forward(
        self, inputs: dict[Modality, Tensor], kept: dict[Modality, Tensor] | None = None
    ) -> Float[Tensor, "batch classes"]:
        """Logits."""
        return self.head(self.features(inputs, kept))  # type: ignore[no-any-return]
