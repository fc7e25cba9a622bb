"""Any media FFmpeg opens (through PyAV): what they hold, how they are cut, and clips as mono audio and frames.

Without torch, as all that processes need which only decode: it takes two seconds and 150 MB to import.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import av
import numpy as np
from numpy.typing import NDArray

from equiav.errors import DataError, MediaError, ShapeError
from equiav.media.container import Limits, Watch, check_size, open_container, packets
from equiav.media.streams import FALLBACK_FPS, AudioReader, VideoReader, frame_rate

SAMPLE_RATE = 16000
FRAMES = 10
CLIP_SECONDS = 10.0
TAIL_SECONDS = 2.0
LEAST_SECONDS = 0.5
ROUNDING = 1e-3  # ends come from time stamps: a file of 19.99999 s is one of 20 s
# Streams that begin this late still count as beginning with the file: encoders delay audio by a few frames.
LATE_SECONDS = 0.1
SEEK_SECONDS = 10.0  # nearer beginnings are reached by decoding
SHORT_SIDE = 256  # of frames, as `prepare` stores them
NEITHER = "holds neither sound nor picture that can be decoded"

Span = tuple[float, float]


@dataclass(frozen=True)
class Cut:
    """A stretch of a file, in seconds from its beginning."""

    start: float
    seconds: float

    @property
    def stop(self) -> float:
        """Where it ends."""
        return self.start + self.seconds


def cuts(begin: float, end: float, *, seconds: float = CLIP_SECONDS, overlap: float = 0.0) -> list[Cut]:
    """The clips of a file that lasts from `begin` to `end`: of `seconds` each, `overlap` seconds of them shared.

    What is left at the end becomes a shorter clip of its own if it brings at least 2 s, and is dropped otherwise. A
    file shorter than one clip is one clip if it lasts at least 0.5 s, and none otherwise.
    """
    if not 0 <= overlap < seconds:
        raise DataError(f"clips of {seconds:g} s cannot overlap by {overlap:g} s; overlap must be at least 0 and less")
    if end - begin < LEAST_SECONDS:
        return []
    step = seconds - overlap
    found: list[Cut] = []
    while begin + len(found) * step + seconds <= end + ROUNDING:
        start = begin + len(found) * step
        found.append(Cut(start, min(seconds, end - start)))
    if not found:
        return [Cut(begin, end - begin)]
    if end - found[-1].stop >= TAIL_SECONDS:
        start = begin + len(found) * step
        found.append(Cut(start, end - start))
    return found


def window_frames(seconds: float) -> int:
    """How many frames of a window of `seconds` are embedded: two a second, ten at most."""
    return min(FRAMES, math.ceil(2 * seconds))


def frame_times(cut: Cut, frames: int) -> tuple[float, ...]:
    """The middles of `frames` equal parts of a clip, in seconds from the beginning of the file."""
    return tuple(cut.start + (k + 0.5) * cut.seconds / frames for k in range(frames))


@dataclass(frozen=True)
class MediaInfo:
    """What a file holds, by its packets rather than its header; times in seconds from the file's beginning.

    `audio` and `video` are the stretches covered by each, None where it is missing; cover art is no video. `zero` is
    the time stamp of the beginning, the same for both streams.
    """

    duration: float
    audio: Span | None
    video: Span | None
    zero: float = 0.0
    fps: float = 0.0
    width: int = 0
    height: int = 0
    sample_rate: int = 0
    channels: int = 0
    codecs: tuple[str, ...] = ()
    streams: tuple[int, int] = (-1, -1)  # numbers of the audio and the video stream in the file


@dataclass(frozen=True)
class Excerpt:
    """One clip as it is stored: 16-bit mono waveform, and frames (H, W, 3) at `times`; either may be missing."""

    cut: Cut
    waveform: NDArray[np.int16] | None
    frames: tuple[NDArray[np.uint8], ...]
    times: tuple[float, ...]


def open_media(
    path: Path, *, limits: Limits | None = None, until: float | None = None, content: bytes | None = None
) -> MediaInfo:
    """What a file holds; its packets are read (not decoded) to learn where audio and video begin and end.

    With `until`, reading stops once all streams have passed that second. `content` is read instead of the file.
    """
    limits = limits or Limits()
    watch = Watch(path, limits.wall)
    with open_container(path, limits, content) as container:
        audio = next((s for s in container.streams.audio if _usable(s)), None)
        video = next((s for s in container.streams.video if _usable(s)), None)
        if video is not None:
            check_size(path, video.codec_context.width, video.codec_context.height, limits)
        zero = max(0.0, container.start_time / av.time_base) if container.start_time else 0.0
        chosen = [s for s in (audio, video) if s is not None]
        spans = _spans(container, chosen, watch, zero, until) if chosen else {}
        ends = [span[1] for span in spans.values()]
        if ends and max(ends) > limits.seconds:
            raise MediaError(path, f"lasts {max(ends) / 3600:.3g} h; at most {limits.seconds / 3600:g} h are read")
        heard, seen = (s.codec_context if s is not None else None for s in (audio, video))
        return MediaInfo(
            duration=max(ends, default=0.0),
            audio=spans.get(audio.index) if audio is not None else None,
            video=spans.get(video.index) if video is not None else None,
            zero=zero,
            fps=float(frame_rate(video) or 0) if video is not None else 0.0,
            width=seen.width if seen else 0,
            height=seen.height if seen else 0,
            sample_rate=heard.sample_rate if heard else 0,
            channels=heard.channels if heard else 0,
            codecs=tuple(s.codec_context.name for s in chosen),
            streams=(audio.index if audio is not None else -1, video.index if video is not None else -1),
        )


def _usable(stream: Any) -> bool:
    """Streams without a decoder and cover art are neither audio nor video."""
    cover = av.stream.Disposition.attached_pic | av.stream.Disposition.timed_thumbnails
    return stream.codec_context is not None and not stream.disposition & cover


def _spans(container: Any, chosen: Sequence[Any], watch: Watch, zero: float, until: float | None) -> dict[int, Span]:
    """First and last moment of each stream by its packets; streams without packets are left out."""
    first: dict[int, float] = {}
    last: dict[int, float] = {}
    steps = {s.index: 1 / float(frame_rate(s) or FALLBACK_FPS) if s.type == "video" else 0.0 for s in chosen}
    bases = {s.index: float(s.time_base or 0) for s in chosen}
    for packet in packets(container, chosen, watch):
        if not packet.size:
            continue
        number = packet.stream_index
        base = bases[number]
        length = packet.duration * base if packet.duration and base else steps[number]
        stamp = packet.pts if packet.pts is not None else packet.dts
        start = stamp * base - zero if stamp is not None else last.get(number, 0.0)
        first[number] = min(first.get(number, start), start)
        last[number] = max(last.get(number, start), start + length)
        if until is not None and len(last) == len(steps) and min(last.values()) > until:
            break
    return {number: (max(0.0, first[number]), last[number]) for number in first}


def common_span(info: MediaInfo, *, audio: bool = True, video: bool = True) -> Span:
    """Where everything asked for is there at once; beginnings within 0.1 s of the file's count as its beginning."""
    spans = [s for s, wanted in ((info.audio, audio), (info.video, video)) if wanted and s is not None]
    begin = max((s[0] for s in spans), default=0.0)
    return (begin if begin > LATE_SECONDS else 0.0, min((s[1] for s in spans), default=0.0))


