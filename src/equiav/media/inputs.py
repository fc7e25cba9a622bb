"""From media to what the encoders take: clips as tensors, square and normalised images, spectrograms."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, runtime_checkable

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Float, Int, Shaped, UInt8
from numpy.typing import NDArray
from torch import Tensor

from equiav.errors import DataError, MediaError
from equiav.media.clips import CLIP_SECONDS, FRAMES, NEITHER, SAMPLE_RATE, Cut, open_media, read_clips
from equiav.media.scaling import fitted
from equiav.media.spectrogram import FilterBank, standardise
from equiav.types import Batch, DecodedClip, Modality

MEAN = (0.485, 0.456, 0.406)
STD = (0.229, 0.224, 0.225)
LARGE = 10_000_000  # values of a picture


def decode(
    path: Path, *, sample_rate: int = SAMPLE_RATE, frames: int = FRAMES, seconds: float = CLIP_SECONDS
) -> DecodedClip:
    """The first `seconds` of a file: its waveform, and `frames` frames evenly spaced over them.

    A missing stream gives None; a file with neither is refused.
    """
    info = open_media(path, until=seconds)
    waveform: Tensor | None = None
    images: Tensor | None = None
    times: tuple[float, ...] = ()
    # Each for itself: where they end at different times, neither is cut to the other.
    if info.audio is not None:
        cut = Cut(0.0, min(seconds, info.audio[1]))
        samples = next(read_clips(path, [cut], info, sample_rate=sample_rate, video=False)).waveform
        if samples is not None and len(samples):
            waveform = torch.from_numpy(samples.astype(np.float32) / 32768)
    if info.video is not None:
        cut = Cut(0.0, min(seconds, info.video[1]))
        excerpt = next(read_clips(path, [cut], info, frames=frames, audio=False))
        images, times = stacked(excerpt.frames), excerpt.times
    if waveform is None and images is None:
        raise MediaError(path, NEITHER)
    return DecodedClip(path.stem, waveform, sample_rate, images, times)


def stacked(frames: Sequence[NDArray[np.uint8]]) -> UInt8[Tensor, "k 3 h w"]:
    """Frames as one tensor; those whose size changed on the way are cut to the smallest height and width."""
    height, width = min(f.shape[0] for f in frames), min(f.shape[1] for f in frames)
    stack = np.stack([f[:height, :width] for f in frames])
    return torch.from_numpy(stack).permute(0, 3, 1, 2).contiguous()


def square(frames: UInt8[Tensor, "n 3 h w"], side: int) -> UInt8[Tensor, "n 3 side side"]:
    """Scaled so that the short side has `side` pixels (antialiased bicubic), then the middle."""
    height, width = frames.shape[2:]
    size, (top, left) = fitted(height, width, side)
    if size == (height, width):
        return frames[..., top : top + side, left : left + side]
    # Large ones channel by channel: the same in a third of the memory.
    parts = torch.split(frames, 1, dim=1) if frames[0].numel() > LARGE else (frames,)
    # Across first, as torch does it, and down only the columns that are kept.
    across = (F.interpolate(p.float(), size=(height, size[1]), mode="bicubic", antialias=True) for p in parts)
    kept = (x[..., left : left + side].contiguous() for x in across)
    resized = [F.interpolate(x, size=(size[0], side), mode="bicubic", antialias=True) for x in kept]
    return torch.cat(resized, dim=1)[..., top : top + side, :].round().clamp(0, 255).to(torch.uint8)


def to_float(frames: UInt8[Tensor, "n 3 h w"]) -> Float[Tensor, "n 3 h w"]:
    """Values in [0, 1]."""
    return frames / 255


def normalise(
    images: Float[Tensor, "n 3 h w"], mean: tuple[float, ...] = MEAN, std: tuple[float, ...] = STD
) -> Float[Tensor, "n 3 h w"]:
    """Subtracts a mean and divides by a standard deviation per channel, ImageNet's by default."""
    shift, scale = (images.new_tensor(values)[:, None, None] for values in (mean, std))
    return torch.addcmul(-shift / scale, images, 1 / scale)  # in one pass over the images


