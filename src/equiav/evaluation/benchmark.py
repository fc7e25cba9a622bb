"""Retrieval on any set of clips: by instance where a sound belongs to one picture, by class where only classes pair."""

from __future__ import annotations

import torch
from torch import Tensor

from equiav.data.dataset import ClipDataset
from equiav.data.paired import PairedDataset
from equiav.evaluation.embed import embed_dataset
from equiav.evaluation.retrieval import class_retrieval, retrieve
from equiav.media.image import normalise, to_float
from equiav.media.spectrogram import FilterBank, standardise
from equiav.models.equiav import EquiAV, Representation
from equiav.types import Modality

Record = dict[str, dict[str, float]]


def retrieval_record(
    model: EquiAV,
    clips: ClipDataset,
    filter_bank: FilterBank,
    statistics: tuple[float, float],
    banks: dict[Modality, Tensor],
    representation: Representation,
    *,
    all_frames: bool = False,
) -> Record:
    """Both directions from the same embeddings, as written to logs and results files."""
    if isinstance(clips, PairedDataset):
        return _by_class(model, clips, filter_bank, statistics, banks, representation)
    embeddings = embed_dataset(model, clips, filter_bank, statistics, banks, representation, all_frames=all_frames)
    return retrieve(embeddings).record()


@torch.inference_mode()
def _by_class(
    model: EquiAV,
    clips: PairedDataset,
    filter_bank: FilterBank,
    statistics: tuple[float, float],
    banks: dict[Modality, Tensor],
    representation: Representation,
    batch: int = 64,
) -> Record:
    """Every sound against every image of the split, each embedded once."""
    device = next(model.parameters()).device
    sounds, images = clips.sounds, clips.images
    audio, visual = [], []
    for i in range(0, len(sounds.names), batch):
        part = sounds.rows(i, i + batch)
        energies = filter_bank(part.samples.float().to(device) / 32768, part.lengths.to(device))
        x = standardise(energies, *statistics)[:, None]
        audio.append(model.audio.embed(x, banks[Modality.AUDIO].to(device), representation).float().cpu())
    for i in range(0, len(images.names), batch):
        x = normalise(to_float(images.rows(i, i + batch).pictures.to(device)))
        visual.append(model.visual.embed(x, banks[Modality.VISUAL].to(device), representation).float().cpu())
    a, v = torch.cat(audio), torch.cat(visual)
    return {
        "audio_to_video": class_retrieval(a, sounds.labels, v, images.labels).record(),
        "video_to_audio": class_retrieval(v, images.labels, a, sounds.labels).record(),
    }
