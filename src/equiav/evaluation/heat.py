"""Which tokens of a picture fit a sound: five ways to ask a trained model, none of which needs further training."""

from __future__ import annotations

from typing import Literal, get_args

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from equiav.errors import ConfigError
from equiav.models import AttentionPredictor, Branch, Representation

Method = Literal["blend", "removal", "centroid", "projection", "attention"]
METHODS: tuple[Method, ...] = get_args(Method)
Scores = Float[Tensor, "n tokens"]

REMOVAL_VECTORS = 16  # of the bank; the difference of two centroids needs fewer than the centroid itself
REMOVAL_NUMBERS = 1 << 24  # of the copies of tokens held at a time: 64 MB


def token_scores(
    branch: Branch,
    h: Float[Tensor, "n tokens width"],
    z_a: Float[Tensor, "n out"],
    bank: Float[Tensor, "S d_t"],
    representation: Representation,
    method: Method,
) -> Scores:
    """One score per token; only their order and distances within a picture mean something.

    centroid: the centroid pipeline on one token at a time, z_i = g(mean over the bank of u(h_i, t)), cosine with the
    sound. projection: the same with g(h_i). removal: how much the cosine of the whole picture falls when the token is
    left out. attention: where the predictor looks, whatever the sound. blend: removal and attention (its logarithm),
    each in deviations from its mean over the picture, added up.
    """
    match method:
        case "centroid":
            return _cosines(_single_tokens(branch, h, bank, representation), z_a)
        case "projection":
            return _cosines(branch.g_inter(h), z_a)
        case "removal":
            return _removal(branch, h, z_a, bank, representation)
        case "attention":
            return _attention(branch, h, bank, representation)
        case "blend":
            looks = _attention(branch, h, bank, representation).clamp(min=1e-12).log()
            return _standardised(looks) + _standardised(_removal(branch, h, z_a, bank, representation))


def default_method(branch: Branch, representation: Representation) -> Method:
    """The blend where the model has what it takes, else removal."""
    return "blend" if representation == "centroid" and isinstance(branch.u, AttentionPredictor) else "removal"


def _inter(branch: Branch, h: Tensor, bank: Tensor, representation: Representation) -> Tensor:
    return branch.inter_centroid(h, bank[None]) if representation == "centroid" else branch.inter_pooled(h)


def _cosines(z: Float[Tensor, "n tokens out"], z_a: Float[Tensor, "n out"]) -> Scores:
    return (F.normalize(z, dim=-1) * F.normalize(z_a, dim=-1)[:, None]).sum(dim=-1)


def _single_tokens(branch: Branch, h: Tensor, bank: Tensor, representation: Representation) -> Tensor:
    n, tokens, width = h.shape
    return _inter(branch, h.reshape(n * tokens, 1, width), bank, representation).view(n, tokens, -1)


def _removal(branch: Branch, h: Tensor, z_a: Tensor, bank: Tensor, representation: Representation) -> Scores:
    n, tokens, width = h.shape
    bank = bank[:REMOVAL_VECTORS]
    whole = F.cosine_similarity(_inter(branch, h, bank, representation), z_a)
    others = torch.arange(tokens - 1, device=h.device).expand(tokens, -1)
    kept = others + (others >= torch.arange(tokens, device=h.device)[:, None])  # row j: all tokens but j
    portion = max(1, REMOVAL_NUMBERS // max(1, tokens * width))
    rows = []
    for i in range(n):
        without = [_inter(branch, h[i][part], bank, representation) for part in torch.split(kept, portion)]
        rows.append(whole[i] - F.cosine_similarity(torch.cat(without), z_a[i : i + 1]))
    return torch.stack(rows)


def _attention(branch: Branch, h: Tensor, bank: Tensor, representation: Representation) -> Scores:
    if not isinstance(branch.u, AttentionPredictor):
        raise ConfigError("this model's predictor has no attention; choose removal, centroid or projection")
    if representation != "centroid":
        raise ConfigError("this model was trained without its predictor; choose removal, centroid or projection")
    return branch.u.attention(h, bank[None]).mean(dim=(1, 2))


def _standardised(scores: Scores) -> Scores:
    centred = scores - scores.mean(dim=1, keepdim=True)
    return centred / centred.square().mean(dim=1, keepdim=True).sqrt().clamp(min=1e-12)


def upsample(scores: Scores, grid: tuple[int, int], size: tuple[int, int]) -> Float[Tensor, "n h w"]:
    """Scores on the patch grid as maps of the picture's size, smoothly."""
    return F.interpolate(scores.view(-1, 1, *grid), size=size, mode="bicubic", align_corners=False)[:, 0]
