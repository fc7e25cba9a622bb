"""Where in a frame the audio comes from: maps, and how well they agree with boxes.

Five methods ask a trained model which tokens of a frame fit the audio; none needs further training.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Literal, cast, get_args

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, UInt8
from numpy.typing import NDArray
from torch import Tensor

from equiav.build import build_pipelines
from equiav.data import Dataset, Subset, evenly_spaced
from equiav.errors import ConfigError, DataError, ShapeError
from equiav.evaluation.base import ASSETS, Examples, Report, Results, of_list, of_list_lines, pixels, silent
from equiav.evaluation.embed import embed_dataset
from equiav.evaluation.equivariance import interval
from equiav.inference import LoadedModel
from equiav.io import Progress
from equiav.media import square, to_float
from equiav.models import AttentionPredictor, Branch
from equiav.randomness import generator
from equiav.report import heat_overlay, image_png, outlined
from equiav.types import AUDIO, VISUAL

Method = Literal["blend", "removal", "centroid", "projection", "attention"]
METHODS: tuple[Method, ...] = get_args(Method)
Scores = Float[Tensor, "n tokens"]
Maps = Float[Tensor, "n h w"]
Boxes = Float[Tensor, "_ 4"]  # x0, y0, x1, y1 in pixels

REMOVAL_VECTORS = 16  # of the bank; the difference of two centroids needs fewer than the centroid itself
REMOVAL_NUMBERS = 1 << 24  # of the copies of tokens held at a time: 64 MB
THRESHOLDS = tuple(k / 20 for k in range(21))
BATCH = 16
VECTORS = 1000  # drawn to find the transformation nearest to the centroid
SIDE = 192  # pixels of a frame on a page, at least
CONTROLS = ("sound", "other sound", "centre")  # as results name them: the clip's audio, another clip's, no audio


# Which tokens of a frame fit the audio


def token_scores(
    model: LoadedModel, h: Float[Tensor, "n tokens width"], z_a: Float[Tensor, "n out"], method: Method
) -> Scores:
    """One score per token; only their order and distances within a frame mean something.

    centroid: the embedding of one token at a time, z_i = g(mean over the bank of u(h_i, t)), cosine with the audio.
    projection: the same with g(h_i). removal: how much the cosine of the whole frame falls when the token is left out.
    attention: where the predictor looks, whatever the audio. blend: removal and attention (its logarithm), each
    standardised over the frame, added up.
    """
    match method:
        case "centroid":
            n, tokens, width = h.shape
            z = model.model.embed_tokens(VISUAL, h.reshape(n * tokens, 1, width), model.banks.get(VISUAL))
            return _cosines(z.view(n, tokens, -1), z_a)
        case "projection":
            return _cosines(_branch(model).g_inter(h), z_a)
        case "removal":
            return _removal(model, h, z_a)
        case "attention":
            return _attention(model, h)
        case "blend":
            looks = _attention(model, h).clamp(min=1e-12).log()
            return _standardised(looks) + _standardised(_removal(model, h, z_a))


def method_of(model: LoadedModel, method: Method | None = None) -> Method:
    """The given method, or the one that suits the model: the blend where it has what it takes, else removal."""
    branch = model.model.equivariant_branch(VISUAL)
    can_attend = branch is not None and hasattr(branch.u, "attention")
    return method or ("blend" if can_attend and model.uses_banks else "removal")


def _branch(model: LoadedModel) -> Branch:
    branch = model.model.equivariant_branch(VISUAL)
    if branch is None:
        raise ConfigError("this model has neither predictor nor heads per token; choose removal or centroid")
    return branch


def _cosines(z: Float[Tensor, "n tokens out"], z_a: Float[Tensor, "n out"]) -> Scores:
    return (F.normalize(z, dim=-1) * F.normalize(z_a, dim=-1)[:, None]).sum(dim=-1)


def _removal(model: LoadedModel, h: Float[Tensor, "n tokens width"], z_a: Float[Tensor, "n out"]) -> Scores:
    n, tokens, width = h.shape
    bank = model.banks[VISUAL][:REMOVAL_VECTORS] if VISUAL in model.banks else None
    whole = F.cosine_similarity(model.model.embed_tokens(VISUAL, h, bank), z_a)
    others = torch.arange(tokens - 1, device=h.device).expand(tokens, -1)
    kept = others + (others >= torch.arange(tokens, device=h.device)[:, None])  # row j: all tokens but j
    portion = max(1, REMOVAL_NUMBERS // max(1, tokens * width))
    rows = []
    for i in range(n):
        without = [model.model.embed_tokens(VISUAL, h[i][part], bank) for part in torch.split(kept, portion)]
        rows.append(whole[i] - F.cosine_similarity(torch.cat(without), z_a[i : i + 1]))
    return torch.stack(rows)


def _attention(model: LoadedModel, h: Float[Tensor, "n tokens width"]) -> Scores:
    predictor = _branch(model).u
    if not hasattr(predictor, "attention"):
        raise ConfigError("this model's predictor has no attention; choose removal, centroid or projection")
    if not model.uses_banks:
        raise ConfigError("this model was trained without its predictor; choose removal, centroid or projection")
    attention: Tensor = cast(AttentionPredictor, predictor).attention(h, model.banks[VISUAL][None])
    return attention.mean(dim=(1, 2))


def _standardised(scores: Scores) -> Scores:
    centred = scores - scores.mean(dim=1, keepdim=True)
    return centred / centred.square().mean(dim=1, keepdim=True).sqrt().clamp(min=1e-12)


def upsample(scores: Scores, grid: tuple[int, int], size: tuple[int, int]) -> Maps:
    """Scores on the patch grid as maps of the frame's size, smoothly."""
    return F.interpolate(scores.view(-1, 1, *grid), size=size, mode="bicubic", align_corners=False)[:, 0]


