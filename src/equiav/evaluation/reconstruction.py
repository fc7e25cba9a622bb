"""How well removed patches are reconstructed: the loss on held-out clips, and examples to look at."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from equiav.data import Dataset, Subset, collate, evenly_spaced
from equiav.distributed import everyone
from equiav.errors import ConfigError, DataError
from equiav.evaluation.base import ASSETS, Report, Results, pixels, silent
from equiav.evaluation.embed import evaluating, own_batches
from equiav.inference import LoadedModel
from equiav.losses import masked_squares, patch_scale, reconstruct
from equiav.media import denormalise, encoder_inputs
from equiav.models import ReconstructingModel, kept_by_noise, removed
from equiav.randomness import generator
from equiav.report import image_png
from equiav.types import AUDIO, VISUAL, Batch, Modality

SIDE = 144  # pixels of a frame on the page
Patches = tuple[Tensor, Tensor, Tensor]  # as they are, as predicted, and which of them were removed (1)


@dataclass(frozen=True)
class Reconstruction:
    """The evaluator of masked autoencoders and of CAV-MAE: the loss of training, on clips that training never saw.

    Every clip has a mask of its own, which depends on `seed` and its number only. As a baseline every removed patch is
    the mean of the clip's visible ones. `examples` clips are shown, evenly spaced. `split` is for the record.
    """

    examples: int = 12
    seed: int = 0
    split: str | None = None
    report: Report = silent

    primary = "loss/total"
    greater_is_better = False

    def __call__(self, model: LoadedModel, dataset: Dataset) -> Results:
        """The loss of every modality that the model reconstructs and the dataset has, and examples."""
        network, masked = model.model, model.config.objective.masked
        if not isinstance(network, ReconstructingModel):
            kind = model.config.objective.kind
            raise ConfigError(f"objective.kind {kind} reconstructs nothing; choose a model of kind masked or cavmae")
        wanted = [m for m in network.modalities if m in dataset.modalities]
        if not wanted or (network.joint and len(wanted) < len(network.modalities)):
            needed, there = " and ".join(network.modalities), " and ".join(dataset.modalities)
            raise DataError(f"this model reconstructs {needed}; these clips hold {there}")
        dataset = Subset(dataset, range(len(dataset)), wanted)
        assets: dict[str, bytes] = {}
        shown = []
        with evaluating(network):
            sums = self._sums(model, network, dataset)
            for i in evenly_spaced(len(dataset), self.examples):
                batch = collate([dataset.sample(i, dataset.frames // 2)])
                images = {}
                for m, patches in self._patches(model, network, batch, i).items():
                    files = _pictures(network, m, patches, norm_pix=masked.norm_pix)
                    images[m] = {stage: f"{ASSETS}/{m}-{i}-{stage}.png" for stage in files}
                    assets |= {images[m][stage]: content for stage, content in files.items()}
                shown.append({"id": dataset.clip(i).id, "images": images})
        loss = {m: float(s[0] / s[2].clamp(min=1)) for m, s in sums.items()}
        baseline = {m: float(s[1] / s[2].clamp(min=1)) for m, s in sums.items()}
        record: dict[str, Any] = {
            "task": "reconstruction",
            "split": self.split,
            "clips": len(dataset),
            "mask_ratio": masked.ratio,
            "norm_pix": masked.norm_pix,
            "loss": {**loss, "total": sum(loss.values())},
            "baseline": {**baseline, "total": sum(baseline.values())},
            "seed": self.seed,
            "checkpoint": model.meta,
            "examples": shown,
        }
        lines = tuple(f"{m}: loss {loss[m]:.4f}; mean of the visible patches {baseline[m]:.4f}" for m in loss)
        return Results(
            record, self.primary, lines, template="reconstruction.html", assets=assets, watch="loss", digits=4
        )

    @torch.inference_mode()
    def _patches(
        self, model: LoadedModel, network: ReconstructingModel, batch: Batch, first: int
    ) -> dict[Modality, Patches]:
        """The patches of a batch whose first clip has the number `first`; a clip that lacks a modality removes none."""
        batch = batch.to(model.device)
        x = encoder_inputs(model.inputs, batch)
        kept = {}
        for m in x:
            rows, columns = network.grids()[m]
            rngs = [generator(self.seed, first + i, f"reconstruction/{m}") for i in range(len(batch))]
            noise = torch.stack([torch.rand(rows * columns, generator=rng) for rng in rngs])
            kept[m] = kept_by_noise(noise, model.config.objective.masked.ratio).to(model.device)
        predictions, targets = network.predict(x, kept), network.targets(x)
        found = {}
        for m, target in targets.items():
            mask = removed(kept[m], target.shape[1])
            if m in batch.present:
                mask = mask * batch.present[m][:, None]
            found[m] = (target, predictions[m].float(), mask)
        return found

    def _sums(self, model: LoadedModel, network: ReconstructingModel, dataset: Dataset) -> dict[Modality, Tensor]:
        """By modality: summed errors of the model and of the baseline, and the number of removed patches."""
        norm_pix = model.config.objective.masked.norm_pix
        found: list[tuple[Modality, Tensor]] = []
        for first, batch in own_batches(dataset, what="reconstructing", report=self.report):
            for m, (target, prediction, mask) in self._patches(model, network, batch, first).items():
                if norm_pix:
                    mean, std = patch_scale(target)
                    target = (target - mean) / std
                visible = (1 - mask)[:, :, None]
                guess = (target * visible).sum(dim=1, keepdim=True) / visible.sum(dim=1, keepdim=True).clamp(min=1)
                ours, theirs = (masked_squares(target, p, mask) for p in (prediction, guess.expand_as(target)))
                found.append((m, torch.cat([ours[:, :1], theirs], dim=1).double().sum(dim=0).cpu()))
        every = everyone(found)
        return {m: torch.stack([s for name, s in every if name == m]).sum(dim=0) for m in dict(every)}


def _pictures(network: ReconstructingModel, m: Modality, patches: Patches, *, norm_pix: bool) -> dict[str, bytes]:
    """PNG files of a batch of one: what the encoder saw, what was made of it, and what it was."""
    target, prediction, mask = patches
    hidden = torch.where(mask[:, :, None] > 0, torch.full_like(target, torch.nan), target)
    stages = {"masked": hidden, "reconstruction": reconstruct(target, prediction, mask, norm_pix), "original": target}
    images = {name: network.images(m, value).cpu() for name, value in stages.items()}
    if m == AUDIO:
        from equiav.report import spectrogram_png  # it brings matplotlib, which training does without

        limits = (float(images["original"].min()), float(images["original"].max()))
        return {
            name: spectrogram_png(x[0, 0].T.numpy(), width=3.0, height=1.6, dpi=96, limits=limits)
            for name, x in images.items()
        }
    if m != VISUAL:
        return {}
    frames = {name: denormalise(x)[0].nan_to_num(0.88) for name, x in images.items()}
    return {name: image_png(pixels(x), scale=max(1, SIDE // x.shape[1])) for name, x in frames.items()}
