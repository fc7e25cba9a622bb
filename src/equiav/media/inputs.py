"""What the encoders look at: standardised spectrograms and normalised pictures, made the same way everywhere."""

from __future__ import annotations

from dataclasses import dataclass

from jaxtyping import Float, Int, UInt8
from torch import Tensor

from equiav.errors import DataError
from equiav.media.image import normalise, to_float
from equiav.media.spectrogram import FilterBank, standardise
from equiav.types import Batch, Modality


@dataclass(frozen=True)
class Inputs:
    """The filter bank and the statistics that its energies are standardised with."""

    filter_bank: FilterBank
    mean: float
    std: float

    def spectrograms(
        self, waveforms: Float[Tensor, "n samples"], lengths: Int[Tensor, " n"] | None = None
    ) -> Float[Tensor, "n 1 t f"]:
        """Waveforms as the audio encoder wants them."""
        return standardise(self.filter_bank(waveforms, lengths), self.mean, self.std)[:, None]

    def pictures(self, frames: UInt8[Tensor, "n 3 h w"]) -> Float[Tensor, "n 3 h w"]:
        """Square frames as the visual encoder wants them."""
        return normalise(to_float(frames))

    def before_augmentation(self, batch: Batch, modality: Modality) -> Tensor:
        """Standardised spectrograms, or pictures in [0, 1]: what augmentations act on."""
        if modality is Modality.VISUAL:
            return to_float(batch.frames)
        window = self.filter_bank.window
        short = [n for n, length in zip(batch.names, batch.lengths.tolist(), strict=True) if length < window]
        if short:
            raise DataError(f"{short[0]}: its sound is shorter than one window of {window} samples; leave it out")
        return self.spectrograms(batch.waveforms, batch.lengths)

    def of(self, batch: Batch) -> dict[Modality, Tensor]:
        """Both modalities of a batch, ready for the encoders."""
        audio = self.before_augmentation(batch, Modality.AUDIO)
        return {Modality.AUDIO: audio, Modality.VISUAL: self.pictures(batch.frames)}
