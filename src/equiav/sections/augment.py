"""Ranges and probabilities of the augmentations."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import AfterValidator

from equiav.sections.section import Hue, Section, Share


def _ordered(value: tuple[float, float]) -> tuple[float, float]:
    if not 0 < value[0] <= value[1]:
        raise ValueError(f"{value[0]:g} to {value[1]:g} is no range of positive numbers")
    return value


def _at_most_all(value: tuple[float, float]) -> tuple[float, float]:
    if value[1] > 1:
        raise ValueError(f"an area cannot be more than the whole (1), got {value[1]:g}")
    return value


Range = Annotated[tuple[float, float], AfterValidator(_ordered)]
Area = Annotated[Range, AfterValidator(_at_most_all)]


class AudioAugmentConfig(Section):
    """Ranges of the spectrogram's augmentations."""

    crop_area: Area = (0.08, 1.0)
    crop_aspect: Range = (0.8, 1.5)
    jitter: tuple[Share, Share] = (0.4, 0.4)
    blur_sigma: Range = (0.1, 2.0)
    mask_time: Share = 192 / 1024
    mask_frequency: Share = 48 / 128


class VisualAugmentConfig(Section):
    """Ranges of the picture's augmentations."""

    crop_area: Area = (0.08, 1.0)
    crop_aspect: Range = (3 / 4, 4 / 3)
    jitter: tuple[Share, Share, Share, Hue] = (0.4, 0.4, 0.4, 0.1)
    blur_sigma: Range = (0.1, 2.0)


class AugmentConfig(Section):
    """Layout of the vectors, and the ranges they are drawn from. `released` is for imported checkpoints."""

    layout: Literal["paper", "released"] = "paper"
    audio: AudioAugmentConfig = AudioAugmentConfig()
    visual: VisualAugmentConfig = VisualAugmentConfig()
