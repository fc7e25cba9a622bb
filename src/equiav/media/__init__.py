"""Media in: decoding within limits, clips, spectrograms, images."""

from equiav.media.container import SAMPLE_RATES, Limits
from equiav.media.decode import (
    CLIP_SECONDS,
    FRAMES,
    LEAST_SECONDS,
    ROUNDING,
    SAMPLE_RATE,
    Cut,
    Excerpt,
    MediaInfo,
    common_span,
    cuts,
    decode,
    frame_times,
    open_media,
    read_audio,
    read_clips,
    stacked,
    usable_span,
)
from equiav.media.image import normalise, read_image, square, to_float
from equiav.media.inputs import Inputs
from equiav.media.spectrogram import HOP_SECONDS, LOG_FLOOR, FilterBank, mel_bank, power_range, standardise

__all__ = [
    "CLIP_SECONDS",
    "FRAMES",
    "HOP_SECONDS",
    "LEAST_SECONDS",
    "LOG_FLOOR",
    "ROUNDING",
    "SAMPLE_RATE",
    "SAMPLE_RATES",
    "Cut",
    "Excerpt",
    "FilterBank",
    "Inputs",
    "Limits",
    "MediaInfo",
    "common_span",
    "cuts",
    "decode",
    "frame_times",
    "mel_bank",
    "normalise",
    "open_media",
    "power_range",
    "read_audio",
    "read_clips",
    "read_image",
    "square",
    "stacked",
    "standardise",
    "to_float",
    "usable_span",
]
