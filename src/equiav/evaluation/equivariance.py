"""Does u follow the augmentation? Cosines of z_hat and z' against the identity and against other vectors.

Also the approximation behind the method, Eqs. (11), (12): centroids of u(h, t) against means of really augmented
inputs.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, cast

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor

from equiav.augment import Pipeline, PipelineDraw
from equiav.build import build_pipelines
from equiav.data import Dataset, Subset, collate, evaluation_batches, evenly_spaced
from equiav.errors import ConfigError, DataError
from equiav.evaluation.base import ASSETS, SIDE, Report, Results, pixels, silent
from equiav.inference import LoadedModel
from equiav.io import Progress
from equiav.media import prepare_batch
from equiav.models import Branch, Tokens, centroid, mean_pool
from equiav.randomness import generator
from equiav.report import image_png
from equiav.types import VISUAL, Modality

DRAWS = 8  # per clip: a mean over them, and the pool in which a prediction looks for its own
NORMAL_95 = 1.96  # standard errors on either side of a mean
ENCODED_AT_ONCE = 64
CENTROID_CLIPS = 100
REAL = 64  # really augmented inputs whose mean stands for h_rep
COUNTS = (1, 2, 4, 8, 16, 32, 64)  # numbers S of vectors in a centroid
SHOWN = 5  # views of an example
# Similarity of the paper's table of predictor architectures.
PAPER = {
    "linear": {"A": 0.85, "V": 0.87},
    "hypernetwork": {"A": 0.87, "V": 0.90},
    "attention": {"A": 0.90, "V": 0.92},
}
Drawn = dict[str, PipelineDraw]  # by name; see `draw_views`
Scores = dict[str, Tensor]  # by name, one row per clip; see `one_batch`


def check_measurable(loaded: LoadedModel) -> None:
    """Refuses models whose predictor was not trained, or whose augmentations cannot be applied here."""
    config = loaded.config
    if config.augment.layout != "paper":
        raise ConfigError(
            f"augment.layout {config.augment.layout}: how the released code applied its augmentations is not "
            "reproduced, so nothing can be compared with its vectors; equivariance needs a model trained here"
        )
    if not config.objective.has_predictor or any(loaded.model.equivariant_branch(m) is None for m in loaded.modalities):
        raise ConfigError(f"objective.kind {config.objective.kind}: equivariance asks a predictor, this model has none")
    if config.objective.intra != "equivariant":
        raise ConfigError(
            f"objective.intra {config.objective.intra}: this model's predictor was never trained; "
            "equivariance needs a model trained with objective.intra=equivariant"
        )


def evenly(clips: Dataset, count: int) -> Dataset:
    """At most `count` clips, evenly spaced over the dataset."""
    if not len(clips):
        raise DataError("the split holds no clips; choose another --split")
    return Subset(clips, evenly_spaced(len(clips), count))


# What is drawn


def draw_views(pipeline: Pipeline, m: Modality, *, clips: int, draws: int, seed: int, parts: bool = True) -> Drawn:
    """All randomness of one modality, for all clips at once, so that the batch size does not matter.

    `full`: everything, `draws` rows a clip. With `parts`, per augmentation: `redrawn.NAME`, the same but for this one;
    `alone.NAME`, this one and nothing else, a row a clip; `alone_redrawn.NAME`.
    """

    def source(purpose: str) -> torch.Generator:
        return generator(seed, 0, f"equivariance/{purpose}/{m}")

    found = {"full": pipeline.sample(clips * draws, source("full"))}
    for name in pipeline.parts if parts else ():
        alone = pipeline.alone(name, clips, source(f"alone/{name}"))
        found[f"redrawn.{name}"] = pipeline.redraw(found["full"], name, source(f"redrawn/{name}"))
        found[f"alone.{name}"] = alone
        found[f"alone_redrawn.{name}"] = pipeline.redraw(alone, name, source(f"alone/redrawn/{name}"))
    return found


def rows_of(drawn: Drawn, clips: int, start: int, stop: int) -> Drawn:
    """Of the draws for `clips` clips, those of clips `start` up to `stop`."""
    return {k: d.rows(start * d.batch // clips, stop * d.batch // clips) for k, d in drawn.items()}


def counted(pipeline: Pipeline, name: str, draws: PipelineDraw, redrawn: PipelineDraw) -> Bool[Tensor, " rows"]:
    """Where an augmentation is on, and redrawing it changes its part of the vector."""
    encode = pipeline.parts[name].encode
    return draws[name].on & (encode(draws[name]) != encode(redrawn[name])).any(dim=1)


# Cosines, batch by batch.


def _branch(loaded: LoadedModel, m: Modality) -> Branch:
    return cast(Branch, loaded.model.equivariant_branch(m))  # as `check_measurable` found it


def _encode(loaded: LoadedModel, m: Modality, x: Tensor) -> Tokens:
    """h of inputs as augmentations see them."""
    return _branch(loaded, m).encode(loaded.inputs[m].finish(x))


def one_batch(loaded: LoadedModel, m: Modality, pipeline: Pipeline, drawn: Drawn, x: Tensor) -> Scores:
    """Scores of a batch of inputs before augmentation; `drawn` holds its rows. Cosines are with z'.

    `pairs` (n, draws, draws): of the prediction for draw d with the input augmented by draw e; `identity` (n, draws);
    `vectors` (n, 4, d): z' and z_hat of the first draw, z_hat of the second, g_intra(mean h), to be centred. Per
    augmentation: `redrawn.NAME` and `left_out.NAME` (n, draws); `alone.NAME` (n, 3): true vector, identity, redrawn
    vector; `changed.NAME` (n): how far the augmentation alone moves the input, in standard deviations of the input.
    """
    branch, full = _branch(loaded, m), drawn["full"]
    h, d = _encode(loaded, m, x), full.batch // len(x)

    def augmented(x_aug: Tensor) -> Float[Tensor, "b d"]:
        """z' as unit vectors, a few views at a time."""
        parts = torch.split(x_aug, ENCODED_AT_ONCE)
        return F.normalize(torch.cat([branch.augmented(_encode(loaded, m, part)) for part in parts]), dim=-1)

    def predicted(*draws: PipelineDraw) -> Float[Tensor, "n S d"]:
        """z_hat for the vectors of one draw after the other, as unit vectors."""
        t = torch.cat([pipeline.encode(of).view(len(x), -1, len(pipeline.slots)) for of in draws], dim=1)
        return F.normalize(branch.g_intra(branch.u(h, t.to(h.device))), dim=-1)

    z = F.normalize(branch.augmented(h), dim=-1)  # the identity's prediction: g_intra(mean h)
    z_aug = augmented(pipeline.apply(x.repeat_interleave(d, dim=0), full)).view(len(x), d, -1)
    z_hat = predicted(full)
    scores = {"pairs": z_hat @ z_aug.transpose(1, 2), "identity": (z_aug @ z[:, :, None])[:, :, 0]}
    for name in (k.removeprefix("redrawn.") for k in drawn if k.startswith("redrawn.")):
        for kind, draws in (("redrawn", drawn[f"redrawn.{name}"]), ("left_out", pipeline.leave_out(full, name))):
            scores[f"{kind}.{name}"] = (predicted(draws) * z_aug).sum(dim=-1)
        x_alone = pipeline.apply(x, drawn[f"alone.{name}"])
        told = predicted(drawn[f"alone.{name}"], drawn[f"alone_redrawn.{name}"])
        offered = torch.stack([told[:, 0], z, told[:, 1]], dim=1)
        scores[f"alone.{name}"] = (offered @ augmented(x_alone)[:, :, None])[:, :, 0]
        moved = (x_alone - x).square().flatten(1).mean(dim=1).sqrt()
        scores[f"changed.{name}"] = moved / x.flatten(1).std(dim=1).clamp(min=1e-6)
    scores = {name: values.double().cpu() for name, values in scores.items()}
    vectors = torch.stack([z_aug[:, 0], z_hat[:, 0], z_hat[:, min(1, d - 1)], z], dim=1)
    return {**scores, "vectors": vectors.float().cpu()}


