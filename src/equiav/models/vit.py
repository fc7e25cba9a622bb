"""The encoders f_a, f_v: vision transformers over patches, with fixed sine-cosine positions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from equiav.errors import ShapeError
from equiav.models.layers import Block, Chosen, Tokens


@dataclass(frozen=True)
class Size:
    """Width, depth and heads of an encoder."""

    width: int
    depth: int
    heads: int


SizeName = Literal["base", "small", "tiny", "micro"]
SIZES: dict[SizeName, Size] = {
    "base": Size(768, 12, 12),
    "small": Size(384, 12, 6),
    "tiny": Size(192, 12, 3),
    "micro": Size(96, 3, 4),  # minutes on a CPU
}


def sincos_positions(width: int, rows: int, columns: int) -> Float[Tensor, "tokens width"]:
    """MAE's table: sine and cosine of the column, then of the row; token = row * columns + column."""
    if width % 4:
        raise ValueError(f"sine-cosine positions need a width divisible by 4, got {width}")
    quarter = width // 4
    frequency = 10000.0 ** (-torch.arange(quarter, dtype=torch.float64) / quarter)
    row, column = torch.meshgrid(torch.arange(rows), torch.arange(columns), indexing="ij")
    c, r = column.flatten()[:, None] * frequency, row.flatten()[:, None] * frequency
    return torch.cat([c.sin(), c.cos(), r.sin(), r.cos()], dim=1).float()


class PatchEmbed(nn.Module):
    """Non-overlapping patches as one matrix product; the kernel is kept in convolution form for its key name."""

    def __init__(self, patch: int, channels: int, width: int) -> None:
        super().__init__()
        self.patch = patch
        self.proj = nn.Conv2d(channels, width, kernel_size=patch, stride=patch)

    def forward(self, x: Float[Tensor, "b c h w"], tokens: Chosen | None = None) -> Tokens:
        """Tokens in row-major order: all, or the chosen ones."""
        b, c, h, w = x.shape
        p = self.patch
        patches = x.reshape(b, c, h // p, p, w // p, p).permute(0, 2, 4, 1, 3, 5).reshape(b, -1, c * p * p)
        if tokens is not None:
            patches = patches.gather(1, tokens[:, :, None].expand(-1, -1, patches.shape[2]))
        return F.linear(patches, self.proj.weight.flatten(1), self.proj.bias)


class ViT(nn.Module):
    """Patches, positions, blocks, norm; no class token: the representation is the tokens h.

    `input_size` is the expected height and width; any other size that the patch divides works too. With
    `norm_augmented` the augmented view gets a final norm of its own (released checkpoints only). With
    `checkpoint_activations` training keeps only the input of each block and computes the rest again for the gradient.
    """

    pos_embed: Tensor

    def __init__(
        self,
        size: Size,
        *,
        input_size: tuple[int, int],
        patch: int = 16,
        channels: int = 3,
        mlp_ratio: float = 4.0,
        eps: float = 1e-6,
        norm_augmented: bool = False,
        checkpoint_activations: bool = False,
    ) -> None:
        super().__init__()
        self.width = size.width
        self.checkpoint_activations = checkpoint_activations
        self.channels = channels
        self.patch_embed = PatchEmbed(patch, channels, size.width)
        self.blocks = nn.ModuleList(Block(size.width, size.heads, mlp_ratio, eps) for _ in range(size.depth))
        self.norm = nn.LayerNorm(size.width, eps=eps)
        self.norm_augmented = nn.LayerNorm(size.width, eps=eps) if norm_augmented else None
        self.grid = self.grid_of(*input_size)
        self.register_buffer("pos_embed", sincos_positions(size.width, *self.grid), persistent=False)

    def grid_of(self, height: int, width: int) -> tuple[int, int]:
        """Rows and columns of patches, or a refusal."""
        p = self.patch_embed.patch
        if height % p or width % p or height < p or width < p:
            raise ShapeError(f"an input of {height} x {width} cannot be cut into patches of {p} x {p}")
        return height // p, width // p

    def _positions(self, x: Tensor) -> Tensor:
        grid = self.grid_of(x.shape[2], x.shape[3])
        if grid == self.grid:
            return self.pos_embed
        return sincos_positions(self.width, *grid).to(self.pos_embed)

    def trunk(
        self,
        x: Float[Tensor, "b c h w"],
        kept: Float[Tensor, "b depth 2"] | None = None,
        tokens: Int[Tensor, "b kept"] | None = None,
    ) -> Tokens:
        """Everything before the final norm.

        `kept` are drop path's weights, as drawn by `draw_path`; `tokens` the patches to look at, as drawn by
        `draw_tokens`, each at its own position.
        """
        if x.ndim != 4 or x.shape[1] != self.channels:
            raise ShapeError(f"the encoder wants (batch, {self.channels}, height, width), got {tuple(x.shape)}")
        positions = self._positions(x)  # first: it refuses sizes that the patch does not divide
        if tokens is None:
            h = self.patch_embed(x) + positions
        else:
            tokens = tokens.to(x.device)
            h = self.patch_embed(x, tokens) + positions[tokens]
        for number, block in enumerate(self.blocks):
            h = self._through(block, h) if kept is None else self._through(block, h, kept[:, number])
        return h  # type: ignore[no-any-return]

    def _through(self, block: nn.Module, *inputs: Tensor) -> Tensor:
        """A block's output; nothing in it is random, so computed again it is the same to the bit."""
        if self.checkpoint_activations and self.training and torch.is_grad_enabled():
            return checkpoint(block, *inputs, use_reentrant=False, preserve_rng_state=False)  # type: ignore[no-any-return]
        return block(*inputs)  # type: ignore[no-any-return]

    def forward(
        self,
        x: Float[Tensor, "b c h w"],
        kept: Float[Tensor, "b depth 2"] | None = None,
        tokens: Int[Tensor, "b kept"] | None = None,
    ) -> Tokens:
        """Tokens h = f(x), Eq. (3)."""
        return self.norm(self.trunk(x, kept, tokens))  # type: ignore[no-any-return]

    def views(
        self,
        x: Float[Tensor, "b c h w"],
        x_aug: Float[Tensor, "b c h w"],
        tokens: Int[Tensor, "2*b kept"] | None = None,
    ) -> tuple[Tokens, Tokens]:
        """h = f(x) and h' = f(x'), Eq. (3), both views in one pass; `tokens` are those of x, then those of x'."""
        if x.shape != x_aug.shape:
            raise ShapeError(f"the two views differ in shape: {tuple(x.shape)} and {tuple(x_aug.shape)}")
        both = self.trunk(torch.cat([x, x_aug]), tokens=tokens)
        if self.norm_augmented is None:
            h, h_aug = self.norm(both).chunk(2)
            return h, h_aug
        h, h_aug = both.chunk(2)
        return self.norm(h), self.norm_augmented(h_aug)
