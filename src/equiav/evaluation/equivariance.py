"""Does u follow the augmentation? Cosines of z_hat and z' against the identity and against other vectors."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from equiav.augment import PipelineDraw
from equiav.build import build_inputs, build_pipelines
from equiav.config import Config
from equiav.data import Chosen, ClipDataset, evaluation_batches, evenly_spaced
from equiav.errors import ConfigError, DataError
from equiav.evaluation.equivariance_centroid import approximation
from equiav.evaluation.equivariance_plan import Plan, make_plan
from equiav.evaluation.equivariance_scores import (
    beside,
    centred_cosine,
    clip_means,
    interval,
    others_mean,
    rank_among_draws,
)
from equiav.inference import LoadedModel
from equiav.media import normalise
from equiav.models import Branch, Tokens
from equiav.progress import Countdown
from equiav.types import Modality

DRAWS = 8  # per clip: a mean over them, and the pool in which a prediction looks for its own
CENTROID_CLIPS = 100
ENCODED_AT_ONCE = 64
# Similarity of the paper's table of predictor architectures.
PAPER = {
    "linear": {"A": 0.85, "V": 0.87},
    "hypernetwork": {"A": 0.87, "V": 0.90},
    "attention": {"A": 0.90, "V": 0.92},
}
COLUMNS = {Modality.AUDIO: "A", Modality.VISUAL: "V"}

Say = Callable[[str], None]


def check_measurable(config: Config) -> None:
    """Refuses models whose predictor was not trained, or whose augmentations cannot be applied here."""
    if config.augment.layout != "paper":
        raise ConfigError(
            f"augment.layout {config.augment.layout}: how the released code applied its augmentations is not "
            "reproduced, so nothing can be compared with its vectors; equivariance needs a model trained here"
        )
    if config.objective.intra != "equivariant":
        raise ConfigError(
            f"objective.intra {config.objective.intra}: this model's predictor was never trained; "
            "equivariance needs a model trained with objective.intra=equivariant"
        )


def evenly(clips: ClipDataset, count: int) -> ClipDataset:
    """At most `count` clips, evenly spaced over the set."""
    if not len(clips):
        raise DataError("the split holds no clips; choose another --split")
    return Chosen(clips, tuple(evenly_spaced(len(clips), count)))


@dataclass(frozen=True)
class Cosines:
    """Cosines with z' of every clip, and for the first two draws the unit embeddings themselves, to be centred.

    The columns of `alone` are: true vector, identity, redrawn vector.
    """

    pairs: Float[Tensor, "n draws draws"]  # of the prediction for draw d with the input augmented by draw e
    identity: Float[Tensor, "n draws"]
    redrawn: dict[str, Float[Tensor, "n draws"]]
    left_out: dict[str, Float[Tensor, "n draws"]]
    alone: dict[str, Float[Tensor, "n 3"]]
    changed: dict[str, Float[Tensor, " n"]]  # how far the part alone moves the input, beside the input's deviation
    vectors: Float[Tensor, "n 4 d"]  # z' and z_hat of the first draw, z_hat of the second, g_intra(mean h)


def joined(parts: list[Cosines]) -> Cosines:
    """The scores of consecutive batches as one."""

    def join(name: str) -> Any:
        values = [getattr(part, name) for part in parts]
        if isinstance(values[0], dict):
            return {key: torch.cat([value[key] for value in values]) for key in values[0]}
        return torch.cat(values)

    return Cosines(**{field.name: join(field.name) for field in fields(Cosines)})


@dataclass(frozen=True)
class Probe:
    """One branch asked for unit embeddings in the intra-modal space."""

    branch: Branch

    def view(self, x: Tensor) -> Tensor:
        """An input before normalisation as the encoder wants it."""
        return normalise(x) if self.branch.modality is Modality.VISUAL else x

    def original(self, x: Tensor) -> tuple[Tokens, Float[Tensor, "b d"]]:
        """h, and the identity's prediction: g_intra(mean h)."""
        h = self.branch.encode(self.view(x))
        return h, F.normalize(self.branch.augmented(h), dim=-1)

    def augmented(self, x_aug: Tensor) -> Float[Tensor, "b d"]:
        """z', a few views at a time."""
        rows = [
            self.branch.augmented(self.branch.encode(self.view(part))) for part in torch.split(x_aug, ENCODED_AT_ONCE)
        ]
        return F.normalize(torch.cat(rows), dim=-1)

    def predicted(self, h: Tokens, t: Float[Tensor, "b S d_t"]) -> Float[Tensor, "b S d"]:
        """z_hat for each of the vectors."""
        return F.normalize(self.branch.g_intra(self.branch.u(h, t.to(h.device))), dim=-1)