@torch.inference_mode()
def heat_maps(
    model: LoadedModel, x: Float[Tensor, "n 3 h w"], z_a: Float[Tensor, "n out"], method: Method | None = None
) -> Maps:
    """Maps of normalised square frames for the audio whose embeddings are given."""
    h = model.model.encode(VISUAL, x)
    scores = token_scores(model, h, z_a.to(h.device), method_of(model, method))
    return upsample(scores, model.model.grid(VISUAL, x, h), (x.shape[2], x.shape[3])).float().cpu()


def localise(
    model: LoadedModel,
    waveform: Float[Tensor, " samples"],
    frames: UInt8[Tensor, "n 3 h w"],
    method: Method | None = None,
) -> tuple[Float[Tensor, "n side side"], UInt8[Tensor, "n 3 side side"]]:
    """Maps for decoded frames and one waveform (at the model's sample rate), and the squares that they lie on."""
    squares = square(frames, model.config.visual.size)
    z_a = embed_waveform(model, waveform).expand(len(squares), -1)
    return heat_maps(model, model.frames(squares.to(model.device)), z_a, method), squares


def embed_waveform(model: LoadedModel, waveform: Float[Tensor, " samples"]) -> Float[Tensor, "1 out"]:
    """The embedding of one waveform at the model's sample rate."""
    transform = model.inputs[AUDIO]
    return model.embed(AUDIO, transform.finish(transform.prepare(waveform[None].to(model.device))))


# How well a map agrees with boxes


def agreement(maps: Maps, boxes: Sequence[Boxes]) -> Float[Tensor, "n 3"]:
    """Every map against the union of its frame's boxes; a frame without boxes is refused.

    Columns: whether the maximum falls into a box; IoU at the boxes' own area; IoU when cut at the map's median.
    """
    if len(maps) != len(boxes):
        raise ShapeError(f"{len(maps)} maps for the boxes of {len(boxes)} frames")
    rows = []
    for heat, of_frame in zip(maps, boxes, strict=True):
        truth = _covered(of_frame, *heat.shape).flatten()
        area = int(truth.sum())
        if not area:
            raise ShapeError("a frame without boxes (or with boxes outside it) cannot be judged; leave it out")
        flat = heat.flatten()
        order = flat.argsort(descending=True, stable=True)
        adaptive = torch.zeros_like(flat, dtype=torch.bool)
        adaptive[order[:area]] = True
        rows.append((float(truth[order[0]]), _iou(adaptive, truth), _iou(flat > flat.median(), truth)))
    return torch.tensor(rows)


def _covered(boxes: Boxes, height: int, width: int) -> Bool[Tensor, "h w"]:
    """The pixels whose centres lie in any of the boxes."""
    y, x = torch.arange(height)[:, None] + 0.5, torch.arange(width)[None] + 0.5
    inside = [(x >= x0) & (x <= x1) & (y >= y0) & (y <= y1) for x0, y0, x1, y1 in boxes.tolist()]
    return torch.stack(inside).any(dim=0) if inside else torch.zeros(height, width, dtype=torch.bool)


def _iou(found: Bool[Tensor, " pixels"], truth: Bool[Tensor, " pixels"]) -> float:
    return float((found & truth).sum() / (found | truth).sum().clamp(min=1))


