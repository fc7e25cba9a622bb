"""Masked autoencoding: each encoder sees a part of the patches, a decoder reconstructs the others."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor

from equiav.augment import Pipeline, PipelineDraw
from equiav.errors import DataError
from equiav.losses import masked_mean, masked_squares
from equiav.media import Inputs, prepare_batch
from equiav.models import Chosen, MaskedAutoencoder, ReconstructingModel, kept_by_noise, removed
from equiav.objectives.base import Draws, Objective, Outputs
from equiav.randomness import generator
from equiav.types import Batch, Modality


@dataclass(frozen=True)
class MaskedDraws(Draws):
    """The patches that every clip keeps, and augmentations where there are some, by modality."""

    kept: Mapping[Modality, Chosen]
    augment: Mapping[Modality, PipelineDraw] = field(default_factory=dict)


class ReconstructionObjective(Objective):
    """What masked autoencoding and CAV-MAE share: inputs, masks, and the reconstruction loss.

    Args:
        model: what predicts the removed patches.
        inputs: how raw inputs become encoder inputs, by modality.
        augment: pipelines of the modalities that are augmented; the reconstruction is that of the augmented input.
        mask_ratio: share of the patches that is removed.
        norm_pix: whether target patches are standardised, each by itself.
    """

    model: ReconstructingModel

    def __init__(
        self,
        model: ReconstructingModel,
        inputs: Inputs,
        augment: Mapping[Modality, Pipeline] | None = None,
        *,
        mask_ratio: float = 0.75,
        norm_pix: bool = True,
    ) -> None:
        super().__init__()
        self.model, self.inputs, self.augment = model, inputs, dict(augment or {})
        self.mask_ratio, self.norm_pix = mask_ratio, norm_pix

    def draw(self, count: int, seed: int, step: int) -> MaskedDraws:
        """Masks and augmentations, one generator per purpose."""
        kept = {}
        for m, (rows, columns) in self.model.grids().items():
            noise = torch.rand(count, rows * columns, generator=generator(seed, step, f"mask/{m}"))
            kept[m] = kept_by_noise(noise, self.mask_ratio)
        augment = {m: p.sample(count, generator(seed, step, f"augment/{m}")) for m, p in self.augment.items()}
        return MaskedDraws(kept, augment)

    def encoder_input(self, batch: Batch, draws: MaskedDraws, m: Modality) -> Tensor:
        """One modality of a batch as its encoder takes it, in single precision whatever the networks use."""
        with torch.autocast(batch.device.type, enabled=False):
            x = prepare_batch(self.inputs, batch, m)
            return self.inputs[m].finish(self.augment[m].apply(x, draws.augment[m]) if m in self.augment else x)

    def squares(self, m: Modality, x: Tensor, prediction: Tensor, kept: Chosen) -> Tensor:
        """Per clip the sum of the errors of its removed patches and their number (N, 2)."""
        target = self.model.targets({m: x})[m]
        return masked_squares(target, prediction.float(), removed(kept, target.shape[1]), self.norm_pix)

    def reconstruction_terms(self, outputs: Outputs) -> dict[str, Tensor]:
        """The reconstruction loss of every modality over the batches of all processes."""
        return {m: masked_mean(outputs[f"reconstruction/{m}"]) for m in self.model.modalities}


class MaskedObjective(ReconstructionObjective):
    """Masked autoencoding of each modality by itself, after He et al. (2022).

    A clip may lack a modality: it then counts for the others only.
    """

    model: MaskedAutoencoder

    def forward(self, batch: Batch, draws: MaskedDraws) -> Outputs:
        """`reconstruction/m`: per clip the sum of the errors of its removed patches, and their number."""
        outputs = {}
        for m in self.model.modalities:
            kept = draws.kept[m].to(batch.device)
            present = batch.present.get(m)
            rows = torch.arange(len(batch), device=batch.device) if present is None else present.nonzero()[:, 0]
            if m in batch.inputs and len(rows):
                x, kept = self.encoder_input(batch, draws, m)[rows], kept[rows]
                found = self.squares(m, x, self.model.predict({m: x}, {m: kept})[m], kept)
                outputs[f"reconstruction/{m}"] = found.new_zeros(len(batch), 2).index_copy(0, rows, found)
            else:
                # Nothing to reconstruct here: the weights still take part, or other processes would wait for them.
                x, kept = self.model.blank(m), kept[:1]
                idle = self.squares(m, x, self.model.predict({m: x}, {m: kept})[m], kept)
                outputs[f"reconstruction/{m}"] = 0 * idle.expand(len(batch), 2)
        return outputs

    def losses(self, outputs: Outputs, step: int, total: int) -> dict[str, Tensor]:
        """reconstruction_audio, reconstruction_visual: the mean square errors of removed patches; and their sum."""
        terms = self.reconstruction_terms(outputs)
        return {
            **{f"reconstruction_{m}": term for m, term in terms.items()},
            "total": torch.stack(list(terms.values())).sum(),
        }


def refuse_missing(batch: Batch, modalities: tuple[Modality, ...], method: str) -> None:
    """Refuses clips that lack a modality, for methods that compare all of them."""
    for m in modalities:
        present = batch.present.get(m)
        if m not in batch.inputs or (present is not None and not bool(present.all())):
            row = 0 if m not in batch.inputs or present is None else int((~present).nonzero()[0])
            raise DataError(f"clip {batch.ids[row]} has no {m} input, and {method} needs both of every clip")