@torch.inference_mode()
def measure(
    loaded: LoadedModel, clips: Dataset, drawn: dict[Modality, Drawn], *, batch: int = 16, report: Report = silent
) -> dict[Modality, Scores]:
    """The scores of every clip, batch by batch; what stays in memory is small numbers and four embeddings a clip."""
    pipelines = build_pipelines(loaded.config)
    found: dict[Modality, list[Scores]] = {m: [] for m in drawn}
    done, progress = 0, Progress(len(clips), report, "equivariance of clips")
    for part in evaluation_batches(clips, batch=batch):
        for m, of_all in drawn.items():
            x = prepare_batch(loaded.inputs, part.to(loaded.device), m)
            rows = rows_of(of_all, len(clips), done, done + len(part))
            found[m].append(one_batch(loaded, m, pipelines[m], rows, x))
        done += len(part)
        progress.update(done)
    return {m: {name: torch.cat([s[name] for s in parts]) for name in parts[0]} for m, parts in found.items()}


def _own(scores: Scores) -> Float[Tensor, "n draws"]:
    """Cosine of z_hat and z' of every clip and draw."""
    return scores["pairs"].diagonal(dim1=1, dim2=2)


def predictor_similarity(
    loaded: LoadedModel, clips: Dataset, *, seed: int = 0, count: int = 500, draws: int = DRAWS, batch: int = 16
) -> dict[Modality, float]:
    """Mean cosine of z_hat and z' by modality: columns A and V of the paper's table of predictor architectures."""
    check_measurable(loaded)
    clips = evenly(clips, count)
    drawn = {
        m: draw_views(pipeline, m, clips=len(clips), draws=draws, seed=seed, parts=False)
        for m, pipeline in build_pipelines(loaded.config).items()
    }
    scores = measure(loaded, clips, drawn, batch=batch)
    return {m: float(_own(s).mean(dim=1).mean()) for m, s in scores.items()}