def one_batch(branch: Branch, plan: Plan, x: Tensor) -> Cosines:
    """Scores of a batch of inputs before augmentation; `plan` holds its rows."""
    probe, pipeline, d = Probe(branch), plan.pipeline, plan.draws
    h, z = probe.original(x)
    z_aug = probe.augmented(pipeline.apply(x.repeat_interleave(d, dim=0), plan.full)).view(len(x), d, -1)
    z_hat = probe.predicted(h, plan.vectors(plan.full))

    def told(draws: PipelineDraw) -> Tensor:
        return (probe.predicted(h, plan.vectors(draws)) * z_aug).sum(dim=-1).double().cpu()

    alone, changed = {}, {}
    for name in plan.alone:
        alone[name], changed[name] = _alone(probe, plan, x, (h, z), name)
    second = z_hat[:, min(1, d - 1)]
    return Cosines(
        pairs=(z_hat @ z_aug.transpose(1, 2)).double().cpu(),
        identity=(z_aug @ z[:, :, None])[:, :, 0].double().cpu(),
        redrawn={name: told(draws) for name, draws in plan.redrawn.items()},
        left_out={name: told(pipeline.leave_out(plan.full, name)) for name in plan.redrawn},
        alone=alone,
        changed=changed,
        vectors=torch.stack([z_aug[:, 0], z_hat[:, 0], second, z], dim=1).float().cpu(),
    )


def _alone(probe: Probe, plan: Plan, x: Tensor, original: tuple[Tokens, Tensor], name: str) -> tuple[Tensor, Tensor]:
    """The three cosines where one part acts alone, and how far it moves the input."""
    h, z = original
    x_aug = plan.pipeline.apply(x, plan.alone[name])
    z_aug = probe.augmented(x_aug)
    t = [plan.pipeline.encode(draws[name]) for draws in (plan.alone, plan.alone_redrawn)]
    z_hat = probe.predicted(h, torch.stack(t, dim=1))
    offered = torch.stack([z_hat[:, 0], z, z_hat[:, 1]], dim=1)
    change = (x_aug - x).square().flatten(1).mean(dim=1).sqrt() / x.flatten(1).std(dim=1).clamp(min=1e-6)
    return (offered @ z_aug[:, :, None])[:, :, 0].double().cpu(), change.double().cpu()


@torch.inference_mode()
def measure(
    loaded: LoadedModel,
    clips: ClipDataset,
    plans: dict[Modality, Plan],
    *,
    batch: int = 16,
    say: Say = lambda line: None,
) -> dict[Modality, Cosines]:
    """The scores of every clip, batch by batch; what stays in memory is small numbers and four embeddings a clip."""
    inputs = build_inputs(loaded.config.audio)
    device = next(loaded.model.parameters()).device
    found: dict[Modality, list[Cosines]] = {m: [] for m in plans}
    done, countdown = 0, Countdown(len(clips), say, "equivariance of clips")
    for part in evaluation_batches(clips, batch=batch):
        for m, plan in plans.items():
            x = inputs.before_augmentation(part.to(device), m)
            found[m].append(one_batch(loaded.model[m], plan.rows(done, done + len(part)), x))
        done += len(part)
        countdown.update(done)
    return {m: joined(parts) for m, parts in found.items()}


def predictor_similarity(
    loaded: LoadedModel, clips: ClipDataset, *, seed: int = 0, count: int = 500, draws: int = DRAWS, batch: int = 16
) -> dict[str, float]:
    """Mean cosine of z_hat and z', columns A and V of the paper's table of predictor architectures."""
    check_measurable(loaded.config)
    clips = evenly(clips, count)
    plans = {
        m: make_plan(pipeline, m, clips=len(clips), draws=draws, seed=seed, parts=False)
        for m, pipeline in build_pipelines(loaded.config.augment).items()
    }
    scores = measure(loaded, clips, plans, batch=batch)
    return {COLUMNS[m]: float(true_cosine(s).mean()) for m, s in scores.items()}


