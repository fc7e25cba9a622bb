"""The weighted sum of Eq. (16)."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from equiav.types import LossTerms


@dataclass(frozen=True)
class LossWeights:
    """The lambdas of Eq. (16); all 1 in the paper."""

    inter: float = 1.0
    intra_audio: float = 1.0
    intra_visual: float = 1.0


def equiav(inter: Tensor, intra_audio: Tensor, intra_visual: Tensor, weights: LossWeights | None = None) -> LossTerms:
    """L_EquiAV = l_inter L^inter + l_a L_a^intra + l_v L_v^intra, Eq. (16)."""
    w = weights or LossWeights()
    total = w.inter * inter + w.intra_audio * intra_audio + w.intra_visual * intra_visual
    return LossTerms(inter, intra_audio, intra_visual, total)
