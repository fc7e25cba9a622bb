"""The transformation nearest to the centroid: what the representative embedding looks like as a picture.

The paper's qualitative figure: many augmentation vectors are drawn, the equivariant embedding nearest to their
centroid is taken as its stand-in, and that transformation is applied to the picture.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from jaxtyping import Float, UInt8
from torch import Tensor

from equiav.build import build_pipelines
from equiav.errors import ConfigError
from equiav.evaluation.heat import Method
from equiav.evaluation.localisation import heat_maps
from equiav.inference import LoadedModel
from equiav.media import normalise, to_float
from equiav.randomness import stream
from equiav.types import Modality

VECTORS = 1000


@dataclass(frozen=True)
class Representative:
    """A picture beside the transformed one that stands for its centroid, each with its map, values in [0, 1]."""

    original: Float[Tensor, "3 side side"]
    transformed: Float[Tensor, "3 side side"]
    maps: Float[Tensor, "2 side side"]
    vector: Float[Tensor, " d_t"]
    cosine: float  # of the chosen embedding with the centroid


@torch.inference_mode()
def representative(
    loaded: LoadedModel,
    picture: UInt8[Tensor, "3 side side"],
    z_a: Float[Tensor, " out"],
    *,
    vectors: int = VECTORS,
    seed: int = 0,
    method: Method | None = None,
) -> Representative:
    """The picture under the drawn transformation whose equivariant embedding lies nearest to the centroid of all."""
    config = loaded.config
    if config.objective.representation != "centroid" or config.augment.layout != "paper":
        raise ConfigError("the nearest transformation needs a model trained with equivariant embeddings and our layout")
    pipeline, branch = build_pipelines(config.augment)[Modality.VISUAL], loaded.model.visual
    draws = pipeline.sample(vectors, stream(seed, 0, "representative"))
    device = loaded.banks[Modality.VISUAL].device
    t = pipeline.encode(draws).to(device)
    x = to_float(picture[None]).to(device)
    h_hat = branch.u(branch.encode(normalise(x)), t[None])  # (1, vectors, width)
    z_hat, z_bar = branch.g_inter(h_hat[0]), branch.g_inter(h_hat.mean(dim=1))
    cosines = F.cosine_similarity(z_hat, z_bar)
    best = int(cosines.argmax())
    x_aug = pipeline.apply(x, draws.rows(best, best + 1)).clamp(0, 1)
    both = torch.cat([x, x_aug])
    maps = heat_maps(loaded, normalise(both), z_a.expand(2, -1), method)
    return Representative(x[0].cpu(), x_aug[0].cpu(), maps, t[best].cpu(), float(cosines[best]))
