"""What an embedding model is; projection heads g, Branch (one modality: f, u, g_intra, g_inter) and EquiAV."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Generic, Literal, TypeVar, cast

import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn

from equiav.errors import ShapeError
from equiav.models.encoder import Encoder
from equiav.models.layers import Tokens
from equiav.types import Modality

Representation = Literal["centroid", "pooled"]
B = TypeVar("B", bound=nn.Module)


def mean_pool(h: Tokens) -> Float[Tensor, "batch width"]:
    """MeanPool(h): the mean over tokens."""
    return h.mean(dim=1)


def centroid(h_hat: Float[Tensor, "batch S width"]) -> Float[Tensor, "batch width"]:
    """Centroid of the equivariant representations, Eq. (12)."""
    return h_hat.mean(dim=1)


class EmbeddingModel(nn.Module, ABC):
    """A trained network with a shared space: what evaluation, search and export need of any method."""

    modalities: tuple[Modality, ...]
    width: int  # of an embedding

    @abstractmethod
    def encode(self, modality: Modality, x: Tensor) -> Tokens:
        """The tokens h of a batch of encoder inputs."""

    @abstractmethod
    def embed_tokens(self, modality: Modality, h: Tokens, bank: Tensor | None = None) -> Float[Tensor, "b out"]:
        """The embedding in the shared space; `bank` (S, d_t) are augmentation vectors, for methods that use them."""

    def embed(self, modality: Modality, x: Tensor, bank: Tensor | None = None) -> Float[Tensor, "b out"]:
        """The same from encoder inputs."""
        return self.embed_tokens(modality, self.encode(modality, x), bank)

    def equivariant_branch(self, modality: Modality) -> Branch | None:
        """Encoder, predictor and heads of a modality; None where the method has none."""
        return None

    def grid(self, modality: Modality, x: Tensor, h: Tokens) -> tuple[int, int]:
        """Rows and columns of the tokens h of an input x, for maps; a square unless a model knows better."""
        side = math.isqrt(h.shape[1])
        if side * side != h.shape[1]:
            raise ShapeError(f"{h.shape[1]} tokens of {modality} input are no square: this model has no maps")
        return side, side


class BranchedModel(EmbeddingModel, Generic[B]):
    """One branch per modality with its encoder as `f`, addressed by its key: model["audio"]."""

    def __init__(self, branches: Mapping[Modality, B]) -> None:
        super().__init__()
        self.modalities = tuple(branches)
        for name, branch in branches.items():
            self.add_module(name, branch)

    def __getitem__(self, modality: Modality) -> B:
        return cast(B, self.get_submodule(modality))

    def encode(self, modality: Modality, x: Tensor) -> Tokens:
        """h = f(x), Eq. (3)."""
        return self[modality].f(x)  # type: ignore[no-any-return, operator]

    def grid(self, modality: Modality, x: Tensor, h: Tokens) -> tuple[int, int]:
        """As the encoder says."""
        return self[modality].f.grid_of(x)  # type: ignore[no-any-return, union-attr, operator]


class ProjectionHead(nn.Module):
    """Linear, norm, ReLU; linear, norm, ReLU; linear, norm."""

    def __init__(self, width: int, hidden: int, out: int, eps: float = 1e-6) -> None:
        super().__init__()
        self.fc1 = nn.Linear(width, hidden)
        self.norm1 = nn.LayerNorm(hidden, eps=eps)
        self.fc2 = nn.Linear(hidden, hidden)
        self.norm2 = nn.LayerNorm(hidden, eps=eps)
        self.fc3 = nn.Linear(hidden, out)
        self.norm3 = nn.LayerNorm(out, eps=eps)

    def forward(self, h: Tensor) -> Tensor:
        """z = g(h), on the last axis."""
        h = F.relu(self.norm1(self.fc1(h)))
        h = F.relu(self.norm2(self.fc2(h)))
        return self.norm3(self.fc3(h))  # type: ignore[no-any-return]


class Branch(nn.Module):
    """One modality: encoder f, predictor u, heads g_intra and g_inter."""

    def __init__(self, f: Encoder, u: nn.Module, g_intra: ProjectionHead, g_inter: ProjectionHead) -> None:
        super().__init__()
        self.f, self.u, self.g_intra, self.g_inter = f, u, g_intra, g_inter

    def encode(self, x: Tensor, tokens: Int[Tensor, "b kept"] | None = None) -> Tokens:
        """h = f(x), Eq. (3); of the chosen tokens only, where some are dropped in training."""
        return self.f(x, tokens)  # type: ignore[no-any-return]

    def equivariant(self, h: Tokens, t: Float[Tensor, "b d_t"]) -> Float[Tensor, "b out"]:
        """z_hat = g_intra(u(h, t)), Eq. (6), one vector per sample."""
        return self.g_intra(self.u(h, t[:, None])[:, 0])  # type: ignore[no-any-return]

    def augmented(self, h_aug: Tokens) -> Float[Tensor, "b out"]:
        """z' = g_intra(MeanPool(h')), Eq. (7)."""
        return self.g_intra(mean_pool(h_aug))  # type: ignore[no-any-return]

    def inter_centroid(self, h: Tokens, t: Float[Tensor, "vectors_of S d_t"]) -> Float[Tensor, "b out"]:
        """z_bar = g_inter(centroid of u(h, t_1..t_S)), Eqs. (12), (13)."""
        return self.g_inter(centroid(self.u(h, t)))  # type: ignore[no-any-return]

    def inter_pooled(self, h: Tokens) -> Float[Tensor, "b out"]:
        """z = g_inter(MeanPool(h)): what contrasting the original embeddings uses."""
        return self.g_inter(mean_pool(h))  # type: ignore[no-any-return]


class EquiAV(BranchedModel[Branch]):
    """The paper's model.

    `representation` is the embedding that training contrasted, and so the one to use: the centroid on a bank of
    augmentation vectors, or pooled tokens.
    """

    def __init__(self, branches: Mapping[Modality, Branch], representation: Representation = "centroid") -> None:
        super().__init__(branches)
        self.representation = representation
        self.width = next(iter(branches.values())).g_inter.fc3.out_features

    def equivariant_branch(self, modality: Modality) -> Branch:
        """Every modality has one."""
        return self[modality]

    def embed_tokens(self, modality: Modality, h: Tokens, bank: Tensor | None = None) -> Float[Tensor, "b out"]:
        """The embedding of the kind that was contrasted in training, on a fixed bank of vectors."""
        if self.representation == "pooled":
            return self[modality].inter_pooled(h)
        if bank is None:
            raise ValueError("the centroid needs a bank of augmentation vectors")
        branch = self[modality]
        if not hasattr(branch.u, "centroid"):
            return branch.inter_centroid(h, bank[None])
        return branch.g_inter(branch.u.centroid(h, bank[None]))  # type: ignore[no-any-return, operator]
