"""The losses of the paper as functions of embeddings."""

from equiav.losses.contrastive import equimod, info_nce, nt_xent
from equiav.losses.equiav import LossWeights, equiav

__all__ = ["LossWeights", "equiav", "equimod", "info_nce", "nt_xent"]
