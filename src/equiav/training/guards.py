"""What a run must not do: train the impossible, resume another run, go on without numbers, collapse unseen."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from equiav.config import Config
from equiav.distributed import broadcast_flag, everyone, gather
from equiav.errors import CheckpointError, ConfigError, TrainingError
from equiav.training.log import effective_rank, uniformity
from equiav.training.objectives import Projections

CLIPS_NAMED = 8


def health(z: Projections) -> dict[str, float]:
    """Signs of collapse, over the batches of all processes."""
    values = {}
    for name, x in (("audio", z.inter_audio), ("visual", z.inter_visual)):
        whole = gather(x)
        values[f"effective_rank_{name}"] = effective_rank(whole)
        values[f"uniformity_{name}"] = uniformity(whole)
    for name, moved in zip(("audio", "visual"), z.displacement, strict=False):
        values[f"displacement_{name}"] = float(gather(moved.float()[None]).mean())
    return values


def refuse_changed(saved: Config, asked: Config, path: Path) -> None:
    """A run is resumed under its own recipe or not at all; the first differing keys are named."""
    if saved == asked:
        return
    changed = _differences(saved.model_dump(mode="json"), asked.model_dump(mode="json"))
    shown = "; ".join(changed[:3])
    raise CheckpointError(f"{path}: was made with another recipe ({shown}); use the same recipe or a new --out")


def _differences(a: Any, b: Any, where: str = "") -> list[str]:
    if isinstance(a, dict) and isinstance(b, dict):
        keys = [*a, *(k for k in b if k not in a)]
        return [d for k in keys for d in _differences(a.get(k), b.get(k), f"{where}.{k}" if where else str(k))]
    return [] if a == b else [f"{where} was {a}, now {b}"]


def refuse_impossible(config: Config) -> None:
    """Recipes that are valid as files and senseless as pre-training."""
    if config.classifier is not None:
        raise ConfigError("classifier: a pre-training recipe has none")
    if config.objective.kind != "equiav":
        raise ConfigError(f"objective.kind {config.objective.kind}: this version trains equiav only")
    if config.augment.layout != "paper":
        raise ConfigError("augment.layout: the released layout is for using imported checkpoints; train with paper")
    if config.model.encoder.norm_augmented and config.objective.intra != "equivariant":
        raise ConfigError("model.encoder.norm_augmented: only intra equivariant has an augmented view of its own")


def refuse_nan(loss: Tensor, norm: float, outputs: list[Tensor], names: tuple[str, ...], step: int) -> None:
    """Stops a run whose loss or gradient is not a number, naming the step and the clips it came from.

    `outputs` have a row for each of the `names`.
    """
    if broadcast_flag(not (math.isfinite(float(loss)) and math.isfinite(norm))):
        rows = torch.stack([~x.isfinite().all(dim=1) for x in outputs]).any(dim=0).tolist()
        bad = everyone([name for name, is_bad in zip(names, rows, strict=True) if is_bad])
        bad = bad or everyone(list(names))
        more = f" and {len(bad) - CLIPS_NAMED} more" if len(bad) > CLIPS_NAMED else ""
        shown = ", ".join(bad[:CLIPS_NAMED])
        what = "gradient" if math.isfinite(float(loss)) else "loss"
        raise TrainingError(f"the {what} is not a number at step {step}; clips: {shown}{more}; nothing of it was saved")
