"""Masked autoencoding: which patches are kept, the decoder that reconstructs the others, and MAE's file format.

An encoder sees the kept patches only: `h = encoder(x, tokens=kept)`; `decoder(h, kept)` predicts every patch of
`patchify(x)`, and the loss counts those of `removed(kept, tokens)`.
"""

from __future__ import annotations

import re
from abc import abstractmethod
from collections.abc import Mapping
from typing import ClassVar

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from equiav.errors import ShapeError, WeightsError
from equiav.models.encoder import Size, ViT, sincos_positions
from equiav.models.equiav import BranchedModel, EmbeddingModel, mean_pool
from equiav.models.foreign import State, refuse_mismatch
from equiav.models.layers import Block, Chosen, Tokens, initialise


def patchify(x: Float[Tensor, "batch channels height width"], patch: int) -> Float[Tensor, "batch tokens values"]:
    """The patches of an image in row-major order; within one: row, column, channel."""
    b, c, h, w = x.shape
    if h % patch or w % patch:
        raise ShapeError(f"an input of {h} x {w} cannot be cut into patches of {patch} x {patch}")
    x = x.reshape(b, c, h // patch, patch, w // patch, patch)
    return x.permute(0, 2, 4, 3, 5, 1).reshape(b, -1, patch * patch * c)


def unpatchify(
    patches: Float[Tensor, "batch tokens values"], grid: tuple[int, int], patch: int
) -> Float[Tensor, "batch channels height width"]:
    """The image whose patches these are; the inverse of `patchify`."""
    rows, columns = grid
    x = patches.reshape(len(patches), rows, columns, patch, patch, -1)
    return x.permute(0, 5, 1, 3, 2, 4).reshape(len(patches), -1, rows * patch, columns * patch)


def kept_by_noise(noise: Float[Tensor, "batch tokens"], mask_ratio: float) -> Chosen:
    """The tokens that every sample keeps: those with the smallest noise, at least one, in their order."""
    kept = max(1, int(noise.shape[1] * (1 - mask_ratio)))
    return noise.argsort(dim=1, stable=True)[:, :kept].sort(dim=1).values


def removed(kept: Chosen, tokens: int) -> Float[Tensor, "batch {tokens}"]:
    """The mask of a loss: 1 where a token was removed, 0 where it was kept."""
    return torch.ones(len(kept), tokens, device=kept.device).scatter(1, kept, 0.0)


def insert_mask_tokens(x: Tokens, kept: Int[Tensor, "batch tokens"], mask_token: Tensor, tokens: int) -> Tensor:
    """All tokens (batch, `tokens`, width): x at the kept places, the mask token at the others."""
    everywhere = mask_token.to(x.dtype).expand(len(x), tokens, -1)
    return everywhere.scatter(1, kept[:, :, None].expand_as(x), x)


def initialise_masked(module: nn.Module, rng: torch.Generator) -> None:
    """As `initialise`; mask tokens and modality vectors are normal with a standard deviation of 0.02."""
    initialise(module, rng)
    for name, parameter in module.named_parameters():
        if {"mask_token", "modality"} & set(name.split(".")):
            nn.init.normal_(parameter, std=0.02, generator=rng)


class Decoder(nn.Module):
    """MAE's decoder: kept tokens of an encoder -> every patch of the input, `patch` x `patch` x `channels` values."""

    def __init__(
        self,
        encoder_width: int,
        grid: tuple[int, int],
        *,
        patch: int = 16,
        channels: int = 3,
        width: int = 512,
        depth: int = 8,
        heads: int = 16,
        mlp_ratio: float = 4.0,
        eps: float = 1e-6,
    ) -> None:
        super().__init__()
        self.embed = nn.Linear(encoder_width, width)
        self.mask_token = nn.Parameter(torch.zeros(1, 1, width))
        self.pos_embed = nn.Parameter(sincos_positions(width, *grid)[None], requires_grad=False)
        self.blocks = nn.ModuleList(Block(width, heads, mlp_ratio, eps) for _ in range(depth))
        self.norm = nn.LayerNorm(width, eps=eps)
        self.predict = nn.Linear(width, patch * patch * channels)

    def forward(self, h: Tokens, kept: Int[Tensor, "batch tokens"]) -> Float[Tensor, "batch all values"]:
        """A prediction of every patch, in the order of `patchify`; h are the encoder's tokens of the kept ones."""
        x = insert_mask_tokens(self.embed(h), kept, self.mask_token, self.pos_embed.shape[1]) + self.pos_embed
        for block in self.blocks:
            x = block(x)
        return self.predict(self.norm(x))  # type: ignore[no-any-return]


class ReconstructingModel(EmbeddingModel):
    """A model that predicts the patches it does not see; inputs, kept tokens and predictions are by modality."""

    joint: ClassVar[bool] = False  # whether each modality is predicted from all of them, so that none may be missing

    @abstractmethod
    def grids(self) -> dict[str, tuple[int, int]]:
        """Rows and columns of patches."""

    @abstractmethod
    def predict(self, inputs: Mapping[str, Tensor], kept: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """A prediction (batch, tokens, values) of every patch, from the kept ones."""

    @abstractmethod
    def targets(self, inputs: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The patches (batch, tokens, values) that the predictions are compared with."""

    @abstractmethod
    def channels(self, modality: str) -> int:
        """How many channels an input has."""

    def images(self, modality: str, patches: Float[Tensor, "batch tokens values"]) -> Float[Tensor, "batch c h w"]:
        """Patches as images again; spectrograms with frequency as rows and time as columns."""
        side = round((patches.shape[2] / self.channels(modality)) ** 0.5)
        return unpatchify(patches, self.grids()[modality], side)


class MaskedBranch(nn.Module):
    """One modality: encoder f, and the decoder that is dropped after training."""

    def __init__(self, f: ViT, decoder: Decoder) -> None:
        super().__init__()
        self.f, self.decoder = f, decoder


class MaskedAutoencoder(BranchedModel[MaskedBranch], ReconstructingModel):
    """An encoder and a decoder for each modality.

    Modalities know nothing of each other: `embed` gives pooled tokens, which are comparable within a modality only.
    """

    def __init__(self, branches: Mapping[str, MaskedBranch]) -> None:
        super().__init__(branches)
        self.width = next(iter(branches.values())).f.width

    def grids(self) -> dict[str, tuple[int, int]]:
        """As the encoders say."""
        return {m: self[m].f.grid for m in self.modalities}

    def channels(self, modality: str) -> int:
        """As the encoder says."""
        return self[modality].f.channels

    def predict(self, inputs: Mapping[str, Tensor], kept: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Each modality from its own kept patches."""
        return {m: self[m].decoder(self[m].f(x, kept[m]), kept[m]) for m, x in inputs.items()}

    def targets(self, inputs: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Patches of the inputs as the encoders cut them."""
        return {m: patchify(self[m].f.image(x), self[m].f.patch_embed.patch) for m, x in inputs.items()}

    def blank(self, modality: str) -> Float[Tensor, "1 c h w"]:
        """An input of zeros, of the size that the encoder expects."""
        f = self[modality].f
        rows, columns = (n * f.patch_embed.patch for n in f.grid)
        size = (columns, rows) if f.time_first else (rows, columns)
        return f.pos_embed.new_zeros(1, f.channels, *size)

    def embed_tokens(self, modality: str, h: Tokens, bank: Tensor | None = None) -> Float[Tensor, "b out"]:
        """Pooled tokens; there is no shared space."""
        return mean_pool(h)


def _mae_name(key: str) -> str:
    """MAE's name of a decoder's parameter."""
    return key if key == "mask_token" else f"decoder_{key.replace('predict.', 'pred.')}"


def _merged(encoder: State, decoder: State, grid: tuple[int, int], class_token: bool) -> State:
    like = encoder["norm.weight"]
    out = encoder | {_mae_name(key): value for key, value in decoder.items()}
    out["pos_embed"] = sincos_positions(len(like), *grid)[None].to(like)
    if class_token:
        out["cls_token"] = like.new_zeros(1, 1, len(like))
        for key in ("pos_embed", "decoder_pos_embed"):
            if key in out:
                out[key] = torch.cat([torch.zeros_like(out[key][:, :1]), out[key]], dim=1)
    return {key: value.contiguous() for key, value in out.items()}


def write_mae(encoder: State, decoder: State, grid: tuple[int, int], *, class_token: bool = True) -> State:
    """A ViT's and its Decoder's weights under MAE's names; an empty `decoder` writes the encoder alone.

    Our encoders have no class token, MAE's readers insist on one: it is written as zeros with a zero position, the
    neutral choice. Patches then attend to one token more than in training, so a reader's patch tokens come close to
    ours but are not equal; pool them, for the class token itself has learned nothing. With `class_token=False` key
    and position are left out, for readers that can do without (timm: `class_token=False, global_pool="avg"`): these
    compute exactly what our encoder does.
    """
    if "norm.weight" not in encoder:
        raise WeightsError("an encoder without norm.weight cannot be written in MAE's format")
    out = _merged(encoder, decoder, grid, class_token)
    read_mae(out, rows=grid[0])  # refuses what is missing or has no place there
    return out


def read_mae(state: State, rows: int | None = None) -> tuple[State, State]:
    """Weights in MAE's format as those of our ViT and of `Decoder` (empty where the file has none), strictly.

    The inverse of `write_mae`. A class token and its positions are dropped: MAE's own weights then give nearly, not
    exactly, what they gave with it. `rows` of the patch grid: a square unless given.
    """
    class_token, has_decoder = "cls_token" in state, "decoder_embed.weight" in state
    try:
        width, channels, patch, _ = state["patch_embed.proj.weight"].shape
        ratio = len(state["blocks.0.mlp.fc1.weight"]) / width
        _, tokens, table_width = state["pos_embed"].shape
        wide = len(state["decoder_embed.weight"]) if has_decoder else 4
        decoder_ratio = len(state["decoder_blocks.0.mlp.fc1.weight"]) / wide if has_decoder else 4.0
    except (KeyError, ValueError, TypeError, ZeroDivisionError) as error:
        parts = "patch_embed, pos_embed and blocks" + ", decoder_embed and decoder_blocks" * has_decoder
        raise WeightsError(f"a MAE checkpoint must hold {parts} ({error})") from error
    if width % 4 or wide % 4 or table_width != width:
        raise WeightsError(
            f"pos_embed is {table_width} wide, patch_embed {width}, the decoder {wide}: not a MAE checkpoint"
        )
    tokens -= class_token
    rows = rows or round(tokens**0.5)
    if tokens < 1 or tokens % rows:
        raise WeightsError(f"pos_embed holds {tokens} patches, which do not make a grid of {rows} rows")
    grid = (rows, tokens // rows)
    with torch.device("meta"):  # one head each: heads leave no trace in shapes
        size = Size(width, count_blocks(state, "blocks"), 1)
        input_size = (grid[0] * patch, grid[1] * patch)
        encoder = ViT(size, input_size=input_size, patch=patch, channels=channels, mlp_ratio=ratio).state_dict()
        decoder: State = {}
        if has_decoder:
            depth = count_blocks(state, "decoder_blocks")
            decoder = Decoder(
                width, grid, patch=patch, channels=channels, width=wide, depth=depth, heads=1, mlp_ratio=decoder_ratio
            ).state_dict()
    refuse_mismatch(state, _merged(encoder, decoder, grid, class_token), "the MAE checkpoint")
    table = state["pos_embed"][0, int(class_token) :].double()
    if not torch.allclose(table, sincos_positions(table.shape[1], *grid).to(table), atol=1e-5):
        raise WeightsError(f"pos_embed is not MAE's fixed sine-cosine table of {grid[0]} x {grid[1]} patches")
    own = {key: state[_mae_name(key)] for key in decoder}
    if has_decoder:
        own["pos_embed"] = own["pos_embed"][:, int(class_token) :]
    return {key: state[key] for key in encoder}, own


def count_blocks(state: State, name: str) -> int:
    """How many blocks `name.0`, `name.1`, ... a state holds; a gap among them shows as a missing key later."""
    found = (re.match(rf"{re.escape(name)}\.(\d+)\.", key) for key in state)
    return len({m[1] for m in found if m})
