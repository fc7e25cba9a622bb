"""Media in: decoding, clips, spectrograms, pictures."""

from equiav.media.clip import CLIP_SECONDS, LEAST_SECONDS, ROUNDING, Cut, cuts, frame_times
from equiav.media.container import SAMPLE_RATES, Limits, check_size
from equiav.media.decode import (
    FRAMES,
    SAMPLE_RATE,
    Excerpt,
    MediaInfo,
    common_span,
    decode,
    open_media,
    read_clips,
    stacked,
)
from equiav.media.image import normalise, square, to_float
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
    "check_size",
    "common_span",
    "cuts",
    "decode",
    "frame_times",
    "mel_bank",
    "normalise",
    "open_media",
    "power_range",
    "read_clips",
    "square",
    "stacked",
    "standardise",
    "to_float",
]
