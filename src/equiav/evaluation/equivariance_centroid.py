"""The approximation behind the method, Eqs. (11), (12): centroids of u(h, t) against means of really augmented inputs.

h_rep = E[h'] is taken as the mean over many really augmented inputs; the centroid of S predictions should approach it
as S grows. Two things stand beside it: the original (mean h, one pass and no predictor) and the mean of S other really
augmented inputs, which costs S passes of the encoder and is as close as anything drawn S times can be expected to come.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from equiav.augment import Pipeline
from equiav.build import build_inputs
from equiav.data import ClipDataset, evaluation_batches
from equiav.evaluation.equivariance_scores import centred_cosine
from equiav.inference import LoadedModel
from equiav.media import normalise
from equiav.models import Branch, centroid, mean_pool
from equiav.progress import Countdown
from equiav.randomness import stream
from equiav.types import Modality

REAL = 64  # really augmented inputs whose mean stands for h_rep
COUNTS = (1, 2, 4, 8, 16, 32, 64)
ENCODED_AT_ONCE = 64
SPREAD = (0.1, 0.9)


def running_means(values: Float[Tensor, "S d"]) -> Float[Tensor, "counts d"]:
    """The means of the first 1, 2, 4, ... rows."""
    return torch.stack([centroid(values[None, :count])[0] for count in COUNTS])


@torch.inference_mode()
def approximation(
    loaded: LoadedModel,
    clips: ClipDataset,
    pipelines: dict[Modality, Pipeline],
    *,
    seed: int = 0,
    say: Callable[[str], None] = lambda line: None,
) -> dict[str, Any]:
    """Cosines with h_rep against S for both modalities, in the representation and through both heads."""
    inputs = build_inputs(loaded.config.audio)
    device = next(loaded.model.parameters()).device
    found: dict[Modality, list[Tensor]] = {m: [] for m in pipelines}
    countdown = Countdown(len(clips), say, "centroids of clips")
    for i, part in enumerate(evaluation_batches(clips, batch=1)):  # one clip fills the encoder with its views
        for m, pipeline in pipelines.items():
            x = inputs.before_augmentation(part.to(device), m)
            found[m].append(one_clip(loaded.model[m], pipeline, x, stream(seed, i, f"equivariance/centroid/{m.value}")))
        countdown.update(i + 1)
    return {m.value: _record(loaded.model[m], torch.stack(rows).to(device)) for m, rows in found.items()}


def one_clip(
    branch: Branch, pipeline: Pipeline, x: Float[Tensor, "1 c h w"], rng: torch.Generator
) -> Float[Tensor, "rows width"]:
    """Representations of one clip: h_rep, mean h, centroids for each S, means of S real ones for each S."""
    draws = pipeline.sample(REAL + COUNTS[-1], rng)
    views = pipeline.apply(x.expand(draws.batch, -1, -1, -1), draws)
    h_aug = torch.cat([mean_pool(_encode(branch, part)) for part in torch.split(views, ENCODED_AT_ONCE)])
    h = _encode(branch, x)
    t = pipeline.vectors(1, COUNTS[-1], rng).to(x.device)
    predicted, real = running_means(branch.u(h, t)[0]), running_means(h_aug[REAL:])
    h_rep = h_aug[:REAL].mean(dim=0, keepdim=True)  # Eq. (11)
    return torch.cat([h_rep, mean_pool(h), predicted, real]).float().cpu()


def _encode(branch: Branch, x: Tensor) -> Tensor:
    return branch.encode(normalise(x) if branch.modality is Modality.VISUAL else x)


def _record(branch: Branch, rows: Float[Tensor, "clips rows width"]) -> dict[str, Any]:
    spaces = {"representation": rows, "inter": branch.g_inter(rows), "intra": branch.g_intra(rows)}
    return {"clips": len(rows), "real": REAL, **{name: _space(x.double().cpu()) for name, x in spaces.items()}}


def _space(rows: Float[Tensor, "clips rows width"]) -> dict[str, Any]:
    """Cosines with the first row, plain and about the mean of all first rows."""
    target, centre = rows[:, :1], rows[:, 0].mean(dim=0)
    plain = torch.cosine_similarity(rows, target, dim=-1)
    return {"plain": _curves(plain), "centred": _curves(centred_cosine(rows, target.expand_as(rows), centre))}


def _curves(cosines: Float[Tensor, "clips rows"]) -> dict[str, Any]:
    first, many = 2, len(COUNTS)
    names = {"predicted": first, "real": first + many}
    return {
        "original": _spread(cosines[:, 1]),
        **{
            name: {str(s): _spread(cosines[:, start + k]) for k, s in enumerate(COUNTS)}
            for name, start in names.items()
        },
    }


def _spread(values: Float[Tensor, " clips"]) -> dict[str, float]:
    """Mean over clips, and between which values eight of ten clips lie."""
    low, high = (float(values.quantile(q)) for q in SPREAD)
    return {"mean": float(values.mean()), "p10": low, "p90": high}
