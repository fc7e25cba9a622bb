"""Algorithm 1 over clips of which some lack a modality: each clip takes part in the terms of what it has."""

from __future__ import annotations

from dataclasses import replace

import torch
from jaxtyping import Bool
from torch import Tensor

from equiav.distributed import gather
from equiav.errors import ConfigError, DataError
from equiav.losses import IntraLoss, equimod, info_nce, nt_xent
from equiav.objectives import EquiAVObjective, Outputs, StepDraws
from equiav.objectives.base import LOG, effective_rank, uniformity
from equiav.types import Batch, Modality

PRESENT = f"{LOG}present/"
LEAST = 2  # clips: fewer have nothing to be told apart from

Rows = Bool[Tensor, " n"]  # of the global batch


def intra_among(loss: IntraLoss, z_hat: Tensor, z_aug: Tensor, rows: Rows, tau: float) -> Tensor:
    """`nt_xent` or `equimod` over the clips that have the modality; a loss of one's own knows no rows."""
    if loss is nt_xent:
        return nt_xent(z_hat, z_aug, tau, rows)
    if loss is equimod:
        return equimod(z_hat, z_aug, tau, rows)
    raise ConfigError("objective.loss: one of your own compares all clips, and some of these lack a modality")


class PartialObjective(EquiAVObjective):
    """`EquiAVObjective` for batches in which clips may lack a modality.

    Inter-modal terms are over the clips that have both modalities, intra-modal ones over those that have the one; a
    clip that lacks it is computed as a blank and counts for nothing there. Where no clip lacks anything, it is the
    same as `EquiAVObjective`.
    """

    def forward(self, batch: Batch, draws: StepDraws) -> Outputs:
        """As ever, and under `log/present/m` a 1 for each clip that has the modality."""
        present = {}
        for m in self.model.modalities:
            if m not in batch.inputs:
                blank = getattr(self.inputs[m], "blank", None)
                if blank is None:
                    raise DataError(f"clip {batch.ids[0]} has no {m} input, and no other of its batch has one")
                batch = replace(batch, inputs={**batch.inputs, m: blank(len(batch), batch.device)})
                present[m] = torch.zeros(len(batch), device=batch.device)
            else:
                found = batch.present.get(m)
                present[m] = torch.ones(len(batch), device=batch.device) if found is None else found.float()
        return {**super().forward(batch, draws), **{PRESENT + m: of for m, of in present.items()}}

    def inter_loss(self, outputs: Outputs, a: Modality, b: Modality) -> Tensor:
        """Eq. (15) over the clips that have both."""
        z_a, z_b, both = outputs[f"inter/{a}"], outputs[f"inter/{b}"], _rows(outputs, a) & _rows(outputs, b)
        if int(both.sum()) < LEAST:
            return _nothing(z_a, z_b)
        return info_nce(z_a, z_b, self.tau, None if bool(both.all()) else both)

    def intra_loss(self, outputs: Outputs, m: Modality) -> Tensor:
        """Eq. (10) over the clips that have the modality."""
        z_hat, z_aug, rows = outputs[f"intra/{m}/predicted"], outputs[f"intra/{m}/augmented"], _rows(outputs, m)
        if bool(rows.all()):
            return super().intra_loss(outputs, m)
        if int(rows.sum()) < LEAST:
            return _nothing(z_hat, z_aug)
        return intra_among(self.loss, z_hat, z_aug, rows, self.tau)

    def health(self, outputs: Outputs) -> dict[str, float]:
        """As ever, of the clips that have the modality."""
        rows = {m: _rows(outputs, m) for m in self.model.modalities}
        if all(bool(of.all()) for of in rows.values()):
            return super().health(outputs)
        values = {}
        for m, of in rows.items():
            if not bool(of.any()):
                continue
            whole = gather(outputs[f"inter/{m}"])[of]
            moved = gather(outputs[f"{LOG}displacement/{m}"].float())[of]
            values[f"effective_rank_{m}"] = effective_rank(whole)
            values[f"uniformity_{m}"] = uniformity(whole)
            values[f"displacement_{m}"] = float(moved.mean())
        return values


def _rows(outputs: Outputs, m: Modality) -> Rows:
    """Which clips of the global batch have a modality."""
    return gather(outputs[PRESENT + m]) > 0


def _nothing(a: Tensor, b: Tensor) -> Tensor:
    """A term without clips to compare: its outputs stay in the graph, or other processes would wait for gradients."""
    return 0 * (a.sum() + b.sum())
