"""One pass over the audio or the video of a file, in bounded memory and time, whatever the file holds."""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Iterable
from fractions import Fraction
from pathlib import Path
from typing import Any

import av
import numpy as np
from av.video.reformatter import VideoReformatter
from numpy.typing import NDArray

from equiav.errors import MediaError
from equiav.media.container import BROKEN, SAMPLE_RATES, Limits, Watch, check_size, decoded, open_container, refusing

GAP_SECONDS = 0.1  # time stamps of audio jitter by less than this; more is a hole
INSTANT = 1e-6  # seconds that rounding may put between a stamp and the same time
FALLBACK_FPS = 25.0


class AudioReader:
    """Mono 16-bit audio of one stream, read forwards by position; what the file leaves out is silence.

    Of several channels it is the mean, or the first.
    """

    def __init__(
        self,
        path: Path,
        index: int,
        *,
        zero: float,
        rate: int,
        limits: Limits,
        watch: Watch,
        content: bytes | None = None,
        first_channel: bool = False,
    ) -> None:
        self.path, self.zero, self.rate, self.first_channel = path, zero, rate, first_channel
        self.container = open_container(path, limits, content)
        self.frames = decoded(self.container, self.container.streams[index], limits, watch)
        self.chunks: deque[tuple[int, NDArray[np.int16]]] = deque()
        self.end = 0  # position behind the last sample
        self.clock: float | None = None  # when the next frame should begin
        self.resampler: Any = None
        self.setup: tuple[Any, ...] = ()
        self.average = False  # for layouts FFmpeg has no rule for
        self.finished = False

    def read(self, start: int, stop: int) -> NDArray[np.int16]:
        """Samples `start` up to `stop`, fewer where the audio ends; later calls may not start earlier."""
        while not self.finished and self.end < stop:
            self._forget(start)
            self._advance()
        self._forget(start)
        waveform = np.zeros(max(0, min(stop, self.end) - start), np.int16)
        for position, chunk in self.chunks:
            first, last = max(position, start), min(position + len(chunk), stop)
            if first < last:
                waveform[first - start : last - start] = chunk[first - position : last - position]
        return waveform

    def close(self) -> None:
        """Closes the file."""
        self.container.close()

    def _forget(self, start: int) -> None:
        """Lets go of what lies before `start`: hours may lie between two stretches."""
        while self.chunks and self.chunks[0][0] + len(self.chunks[0][1]) <= start:
            self.chunks.popleft()

    def _advance(self) -> None:
        frame = next(self.frames, None)
        if frame is None:
            self._flush()
            self.finished = True
            return
        if not SAMPLE_RATES[0] <= frame.sample_rate <= SAMPLE_RATES[1]:
            raise MediaError(self.path, f"its sound has {frame.sample_rate} samples per second")
        self._place(frame)
        self.clock = (self.clock or 0.0) + frame.samples / frame.sample_rate
        setup = (frame.format.name, frame.layout.name, frame.layout.nb_channels, frame.sample_rate)
        if setup != self.setup:
            self._flush()
            self.setup = setup
        with refusing(self.path, "its sound cannot be resampled ({})"):
            self._store(self._resample(frame))

    def _place(self, frame: Any) -> None:
        """Continues where the last frame ended, unless the time stamps tell of a hole."""
        now = None if frame.pts is None or frame.time is None else frame.time - self.zero
        if self.clock is None:
            self.clock = now or 0.0
        elif now is not None and now - self.clock > GAP_SECONDS:
            self._flush()
            self.clock = now
        else:
            return
        self.end = round(self.clock * self.rate)

    def _resample(self, frame: Any) -> list[Any]:
        frame.pts = None  # the resampler would fill or squeeze by time stamps of its own
        if self.resampler is None:
            # All channels are resampled, and the first is then taken, where it is wanted.
            form, layout = ("s16p", frame.layout) if self.first_channel else ("s16", "mono")
            self.resampler = av.AudioResampler(format=form, layout=layout, rate=self.rate)
            try:
                return list(self.resampler.resample(frame))
            except BROKEN:
                # Layouts without a rule of mixing: the plain mean of the channels, or the first.
                self.resampler = av.AudioResampler(format="s16", layout="mono", rate=self.rate)
                self.average = True
        if self.average:
            frame = _mixed(frame, first_channel=self.first_channel)
        return list(self.resampler.resample(frame))

    def _flush(self) -> None:
        if self.resampler is not None:
            with contextlib.suppress(*BROKEN):
                self._store(self.resampler.resample(None))
        self.resampler, self.setup, self.average = None, (), False

    def _store(self, resampled: Iterable[Any]) -> None:
        for frame in resampled:
            chunk = frame.to_ndarray()[0]
            self.chunks.append((self.end, chunk))
            self.end += len(chunk)


