"""The encoders f: what an encoder is, and the paper's, a vision transformer with fixed sine-cosine positions."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
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
    if torch.get_default_device().type == "meta":  # only shapes are asked for; arithmetic there imports for seconds
        return torch.empty(rows * columns, width)
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


class Layered(nn.Module):
    """A network whose parameters come in layers: what parts of a model are frozen, adapted or scaled by."""

    def layers(self) -> list[list[str]]:
        """Names of its parameters in groups from input to output: before the blocks, one a block, after them."""
        return [[name for name, _ in self.named_parameters()]]


class Encoder(Layered, ABC):
    """An encoder f: tokens h of width `width` from an input; whatever gives them can stand here.

    `grid` is (rows, columns) of the tokens in row-major order, for maps of where something is; `tokens` are their
    number. A subclass gives `forward`; the rest has defaults that fit most networks.
    """

    width: int
    grid: tuple[int, int]

    @property
    def tokens(self) -> int:
        """How many tokens it makes of an input of the expected size."""
        return self.grid[0] * self.grid[1]

    @abstractmethod
    def forward(self, x: Tensor, tokens: Chosen | None = None, paths: Tensor | None = None) -> Tokens:
        """h = f(x), Eq. (3).

        Args:
            x: a batch of inputs.
            tokens: numbers of the tokens to look at, one row per sample (token dropping); None: all.
            paths: weights of drop path, as drawn by `draw_path`; only for encoders with `layers`.
        """

    def views(self, x: Tensor, x_aug: Tensor, tokens: Int[Tensor, "twice kept"] | None = None) -> tuple[Tokens, Tokens]:
        """h = f(x) and h' = f(x'), both views in one pass; `tokens` are those of x, then those of x'."""
        if x.shape != x_aug.shape:
            raise ShapeError(f"the two views differ in shape: {tuple(x.shape)} and {tuple(x_aug.shape)}")
        h, h_aug = self(torch.cat([x, x_aug]), tokens).chunk(2)
        return h, h_aug

    def grid_of(self, x: Tensor) -> tuple[int, int]:
        """Rows and columns of the tokens of an input, where it may differ from the expected size."""
        return self.grid


def groups_by_block(names: Iterable[str], blocks: str, depth: int, first: tuple[str, ...]) -> list[list[str]]:
    """Parameter names from input to output: those that begin with `first`, one group for each of the blocks, the rest.

    `blocks` is what stands before a block's number.
    """
    groups: list[list[str]] = [[] for _ in range(depth + 2)]
    for name in names:
        inside = name.startswith(blocks)
        number = int(name.removeprefix(blocks).split(".")[0]) + 1 if inside else 0 if name.startswith(first) else -1
        groups[number].append(name)
    return groups


class ViT(Encoder):
    """Patches, positions, blocks, norm; no class token: the representation is the tokens h.

    `input_size` is the expected height and width; any other size that the patch divides works too. `time_first`:
    inputs are spectrograms (B, 1, T, F), seen with frequency as rows and time as columns. With `norm_augmented` the
    augmented view gets a final norm of its own (released checkpoints only). With `checkpoint_activations` training
    keeps only the input of each block and computes the rest again for the gradient.
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
        time_first: bool = False,
        norm_augmented: bool = False,
        checkpoint_activations: bool = False,
    ) -> None:
        super().__init__()
        self.width, self.time_first = size.width, time_first
        self.checkpoint_activations = checkpoint_activations
        self.channels = channels
        self.patch_embed = PatchEmbed(patch, channels, size.width)
        self.blocks = nn.ModuleList(Block(size.width, size.heads, mlp_ratio, eps) for _ in range(size.depth))
        self.norm = nn.LayerNorm(size.width, eps=eps)
        self.norm_augmented = nn.LayerNorm(size.width, eps=eps) if norm_augmented else None
        self.grid = self._patches(*input_size)
        self.register_buffer("pos_embed", sincos_positions(size.width, *self.grid), persistent=False)

    def _patches(self, height: int, width: int) -> tuple[int, int]:
        """Rows and columns of patches, or a refusal."""
        p = self.patch_embed.patch
        if height % p or width % p or height < p or width < p:
            raise ShapeError(f"an input of {height} x {width} cannot be cut into patches of {p} x {p}")
        return height // p, width // p

    def grid_of(self, x: Tensor) -> tuple[int, int]:
        """Rows and columns of the tokens of an input."""
        return self._patches(*self.image(x).shape[2:])

    def image(self, x: Float[Tensor, "b c h w"]) -> Float[Tensor, "b c rows columns"]:
        """The input as it is cut into patches: spectrograms come time first and are transposed."""
        return x.transpose(2, 3) if self.time_first else x

    def trunk(
        self,
        x: Float[Tensor, "b c h w"],
        tokens: Int[Tensor, "b kept"] | None = None,
        paths: Float[Tensor, "b depth 2"] | None = None,
    ) -> Tokens:
        """Everything before the final norm; each chosen token keeps its own position."""
        if x.ndim != 4 or x.shape[1] != self.channels:
            raise ShapeError(f"the encoder wants (batch, {self.channels}, height, width), got {tuple(x.shape)}")
        grid = self.grid_of(x)  # first: it refuses sizes that the patch does not divide
        positions = self.pos_embed if grid == self.grid else sincos_positions(self.width, *grid).to(self.pos_embed)
        tokens = None if tokens is None else tokens.to(x.device)
        h = self.patch_embed(self.image(x), tokens) + (positions if tokens is None else positions[tokens])
        for number, block in enumerate(self.blocks):
            inputs = (h,) if paths is None else (h, paths[:, number])
            if self.checkpoint_activations and self.training and torch.is_grad_enabled():
                # Nothing in a block is random: computed again it is the same to the bit.
                h = checkpoint(block, *inputs, use_reentrant=False, preserve_rng_state=False)
            else:
                h = block(*inputs)
        return h  # type: ignore[no-any-return]

    def forward(self, x: Tensor, tokens: Chosen | None = None, paths: Tensor | None = None) -> Tokens:
        """Tokens h = f(x), Eq. (3)."""
        return self.norm(self.trunk(x, tokens, paths))  # type: ignore[no-any-return]

    def views(self, x: Tensor, x_aug: Tensor, tokens: Int[Tensor, "twice kept"] | None = None) -> tuple[Tokens, Tokens]:
        """h = f(x) and h' = f(x'), Eq. (3), both views in one pass; `tokens` are those of x, then those of x'."""
        if self.norm_augmented is None:
            return super().views(x, x_aug, tokens)
        h, h_aug = self.trunk(torch.cat([x, x_aug]), tokens).chunk(2)
        return self.norm(h), self.norm_augmented(h_aug)

    def layers(self) -> list[list[str]]:
        """Patches, then one group a block; the final norm belongs to the last block's output."""
        names = (name for name, _ in self.named_parameters())
        return groups_by_block(names, "blocks.", len(self.blocks), ("patch_embed",))