def denormalise(
    images: Float[Tensor, "n 3 h w"], mean: tuple[float, ...] = MEAN, std: tuple[float, ...] = STD
) -> Float[Tensor, "n 3 h w"]:
    """The inverse of `normalise`."""
    shift, scale = (images.new_tensor(values)[:, None, None] for values in (mean, std))
    return images * scale + shift


@runtime_checkable
class InputTransform(Protocol):
    """How the raw input of one modality becomes what augmentations act on, and then what its encoder takes."""

    def prepare(self, raw: Tensor, lengths: Tensor | None = None) -> Tensor:
        """What augmentations act on, from the tensors of a batch."""
        ...

    def finish(self, x: Tensor) -> Tensor:
        """What the encoder takes, from the augmented or original input."""
        ...


@dataclass(frozen=True)
class SpectrogramInput:
    """Waveforms as log-mel spectrograms (N, 1, T, F), standardised with the statistics of the training data."""

    filter_bank: FilterBank
    mean: float
    std: float

    def prepare(
        self, raw: Float[Tensor, "n ..."], lengths: Int[Tensor, " n"] | None = None
    ) -> Float[Tensor, "n 1 t f"]:
        """Standardised spectrograms; a waveform shorter than one window of the filter bank is refused.

        What is a spectrogram already (kept from an earlier epoch) stays as it is.
        """
        if raw.ndim == 4:
            return raw
        window = self.filter_bank.window
        if raw.shape[1] < window or (lengths is not None and bool((lengths < window).any())):
            short = 0 if lengths is None else int((lengths < window).nonzero()[0])
            raise ShortAudio(short, window)
        return standardise(self.filter_bank(raw, lengths), self.mean, self.std)[:, None]

    def finish(self, x: Float[Tensor, "n 1 t f"]) -> Float[Tensor, "n 1 t f"]:
        """The same: it was standardised before."""
        return x


class ShortAudio(DataError):
    """A waveform shorter than one window of the filter bank; `row` is its place in the batch."""

    def __init__(self, row: int, window: int) -> None:
        super().__init__(f"the audio of item {row} is shorter than one window of {window} samples; leave it out")
        self.row, self.window = row, window


@dataclass(frozen=True)
class ImageInput:
    """Square frames (N, 3, H, W) in uint8 as floats in [0, 1], then normalised (with ImageNet's statistics)."""

    mean: tuple[float, ...] = MEAN
    std: tuple[float, ...] = STD

    def prepare(self, raw: Shaped[Tensor, "n 3 h w"], lengths: Tensor | None = None) -> Float[Tensor, "n 3 h w"]:
        """Floats in [0, 1]; what is float already (mixed frames) stays as it is."""
        return raw if raw.is_floating_point() else to_float(raw)

    def finish(self, x: Float[Tensor, "n 3 h w"]) -> Float[Tensor, "n 3 h w"]:
        """Normalised per channel."""
        return normalise(x, self.mean, self.std)


Inputs = Mapping[Modality, InputTransform]


def prepare_batch(inputs: Inputs, batch: Batch, modality: Modality) -> Tensor:
    """What augmentations act on; where a clip's audio is too short, the clip is named."""
    try:
        return inputs[modality].prepare(batch.inputs[modality], batch.lengths.get(modality))
    except ShortAudio as error:
        raise DataError(
            f"{batch.ids[error.row]}: its audio is shorter than one window of {error.window} samples; leave it out"
        ) from error


def encoder_inputs(
    inputs: Inputs, batch: Batch, modalities: Iterable[Modality] | None = None
) -> dict[Modality, Tensor]:
    """The modalities of a batch (all of it, or those named) as the encoders take them."""
    wanted = batch.inputs if modalities is None else modalities
    return {m: inputs[m].finish(prepare_batch(inputs, batch, m)) for m in wanted}
