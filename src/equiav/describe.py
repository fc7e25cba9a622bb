"""A checkpoint in a few lines that a person reads."""

from __future__ import annotations

from pathlib import Path

from equiav.build import encoder_size
from equiav.checkpoint import Checkpoint
from equiav.inference import BANK


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
        f"  predictor   {config.model.predictor.kind}; vectors in the {config.augment.layout} layout",
    ]
    if config.classifier:
        lines.append(f"  classifier  {config.classifier.mode}, {config.classifier.classes} classes")
    else:
        lines.append(
            f"  objective   intra {objective.intra}, inter {objective.inter}, S = {objective.representations}, "
            f"tau = {objective.temperature}, {objective.strategy}"
        )
    lines.append(f"  written by  equiav {meta.get('equiav')}, torch {meta.get('torch')}")
    return "\n".join(lines)