def true_cosine(scores: Cosines) -> Float[Tensor, " n"]:
    """Each clip's mean cosine of z_hat and z' under its own draws."""
    return scores.pairs.diagonal(dim1=1, dim2=2).mean(dim=1)


def full_record(scores: Cosines) -> dict[str, Any]:
    """Under full draws: the paper's cosine, beside the identity and a vector of another draw."""
    true = true_cosine(scores)
    mean, low, high = interval(true)
    return {
        "true": {"mean": mean, "low": low, "high": high},
        "identity": beside(true, scores.identity.mean(dim=1)).record(),
        "another_draw": beside(true, others_mean(scores.pairs)).record(),
    }


def centred_record(scores: Cosines) -> dict[str, Any]:
    """The same for one draw a clip, about the mean of all z': what all embeddings share counts for nothing."""
    z_aug, z_hat, z_other, z = scores.vectors.double().unbind(dim=1)
    centre = z_aug.mean(dim=0)
    true, other, identity = (centred_cosine(v, z_aug, centre) for v in (z_hat, z_other, z))
    mean, low, high = interval(true)
    return {
        "true": {"mean": mean, "low": low, "high": high},
        "identity": beside(true, identity).record(),
        "another_draw": beside(true, other).record(),
    }


def part_records(scores: Cosines, plan: Plan) -> dict[str, Any]:
    """Per augmentation under full draws, where it is on: only what the vector says of it is drawn anew or left out."""
    own, records = scores.pairs.diagonal(dim1=1, dim2=2), {}
    for name in plan.pipeline.parts:
        counted = plan.counted(name)
        true, identity, redrawn, left_out = (
            clip_means(v, counted) for v in (own, scores.identity, scores.redrawn[name], scores.left_out[name])
        )
        records[name] = {
            "clips": int(counted.any(dim=1).sum()),
            "draws": int(counted.sum()),
            "true": float(true.nanmean()),
            "identity": beside(true, identity).record(),
            "redrawn": beside(true, redrawn).record(),
            "left_out": beside(true, left_out).record(),
        }
    return records


def alone_records(scores: Cosines, plan: Plan) -> dict[str, Any]:
    """Per augmentation with nothing else applied; `input_change` is in deviations of the input."""
    records = {}
    for name in plan.pipeline.parts:
        counted = plan.counted_alone(name)
        true, identity, redrawn = (clip_means(scores.alone[name][:, k : k + 1], counted) for k in range(3))
        records[name] = {
            "clips": int(counted.sum()),
            "input_change": float(scores.changed[name].mean()),
            "true": float(true.nanmean()),
            "identity": beside(true, identity).record(),
            "redrawn": beside(true, redrawn).record(),
        }
    return records


def equivariance_record(
    loaded: LoadedModel,
    clips: ClipDataset,
    *,
    seed: int = 0,
    count: int = 500,
    draws: int = DRAWS,
    centroid_clips: int = CENTROID_CLIPS,
    batch: int = 16,
    say: Say = lambda line: None,
) -> dict[str, Any]:
    """All that is measured on at most `count` clips, as written to results files."""
    check_measurable(loaded.config)
    chosen = evenly(clips, count)
    pipelines = build_pipelines(loaded.config.augment)
    plans = {m: make_plan(p, m, clips=len(chosen), draws=draws, seed=seed) for m, p in pipelines.items()}
    scores = measure(loaded, chosen, plans, batch=batch, say=say)
    few = evenly(clips, min(count, centroid_clips))
    return {
        "task": "equivariance",
        "clips": len(chosen),
        "draws": draws,
        "seed": seed,
        "predictor": loaded.config.model.predictor.kind,
        "similarity": {m.value: full_record(s) for m, s in scores.items()},
        "paper": PAPER,
        "centred": {m.value: centred_record(s) for m, s in scores.items()},
        "ranking": {m.value: rank_among_draws(s.pairs) for m, s in scores.items()},
        "augmentations": {m.value: part_records(s, plans[m]) for m, s in scores.items()},
        "alone": {m.value: alone_records(s, plans[m]) for m, s in scores.items()},
        "approximation": approximation(loaded, few, pipelines, seed=seed, say=say),
        "checkpoint": loaded.meta,
    }
