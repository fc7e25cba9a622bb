"""Transformer blocks with timm's key names."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn

Tokens = Float[Tensor, "batch tokens width"]
Chosen = Int[Tensor, "batch kept"]  # numbers of the tokens that a sample keeps


class Attention(nn.Module):
    """Multi-head self-attention with one fused projection for q, k, v."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        if width % heads:
            raise ValueError(f"width {width} is not a multiple of {heads} heads")
        self.heads = heads
        self.qkv = nn.Linear(width, 3 * width)
        self.proj = nn.Linear(width, width)

    def forward(self, x: Tokens) -> Tokens:
        """Every token looks at every token."""
        batch, tokens, width = x.shape
        qkv = self.qkv(x).view(batch, tokens, 3, self.heads, width // self.heads)
        q, k, v = qkv.permute(2, 0, 3, 1, 4)  # each (B, heads, tokens, width / heads)
        mixed = F.scaled_dot_product_attention(q, k, v)
        return self.proj(mixed.transpose(1, 2).reshape(batch, tokens, width))  # type: ignore[no-any-return]


class Mlp(nn.Module):
    """Two linear layers with a GELU between."""

    def __init__(self, width: int, hidden: int) -> None:
        super().__init__()
        self.fc1 = nn.Linear(width, hidden)
        self.fc2 = nn.Linear(hidden, width)

    def forward(self, x: Tensor) -> Tensor:
        """Acts on the last axis."""
        return self.fc2(F.gelu(self.fc1(x)))  # type: ignore[no-any-return]


class Block(nn.Module):
    """Pre-norm transformer block."""

    def __init__(self, width: int, heads: int, mlp_ratio: float, eps: float) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(width, eps=eps)
        self.attn = Attention(width, heads)
        self.norm2 = nn.LayerNorm(width, eps=eps)
        self.mlp = Mlp(width, round(width * mlp_ratio))

    def forward(self, x: Tokens, kept: Float[Tensor, "batch 2"] | None = None) -> Tokens:
        """Attention, then MLP, each added to its input; `kept` weighs what is added (0: that sample skips it)."""
        if kept is None:
            x = x + self.attn(self.norm1(x))
            return x + self.mlp(self.norm2(x))  # type: ignore[no-any-return]
        attention, mlp = kept[:, :, None, None].to(x.dtype).unbind(dim=1)
        x = x + attention * self.attn(self.norm1(x))
        return x + mlp * self.mlp(self.norm2(x))  # type: ignore[no-any-return]


def draw_path(batch: int, depth: int, p: float, rng: torch.Generator) -> Float[Tensor, "batch depth 2"] | None:
    """Drop path: weights of every block's two parts, 0 or 1 / (1 - p_l); p_l rises linearly to `p` at the last block.

    None where nothing is ever dropped, which costs nothing.
    """
    if p == 0:
        return None
    chance = torch.linspace(0, p, depth)[:, None]
    return (torch.rand(batch, depth, 2, generator=rng) >= chance) / (1 - chance)


def draw_tokens(batch: int, tokens: int, share: float, rng: torch.Generator) -> Chosen | None:
    """Token dropping: which tokens every sample keeps, at random, in their order; at least one.

    None where all of them stay, which costs nothing.
    """
    kept = max(1, round(share * tokens))
    if kept == tokens:
        return None
    return torch.rand(batch, tokens, generator=rng).argsort(dim=1)[:, :kept].sort(dim=1).values


def initialise(module: nn.Module, rng: torch.Generator) -> None:
    """Xavier-uniform weights, zero biases, as MAE's ViT; a function of the generator alone."""
    for part in module.modules():
        if isinstance(part, nn.Linear | nn.Conv2d):
            # A patch kernel is a matrix: fan-in is all of a patch.
            nn.init.xavier_uniform_(part.weight.view(len(part.weight), -1), generator=rng)
            if part.bias is not None:
                nn.init.zeros_(part.bias)
        elif isinstance(part, nn.LayerNorm):
            nn.init.ones_(part.weight)
            nn.init.zeros_(part.bias)
