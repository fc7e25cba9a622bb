"""Fine-tuning: encoders and a linear classifier under CE or BCE, with drop path and mixed inputs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor
from typing_extensions import assert_never

from equiav.augment import Pipeline, PipelineDraw
from equiav.errors import DataError
from equiav.media import Inputs, prepare_batch
from equiav.models import ClassifierModel, draw_path
from equiav.objectives.base import LOG, Draws, Objective, Outputs
from equiav.randomness import generator
from equiav.types import Batch, Modality


@dataclass(frozen=True)
class ClassifierDraws(Draws):
    """Augmentations and drop path of a batch, by modality."""

    augment: Mapping[Modality, PipelineDraw]
    paths: Mapping[Modality, Tensor]


def smoothed(targets: Float[Tensor, "n classes"], smoothing: float) -> Float[Tensor, "n classes"]:
    """(1 - s) of the target and s spread over all classes."""
    return targets * (1 - smoothing) + smoothing / targets.shape[1]


def cross_entropy(
    logits: Float[Tensor, "n classes"], targets: Float[Tensor, "n classes"], smoothing: float = 0.0
) -> Float[Tensor, ""]:
    """CE with mixed labels: targets of a clip are made to add up to one."""
    shares = targets / targets.sum(dim=1, keepdim=True).clamp(min=1e-12)
    return F.cross_entropy(logits, smoothed(shares, smoothing))


def binary_cross_entropy(
    logits: Float[Tensor, "n classes"], targets: Float[Tensor, "n classes"], smoothing: float = 0.0
) -> Float[Tensor, ""]:
    """BCE of every class by itself, mean over clips and classes."""
    return F.binary_cross_entropy_with_logits(logits, smoothed(targets, smoothing))


class ClassificationObjective(Objective):
    """Inputs, augmentations, classifier: the logits of a batch with targets, and their loss."""

    model: ClassifierModel
    separable = True

    def __init__(
        self,
        model: ClassifierModel,
        augment: Mapping[Modality, Pipeline],
        inputs: Inputs,
        *,
        loss: Literal["ce", "bce"],
        label_smoothing: float = 0.0,
        drop_path: float = 0.0,
    ) -> None:
        super().__init__()
        self.model, self.augment, self.inputs = model, augment, inputs
        self.loss, self.label_smoothing, self.drop_path = loss, label_smoothing, drop_path

    def draw(self, count: int, seed: int, step: int) -> ClassifierDraws:
        """Augmentations and drop path for a global batch, one generator per purpose."""
        drawn, paths = {}, {}
        for m in self.model.modalities:
            drawn[m] = self.augment[m].sample(count, generator(seed, step, f"augment/{m}"))
        for m, groups in zip(self.model.modalities, self.model.layers(), strict=True):
            depth = len(groups) - 2  # blocks: patches and final norm are groups of their own
            path = draw_path(count, depth, self.drop_path, generator(seed, step, f"drop-path/{m}"))
            if path is not None:
                paths[m] = path
        return ClassifierDraws(drawn, paths)

    def forward(self, batch: Batch, draws: ClassifierDraws) -> Outputs:
        """Logits beside the targets they are compared with."""
        if batch.targets is None:
            raise DataError("a classifier is trained on batches with targets")
        # Inputs are made in single precision whatever the networks use.
        with torch.autocast(batch.device.type, enabled=False):
            x = {}
            for m in self.model.modalities:
                prepared = prepare_batch(self.inputs, batch, m)
                x[m] = self.inputs[m].finish(self.augment[m].apply(prepared, draws.augment[m]))
        paths = {m: value.to(batch.device) for m, value in draws.paths.items()}
        return {"logits": self.model(x, paths), f"{LOG}targets": batch.targets}

    def losses(self, outputs: Outputs, step: int, total: int) -> dict[str, Tensor]:
        """CE or BCE, the mean over the clips of this process; DDP takes the mean over processes."""
        logits, targets = outputs["logits"], outputs[f"{LOG}targets"]
        match self.loss:
            case "ce":
                return {"total": cross_entropy(logits, targets, self.label_smoothing)}
            case "bce":
                return {"total": binary_cross_entropy(logits, targets, self.label_smoothing)}
            case never:
                assert_never(never)
