"""The text encoder f: a transformer over words, each read byte by byte; no vocabulary, so any script and any word."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor, nn

from equiav.errors import ShapeError
from equiav.models import Block, Chosen, Encoder, Size, Tokens, sincos_positions

BYTES = 256


def all_if_none(there: Bool[Tensor, "b places"]) -> Bool[Tensor, "b places"]:
    """Of a text without words all places count: none must be NaN."""
    return there | ~there.any(dim=1, keepdim=True)


def filled(h: Tokens, there: Bool[Tensor, "b places"]) -> Tokens:
    """Places without a word hold the mean of the words' tokens."""
    there = all_if_none(there)
    share = there.to(h.dtype) / there.sum(dim=1, keepdim=True)
    return torch.where(there[..., None], h, (share[..., None] * h).sum(dim=1, keepdim=True))


class WordBlock(Block):
    """A transformer block whose words look at words only, not at empty places."""

    def forward(self, x: Tokens, there: Bool[Tensor, "b words"] | None = None) -> Tokens:
        """Attention, then MLP, each added to its input."""
        if there is None:
            return super().forward(x)
        batch, tokens, width = x.shape
        qkv = self.attn.qkv(self.norm1(x)).view(batch, tokens, 3, self.attn.heads, width // self.attn.heads)
        q, k, v = qkv.permute(2, 0, 3, 1, 4)  # each (B, heads, tokens, width / heads)
        mixed = F.scaled_dot_product_attention(q, k, v, attn_mask=there[:, None, None])
        x = x + self.attn.proj(mixed.transpose(1, 2).reshape(batch, tokens, width))
        return x + self.mlp(self.norm2(x))  # type: ignore[no-any-return]


class TextEncoder(Encoder):
    """Words from a grid of bytes (B, 1, words, letters), positions, blocks, norm: one token a word.

    A word is the sum of its bytes, each embedded by its value and its place. Places without a word hold the mean of the
    words' tokens: MeanPool over all places is then the mean over the words.
    """

    pos_embed: Tensor

    def __init__(
        self,
        size: Size,
        *,
        words: int = 32,
        letters: int = 12,
        byte_width: int = 16,
        mlp_ratio: float = 4.0,
        eps: float = 1e-6,
    ) -> None:
        super().__init__()
        self.width, self.grid, self.letters = size.width, (1, words), letters
        # A table in the form of a linear layer: that is what `initialise` draws from the recipe's seed.
        self.bytes = nn.Linear(BYTES, byte_width, bias=False)
        self.word = nn.Linear(letters * byte_width, size.width)
        self.norm_words = nn.LayerNorm(size.width, eps=eps)
        self.blocks = nn.ModuleList(WordBlock(size.width, size.heads, mlp_ratio, eps) for _ in range(size.depth))
        self.norm = nn.LayerNorm(size.width, eps=eps)
        self.register_buffer("pos_embed", sincos_positions(size.width, 1, words), persistent=False)

    def forward(
        self, x: Float[Tensor, "b 1 words letters"], tokens: Chosen | None = None, paths: Tensor | None = None
    ) -> Tokens:
        """h = f(x), Eq. (3)."""
        if x.ndim != 4 or x.shape[1:] != (1, self.grid[1], self.letters):
            wanted = f"(batch, 1, {self.grid[1]}, {self.letters})"
            raise ShapeError(f"the text encoder wants {wanted}, got {tuple(x.shape)}")
        grid, positions = x[:, 0], self.pos_embed.expand(len(x), -1, -1)
        if tokens is not None:
            tokens = tokens.to(x.device)
            grid = grid.gather(1, tokens[:, :, None].expand(-1, -1, self.letters))
            positions = positions.gather(1, tokens[:, :, None].expand(-1, -1, self.width))
        letters = F.embedding(grid.long(), self.bytes.weight.T) * (grid > 0)[..., None]
        h = self.norm_words(self.word(letters.flatten(2))) + positions
        there = (grid > 0).any(dim=-1)
        there = all_if_none(there)
        for block in self.blocks:
            h = block(h, there)
        return filled(self.norm(h), there)

    def layers(self) -> list[list[str]]:
        """Bytes and words, then one group a block; the final norm belongs to the last block's output."""
        groups = [[] for _ in range(len(self.blocks) + 2)]  # type: list[list[str]]
        for name, _ in self.named_parameters():
            part, _, rest = name.partition(".")
            number = int(rest.split(".")[0]) + 1 if part == "blocks" else -1 if part == "norm" else 0
            groups[number].append(name)
        return groups
