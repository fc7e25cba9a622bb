"""The transformation predictor u(h, t) in three kinds: attention (the paper), linear (EquiMod), hypernetwork (SIE)."""

from __future__ import annotations

from collections.abc import Mapping

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from equiav.errors import ShapeError
from equiav.models.layers import Mlp, Tokens

Vectors = Float[Tensor, "vectors_of S d_t"]  # vectors_of = batch, or 1 when all samples share a bank
Predicted = Float[Tensor, "batch S width"]


def check_vectors(t: Tensor, batch: int, d_t: int) -> None:
    """Refuses vectors of the wrong shape, and on the CPU (no waiting there) those that are not finite."""
    if t.ndim != 3 or t.shape[0] not in (1, batch) or t.shape[2] != d_t:
        raise ShapeError(f"augmentation vectors must be ({batch} or 1, S, {d_t}), got {tuple(t.shape)}")
    if t.device.type == "cpu" and not torch.compiler.is_compiling() and not bool(t.isfinite().all()):
        raise ShapeError("augmentation vectors hold values that are not finite (NaN or infinity)")


class QuickGELU(nn.Module):
    """x * sigmoid(1.702 x), between the layers of f_t."""

    def forward(self, x: Tensor) -> Tensor:
        """Elementwise."""
        return x * torch.sigmoid(1.702 * x)


def augmentation_encoder(d_t: int, width: int) -> nn.Sequential:
    """f_t: three linear layers from the augmentation vector to the query."""
    layers = [nn.Linear(d_t, width), QuickGELU(), nn.Linear(width, width), QuickGELU(), nn.Linear(width, width)]
    return nn.Sequential(*layers)


class AttentionPredictor(nn.Module):
    """Eqs. (4), (5): the encoded augmentation asks the tokens where and how far to move their mean."""

    def __init__(
        self,
        width: int,
        d_t: int,
        *,
        query_width: int = 256,
        heads: int = 8,
        head_width: int = 64,
        mlp_ratio: float = 4.0,
        eps: float = 1e-6,
    ) -> None:
        super().__init__()
        self.d_t, self.heads = d_t, heads
        inner = heads * head_width
        self.f_t = augmentation_encoder(d_t, query_width)
        self.norm_t = nn.LayerNorm(query_width, eps=eps)
        self.to_q = nn.Linear(query_width, inner)
        self.to_k = nn.Linear(width, inner)
        self.to_v = nn.Linear(width, inner)
        self.to_out = nn.Linear(inner, width, bias=False)
        self.norm = nn.LayerNorm(width, eps=eps)
        self.mlp = Mlp(width, round(width * mlp_ratio))

    def _split(self, x: Tensor) -> Tensor:
        return x.view(*x.shape[:2], self.heads, -1).transpose(1, 2)  # (B, heads, n, head_width)

    def query(self, t: Vectors) -> Tensor:
        """The query f_t(t), split into heads."""
        return self._split(self.to_q(self.norm_t(self.f_t(t))))

    def forward(self, h: Tokens, t: Vectors) -> Predicted:
        """h_hat = u(h, t) for each of the S vectors."""
        x = self._attended(h, t)
        return x + self.mlp(self.norm(x))  # type: ignore[no-any-return]  # FFN with norm and residual

    def centroid(self, h: Tokens, t: Vectors) -> Float[Tensor, "batch width"]:
        """The mean of h_hat over the vectors, Eq. (12), for less: the last layer is linear, and acts on the mean."""
        x = self._attended(h, t)
        hidden = F.gelu(self.mlp.fc1(self.norm(x))).mean(dim=1)
        return x.mean(dim=1) + self.mlp.fc2(hidden)  # type: ignore[no-any-return]

    def _attended(self, h: Tokens, t: Vectors) -> Predicted:
        check_vectors(t, h.shape[0], self.d_t)
        q, k, v = self.query(t).expand(h.shape[0], -1, -1, -1), self._split(self.to_k(h)), self._split(self.to_v(h))
        mixed = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)  # Eq. (5)
        # MHA(f_t(t), h, h) + MeanPool(h), Eq. (4)
        return self.to_out(mixed) + h.mean(dim=1, keepdim=True)  # type: ignore[no-any-return]

    def attention(self, h: Tokens, t: Vectors) -> Float[Tensor, "batch heads S tokens"]:
        """The weights with which each vector looks at the tokens: for pictures, not for training."""
        check_vectors(t, h.shape[0], self.d_t)
        q, k = self.query(t).expand(h.shape[0], -1, -1, -1), self._split(self.to_k(h))
        return torch.softmax(q @ k.transpose(-1, -2) / q.shape[-1] ** 0.5, dim=-1)


class LinearPredictor(nn.Module):
    """EquiMod's predictor: one linear layer on the pooled representation beside the vector."""

    def __init__(self, width: int, d_t: int) -> None:
        super().__init__()
        self.d_t = d_t
        self.linear = nn.Linear(width + d_t, width)

    def forward(self, h: Tokens, t: Vectors) -> Predicted:
        """h_hat = W [mean h; t] + b."""
        check_vectors(t, h.shape[0], self.d_t)
        pooled = h.mean(dim=1, keepdim=True).expand(-1, t.shape[1], -1)
        return self.linear(torch.cat([pooled, t.expand(h.shape[0], -1, -1)], dim=-1))  # type: ignore[no-any-return]


class HypernetworkPredictor(nn.Module):
    """SIE's predictor: the vector decides the weights of the linear map that moves the representation.

    W(t) = I + sum_k c_k(t) D_k, k = 0 to `bases`, with c = MLP(t): a residual map, near the identity when it is drawn.
    The product is formed without ever building W(t): each D_k meets the pooled representation once, whatever S is.
    """

    def __init__(self, width: int, d_t: int, *, hidden: int = 256, bases: int = 16) -> None:
        super().__init__()
        self.d_t, self.bases = d_t, bases
        self.coefficients = nn.Sequential(nn.Linear(d_t, hidden), nn.ReLU(), nn.Linear(hidden, bases + 1))
        self.moves = nn.Linear(width, (bases + 1) * width)

    def forward(self, h: Tokens, t: Vectors) -> Predicted:
        """h_hat = W(t) mean h."""
        check_vectors(t, h.shape[0], self.d_t)
        pooled = h.mean(dim=1)
        moves = self.moves(pooled).view(h.shape[0], self.bases + 1, -1)  # (B, 1 + bases, width)
        c = self.coefficients(t).expand(h.shape[0], -1, -1)  # (B, S, 1 + bases)
        return pooled[:, None] + c @ moves  # type: ignore[no-any-return]


def in_residual_form(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Weights as they are; of hypernetworks stored as W(t) = W_0 + sum_k c_k(t) W_k, the same map in residual form.

    D_0 = W_0 - I, with c_0 = 1 whatever t is. Damaged weights are left to whoever refuses them.
    """
    out = dict(state)
    for key in state:
        if not key.endswith(".u.maps.weight"):
            continue
        u = key.removesuffix("maps.weight")
        names = [f"{u}{name}" for name in ("maps.weight", "maps.bias", "coefficients.2.weight", "coefficients.2.bias")]
        if not set(names) <= out.keys() or [out[name].ndim for name in names] != [2, 1, 2, 1]:
            continue
        maps, bias, c, c_bias = (out[name] for name in names)
        out |= {names[2]: F.pad(c, (0, 0, 1, 0)), names[3]: F.pad(c_bias, (1, 0), value=1.0)}
        out |= {f"{u}moves.weight": maps - torch.eye(*maps.shape).to(maps), f"{u}moves.bias": bias}
        del out[names[0]], out[names[1]]
    return out
