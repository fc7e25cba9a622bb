"""Embeddings of a whole dataset, in order, shared among processes: nothing dropped, nothing padded."""

from __future__ import annotations

import torch
from torch import Tensor

from equiav.data.dataset import ClipDataset
from equiav.data.loader import evaluation_batches
from equiav.distributed import everyone, rank, world_size
from equiav.media.image import normalise, to_float
from equiav.media.spectrogram import FilterBank, standardise
from equiav.models.equiav import EquiAV, Representation
from equiav.types import Batch, Embeddings, Modality


def encoder_inputs(batch: Batch, filter_bank: FilterBank, mean: float, std: float) -> dict[Modality, Tensor]:
    """Standardised spectrograms (N, 1, T, F) and normalised pictures (N, 3, H, W) of a batch."""
    energies = filter_bank(batch.waveforms, batch.lengths)
    return {
        Modality.AUDIO: standardise(energies, mean, std)[:, None],
        Modality.VISUAL: normalise(to_float(batch.frames)),
    }


@torch.inference_mode()
def embed_dataset(
    model: EquiAV,
    clips: ClipDataset,
    filter_bank: FilterBank,
    statistics: tuple[float, float],
    banks: dict[Modality, Tensor],
    representation: Representation,
    *,
    batch: int = 64,
) -> Embeddings:
    """Embeddings of every clip with its middle frame, each process doing a share and all getting the whole."""
    device = next(model.parameters()).device
    share = -(-len(clips) // world_size())
    first, last = min(rank() * share, len(clips)), min((rank() + 1) * share, len(clips))
    parts: dict[Modality, list[Tensor]] = {m: [] for m in Modality}
    training = model.training
    model.eval()
    for loaded in evaluation_batches(clips, batch=batch, first=first, last=last):
        inputs = encoder_inputs(loaded.to(device), filter_bank, *statistics)
        for m in Modality:
            parts[m].append(model[m].embed(inputs[m], banks[m].to(device), representation).float().cpu())
    model.train(training)
    names = tuple(clips.name(i) for i in range(len(clips)))
    return Embeddings(names, torch.cat(everyone(parts[Modality.AUDIO])), torch.cat(everyone(parts[Modality.VISUAL])))