def _mixed(frame: Any, *, first_channel: bool) -> Any:
    channels = frame.to_ndarray()
    if not frame.format.is_planar:
        channels = channels.reshape(-1, frame.layout.nb_channels).T
    if channels.dtype.kind in "iu":
        info = np.iinfo(channels.dtype)
        channels = (channels.astype(np.float64) - (info.max + 1) / 2 * (channels.dtype.kind == "u")) / info.max
    mean = channels[: 1 if first_channel else None].mean(axis=0, dtype=np.float64).astype(np.float32)
    mixed = av.AudioFrame.from_ndarray(np.ascontiguousarray(mean[None]), format="flt", layout="mono")
    mixed.sample_rate = frame.sample_rate
    return mixed


class _Stamps:
    """Which of a frame's two time stamps to believe: some files put those of showing on the wrong frames."""

    def __init__(self) -> None:
        self.last: list[int | None] = [None, None]
        self.faults = [0, 0]

    def best(self, frame: Any) -> int | None:
        """The stamp of showing, unless that of decoding ran backwards less often: FFmpeg's own rule."""
        stamps: tuple[int | None, int | None] = (frame.pts, frame.dts)
        for i, stamp in enumerate(stamps):
            last = self.last[i]
            if stamp is not None:
                self.faults[i] += last is not None and stamp <= last
                self.last[i] = stamp
        showing, decoding = stamps
        if showing is not None and (decoding is None or self.faults[0] <= self.faults[1]):
            return showing
        return decoding


class VideoReader:
    """Frames of one stream at rising times; only those asked for are converted to RGB."""

    def __init__(
        self, path: Path, index: int, *, zero: float, short_side: int | None, limits: Limits, watch: Watch
    ) -> None:
        self.path, self.index, self.zero, self.short_side = path, index, zero, short_side
        self.limits, self.watch = limits, watch
        self.scaler = VideoReformatter()
        self._begin()

    def _begin(self, at: float = 0.0) -> None:
        self.container = open_container(self.path, self.limits)
        stream = self.container.streams[self.index]
        self.step = 1 / float(frame_rate(stream) or FALLBACK_FPS)
        self.aspect = float(stream.sample_aspect_ratio or 1)
        self.base = float(stream.time_base or 0)
        if at and self.base:
            offset = int((at + self.zero) / self.base)
            with contextlib.suppress(*BROKEN):
                self.container.seek(offset, stream=stream, backward=True)
        self.frames = decoded(self.container, stream, self.limits, self.watch)
        self.clock: float | None = None
        self.stamps = _Stamps()
        self.shown: Any = None
        self.image: NDArray[np.uint8] | None = None
        self.coming = self._next()

    def skip_to(self, at: float) -> None:
        """Starts at the key frame before `at` instead of the beginning, where the file allows it."""
        self.close()
        self._begin(at)
        if self.coming is None or self.coming[0] > at:
            self.close()
            self._begin()

    def at(self, moment: float) -> NDArray[np.uint8] | None:
        """The frame (H, W, 3) on screen then, the first one before it began; None if there is none at all."""
        while self.coming is not None and (self.shown is None or self.coming[0] <= moment + INSTANT):
            self.shown, self.image = self.coming[1], None
            self.coming = self._next()
        if self.image is None and self.shown is not None:
            with refusing(self.path, "its picture cannot be converted ({})"):
                self.image = self._convert(self.shown)
        return self.image

    def close(self) -> None:
        """Closes the file."""
        self.container.close()

    def _next(self) -> tuple[float, Any] | None:
        frame = next(self.frames, None)
        if frame is None:
            return None
        check_size(self.path, frame.width, frame.height, self.limits)
        stamp = self.stamps.best(frame)
        if stamp is not None and self.base:
            now = stamp * self.base - self.zero
        else:
            now = 0.0 if self.clock is None else self.clock + self.step
        # Time runs forwards, also where the stamps start over.
        self.clock = now if self.clock is None else max(now, self.clock)
        return self.clock, frame

    def _convert(self, frame: Any) -> NDArray[np.uint8]:
        """RGB of square pixels, upright, the short side at most `short_side`."""
        # Encoders state pixels a hair off square when they round sizes; those are not worth resampling for.
        aspect = self.aspect if 0.25 <= self.aspect <= 4 and abs(self.aspect - 1) > 0.02 else 1.0
        wide, high = frame.width * max(aspect, 1.0), frame.height / min(aspect, 1.0)
        scale = min(1.0, self.short_side / min(wide, high)) if self.short_side else 1.0
        size = max(1, round(wide * scale)), max(1, round(high * scale))
        grows = size[0] > frame.width or size[1] > frame.height
        # One scaler for all frames, on this thread: frame.reformat would prepare a new one, with threads, for each.
        how: dict[str, Any] = {"format": "rgb24", "interpolation": "BICUBIC" if grows else "AREA", "threads": 1}
        rgb = self.scaler.reformat(frame, *size, **how).to_ndarray()
        turns = round(frame.rotation / 90) % 4
        return np.ascontiguousarray(np.rot90(rgb, turns) if turns else rgb)


def frame_rate(stream: Any) -> Fraction | None:
    """Frames per second as the file states them, if that is credible."""
    for rate in (stream.average_rate, stream.guessed_rate, stream.base_rate):
        if rate and Fraction(1, 3600) <= rate <= 1000:
            return Fraction(rate)
    return None
