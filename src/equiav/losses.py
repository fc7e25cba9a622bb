"""Losses as functions of tensors: the paper's (nt_xent, equimod, info_nce, equiav), MAE's and CAV-MAE's.

Under torchrun each gathers the embeddings of all ranks with gradient, so that value and gradient are those of one
process with the whole batch. The paper's share the negatives of Eq. (8); they differ in what the denominator holds.
With `rows`, a mask over the whole batch, only those clips take part: others lack a modality.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor

from equiav.distributed import gather
from equiav.errors import ShapeError

Embedding = Float[Tensor, "batch width"]
Scalar = Float[Tensor, ""]
Rows = Bool[Tensor, " all"]
Patches = Float[Tensor, "batch tokens values"]
Mask = Float[Tensor, "batch tokens"]  # 1 = removed, 0 = seen by the encoder
IntraLoss = Callable[[Tensor, Tensor, float], Tensor]  # (z_hat, z', tau)

__all__ = [
    "IntraLoss",
    "cavmae",
    "cavmae_contrast",
    "equiav",
    "equimod",
    "info_nce",
    "masked_mean",
    "masked_mean_square",
    "masked_squares",
    "nt_xent",
    "patch_scale",
    "reconstruct",
]


def _pair(a: Tensor, b: Tensor, tau: float, rows: Rows | None = None) -> tuple[Tensor, Tensor]:
    """Both sides, checked, gathered and scaled to unit length."""
    if a.shape != b.shape or a.ndim != 2:
        raise ShapeError(f"a contrastive loss wants two (N, D) batches, got {tuple(a.shape)} and {tuple(b.shape)}")
    if tau <= 0:
        raise ValueError(f"temperature must be positive, got {tau}")
    # Normalise first: the gather then moves what is used, and its backward stays short.
    a, b = gather(F.normalize(a, dim=-1)), gather(F.normalize(b, dim=-1))
    return (a, b) if rows is None else (a[rows], b[rows])


def _similarities(z_hat: Tensor, z_aug: Tensor, tau: float, rows: Rows | None) -> tuple[Tensor, Tensor]:
    """Similarities / tau of all 2N embeddings, -inf on the diagonal, and the index of each one's positive."""
    z = torch.cat(_pair(z_hat, z_aug, tau, rows))
    logits = (z @ z.T / tau).fill_diagonal_(float("-inf"))
    n = len(z) // 2
    positives = torch.arange(2 * n, device=z.device).roll(n)
    return logits, positives


def nt_xent(z_hat: Embedding, z_aug: Embedding, tau: float, rows: Rows | None = None) -> Scalar:
    """Intra-modal loss L^intra, Eq. (10): the mean of Eq. (9) with either side as anchor.

    The positive is part of the denominator; `equimod` leaves it out.
    """
    return F.cross_entropy(*_similarities(z_hat, z_aug, tau, rows))


def equimod(z_hat: Embedding, z_aug: Embedding, tau: float, rows: Rows | None = None) -> Scalar:
    """EquiMod's loss, Eqs. (A), (B): as `nt_xent`, without the positive in the denominator."""
    logits, positives = _similarities(z_hat, z_aug, tau, rows)
    if len(logits) < 4:
        raise ShapeError("the EquiMod loss has no negatives in a batch of one; use a larger batch or nt_xent")
    positive = logits.gather(1, positives[:, None])
    negatives = logits.scatter(1, positives[:, None], float("-inf"))
    return (negatives.logsumexp(dim=1) - positive[:, 0]).mean()


def info_nce(z_a: Embedding, z_v: Embedding, tau: float, rows: Rows | None = None) -> Scalar:
    """Inter-modal loss L^inter, Eq. (15): the mean of Eq. (14) with either side as anchor."""
    a, v = _pair(z_a, z_v, tau, rows)
    logits = a @ v.T / tau
    pairs = torch.arange(len(a), device=a.device)
    return (F.cross_entropy(logits, pairs) + F.cross_entropy(logits.T, pairs)) / 2


def equiav(terms: Mapping[str, Tensor], weights: Mapping[str, float]) -> Scalar:
    """L_EquiAV = l_inter L^inter + l_a L_a^intra + l_v L_v^intra, Eq. (16); a term without a weight counts once."""
    weighted = [weights.get(name, 1.0) * term for name, term in terms.items()]
    return sum(weighted[1:], weighted[0])


def patch_scale(patches: Patches) -> tuple[Float[Tensor, "batch tokens 1"], Float[Tensor, "batch tokens 1"]]:
    """Mean and standard deviation of every patch: unbiased variance + 1e-6, under the root."""
    return patches.mean(dim=-1, keepdim=True), (patches.var(dim=-1, keepdim=True) + 1e-6).sqrt()


def masked_squares(
    target: Patches, prediction: Patches, mask: Mask, norm_pix: bool = False
) -> Float[Tensor, "batch 2"]:
    """For every sample the sum of the mean square errors of its removed patches, and how many these are.

    With `norm_pix` every target patch is standardised first.
    """
    if norm_pix:
        mean, std = patch_scale(target)
        target = (target - mean) / std
    error = (prediction - target).square().mean(dim=-1)
    return torch.stack([(error * mask).sum(dim=1), mask.sum(dim=1)], dim=1)


def masked_mean(squares: Float[Tensor, "batch 2"]) -> Scalar:
    """The mean square error over all removed patches of a batch; 0 where there are none."""
    sums = gather(squares).sum(dim=0)
    return sums[0] / sums[1].clamp(min=1)


def masked_mean_square(target: Patches, prediction: Patches, mask: Mask, norm_pix: bool = False) -> Scalar:
    """Reconstruction loss: the mean square error over removed patches, `masked_mean` of `masked_squares`.

    A sample without this modality takes part with a row of zeros in `mask`.
    """
    return masked_mean(masked_squares(target, prediction, mask, norm_pix))


def reconstruct(target: Patches, prediction: Patches, mask: Mask, norm_pix: bool = False) -> Patches:
    """Seen patches as they are, removed ones as predicted; what `norm_pix` standardised gets its own scale back."""
    if norm_pix:
        mean, std = patch_scale(target)
        prediction = prediction * std + mean
    return torch.where(mask[:, :, None] > 0, prediction, target)


def cavmae_contrast(audio: Embedding, visual: Embedding, tau: float = 0.05, both: bool = False) -> Scalar:
    """CAV-MAE's contrast: every image finds its sound among all sounds; with `both` also every sound its image.

    `both` is `info_nce`, the mean of the two directions; the released default is the one direction.
    """
    if both:
        return info_nce(audio, visual, tau)
    a, v = _pair(audio, visual, tau)
    return F.cross_entropy(v @ a.T / tau, torch.arange(len(a), device=a.device))


def cavmae(reconstruction: Mapping[str, Scalar], contrast: Scalar, contrast_weight: float = 0.01) -> Scalar:
    """CAV-MAE's total: the reconstruction losses of all modalities + `contrast_weight` x contrast."""
    return torch.stack(list(reconstruction.values())).sum() + contrast_weight * contrast