# Statistics: clips are the units.


def interval(values: Float[Tensor, " n"]) -> dict[str, float]:
    """Mean and its 95 % interval (normal): `mean`, `low`, `high`; unknown for fewer than two clips."""
    mean = float(values.mean()) if len(values) else math.nan
    half = NORMAL_95 * float(values.std()) / math.sqrt(len(values)) if len(values) > 1 else math.nan
    return {"mean": mean, "low": mean - half, "high": mean + half}


def paired_difference(true: Float[Tensor, " n"], other: Float[Tensor, " n"]) -> dict[str, float | str]:
    """The true vector's cosines against a baseline's, clip by clip, as written to results files.

    `mean` is the baseline's; `difference` and its 95 % interval are true minus baseline, and `true_is` says where the
    true vector stands if the interval can tell. Clips that are NaN in either do not count.
    """
    known = true.isfinite() & other.isfinite()
    found = interval((true - other)[known])
    true_is = "above" if found["low"] > 0 else "below" if found["high"] < 0 else "level with"
    return {**found, "mean": float(other[known].mean()), "difference": found["mean"], "true_is": true_is}


def clip_means(values: Float[Tensor, "n draws"], counted: Bool[Tensor, "n draws"]) -> Float[Tensor, " n"]:
    """Each clip's mean over the draws that count; NaN where none does."""
    return torch.where(counted, values, 0.0).sum(dim=1) / counted.sum(dim=1)


def others_mean(pairs: Float[Tensor, "n draws draws"]) -> Float[Tensor, " n"]:
    """Each clip's mean over the pairs of different draws: what a vector of another draw gives."""
    d = pairs.shape[1]
    return (pairs.sum(dim=(1, 2)) - pairs.diagonal(dim1=1, dim2=2).sum(dim=1)) / (d * (d - 1))


