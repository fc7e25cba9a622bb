"""A whole video with the map of where its sound comes from over it, at its own resolution and aspect."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from fractions import Fraction
from pathlib import Path
from typing import Any

import av
import numpy as np
import torch
from jaxtyping import Float, UInt8
from numpy.typing import NDArray
from torch import Tensor

from equiav.errors import DataError
from equiav.evaluation.base import Report, silent
from equiav.evaluation.localisation import Method, embed_waveform, heat_maps
from equiav.inference import LoadedModel
from equiav.io import Progress, replacing
from equiav.media import (
    HOP_SECONDS,
    LEAST_SECONDS,
    Cut,
    Limits,
    Workers,
    decoded_in,
    open_media,
    read_audio,
    read_clips,
    square,
    stacked,
    streamed_in,
)
from equiav.report import whole_overlay

CHUNK = 1.0  # seconds of video in memory at a time
FASTEST = 30.0  # frames per second of what is written
MAPS = 4  # per second; those between are interpolated


def localise_video(
    model: LoadedModel,
    path: Path,
    out: Path,
    *,
    audio: Path | None = None,
    method: Method | None = None,
    limits: Limits | None = None,
    workers: Workers | None = None,
    report: Report = silent,
) -> float:
    """Writes a video with the map over it and its sound (H.264 and AAC in MP4); returns its length in seconds.

    Every moment is compared with the audio around it, as much as the model hears at once; `audio` asks where the audio
    of another file comes from instead, all of which is then looked for at every moment. `workers` decode, if given.
    """
    if out.suffix.lower() != ".mp4":
        raise DataError(f"{out}: videos are written as .mp4; name the file so")
    limits, rate = limits or Limits(), model.config.audio.sample_rate
    info = decoded_in(workers, open_media, path, limits=limits)
    if info.video is None:
        raise DataError(f"{path}: has no video to look at")
    if info.audio is None and audio is None:
        raise DataError(f"{path}: has no sound to look for; give one with --audio")
    how: dict[str, Any] = {"sample_rate": rate, "limits": limits}
    own = np.zeros(0, np.int16) if info.audio is None else decoded_in(workers, read_audio, path, **how)
    sound = own if audio is None else decoded_in(workers, read_audio, audio, **how)
    begin, end = info.video
    fps = Fraction(min(info.fps or 25.0, FASTEST)).limit_denominator(1001)
    cuts = [Cut(start, min(CHUNK, end - start)) for start in np.arange(begin, end, CHUNK) if end - start > 1 / fps]
    progress = Progress(len(cuts), report, "seconds of video")
    heard = _Heard(model, torch.from_numpy(sound.astype(np.float32) / 32768), fixed=audio is not None)

    def frames() -> Iterator[NDArray[np.uint8]]:
        for number, cut in enumerate(cuts, 1):
            count = max(1, round(cut.seconds * fps))
            look = {"cuts": [cut], "info": info, "frames": count, "audio": False, "limits": limits}
            (piece,) = streamed_in(workers, read_clips, path, **look)
            shown = stacked(piece.frames)
            yield from _overlaid(model, shown, heard.around(cut.start + cut.seconds / 2), method)
            progress.update(number)

    with replacing(out) as draft:
        _write(draft, frames(), own[round(begin * rate) : round(end * rate)], rate, fps)
    return float(end - begin)


class _Heard:
    """Embeddings of the audio around moments of a file."""

    def __init__(self, model: LoadedModel, waveform: Tensor, *, fixed: bool) -> None:
        self.model, self.waveform, self.fixed = model, waveform, fixed
        audio = model.config.audio
        self.length = round(audio.frames * HOP_SECONDS * audio.sample_rate)
        if len(waveform) < LEAST_SECONDS * audio.sample_rate:
            raise DataError(f"only {len(waveform) / audio.sample_rate:.2f} s of sound to look for")

    def around(self, moment: float) -> Tensor:
        """Of what the model hears at once, with the moment in the middle where the file allows it."""
        middle = 0 if self.fixed else round(moment * self.model.config.audio.sample_rate)
        start = max(0, min(middle - self.length // 2, len(self.waveform) - self.length))
        return embed_waveform(self.model, self.waveform[start : start + self.length])


def _overlaid(
    model: LoadedModel, frames: UInt8[Tensor, "n 3 h w"], z_a: Float[Tensor, "1 out"], method: Method | None
) -> Iterator[NDArray[np.uint8]]:
    """The frames of a chunk under their maps, which are made for some of them and interpolated for the others."""
    count = min(len(frames), max(2, round(MAPS * CHUNK)))
    places = np.linspace(0, len(frames) - 1, count)
    squares = square(frames[places.round().astype(int)], model.config.visual.size)
    maps = heat_maps(model, model.frames(squares.to(model.device)), z_a.expand(count, -1), method)
    for number, frame in enumerate(frames):
        after = min(int(np.searchsorted(places, number)), count - 1)
        before = max(0, after - 1)
        gap = places[after] - places[before]
        share = (number - places[before]) / gap if gap else 1.0
        heat = torch.lerp(maps[before], maps[after], float(share))
        yield whole_overlay(frame.permute(1, 2, 0).numpy(), heat.numpy())


def _write(
    path: Path, frames: Iterable[NDArray[np.uint8]], waveform: NDArray[np.int16], rate: int, fps: Fraction
) -> None:
    with av.open(str(path), "w", format="mp4", options={"movflags": "faststart"}) as container:
        video = container.add_stream("libx264", rate=fps, options={"crf": "20", "preset": "veryfast"})
        video.pix_fmt = "yuv420p"
        sound = container.add_stream("aac", rate=rate, layout="mono") if len(waveform) else None
        for number, frame in enumerate(frames):
            even = np.ascontiguousarray(frame[: frame.shape[0] // 2 * 2, : frame.shape[1] // 2 * 2])
            if not number:
                video.height, video.width = even.shape[:2]
            container.mux(video.encode(av.VideoFrame.from_ndarray(even, format="rgb24")))
        container.mux(video.encode(None))
        if sound is not None:
            piece = av.AudioFrame.from_ndarray(np.ascontiguousarray(waveform[None]), format="s16", layout="mono")
            piece.sample_rate = rate
            container.mux(sound.encode(piece))
            container.mux(sound.encode(None))
