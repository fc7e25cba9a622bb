"""What the encoders are given: spectrograms and pictures."""

from __future__ import annotations

from typing import Literal

from pydantic import model_validator

from equiav.sections.section import Positive, PositiveFloat, Section


class AudioConfig(Section):
    """The spectrogram: rows, bands, patch, and the statistics it is standardised with."""

    sample_rate: Positive = 16000
    frames: Positive = 1024
    bins: Positive = 128
    patch: Positive = 16
    padding: Literal["floor", "zero"] = "floor"
    mean: float = -4.346
    std: PositiveFloat = 4.332

    @model_validator(mode="after")
    def _patches_fit(self) -> AudioConfig:
        if self.frames % self.patch or self.bins % self.patch:
            raise ValueError(f"{self.frames} x {self.bins} is not a multiple of the patch {self.patch}")
        return self


class VisualConfig(Section):
    """The picture: side and patch in pixels."""

    size: Positive = 224
    patch: Positive = 16

    @model_validator(mode="after")
    def _patches_fit(self) -> VisualConfig:
        if self.size % self.patch:
            raise ValueError(f"{self.size} is not a multiple of the patch {self.patch}")
        return self
