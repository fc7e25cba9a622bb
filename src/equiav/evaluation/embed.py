"""Tokens and embeddings of a whole dataset, in order, from one pass: nothing dropped, nothing padded."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from equiav.data import Dataset, Subset, evaluation_batches
from equiav.distributed import everyone, own_share
from equiav.evaluation.base import Report, silent
from equiav.inference import Banks, LoadedModel
from equiav.io import Progress
from equiav.media import encoder_inputs
from equiav.models import Tokens
from equiav.types import VISUAL, Batch, Embeddings, Modality

BATCH = 64
# What to keep of the tokens of a batch: a tensor with a row per clip for each thing wanted.
Reader = Callable[[Modality, Tokens], Sequence[Tensor]]


@contextmanager
def evaluating(network: nn.Module) -> Iterator[None]:
    """A network in evaluation mode, and afterwards as it was."""
    training = network.training
    network.eval()
    try:
        yield
    finally:
        network.train(training)


def own_batches(
    dataset: Dataset, *, batch: int = BATCH, frame: int | None = None, what: str = "", report: Report = silent
) -> Iterator[tuple[int, Batch]]:
    """The process's share of a dataset in order, nothing dropped; each batch with the number of its first clip."""
    first, last = own_share(len(dataset))
    progress = Progress(-(-(last - first) // batch), report, what)
    for done, loaded in enumerate(evaluation_batches(dataset, batch=batch, first=first, last=last, frame=frame)):
        yield first + done * batch, loaded
        progress.update(done + 1)


@torch.inference_mode()
def read_tokens(
    model: LoadedModel,
    dataset: Dataset,
    reader: Reader,
    *,
    modalities: Sequence[Modality] | None = None,
    frame: int | None = None,
    batch: int = BATCH,
    what: str = "embedding",
    report: Report = silent,
) -> dict[Modality, list[Tensor]]:
    """Runs the encoders once over a dataset and gives, by modality, what the reader kept of the tokens.

    Each process does a share and all get the whole. The frame is the middle one unless `frame` says another.
    """
    wanted = tuple(dataset.modalities if modalities is None else modalities)
    if wanted != dataset.modalities:  # what is not wanted is not decoded
        dataset = Subset(dataset, range(len(dataset)), wanted)
    parts: dict[Modality, list[Sequence[Tensor]]] = {m: [] for m in wanted}
    with evaluating(model.model):
        for _, loaded in own_batches(dataset, batch=batch, frame=frame, what=what, report=report):
            for m, x in encoder_inputs(model.inputs, loaded.to(model.device), wanted).items():
                parts[m].append([kept.float().cpu() for kept in reader(m, model.model.encode(m, x))])
    # Clones are ordinary tensors, free of inference mode: a probe can learn on them.
    return {m: [torch.cat(rows).clone() for rows in zip(*everyone(of), strict=True)] for m, of in parts.items()}


def embed_dataset(
    model: LoadedModel, dataset: Dataset, *, all_frames: bool = False, report: Report = silent
) -> Embeddings:
    """Embeddings of every clip on the model's own bank of vectors; see `embed_with_banks`."""
    return embed_with_banks(model, dataset, [model.banks], all_frames=all_frames, report=report)[0]


def embed_with_banks(
    model: LoadedModel,
    dataset: Dataset,
    banks: Sequence[Banks],
    *,
    all_frames: bool = False,
    report: Report = silent,
) -> list[Embeddings]:
    """Embeddings of every clip on each of the banks, by modality; of a dataset paired by class, of each side.

    The encoder runs once per clip (and frame), however many banks there are. A clip is seen in its middle frame, or
    with `all_frames` as the mean of the unit embeddings of every frame.
    """

    def reader(m: Modality, h: Tokens) -> list[Tensor]:
        return [model.model.embed_tokens(m, h, bank[m].to(h.device) if m in bank else None) for bank in banks]

    order = [m for m in model.model.modalities if m in dataset.modalities]
    found: dict[Modality, list[Tensor]] = {}
    if dataset.one_to_one:
        plain = tuple(m for m in order if not (all_frames and m == VISUAL))
        found = read_tokens(model, dataset, reader, modalities=plain, report=report)
        if all_frames and VISUAL in order:
            looks = []
            for k in range(dataset.frames):
                what = f"embedding frame {k + 1} of {dataset.frames}"
                read = read_tokens(model, dataset, reader, modalities=(VISUAL,), frame=k, what=what, report=report)
                looks.append([F.normalize(z, dim=1) for z in read[VISUAL]])
            found[VISUAL] = [torch.stack(of_bank).mean(dim=0) for of_bank in zip(*looks, strict=True)]
    else:
        for m, side in dataset.sides().items():
            found |= read_tokens(model, side, reader, modalities=(m,), report=report)
    ids = tuple(dataset.clip(i).id for i in range(len(dataset)))
    return [Embeddings(ids, {m: found[m][k] for m in order}) for k in range(len(banks))]
