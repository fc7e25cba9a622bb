"""Algorithm 1 over clips of which some lack a modality: each clip takes part in the terms of what it has."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from itertools import combinations

import torch
from jaxtyping import Bool
from torch import Tensor

from equiav.distributed import gather
from equiav.errors import ConfigError, DataError
from equiav.losses import IntraLoss, equiav, equimod, info_nce, nt_xent
from equiav.objectives import EquiAVObjective, Outputs, StepDraws
from equiav.objectives.base import LOG, effective_rank, uniformity
from equiav.objectives.equiav import strategy_weights
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

    def losses(self, outputs: Outputs, step: int, total: int) -> dict[str, Tensor]:
        """The terms of Eq. (16) by name: inter_audio_visual, inter_audio_text, ..., intra_text, total."""
        rows = _rows(outputs, self.model.modalities)
        if all(bool(of.all()) for of in rows.values()):
            return super().losses(outputs, step, total)
        modalities = self.model.modalities
        terms: dict[str, Tensor] = {}
        for a, b in combinations(modalities, 2):
            name = "inter" if len(modalities) == 2 else f"inter_{a}_{b}"
            z_a, z_b, both = outputs[f"inter/{a}"], outputs[f"inter/{b}"], rows[a] & rows[b]
            # Nothing to compare: the outputs stay in the graph, or other processes would wait for their gradients.
            enough = int(both.sum()) >= LEAST
            terms[name] = info_nce(z_a, z_b, self.tau, both) if enough else 0 * (z_a.sum() + z_b.sum())
        for m in modalities:
            z_hat, z_aug = (outputs.get(f"intra/{m}/{side}") for side in ("predicted", "augmented"))
            if z_hat is None or z_aug is None:
                terms[f"intra_{m}"] = next(iter(terms.values())).new_zeros(())
            elif int(rows[m].sum()) >= LEAST:
                terms[f"intra_{m}"] = intra_among(self.loss, z_hat, z_aug, rows[m], self.tau)
            else:
                terms[f"intra_{m}"] = 0 * (z_hat.sum() + z_aug.sum())
        weights = {name: self.weights.get(name, self.weights.get(name.split("_")[0], 1.0)) for name in terms}
        return {**terms, "total": equiav(terms, strategy_weights(weights, self.strategy, step, total))}

    def health(self, outputs: Outputs) -> dict[str, float]:
        """As ever, of the clips that have the modality."""
        rows = _rows(outputs, self.model.modalities)
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


def _rows(outputs: Outputs, modalities: tuple[Modality, ...]) -> Mapping[Modality, Rows]:
    """Which clips of the global batch have which modality."""
    return {m: gather(outputs[PRESENT + m]) > 0 for m in modalities}
