"""What the encoders take: standardised spectrograms and normalised frames, made the same way everywhere."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from jaxtyping import Float, Int, Shaped
from torch import Tensor

from equiav.errors import DataError
from equiav.media.frames import MEAN, STD, normalise, to_float
from equiav.media.spectrogram import FilterBank, standardise
from equiav.types import Batch, Modality


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
