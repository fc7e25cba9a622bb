"""Media in: decoding within limits and in worker processes, clips, spectrograms, images; and out: videos.

What needs torch is imported when it is first used: processes that only decode never do.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from equiav.media.clips import (
    CLIP_SECONDS,
    FRAMES,
    LEAST_SECONDS,
    ROUNDING,
    SAMPLE_RATE,
    Cut,
    Excerpt,
    MediaInfo,
    check_start,
    common_span,
    cuts,
    excerpt,
    frame_times,
    open_media,
    read_audio,
    read_clips,
    read_windows,
    usable_span,
)
from equiav.media.container import PICTURES, SAMPLE_RATES, Limits, middle_square, read_image
from equiav.media.pieces import Piece, audible, read_pieces, thumbnail
from equiav.media.scaling import square_frames
from equiav.media.workers import CRASHED, Failure, Workers, decoded_in, keep_memory, streamed_in, tick
from equiav.media.writing import write_video

if TYPE_CHECKING:
    from equiav.media.inputs import (
        ImageInput,
        Inputs,
        InputTransform,
        SpectrogramInput,
        decode,
        denormalise,
        encoder_inputs,
        normalise,
        prepare_batch,
        square,
        stacked,
        to_float,
    )
    from equiav.media.spectrogram import HOP_SECONDS, LOG_FLOOR, FilterBank, mel_bank, power_range, standardise

__all__ = [
    "CLIP_SECONDS",
    "CRASHED",
    "FRAMES",
    "HOP_SECONDS",
    "LEAST_SECONDS",
    "LOG_FLOOR",
    "PICTURES",
    "ROUNDING",
    "SAMPLE_RATE",
    "SAMPLE_RATES",
    "Cut",
    "Excerpt",
    "Failure",
    "FilterBank",
    "ImageInput",
    "InputTransform",
    "Inputs",
    "Limits",
    "MediaInfo",
    "Piece",
    "SpectrogramInput",
    "Workers",
    "audible",
    "check_start",
    "common_span",
    "cuts",
    "decode",
    "decoded_in",
    "denormalise",
    "encoder_inputs",
    "excerpt",
    "frame_times",
    "keep_memory",
    "mel_bank",
    "middle_square",
    "normalise",
    "open_media",
    "power_range",
    "prepare_batch",
    "read_audio",
    "read_clips",
    "read_image",
    "read_pieces",
    "read_windows",
    "square",
    "square_frames",
    "stacked",
    "standardise",
    "streamed_in",
    "thumbnail",
    "tick",
    "to_float",
    "usable_span",
    "write_video",
]


def __getattr__(name: str) -> Any:
    if name in __all__:
        for module in map(import_module, ("equiav.media.inputs", "equiav.media.spectrogram")):
            if hasattr(module, name):
                return getattr(module, name)
    raise AttributeError(f"module 'equiav.media' has no attribute {name!r}")