def usable_span(
    path: Path,
    info: MediaInfo,
    *,
    start: float = 0.0,
    seconds: float | None = None,
    audio: bool = True,
    video: bool = True,
    least: float = LEAST_SECONDS,
) -> Span:
    """Their common span within `seconds` from `start` (None: to the end); one of less than `least` s is refused."""
    begin, end = common_span(info, audio=audio, video=video)
    begin, end = max(begin, start), end if seconds is None else min(end, start + seconds)
    if end - begin < least:
        what = "sound and picture overlap for" if audio and video else "lasts"
        raise MediaError(path, f"{what} only {max(0.0, end - begin):.2f} s")
    return begin, end


def read_clips(
    path: Path,
    cuts: Sequence[Cut],
    info: MediaInfo,
    *,
    sample_rate: int = SAMPLE_RATE,
    frames: int = FRAMES,
    short_side: int | None = None,
    audio: bool = True,
    video: bool = True,
    first_channel: bool = False,
    limits: Limits | None = None,
) -> Iterator[Excerpt]:
    """The clips of a file in order, each as soon as it is complete: one pass, memory for about one clip.

    `cuts` start one after another and may overlap. Audio is 16-bit, so that storing it as FLAC loses nothing; it is the
    mean of its channels, or the first of them.
    """
    limits = limits or Limits()
    watch = Watch(path, limits.wall)
    heard = seen = None
    try:
        if audio and info.audio is not None:
            heard = AudioReader(
                path, info.streams[0], zero=info.zero, rate=sample_rate, limits=limits, watch=watch,
                first_channel=first_channel,
            )  # fmt: skip
        if video and info.video is not None and frames:
            seen = VideoReader(path, info.streams[1], zero=info.zero, short_side=short_side, limits=limits, watch=watch)
            if cuts and cuts[0].start > SEEK_SECONDS:
                seen.skip_to(cuts[0].start)
        images = _frames(seen, cuts, frames) if seen is not None else iter(() for _ in cuts)
        for cut, shown in zip(cuts, images, strict=False):
            first = round(cut.start * sample_rate)
            samples = heard.read(first, first + round(cut.seconds * sample_rate)) if heard is not None else None
            yield Excerpt(cut, samples, shown, frame_times(cut, frames) if shown else ())
            watch.progress()
    finally:
        for reader in (heard, seen):
            if reader is not None:
                reader.close()


