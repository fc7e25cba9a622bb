"""A checkpoint in a few lines that a person reads."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from equiav.build import encoder_size
from equiav.checkpoint import Checkpoint
from equiav.config import ClassifierConfig
from equiav.inference import BANK

NAMED = 5  # classes


def describe(checkpoint: Checkpoint, path: Path) -> str:
    """Model, objective, data and origin of a checkpoint."""
    config, meta = checkpoint.config, checkpoint.meta
    size = encoder_size(config.model.encoder)
    weights = {k: v for k, v in checkpoint.weights.items() if not k.startswith(BANK)}
    count = sum(v.numel() for v in weights.values())
    audio, visual, objective = config.audio, config.visual, config.objective
    lines = [
        f"{path}",
        f"  kind        {meta.get('kind', 'unknown')}"
        + (f", step {meta['step']}/{meta['total']}" if "step" in meta else ""),
        f"  encoders    width {size.width}, depth {size.depth}, {size.heads} heads; {count / 1e6:.2f} M parameters",
        f"  sound       {audio.frames} x {audio.bins} log-mel at {audio.sample_rate} Hz, patches of {audio.patch}",
        f"  picture     {visual.size} x {visual.size}, patches of {visual.patch}",
    ]
    if config.classifier:
        lines += _classifier_lines(config.classifier, meta)
    else:
        lines.append(f"  predictor   {config.model.predictor.kind}; vectors in the {config.augment.layout} layout")
        lines.append(
            f"  objective   intra {objective.intra}, inter {objective.inter}, S = {objective.representations}, "
            f"tau = {objective.temperature}, {objective.strategy}"
        )
    lines.append(f"  written by  equiav {meta.get('equiav')}, torch {meta.get('torch')}")
    return "\n".join(lines)


def _classifier_lines(cfg: ClassifierConfig, meta: dict[str, Any]) -> list[str]:
    names = meta.get("classes", [])
    shown = f": {', '.join(names[:NAMED])}{', ...' if len(names) > NAMED else ''}" if names else ""
    lines = [f"  classifier  {cfg.mode}, {cfg.classes} classes{shown}"]
    if best := meta.get("best"):
        values = ", ".join(f"{k} {v:.1f} %" for k, v in best["validation"].items() if k in ("mAP", "accuracy") and v)
        lines.append(f"  validation  {values} at step {best['step']}")
    return lines