def rank_among_draws(pairs: Float[Tensor, "n draws draws"]) -> dict[str, float]:
    """How often, and how far up, a prediction finds its own augmented input among all draws of the same clip.

    `pairs[i, d, e]` is the cosine of the prediction for draw d with the input really augmented by draw e. Ties count
    against the truth, so that collapsed embeddings gain nothing. Whatever ignores the vector stays at chance.
    """
    d = pairs.shape[1]
    own = pairs.diagonal(dim1=1, dim2=2)[:, :, None]
    rank = (pairs >= own).sum(dim=2).double()
    return {
        "first": 100 * float((rank == 1).double().mean()),
        "reciprocal_rank": float((1 / rank).mean()),
        "chance_first": 100 / d,
        "chance_reciprocal_rank": sum(1 / k for k in range(1, d + 1)) / d,
        "draws": d,
    }


def centred_cosine(
    a: Float[Tensor, "*n d"], b: Float[Tensor, "*n d"], centre: Float[Tensor, " d"]
) -> Float[Tensor, "*n"]:
    """Cosine as seen from the centre of a set: what is common to all of it counts for nothing."""
    return torch.cosine_similarity(a - centre, b - centre, dim=-1)


# Records of results files.


def _similarity(true: Tensor, identity: Tensor, another: Tensor) -> dict[str, Any]:
    """The paper's cosine, beside the identity and a vector of another draw."""
    others = {"identity": identity, "another_draw": another}
    return {"true": interval(true), **{name: paired_difference(true, other) for name, other in others.items()}}


def centred_record(scores: Scores) -> dict[str, Any]:
    """Similarity for one draw a clip, about the mean of all z': what all embeddings share counts for nothing."""
    z_aug, z_hat, z_other, z = scores["vectors"].double().unbind(dim=1)
    return _similarity(*(centred_cosine(v, z_aug, z_aug.mean(dim=0)) for v in (z_hat, z, z_other)))


def part_records(scores: Scores, pipeline: Pipeline, drawn: Drawn) -> tuple[dict[str, Any], dict[str, Any]]:
    """Per augmentation: under full draws, where it is on and its part alone is redrawn or left out; and with nothing
    else applied, where `input_change` is in standard deviations of the input.
    """

    def compared(true: Tensor, others: dict[str, Tensor], on: Tensor, **more: float | int) -> dict[str, Any]:
        known = clip_means(true, on)
        found = {k: paired_difference(known, clip_means(v, on)) for k, v in others.items()}
        return {"clips": int(on.any(dim=1).sum()), **more, "true": float(known.nanmean()), **found}

    together, alone = {}, {}
    for name in pipeline.parts:
        own = _own(scores)
        on = counted(pipeline, name, drawn["full"], drawn[f"redrawn.{name}"]).view(own.shape)
        others = {"identity": scores["identity"], **{k: scores[f"{k}.{name}"] for k in ("redrawn", "left_out")}}
        together[name] = compared(own, others, on, draws=int(on.sum()))
        on = counted(pipeline, name, drawn[f"alone.{name}"], drawn[f"alone_redrawn.{name}"])[:, None]
        true, identity, redrawn = scores[f"alone.{name}"].chunk(3, dim=1)
        moved = float(scores[f"changed.{name}"].mean())
        alone[name] = compared(true, {"identity": identity, "redrawn": redrawn}, on, input_change=moved)
    return together, alone


# Eqs. (11), (12): h_rep = E[h'] is taken as the mean over many really augmented inputs; the centroid of S predictions
# should approach it as S grows. Two things stand beside it: the original (mean h, one pass and no predictor) and the
# mean of S other really augmented inputs, which costs S passes of the encoder and is as close as anything drawn S
# times can be expected to come.


