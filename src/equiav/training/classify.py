"""The objective of fine-tuning: encoders and a linear classifier under CE or BCE, with what is drawn for a step."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from equiav.augment import Pipeline, PipelineDraw
from equiav.media import Inputs, normalise
from equiav.models import Classifier, ViT, draw_path
from equiav.randomness import stream
from equiav.training.mixing import MixedBatch, Mixing, draw_mixing
from equiav.types import Batch, Modality

Loss = Literal["ce", "bce"]


@dataclass(frozen=True)
class ClassifierDraws:
    """Augmentations and drop path of a batch, by modality."""

    augment: dict[Modality, PipelineDraw]
    kept: dict[Modality, Tensor]

    def rows(self, start: int, stop: int) -> ClassifierDraws:
        """What one rank or micro-batch takes of it."""
        return ClassifierDraws(
            {m: draw.rows(start, stop) for m, draw in self.augment.items()},
            {m: kept[start:stop] for m, kept in self.kept.items()},
        )


def draw_classifier_step(
    classifier: Classifier, augment: dict[Modality, Pipeline], batch: int, *, drop_path: float, seed: int, step: int
) -> ClassifierDraws:
    """Draws for a global batch, one stream per purpose."""
    drawn, kept = {}, {}
    for m in classifier.modalities:
        drawn[m] = augment[m].sample(batch, stream(seed, step, f"augment/{m.value}"))
        encoder = classifier.encoders[m.value]
        assert isinstance(encoder, ViT)
        path = draw_path(batch, len(encoder.blocks), drop_path, stream(seed, step, f"drop-path/{m.value}"))
        if path is not None:
            kept[m] = path
    return ClassifierDraws(drawn, kept)


def step_mixing(batch: int, p: float, beta: int, seed: int, step: int) -> Mixing:
    """Who is mixed with whom in the global batch of a step: the loader and the objective both ask."""
    return draw_mixing(batch, p, beta, stream(seed, step, "mixup"))


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


LOSSES: dict[Loss, Callable[[Tensor, Tensor, float], Tensor]] = {"ce": cross_entropy, "bce": binary_cross_entropy}


class Classification(nn.Module):
    """Inputs, augmentations, classifier. `forward` gives the logits of a mixed batch, `loss` compares them."""

    def __init__(
        self,
        classifier: Classifier,
        augment: dict[Modality, Pipeline],
        inputs: Inputs,
        *,
        loss: Loss,
        label_smoothing: float = 0.0,
    ) -> None:
        super().__init__()
        self.classifier, self.augment, self.inputs = classifier, augment, inputs
        self.kind: Loss = loss
        self.label_smoothing = label_smoothing

    def _input(self, batch: MixedBatch, m: Modality, draw: PipelineDraw) -> Tensor:
        """Spectrogram of the mixed sound, or the mixed picture, augmented, as the encoder wants it."""
        if m is Modality.VISUAL:
            return normalise(self.augment[m].apply(batch.pictures, draw))
        sounds = Batch(batch.names, batch.waveforms, batch.lengths, batch.pictures)
        return self.augment[m].apply(self.inputs.before_augmentation(sounds, m), draw)

    def forward(self, batch: MixedBatch, draws: ClassifierDraws) -> Float[Tensor, "n classes"]:
        """Logits."""
        device = next(self.classifier.parameters()).device
        # Inputs are made in single precision whatever the networks use.
        with torch.autocast(device.type, enabled=False):
            x = {m: self._input(batch, m, draws.augment[m]) for m in self.classifier.modalities}
        kept = {m: value.to(device) for m, value in draws.kept.items()}
        return self.classifier(x, kept)  # type: ignore[no-any-return]

    def loss(self, logits: Float[Tensor, "n classes"], targets: Float[Tensor, "n classes"]) -> Float[Tensor, ""]:
        """CE or BCE, in at least single precision."""
        return LOSSES[self.kind](logits.float(), targets, self.label_smoothing)
