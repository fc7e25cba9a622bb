"""A trained model with its recipe and its banks: loading, saving, and the digest that tells one from another."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from equiav.build import build_bank, build_inputs, build_model
from equiav.checkpoint import Checkpoint, load_checkpoint, save_checkpoint
from equiav.config import Config
from equiav.errors import CheckpointError, EquiAVError, WeightsError
from equiav.media import square
from equiav.models import EquiAV, load_strict
from equiav.types import Modality

BANK = "bank."


@dataclass(frozen=True)
class LoadedModel:
    """A model in evaluation mode with its recipe and its fixed banks of augmentation vectors."""

    model: EquiAV
    config: Config
    banks: dict[Modality, Tensor]
    meta: dict[str, Any]

    @property
    def device(self) -> torch.device:
        """Where its weights are."""
        return next(self.model.parameters()).device

    @property
    def width(self) -> int:
        """Length of an embedding."""
        return self.config.model.heads.inter

    @cached_property
    def digest(self) -> str:
        """The same for models that give the same embeddings: of weights, banks, and what else decides them."""
        config = self.config
        facts = [config.model, config.audio, config.visual]
        digest = hashlib.sha256(json.dumps([part.model_dump(mode="json") for part in facts]).encode())
        digest.update(config.objective.representation.encode())
        banks = {BANK + m.value: bank for m, bank in self.banks.items()}
        for name, tensor in sorted({**self.model.state_dict(), **banks}.items()):
            digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
            digest.update(tensor.detach().cpu().contiguous().numpy().tobytes())
        return digest.hexdigest()

    @torch.inference_mode()
    def embed_spectrograms(self, spectrograms: Tensor) -> Tensor:
        """Unnormalised embeddings of standardised spectrograms (N, 1, T, F)."""
        return self.model.audio.embed(spectrograms, self.banks[Modality.AUDIO], self.config.objective.representation)

    @torch.inference_mode()
    def embed_pictures(self, pictures: Tensor) -> Tensor:
        """Unnormalised embeddings of normalised pictures (N, 3, H, W)."""
        return self.model.visual.embed(pictures, self.banks[Modality.VISUAL], self.config.objective.representation)

    def spectrograms(self, waveforms: Tensor, lengths: Tensor | None = None) -> Tensor:
        """Waveforms (N, samples) as the audio encoder wants them: standardised (N, 1, T, F)."""
        return build_inputs(self.config.audio).spectrograms(waveforms, lengths)

    def pictures(self, frames: Tensor) -> Tensor:
        """Frames (N, 3, H, W), uint8, as the visual encoder wants them: square and normalised."""
        return build_inputs(self.config.audio).pictures(square(frames, self.config.visual.size))


def load_model(path: str | Path, device: str = "cpu") -> LoadedModel:
    """Loads a checkpoint folder for use."""
    path = Path(path)
    checkpoint = load_checkpoint(path)
    if checkpoint.config.classifier is not None:
        raise CheckpointError(f"{path}: holds a classifier, not a model with a shared space")
    return from_checkpoint(checkpoint, path, device)


def from_checkpoint(checkpoint: Checkpoint, path: Path, device: str = "cpu") -> LoadedModel:
    """The model of a checkpoint already read; `path` is for messages."""
    _check_device(device)
    banks = {m: checkpoint.weights.get(BANK + m.value) for m in Modality}
    weights = {key: value for key, value in checkpoint.weights.items() if not key.startswith(BANK)}
    model = build_model(checkpoint.config)
    try:
        load_strict(model, weights, str(path))
    except WeightsError as error:
        raise CheckpointError(str(error)) from error
    kept = {m: bank.to(device) for m, bank in banks.items() if bank is not None}
    if len(kept) < len(banks):
        raise CheckpointError(f"{path}: lacks its banks of augmentation vectors")
    return LoadedModel(model.to(device).eval(), checkpoint.config, kept, checkpoint.meta)


def _check_device(device: str) -> None:
    try:
        torch.empty(1, device=device)
    except (RuntimeError, AssertionError, NotImplementedError) as error:  # whichever the build of torch prefers
        raise EquiAVError(f"device {device!r}: this machine, or this build of torch, has none; try cpu") from error


def save_model(
    path: Path,
    config: Config,
    weights: dict[str, Tensor],
    meta: dict[str, Any],
    *,
    state: dict[str, Tensor] | None = None,
) -> None:
    """Writes a checkpoint of EquiAV weights together with the banks that evaluation will use."""
    banks = {BANK + m.value: build_bank(config, m) for m in Modality}
    save_checkpoint(path, config, {**weights, **banks}, meta, state=state)