@torch.inference_mode()
def approximation(loaded: LoadedModel, clips: Dataset, *, seed: int = 0, report: Report = silent) -> dict[str, Any]:
    """Cosines with h_rep against S for both modalities, in the representation and through both heads."""
    pipelines = build_pipelines(loaded.config)
    found: dict[Modality, list[Tensor]] = {m: [] for m in pipelines}
    progress = Progress(len(clips), report, "centroids of clips")
    for i, part in enumerate(evaluation_batches(clips, batch=1)):  # one clip fills the encoder with its views
        for m, pipeline in pipelines.items():
            x = prepare_batch(loaded.inputs, part.to(loaded.device), m)
            found[m].append(one_clip(loaded, m, pipeline, x, generator(seed, i, f"equivariance/centroid/{m}")))
        progress.update(i + 1)
    record = {}
    for m, parts in found.items():
        branch, rows = _branch(loaded, m), torch.stack(parts).to(loaded.device)
        spaces = {"representation": rows, "inter": branch.g_inter(rows), "intra": branch.g_intra(rows)}
        record[m] = {
            "clips": len(rows), "real": REAL, **{name: _space(x.double().cpu()) for name, x in spaces.items()},
        }  # fmt: skip
    return record


def one_clip(
    loaded: LoadedModel, m: Modality, pipeline: Pipeline, x: Float[Tensor, "1 c h w"], rng: torch.Generator
) -> Float[Tensor, "rows width"]:
    """Representations of one clip: h_rep, mean h, centroids for each S, means of S real ones for each S."""
    draws = pipeline.sample(REAL + COUNTS[-1], rng)
    views = pipeline.apply(x.expand(draws.batch, -1, -1, -1), draws)
    h_aug = torch.cat([mean_pool(_encode(loaded, m, part)) for part in torch.split(views, ENCODED_AT_ONCE)])
    h = _encode(loaded, m, x)
    h_hat = _branch(loaded, m).u(h, pipeline.vectors(1, COUNTS[-1], rng).to(x.device))[0]
    predicted, real = (
        torch.stack([centroid(v[None, :s])[0] for s in COUNTS]) for v in (h_hat, h_aug[REAL:])  # Eq. (12)
    )  # fmt: skip
    h_rep = h_aug[:REAL].mean(dim=0, keepdim=True)  # Eq. (11)
    return torch.cat([h_rep, mean_pool(h), predicted, real]).float().cpu()


def _space(rows: Float[Tensor, "clips rows width"]) -> dict[str, Any]:
    """Cosines with the first row, plain and about the mean of all first rows: mean and where eight of ten clips lie."""
    target, centre = rows[:, :1], rows[:, 0].mean(dim=0)
    kinds = {
        "plain": torch.cosine_similarity(rows, target, dim=-1),
        "centred": centred_cosine(rows, target.expand_as(rows), centre),
    }

    def spread(values: Float[Tensor, " clips"]) -> dict[str, float]:
        low, high = (float(values.quantile(q)) for q in (0.1, 0.9))
        return {"mean": float(values.mean()), "p10": low, "p90": high}

    def curve(cosines: Tensor, start: int) -> dict[str, Any]:
        return {str(s): spread(cosines[:, start + k]) for k, s in enumerate(COUNTS)}

    return {
        kind: {"original": spread(c[:, 1]), "predicted": curve(c, 2), "real": curve(c, 2 + len(COUNTS))}
        for kind, c in kinds.items()
    }


# The evaluator.