def agreement_metrics(rows: Float[Tensor, "n 3"]) -> dict[str, float]:
    """Per cent; `cIoU`: frames with a median IoU of at least 0.5; `AUC`: the same over all thresholds."""
    pointing, adaptive, median = rows.unbind(dim=1)
    success = [float((median >= threshold).double().mean()) for threshold in THRESHOLDS]
    step = THRESHOLDS[1] - THRESHOLDS[0]
    return {
        "pointing": 100 * float(pointing.double().mean()),
        "adaptive_iou": 100 * float(adaptive.double().mean()),
        "cIoU": 100 * success[THRESHOLDS.index(0.5)],
        "AUC": 100 * sum((a + b) / 2 * step for a, b in pairwise(success)),
        "pictures": len(rows),
    }


def centre_prior(height: int, width: int) -> Float[Tensor, "h w"]:
    """The guess of somebody who has neither seen nor heard anything: the nearer to the middle, the likelier."""
    y = (torch.arange(height) + 0.5) / height - 0.5
    x = (torch.arange(width) + 0.5) / width - 0.5
    return -(y[:, None].square() + x[None].square())


# The evaluator


@dataclass(frozen=True)
class Localisation:
    """The evaluator of localisation: the middle frame of every clip with boxes, beside two controls.

    The controls are another clip's audio, given to every clip by `seed`, and the centre of the frame: a model that
    ignores the audio does as well with another clip's. `split` and `listed`, see `Retrieval`, are for the record.
    """

    method: Method | None = None
    seed: int = 0
    split: str | None = None
    listed: int | None = None
    examples: int = 12
    report: Report = silent

    primary = "localisation/all/sound/pointing"
    greater_is_better = True

    def __call__(self, model: LoadedModel, dataset: Dataset) -> Results:
        """Metrics by subset and control, and by how much the clip's own audio is ahead of the controls."""
        method, frame = method_of(model, self.method), dataset.frames // 2
        boxes = {i: dataset.boxes(i, frame) for i in range(len(dataset))}
        rows = [i for i, found in boxes.items() if len(found)]
        if len(rows) < 2:
            raise DataError(f"{len(rows)} of {len(dataset)} clips have boxes; localisation needs at least two of them")
        chosen = Subset(dataset, rows)
        maps = self._maps(model, chosen, method)
        found = {name: agreement(of, [boxes[i] for i in rows]) for name, of in maps.items()}
        # Where it is known that other objects of the frame are silent, the audio must choose.
        with_silent = [k for k in range(len(chosen)) if chosen.clip(k).metadata.get("silent", 0)]
        subsets = {"all": list(range(len(chosen)))} | ({"with silent things": with_silent} if with_silent else {})
        metrics = {}
        for subset, places in subsets.items():
            part = {name: of[places] for name, of in found.items()}
            pointing = {name: 100 * of[:, 0].double() for name, of in part.items()}
            metrics[subset] = {
                **{name: agreement_metrics(of) for name, of in part.items()},
                "ahead_of_other_sound": interval(pointing["sound"] - pointing["other sound"]),
                "ahead_of_centre": interval(pointing["sound"] - pointing["centre"]),
            }
        last = list(subsets.values())[-1]
        shown = Examples(dataset.sides(), model.config)
        record = {
            "task": "localisation",
            "split": self.split,
            **of_list(dataset, self.listed),
            "method": method,
            "seed": self.seed,
            "left_out_without_boxes": len(dataset) - len(rows),
            "localisation": metrics,
            "checkpoint": model.meta,
            "examples": [
                _example(shown, dataset, rows[i], {name: (maps[name][i], found[name][i]) for name in CONTROLS[:2]})
                for i in (last[k] for k in evenly_spaced(len(last), self.examples))
            ],
        }
        lines = []
        for subset, values in metrics.items():
            points = ", ".join(f"{name} {values[name]['pointing']:.1f} %" for name in CONTROLS)
            lines.append(f"{subset} ({values['sound']['pictures']} clips): pointing {points}")
        lines += of_list_lines(record)
        return Results(
            record, primary=self.primary, lines=tuple(lines), template="localisation.html", assets=shown.assets,
            watch="localisation",
        )  # fmt: skip

    def _maps(self, model: LoadedModel, clips: Dataset, method: Method) -> dict[str, Maps]:
        """The maps of every clip by control."""
        z_a = embed_dataset(model, Subset(clips, range(len(clips)), (AUDIO,)))[AUDIO]
        asked = {"sound": z_a, "other sound": z_a[partners(len(clips), self.seed)]}
        maps: dict[str, list[Tensor]] = {name: [] for name in asked}
        progress = Progress(len(clips), self.report, "localising clips")
        for start in range(0, len(clips), BATCH):
            rows = range(start, min(start + BATCH, len(clips)))
            frames = torch.stack([clips.part(i, clips.frames // 2, (VISUAL,)).inputs[VISUAL] for i in rows])
            x = model.frames(frames.to(model.device))
            for name, z in asked.items():
                maps[name].append(heat_maps(model, x, z[start : start + len(rows)], method))
            progress.update(rows[-1] + 1)
        whole = {name: torch.cat(parts) for name, parts in maps.items()}
        return whole | {"centre": centre_prior(*whole["sound"].shape[1:]).expand_as(whole["sound"])}


def partners(count: int, seed: int) -> Tensor:
    """For every clip another one, drawn as a single cycle so that nobody gets their own."""
    order = torch.randperm(count, generator=generator(seed, 0, "other sound"))
    partner = torch.empty_like(order)
    partner[order] = order.roll(1)
    return partner


def _example(shown: Examples, clips: Dataset, index: int, maps: Mapping[str, tuple[Tensor, Tensor]]) -> dict[str, Any]:
    """A clip with its audio, its frame with boxes, and the maps under its own and under another clip's audio."""
    frame = clips.part(index, clips.frames // 2, (VISUAL,)).inputs[VISUAL]
    boxes, scale = clips.boxes(index, clips.frames // 2), scale_of(frame)
    stem = f"{ASSETS}/frame-{index}"
    record = {**shown.item(AUDIO, index, play=True), "frame": f"{stem}.png", "boxes": boxes.tolist(), "maps": {}}
    shown.assets[record["frame"]] = image_png(outlined(pixels(frame, scale), boxes.numpy() * scale))
    for name, (heat, found) in maps.items():
        overlaid = f"{stem}-{name.replace(' ', '-')}.png"
        shown.assets[overlaid] = image_png(overlay(frame, heat, boxes))
        record["maps"][name] = {"image": overlaid, "hit": bool(found[0])}
    return record


def scale_of(frame: Tensor) -> int:
    """How many times larger a frame is shown."""
    return max(1, SIDE // frame.shape[1])


def overlay(
    frame: UInt8[Tensor, "3 h w"] | Float[Tensor, "3 h w"], heat: Float[Tensor, "h w"], boxes: Tensor | None = None
) -> NDArray[np.uint8]:
    """The frame under its map, with lines round boxes, at a size that can be looked at."""
    scale = scale_of(frame)
    drawn = heat_overlay(pixels(frame, scale), heat.numpy().repeat(scale, 0).repeat(scale, 1))
    return drawn if boxes is None else outlined(drawn, boxes.numpy() * scale)


# The paper's qualitative figure


@torch.inference_mode()
def nearest_transformation(
    model: LoadedModel,
    frame: UInt8[Tensor, "3 side side"],
    z_a: Float[Tensor, " out"],
    *,
    vectors: int = VECTORS,
    seed: int = 0,
    method: Method | None = None,
) -> tuple[Float[Tensor, "2 3 side side"], Float[Tensor, "2 side side"], float]:
    """What the centroid looks like as a frame: under the drawn transformation whose embedding lies nearest to it.

    Many augmentation vectors are drawn; the equivariant embedding nearest to their centroid stands for it. Returns the
    frame and the transformed one in [0, 1], their maps, and the cosine of the chosen embedding with the centroid.
    """
    config = model.config
    if not model.uses_banks or config.augment.layout != "paper":
        raise ConfigError("the nearest transformation needs a model trained with equivariant embeddings and our layout")
    pipeline, branch = build_pipelines(config)[VISUAL], _branch(model)
    draws = pipeline.sample(vectors, generator(seed, 0, "representative"))
    t = pipeline.encode(draws).to(model.device)
    x = to_float(frame[None]).to(model.device)
    h_hat = branch.u(branch.encode(model.inputs[VISUAL].finish(x)), t[None])  # (1, vectors, width)
    z_hat, z_bar = branch.g_inter(h_hat[0]), branch.g_inter(h_hat.mean(dim=1))
    cosines = F.cosine_similarity(z_hat, z_bar)
    best = int(cosines.argmax())
    both = torch.cat([x, pipeline.apply(x, draws.rows(best, best + 1)).clamp(0, 1)])
    maps = heat_maps(model, model.inputs[VISUAL].finish(both), z_a.expand(2, -1), method)
    return both.cpu(), maps, float(cosines[best])
