"""Media out: frames and mono sound as a video that every browser plays."""

from __future__ import annotations

from collections.abc import Iterable
from fractions import Fraction
from pathlib import Path
from typing import cast

import av
import numpy as np
from numpy.typing import NDArray

Samples = NDArray[np.int16] | NDArray[np.float32]


def write_video(
    path: Path,
    frames: Iterable[NDArray[np.uint8]],
    waveform: Samples,
    *,
    rate: int,
    fps: Fraction,
    crf: int = 20,
) -> None:
    """Frames (H, W, 3) and their sound, if any, as H.264 and AAC in MP4; an odd last row or column is left out."""
    with av.open(str(path), "w", format="mp4", options={"movflags": "faststart"}) as container:
        video = container.add_stream("libx264", rate=fps, options={"crf": str(crf), "preset": "veryfast"})
        video.pix_fmt = "yuv420p"
        sound = container.add_stream("aac", rate=rate, layout="mono") if len(waveform) else None
        for number, frame in enumerate(frames):
            even = np.ascontiguousarray(frame[: frame.shape[0] // 2 * 2, : frame.shape[1] // 2 * 2])
            if not number:
                video.height, video.width = even.shape[:2]
            container.mux(video.encode(av.VideoFrame.from_ndarray(even, format="rgb24")))
        container.mux(video.encode(None))
        if sound is not None:
            kind = "s16" if waveform.dtype == np.int16 else "flt"
            samples = cast(Samples, np.ascontiguousarray(waveform[None]))
            piece = av.AudioFrame.from_ndarray(samples, format=kind, layout="mono")
            piece.sample_rate = rate
            container.mux(sound.encode(piece))
            container.mux(sound.encode(None))