@dataclass(frozen=True)
class Equivariance:
    """The evaluator of the predictor: at most `count` clips, evenly spaced, under `draws` augmentations each.

    The centroid is compared with really augmented inputs on `centroid_clips` of them. `seed` draws everything; `split`
    is for the record; `examples` clips of each modality are shown.
    """

    count: int = 500
    draws: int = DRAWS
    centroid_clips: int = CENTROID_CLIPS
    seed: int = 0
    split: str | None = None
    batch: int = 16
    examples: int = 3
    report: Report = silent

    primary = "similarity/audio/true/mean"
    greater_is_better = True

    def __call__(self, model: LoadedModel, dataset: Dataset) -> Results:
        """Cosines under full draws and augmentation by augmentation, ranks, and the centroid's approximation."""
        check_measurable(model)
        chosen, pipelines = evenly(dataset, self.count), build_pipelines(model.config)
        drawn = {m: draw_views(p, m, clips=len(chosen), draws=self.draws, seed=self.seed) for m, p in pipelines.items()}
        scores = measure(model, chosen, drawn, batch=self.batch, report=self.report)
        parts = {m: part_records(s, pipelines[m], drawn[m]) for m, s in scores.items()}
        few = evenly(dataset, min(self.count, self.centroid_clips))
        assets: dict[str, bytes] = {}
        record: dict[str, Any] = {
            "task": "equivariance",
            "split": self.split,
            "clips": len(chosen),
            "draws": self.draws,
            "seed": self.seed,
            "predictor": model.config.model.predictor.kind,
            "similarity": {
                m: _similarity(_own(s).mean(dim=1), s["identity"].mean(dim=1), others_mean(s["pairs"]))
                for m, s in scores.items()
            },
            "paper": PAPER,
            "centred": {m: centred_record(s) for m, s in scores.items()},
            "ranking": {m: rank_among_draws(s["pairs"]) for m, s in scores.items()},
            "augmentations": {m: together for m, (together, _) in parts.items()},
            "alone": {m: alone for m, (_, alone) in parts.items()},
            "approximation": approximation(model, few, seed=self.seed, report=self.report),
            "checkpoint": model.meta,
            "examples": [
                _example(model, chosen, i, m, drawn[m]["full"], scores[m], assets)
                for m in drawn
                for i in evenly_spaced(len(chosen), self.examples)
            ],
        }
        return Results(
            record, primary=self.primary, lines=tuple(_lines(record)), template="equivariance.html", assets=assets,
            watch="similarity",
        )  # fmt: skip


def _example(
    model: LoadedModel,
    clips: Dataset,
    index: int,
    m: Modality,
    full: PipelineDraw,
    scores: Scores,
    assets: dict[str, bytes],
) -> dict[str, Any]:
    """A clip and its first views, each with its cosines: true vector, identity, mean over the clip's other draws."""
    x = prepare_batch(model.inputs, collate([clips.sample(index, clips.frames // 2)]), m)
    pairs, identity = scores["pairs"][index], scores["identity"][index]
    draws = len(pairs)
    own, rows = pairs.diagonal(), full.rows(index * draws, (index + 1) * draws)
    views = build_pipelines(model.config)[m].apply(x.expand(draws, -1, -1, -1), rows)[:SHOWN]
    cosines = {"true": own, "identity": identity, "another": (pairs.sum(dim=0) - own) / max(1, draws - 1)}
    limits = (float(x.quantile(0.02)), float(x.quantile(0.998)))

    def shown(view: Tensor, name: str) -> str:
        place = f"{ASSETS}/{m}-{index}-{name}.png"
        if m == VISUAL:
            assets[place] = image_png(pixels(view), scale=max(1, SIDE // view.shape[1]))
        else:
            from equiav.report import spectrogram_png  # it brings matplotlib, which training does without

            assets[place] = spectrogram_png(view[0].numpy(), limits=limits)
        return place

    return {
        "id": clips.clip(index).id,
        "modality": m,
        "image": shown(x[0], "original"),
        "views": [
            {"image": shown(view, f"draw-{k}"), **{name: round(float(v[k]), 4) for name, v in cosines.items()}}
            for k, view in enumerate(views)
        ],
    }


def _lines(record: dict[str, Any]) -> list[str]:
    """The record in a few lines, for a terminal."""
    lines = []
    for m, v in record["similarity"].items():
        rank = record["ranking"][m]
        lines.append(
            f"{m}: cosine {v['true']['mean']:.3f} (identity {v['identity']['mean']:.3f}, another draw "
            f"{v['another_draw']['mean']:.3f}); finds its own view among {rank['draws']} in {rank['first']:.1f} % "
            f"(chance {rank['chance_first']:.1f} %)"
        )
        for name, row in record["augmentations"][m].items():
            told = ", ".join(
                f"{row[k]['true_is']} {k.replace('_', ' ')} "
                f"({row[k]['difference']:+.4f}\u00a0±\u00a0{row[k]['high'] - row[k]['difference']:.4f})"
                for k in ("identity", "redrawn", "left_out")
            )
            lines.append(f"  {name}: {row['true']:.3f}, {told}")
    return lines
