"""A few clips under their draws, each view with its cosines: what the figures of equivariance are about."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from equiav.build import build_inputs, build_pipelines
from equiav.data import ClipDataset, collate, evenly_spaced
from equiav.evaluation.equivariance import DRAWS, evenly, one_batch
from equiav.evaluation.equivariance_plan import make_plan
from equiav.inference import LoadedModel
from equiav.types import Modality

EXAMPLES, SHOWN = 3, 5


@dataclass(frozen=True)
class Example:
    """One clip in one modality: the input, some of its views, and what was measured on each."""

    name: str
    modality: Modality
    original: Tensor  # (C, H, W): a picture in [0, 1], or (1, T, F) a standardised spectrogram
    views: Tensor  # (views, C, H, W)
    true: tuple[float, ...]
    identity: tuple[float, ...]
    another: tuple[float, ...]  # mean over the vectors of the clip's other draws


@torch.inference_mode()
def examples(
    loaded: LoadedModel, clips: ClipDataset, *, seed: int = 0, count: int = 500, draws: int = DRAWS
) -> list[Example]:
    """Evenly spaced clips of those that were measured, under the first of the draws that were measured."""
    chosen = evenly(clips, count)
    inputs, device = build_inputs(loaded.config.audio), next(loaded.model.parameters()).device
    found = []
    for m, pipeline in build_pipelines(loaded.config.augment).items():
        plan = make_plan(pipeline, m, clips=len(chosen), draws=draws, seed=seed, parts=False)
        for i in evenly_spaced(len(chosen), EXAMPLES):
            batch, mine = collate([chosen.sample(i, chosen.frames // 2)]), plan.rows(i, i + 1)
            x = inputs.before_augmentation(batch.to(device), m)
            views = pipeline.apply(x.expand(draws, -1, -1, -1), mine.full)[:SHOWN].cpu()
            scores = one_batch(loaded.model[m], mine, x)
            pairs = scores.pairs[0]
            own = pairs.diagonal()
            another = (pairs.sum(dim=0) - own) / max(1, draws - 1)
            shown = (tuple(v[:SHOWN].tolist()) for v in (own, scores.identity[0], another))
            found.append(Example(batch.names[0], m, x[0].cpu(), views, *shown))
    return found