def _frames(reader: VideoReader, cuts: Sequence[Cut], frames: int) -> Iterator[tuple[NDArray[np.uint8], ...]]:
    """The frames of each clip; a video is only read forwards, so overlapping clips are filled side by side."""
    moments = sorted((t, k, slot) for k, cut in enumerate(cuts) for slot, t in enumerate(frame_times(cut, frames)))
    waiting: dict[int, list[NDArray[np.uint8]]] = {}
    ready = 0
    for moment, k, _ in moments:
        frame = reader.at(moment)
        if frame is None:
            raise MediaError(reader.path, "its pictures cannot be decoded")
        waiting.setdefault(k, []).append(frame)
        while len(waiting.get(ready, ())) == frames:
            yield tuple(waiting.pop(ready))
            ready += 1


def check_start(start: Any) -> None:
    """Refuses what is no time in a file."""
    if isinstance(start, bool) or not isinstance(start, int | float | np.number) or not 0 <= start < np.inf:
        raise ShapeError(f"start must be seconds from 0 on, got {start!r}")


def excerpt(
    path: Path,
    *,
    start: float,
    seconds: float,
    rate: int = SAMPLE_RATE,
    sound: bool = True,
    picture: bool = True,
    frames: int | None = None,
    limits: Limits | None = None,
) -> Excerpt:
    """`seconds` of a file from `start`, with whatever of sound and pictures it has; refused where it has neither.

    `frames` are read, or as many as are embedded.
    """
    check_start(start)
    info = open_media(path, limits=limits, until=start + seconds)
    wanted = sound and info.audio is not None, picture and info.video is not None
    if not any(wanted):
        what = " or ".join(name for name, asked in (("sound", sound), ("picture", picture)) if asked)
        raise MediaError(path, f"no {what}")
    begin, end = common_span(info, audio=wanted[0], video=wanted[1])
    begin = max(begin, start)
    length = min(seconds, end - begin)
    if length < LEAST_SECONDS:
        raise MediaError(path, f"lasts only {max(0.0, length):.2f} s from {start:g} s on")
    return next(
        read_clips(
            path, [Cut(begin, length)], info, sample_rate=rate, frames=frames or window_frames(seconds),
            short_side=SHORT_SIDE, audio=wanted[0], video=wanted[1], limits=limits,
        )
    )  # fmt: skip


def read_windows(
    path: Path,
    *,
    seconds: float,
    overlap: float = 0.0,
    rate: int,
    span: tuple[float, float | None] = (0.0, None),
    most: float = math.inf,
    limits: Limits | None = None,
) -> Iterator[Excerpt]:
    """The windows of a file in order, each as soon as it is read, with the sound and the pictures it has.

    `span` is start and length of the part that counts; a part with a length of at most `most` is one window.
    """
    start, length = span
    info = open_media(path, limits=limits, until=None if length is None else start + length)
    has = {"audio": info.audio is not None, "video": info.video is not None}
    if not any(has.values()):
        raise MediaError(path, NEITHER)
    begin, end = usable_span(path, info, start=start, seconds=length, **has)
    whole = length is not None and end - begin <= most + ROUNDING
    wanted = [Cut(begin, end - begin)] if whole else cuts(begin, end, seconds=seconds, overlap=overlap)
    yield from read_clips(
        path, wanted, info, sample_rate=rate, frames=window_frames(seconds), short_side=SHORT_SIDE, limits=limits
    )


def read_audio(
    source: Path | bytes,
    *,
    sample_rate: int = SAMPLE_RATE,
    name: Path | None = None,
    limits: Limits | None = None,
) -> NDArray[np.int16]:
    """All audio of a file, or of one held in memory, as 16-bit mono at `sample_rate`.

    Media longer than `limits.seconds` are refused before they are decoded. `name` is what errors speak of.
    """
    path, content = (source, None) if isinstance(source, Path) else (Path("media in memory"), source)
    path, limits = name or path, limits or Limits()
    info = open_media(path, limits=limits, content=content)
    if info.audio is None:
        raise MediaError(path, "no sound")
    watch = Watch(path, limits.wall)
    reader = AudioReader(
        path, info.streams[0], zero=info.zero, rate=sample_rate, limits=limits, watch=watch, content=content
    )
    most = round(limits.seconds * sample_rate)
    try:
        waveform = reader.read(0, most + 1)
    finally:
        reader.close()
    if not len(waveform):
        raise MediaError(path, "its sound cannot be decoded")
    if len(waveform) > most:  # its time stamps say otherwise
        raise MediaError(path, f"lasts more than the {limits.seconds / 3600:g} h that are read")
    return waveform
