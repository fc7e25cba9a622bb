"""Where in the picture the sound comes from: heat maps, and how well they agree with boxes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float, UInt8
from torch import Tensor

from equiav.build import build_inputs
from equiav.data import Chosen, ClipDataset, WorldDataset, evaluation_batches, picture_boxes
from equiav.errors import DataError
from equiav.evaluation.heat import Method, default_method, token_scores, upsample
from equiav.evaluation.pointing import Agreement, agreement, centre_prior
from equiav.inference import LoadedModel
from equiav.media import square
from equiav.progress import Countdown
from equiav.randomness import stream
from equiav.types import Modality

Maps = Float[Tensor, "n side side"]
Say = Callable[[str], None]
BATCH = 16
CONTROLS = ("sound", "other sound", "centre")


def method_of(loaded: LoadedModel, method: Method | None) -> Method:
    """The given method, or the one that suits the model."""
    return method or default_method(loaded.model.visual, loaded.config.objective.representation)


@torch.inference_mode()
def heat_maps(loaded: LoadedModel, pictures: Tensor, z_a: Tensor, method: Method | None = None) -> Maps:
    """Maps of normalised square pictures (N, 3, side, side) for the sounds whose embeddings are given."""
    branch, config = loaded.model.visual, loaded.config
    h = branch.encode(pictures)
    bank, kind = loaded.banks[Modality.VISUAL], config.objective.representation
    scores = token_scores(branch, h, z_a, bank, kind, method_of(loaded, method))
    grid = branch.f.grid_of(*pictures.shape[2:])
    return upsample(scores, grid, (pictures.shape[2], pictures.shape[3])).float().cpu()


def localise(
    loaded: LoadedModel,
    waveform: Float[Tensor, " samples"],
    frames: UInt8[Tensor, "n 3 h w"],
    method: Method | None = None,
) -> tuple[Maps, UInt8[Tensor, "n 3 side side"]]:
    """Maps for pictures as they were decoded and one sound (at the model's rate), and the squares the maps lie on."""
    device = loaded.banks[Modality.AUDIO].device
    inputs = build_inputs(loaded.config.audio)
    short = inputs.filter_bank.window
    if len(waveform) < short:
        raise DataError(f"the sound lasts {len(waveform)} samples, less than one window of {short}")
    z_a = loaded.embed_spectrograms(loaded.spectrograms(waveform[None].to(device)))
    squares = square(frames, loaded.config.visual.size)
    return heat_maps(loaded, inputs.pictures(squares.to(device)), z_a.expand(len(squares), -1), method), squares


@dataclass(frozen=True)
class Localised:
    """Maps of every clip that has boxes, under its own sound and under another clip's, and what they agree with."""

    rows: tuple[int, ...]  # clips that have boxes
    boxes: tuple[Tensor, ...]
    maps: dict[str, Maps]  # "sound" and "other sound"
    found: dict[str, Agreement]  # by control


def localise_dataset(
    loaded: LoadedModel,
    clips: ClipDataset,
    *,
    method: Method | None = None,
    seed: int = 0,
    say: Say = lambda line: None,
) -> Localised:
    """The middle picture of every clip with boxes, under its own sound, another clip's, and the centre prior."""
    frame = clips.frames // 2
    boxes = {i: picture_boxes(clips, i, frame) for i in range(len(clips))}
    rows = tuple(i for i, found in boxes.items() if len(found))
    if len(rows) < 2:
        raise DataError(f"{len(rows)} of {len(clips)} clips have boxes; localisation needs at least two of them")
    z_a = _sounds(loaded, clips, rows)
    others = z_a[_partners(len(rows), seed)]
    maps: dict[str, list[Tensor]] = {"sound": [], "other sound": []}
    inputs = build_inputs(loaded.config.audio)
    countdown = Countdown(len(rows), say, "localising clips")
    for start in range(0, len(rows), BATCH):
        part = rows[start : start + BATCH]
        pictures = inputs.pictures(torch.stack([clips.sample(i, frame).frame for i in part]).to(z_a.device))
        for name, z in (("sound", z_a), ("other sound", others)):
            maps[name].append(heat_maps(loaded, pictures, z[start : start + len(part)], method))
        countdown.update(start + len(part))
    whole = {name: torch.cat(parts) for name, parts in maps.items()}
    whole["centre"] = centre_prior(*whole["sound"].shape[1:]).expand_as(whole["sound"])
    kept = tuple(boxes[i] for i in rows)
    return Localised(rows, kept, whole, {name: agreement(whole[name], kept) for name in CONTROLS})


@torch.inference_mode()
def _sounds(loaded: LoadedModel, clips: ClipDataset, rows: tuple[int, ...]) -> Tensor:
    inputs, device = build_inputs(loaded.config.audio), loaded.banks[Modality.AUDIO].device
    chosen = Chosen(clips, rows)
    parts = []
    for batch in evaluation_batches(chosen, batch=64):
        x = inputs.before_augmentation(batch.to(device), Modality.AUDIO)
        parts.append(loaded.embed_spectrograms(x))
    return torch.cat(parts)


def _partners(count: int, seed: int) -> Tensor:
    """For every clip another one, drawn as a single cycle so that nobody gets their own."""
    order = torch.randperm(count, generator=stream(seed, 0, "other sound"))
    partner = torch.empty_like(order)
    partner[order] = order.roll(1)
    return partner


def subsets(clips: ClipDataset, rows: tuple[int, ...]) -> dict[str, list[int]]:
    """Places in `rows` worth a look of their own: in the world, scenes in which the sound must choose a thing."""
    found = {"all": list(range(len(rows)))}
    if isinstance(clips, WorldDataset):
        scenes = [clips.scene(i) for i in rows]
        found["with silent things"] = [k for k, s in enumerate(scenes) if len(s.sounding) < len(s.things)]
    return {name: places for name, places in found.items() if places}


def localisation_record(clips: ClipDataset, result: Localised) -> dict[str, Any]:
    """Figures by subset and control, and by how much the clip's own sound is ahead of another one's."""
    record: dict[str, Any] = {}
    for subset, places in subsets(clips, result.rows).items():
        parts = {name: found.rows(places) for name, found in result.found.items()}
        record[subset] = {
            **{name: part.record() for name, part in parts.items()},
            "ahead_of_other_sound": ahead(parts["sound"].pointing, parts["other sound"].pointing),
            "ahead_of_centre": ahead(parts["sound"].pointing, parts["centre"].pointing),
        }
    return record


def ahead(ours: Float[Tensor, " n"], theirs: Float[Tensor, " n"]) -> dict[str, float]:
    """Mean paired difference in per cent, with its 95 % interval by the normal approximation."""
    difference = 100 * (ours - theirs).double()
    half = 1.96 * float(difference.std()) / len(difference) ** 0.5 if len(difference) > 1 else float("nan")
    return {
        "mean": float(difference.mean()),
        "low": float(difference.mean()) - half,
        "high": float(difference.mean()) + half,
    }
