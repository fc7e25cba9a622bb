"""What the encoders say about a whole set, in order, from one pass: nothing dropped, nothing padded."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor

from equiav.data import ClipDataset, Images, Sounds, evaluation_batches
from equiav.distributed import everyone, own_share
from equiav.media import Inputs
from equiav.models import EquiAV, Representation, Tokens
from equiav.progress import Countdown
from equiav.types import Batch, Embeddings, Modality

Say = Callable[[str], None]
Banks = dict[Modality, Tensor]
# What to keep of the tokens of a batch: one tensor with a row per clip for each thing wanted.
Reader = Callable[[Modality, Tokens], list[Tensor]]
Item = TypeVar("Item")


def silent(line: str) -> None:
    """Says nothing."""


def counted(items: Iterable[Item], count: int, what: str, say: Say) -> Iterator[Item]:
    """The same items; now and then says how many are done and how long the rest will take."""
    countdown = Countdown(count, say, what)
    for done, item in enumerate(items, 1):
        yield item
        countdown.update(done)


def device_of(model: EquiAV) -> torch.device:
    """Where the model's weights are."""
    return next(model.parameters()).device


def item_batches(
    sounds: Sounds, images: Images, inputs: Inputs, device: torch.device, batch: int = 64
) -> Iterator[dict[Modality, Tensor]]:
    """Sounds and images that no clip joins, as the encoders want them: first all sounds, then all images."""
    for i in range(0, len(sounds.names), batch):
        part = sounds.rows(i, i + batch)
        yield {Modality.AUDIO: inputs.spectrograms(part.samples.to(device).float() / 32768, part.lengths.to(device))}
    for i in range(0, len(images.names), batch):
        yield {Modality.VISUAL: inputs.pictures(images.rows(i, i + batch).pictures.to(device))}


def half_or_both(batch: Batch, inputs: Inputs, wanted: Iterable[Modality]) -> dict[Modality, Tensor]:
    """The wanted modalities of a batch as the encoders want them; nothing is worked out for the other."""
    return {
        m: inputs.before_augmentation(batch, m) if m is Modality.AUDIO else inputs.pictures(batch.frames)
        for m in wanted
    }


@torch.inference_mode()
def read_tokens(
    model: EquiAV, batches: Iterable[dict[Modality, Tensor]], reader: Reader
) -> dict[Modality, list[list[Tensor]]]:
    """Runs each encoder once over the batches and gives, by modality, what the reader kept: [thing][batch]."""
    training = model.training
    model.eval()
    parts: dict[Modality, list[list[Tensor]]] = {}
    for x in batches:
        for m, values in x.items():
            kept = reader(m, model[m].encode(values))
            for rows, tensor in zip(parts.setdefault(m, [[] for _ in kept]), kept, strict=True):
                rows.append(tensor.float().cpu())
    model.train(training)
    return parts


def embedder(model: EquiAV, banks: Sequence[Banks], representation: Representation) -> Reader:
    """The reader that keeps the embedding on each of the banks."""

    def read(m: Modality, h: Tokens) -> list[Tensor]:
        return [model[m].embed_tokens(h, bank[m].to(h.device), representation) for bank in banks]

    return read


def embed_dataset(
    model: EquiAV,
    clips: ClipDataset,
    inputs: Inputs,
    banks: Banks,
    representation: Representation,
    *,
    batch: int = 64,
    all_frames: bool = False,
) -> Embeddings:
    """Embeddings of every clip on one bank of vectors; see `embed_with_banks`."""
    return embed_with_banks(model, clips, inputs, [banks], representation, batch=batch, all_frames=all_frames)[0]


def embed_with_banks(
    model: EquiAV,
    clips: ClipDataset,
    inputs: Inputs,
    banks: Sequence[Banks],
    representation: Representation,
    *,
    batch: int = 64,
    all_frames: bool = False,
    say: Say = silent,
) -> list[Embeddings]:
    """Embeddings of every clip on each of the banks, each process doing a share and all getting the whole.

    The encoder runs once per clip (and frame), however many banks there are. The picture is the middle frame, or with
    `all_frames` the mean of the unit embeddings of every frame.
    """
    first, last = own_share(len(clips))
    count, device = -(-(last - first) // batch), device_of(model)

    def one_pass(frame: int | None, wanted: tuple[Modality, ...], what: str) -> dict[Modality, list[Tensor]]:
        loaded = evaluation_batches(clips, batch=batch, first=first, last=last, frame=frame)
        given = (half_or_both(part.to(device), inputs, wanted) for part in counted(loaded, count, what, say))
        parts = read_tokens(model, given, embedder(model, banks, representation))
        nothing: list[list[Tensor]] = [[] for _ in banks]  # a process may have no share of a small set
        return {m: [torch.cat(everyone(rows)) for rows in parts.get(m, nothing)] for m in wanted}

    found = one_pass(None, (Modality.AUDIO,) if all_frames else tuple(Modality), "embedding")
    if all_frames:
        what = [f"embedding frame {k + 1} of {clips.frames}" for k in range(clips.frames)]
        looks = [one_pass(k, (Modality.VISUAL,), what[k])[Modality.VISUAL] for k in range(clips.frames)]
        of_bank = zip(*looks, strict=True)
        found[Modality.VISUAL] = [torch.stack([F.normalize(z, dim=1) for z in zs]).mean(dim=0) for zs in of_bank]
    names = tuple(clips.name(i) for i in range(len(clips)))
    return [Embeddings(names, *pair) for pair in zip(found[Modality.AUDIO], found[Modality.VISUAL], strict=True)]
