"""Retrieval on any set of clips: by instance where a sound belongs to one picture, by class where only classes pair."""

from __future__ import annotations

import torch
from torch import Tensor

from equiav.data.dataset import ClipDataset
from equiav.data.paired import PairedDataset
from equiav.evaluation.embed import embed_dataset
from equiav.evaluation.retrieval import class_retrieval, retrieve
from equiav.media.inputs import Inputs
from equiav.models.equiav import EquiAV, Representation
from equiav.types import Modality

Record = dict[str, dict[str, float]]


def retrieval_record(
    model: EquiAV,
    clips: ClipDataset,
    inputs: Inputs,
    banks: dict[Modality, Tensor],
    representation: Representation,
    *,
    all_frames: bool = False,
) -> Record:
    """Both directions from the same embeddings, as written to logs and results files."""
    if isinstance(clips, PairedDataset):
        return _by_class(model, clips, inputs, banks, representation)
    embeddings = embed_dataset(model, clips, inputs, banks, representation, all_frames=all_frames)
    return retrieve(embeddings).record()


@torch.inference_mode()
def _by_class(
    model: EquiAV,
    clips: PairedDataset,
    inputs: Inputs,
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
        x = inputs.spectrograms(part.samples.float().to(device) / 32768, part.lengths.to(device))
        audio.append(model.audio.embed(x, banks[Modality.AUDIO].to(device), representation).float().cpu())
    for i in range(0, len(images.names), batch):
        x = inputs.pictures(images.rows(i, i + batch).pictures.to(device))
        visual.append(model.visual.embed(x, banks[Modality.VISUAL].to(device), representation).float().cpu())
    a, v = torch.cat(audio), torch.cat(visual)
    return {
        "audio_to_video": class_retrieval(a, sounds.labels, v, images.labels).record(),
        "video_to_audio": class_retrieval(v, images.labels, a, sounds.labels).record(),
    }
