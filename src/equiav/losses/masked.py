"""Losses of masked autoencoding (MAE) and of CAV-MAE, over the whole (gathered) batch.

Under torchrun value and gradient are those of one process with the whole batch, as in contrastive.py.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from equiav.distributed import gather
from equiav.losses.contrastive import Embedding, Scalar, _pair, info_nce

Patches = Float[Tensor, "batch tokens values"]
Mask = Float[Tensor, "batch tokens"]  # 1 = removed, 0 = seen by the encoder


def patch_scale(patches: Patches) -> tuple[Float[Tensor, "batch tokens 1"], Float[Tensor, "batch tokens 1"]]:
    """Mean and standard deviation of every patch: unbiased variance + 1e-6, under the root."""
    return patches.mean(dim=-1, keepdim=True), (patches.var(dim=-1, keepdim=True) + 1e-6).sqrt()


def masked_mean_square(target: Patches, prediction: Patches, mask: Mask, norm_pix: bool = False) -> Scalar:
    """Reconstruction loss: the mean square error over removed patches.

    With `norm_pix` every target patch is standardised first. A sample without this modality takes part with a row of
    zeros in `mask`; a batch without any removed patch has loss 0.
    """
    if norm_pix:
        mean, std = patch_scale(target)
        target = (target - mean) / std
    error = (prediction - target).square().mean(dim=-1)
    sums = gather(torch.stack([(error * mask).sum(dim=1), mask.sum(dim=1)], dim=1)).sum(dim=0)
    return sums[0] / sums[1].clamp(min=1)


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
