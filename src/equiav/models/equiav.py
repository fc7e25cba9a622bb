"""Branch (one modality: f, u, g_intra, g_inter) and EquiAV (both)."""

from __future__ import annotations

from typing import Literal

from jaxtyping import Float, Int
from torch import Tensor, nn

from equiav.models.heads import ProjectionHead
from equiav.models.layers import Tokens
from equiav.models.vit import ViT
from equiav.types import Modality

Representation = Literal["centroid", "pooled"]


def mean_pool(h: Tokens) -> Float[Tensor, "batch width"]:
    """MeanPool(h): the mean over tokens."""
    return h.mean(dim=1)


def centroid(h_hat: Float[Tensor, "batch S width"]) -> Float[Tensor, "batch width"]:
    """Centroid of the equivariant representations, Eq. (12)."""
    return h_hat.mean(dim=1)


class Branch(nn.Module):
    """One modality: encoder f, predictor u, heads g_intra and g_inter.

    Pictures come as (B, 3, H, W). Spectrograms come time first, (B, 1, T, F); the encoder sees them with frequency
    as rows and time as columns, the way a person looks at one.
    """

    def __init__(
        self, modality: Modality, f: ViT, u: nn.Module, g_intra: ProjectionHead, g_inter: ProjectionHead
    ) -> None:
        super().__init__()
        self.modality = modality
        self.f, self.u, self.g_intra, self.g_inter = f, u, g_intra, g_inter

    def _picture(self, x: Tensor) -> Tensor:
        return x.transpose(2, 3) if self.modality is Modality.AUDIO and x.ndim == 4 else x

    def encode(self, x: Float[Tensor, "b c h w"], tokens: Int[Tensor, "b kept"] | None = None) -> Tokens:
        """h = f(x), Eq. (3); of the chosen tokens only, where some are dropped in training."""
        return self.f(self._picture(x), tokens=tokens)  # type: ignore[no-any-return]

    def encode_views(
        self,
        x: Float[Tensor, "b c h w"],
        x_aug: Float[Tensor, "b c h w"],
        tokens: Int[Tensor, "2*b kept"] | None = None,
    ) -> tuple[Tokens, Tokens]:
        """h = f(x) and h' = f(x'), Eq. (3), in one pass through the encoder."""
        return self.f.views(self._picture(x), self._picture(x_aug), tokens)

    def equivariant(self, h: Tokens, t: Float[Tensor, "b d_t"]) -> Float[Tensor, "b out"]:
        """z_hat = g_intra(u(h, t)), Eq. (6), one vector per sample."""
        return self.g_intra(self.u(h, t[:, None])[:, 0])  # type: ignore[no-any-return]

    def augmented(self, h_aug: Tokens) -> Float[Tensor, "b out"]:
        """z' = g_intra(MeanPool(h')), Eq. (7)."""
        return self.g_intra(mean_pool(h_aug))  # type: ignore[no-any-return]

    def inter_centroid(self, h: Tokens, t: Float[Tensor, "vectors_of S d_t"]) -> Float[Tensor, "b out"]:
        """z_bar = g_inter(centroid of u(h, t_1..t_S)), Eqs. (12), (13); t may be one bank for all samples."""
        return self.g_inter(centroid(self.u(h, t)))  # type: ignore[no-any-return]

    def inter_pooled(self, h: Tokens) -> Float[Tensor, "b out"]:
        """z = g_inter(MeanPool(h)): what contrasting the original embeddings uses."""
        return self.g_inter(mean_pool(h))  # type: ignore[no-any-return]

    def embed(self, x: Tensor, bank: Float[Tensor, "S d_t"], representation: Representation) -> Tensor:
        """The embedding used after training: of the kind that was contrasted in it, on a fixed bank of vectors."""
        return self.embed_tokens(self.encode(x), bank, representation)

    def embed_tokens(self, h: Tokens, bank: Float[Tensor, "S d_t"], representation: Representation) -> Tensor:
        """The same from tokens, which several banks may share."""
        return self.inter_centroid(h, bank[None]) if representation == "centroid" else self.inter_pooled(h)


class EquiAV(nn.Module):
    """Both branches, addressed by modality: model[Modality.AUDIO]."""

    def __init__(self, audio: Branch, visual: Branch) -> None:
        super().__init__()
        self.audio, self.visual = audio, visual

    def __getitem__(self, modality: Modality) -> Branch:
        return self.audio if modality is Modality.AUDIO else self.visual
