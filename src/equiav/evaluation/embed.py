"""Embeddings of a whole dataset, in order, shared among processes: nothing dropped, nothing padded."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from equiav.data.dataset import ClipDataset
from equiav.data.loader import evaluation_batches
from equiav.distributed import everyone, rank, world_size
from equiav.media.inputs import Inputs
from equiav.models.equiav import EquiAV, Representation
from equiav.types import Embeddings, Modality


@torch.inference_mode()
def embed_dataset(
    model: EquiAV,
    clips: ClipDataset,
    inputs: Inputs,
    banks: dict[Modality, Tensor],
    representation: Representation,
    *,
    batch: int = 64,
    all_frames: bool = False,
) -> Embeddings:
    """Embeddings of every clip, each process doing a share and all getting the whole.

    The picture is the middle frame, or with `all_frames` the mean of the unit embeddings of every frame.
    """
    device = next(model.parameters()).device
    share = -(-len(clips) // world_size())
    first, last = min(rank() * share, len(clips)), min((rank() + 1) * share, len(clips))
    training = model.training
    model.eval()

    def one_pass(frame: int | None, wanted: tuple[Modality, ...]) -> dict[Modality, Tensor]:
        parts: dict[Modality, list[Tensor]] = {m: [] for m in wanted}
        for loaded in evaluation_batches(clips, batch=batch, first=first, last=last, frame=frame):
            x = inputs.of(loaded.to(device))
            for m in wanted:
                parts[m].append(model[m].embed(x[m], banks[m].to(device), representation).float().cpu())
        return {m: torch.cat(everyone(rows)) for m, rows in parts.items()}

    found = one_pass(None, (Modality.AUDIO,) if all_frames else tuple(Modality))
    if all_frames:
        looks = [one_pass(k, (Modality.VISUAL,))[Modality.VISUAL] for k in range(clips.frames)]
        found[Modality.VISUAL] = torch.stack([F.normalize(z, dim=1) for z in looks]).mean(dim=0)
    model.train(training)
    names = tuple(clips.name(i) for i in range(len(clips)))
    return Embeddings(names, found[Modality.AUDIO], found[Modality.VISUAL])
