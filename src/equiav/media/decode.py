"""Any file FFmpeg opens (through PyAV): what it holds, and its clips as mono sound and pictures at stated times."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import av
import numpy as np
import torch
from jaxtyping import UInt8
from numpy.typing import NDArray
from torch import Tensor

from equiav.errors import MediaError
from equiav.media.clip import CLIP_SECONDS, Cut, frame_times
from equiav.media.container import Limits, Watch, check_size, open_container, packets
from equiav.media.streams import FALLBACK_FPS, PictureReader, SoundReader, frame_rate
from equiav.types import DecodedClip

SAMPLE_RATE = 16000
FRAMES = 10
# Streams that begin this late still count as beginning with the file: encoders delay sound by a few frames.
LATE_SECONDS = 0.1
SEEK_SECONDS = 10.0  # nearer beginnings are reached by decoding

Span = tuple[float, float]


@dataclass(frozen=True)
class MediaInfo:
    """What a file holds, by its packets rather than its header; times in seconds from the file's beginning.

    `sound` and `picture` are the stretches covered by each, None where it is missing. `zero` is the time stamp of
    the beginning, the same for both streams.
    """

    duration: float
    sound: Span | None
    picture: Span | None
    zero: float = 0.0
    fps: float = 0.0
    width: int = 0
    height: int = 0
    sample_rate: int = 0
    channels: int = 0
    codecs: tuple[str, ...] = ()
    streams: tuple[int, int] = (-1, -1)  # numbers of the sound and the picture stream in the file

    @property
    def has_audio(self) -> bool:
        """Is there sound?"""
        return self.sound is not None

    @property
    def has_video(self) -> bool:
        """Are there pictures that move? Cover art does not count."""
        return self.picture is not None


@dataclass(frozen=True)
class Excerpt:
    """One clip as it is stored: 16-bit mono sound, and pictures (H, W, 3) at `times`; either may be missing."""

    cut: Cut
    sound: NDArray[np.int16] | None
    pictures: tuple[NDArray[np.uint8], ...]
    times: tuple[float, ...]


def open_media(path: Path, *, limits: Limits | None = None, until: float | None = None) -> MediaInfo:
    """What a file holds; its packets are read (not decoded) to learn where sound and picture begin and end.

    With `until`, reading stops once all streams have passed that second.
    """
    limits = limits or Limits()
    watch = Watch(path, limits.wall)
    with open_container(path, limits) as container:
        sound = next((s for s in container.streams.audio if _usable(s)), None)
        picture = next((s for s in container.streams.video if _usable(s)), None)
        if picture is not None:
            check_size(path, picture.codec_context.width, picture.codec_context.height, limits)
        zero = max(0.0, container.start_time / av.time_base) if container.start_time else 0.0
        chosen = [s for s in (sound, picture) if s is not None]
        spans = _spans(container, chosen, watch, zero, until) if chosen else {}
        ends = [span[1] for span in spans.values()]
        if ends and max(ends) > limits.seconds:
            raise MediaError(path, f"lasts {max(ends) / 3600:.3g} h; at most {limits.seconds / 3600:g} h are read")
        heard, seen = (spans.get(s.index) if s is not None else None for s in (sound, picture))
        rate = frame_rate(picture) if picture is not None else None
        return MediaInfo(
            duration=max(ends, default=0.0),
            sound=heard,
            picture=seen,
            zero=zero,
            fps=float(rate or 0),
            width=picture.codec_context.width if picture is not None else 0,
            height=picture.codec_context.height if picture is not None else 0,
            sample_rate=sound.codec_context.sample_rate if sound is not None else 0,
            channels=sound.codec_context.channels if sound is not None else 0,
            codecs=tuple(s.codec_context.name for s in chosen),
            streams=(sound.index if sound is not None else -1, picture.index if picture is not None else -1),
        )


def _usable(stream: Any) -> bool:
    """Streams without a decoder and cover art are neither sound nor film."""
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


def common_span(info: MediaInfo, *, sound: bool = True, picture: bool = True) -> Span:
    """Where everything asked for is there at once; beginnings within 0.1 s of the file's count as its beginning."""
    spans = [s for s, wanted in ((info.sound, sound), (info.picture, picture)) if wanted and s is not None]
    begin = max((s[0] for s in spans), default=0.0)
    return (begin if begin > LATE_SECONDS else 0.0, min((s[1] for s in spans), default=0.0))


def read_clips(
    path: Path,
    cuts: Sequence[Cut],
    info: MediaInfo,
    *,
    sample_rate: int = SAMPLE_RATE,
    frames: int = FRAMES,
    short_side: int | None = None,
    sound: bool = True,
    picture: bool = True,
    limits: Limits | None = None,
) -> Iterator[Excerpt]:
    """The clips of a file in order, each as soon as it is complete: one pass, memory for about one clip.

    `cuts` start one after another and may overlap. Sound is 16-bit, so that storing it as FLAC loses nothing.
    """
    limits = limits or Limits()
    watch = Watch(path, limits.wall)
    heard = seen = None
    try:
        if sound and info.sound is not None:
            heard = SoundReader(path, info.streams[0], zero=info.zero, rate=sample_rate, limits=limits, watch=watch)
        if picture and info.picture is not None and frames:
            seen = PictureReader(
                path, info.streams[1], zero=info.zero, short_side=short_side, limits=limits, watch=watch
            )
            if cuts and cuts[0].start > SEEK_SECONDS:
                seen.skip_to(cuts[0].start)
        pictures = _pictures(seen, cuts, frames) if seen is not None else iter(() for _ in cuts)
        for cut, shown in zip(cuts, pictures, strict=False):
            first = round(cut.start * sample_rate)
            samples = heard.read(first, first + round(cut.seconds * sample_rate)) if heard is not None else None
            yield Excerpt(cut, samples, shown, frame_times(cut, frames) if shown else ())
            watch.progress()
    finally:
        for reader in (heard, seen):
            if reader is not None:
                reader.close()


def _pictures(reader: PictureReader, cuts: Sequence[Cut], frames: int) -> Iterator[tuple[NDArray[np.uint8], ...]]:
    """The pictures of each clip; the film only runs forwards, so overlapping clips are filled side by side."""
    moments = sorted((t, k, slot) for k, cut in enumerate(cuts) for slot, t in enumerate(frame_times(cut, frames)))
    waiting: dict[int, list[NDArray[np.uint8]]] = {}
    ready = 0
    for moment, k, _ in moments:
        picture = reader.at(moment)
        if picture is None:
            raise MediaError(reader.path, "its pictures cannot be decoded")
        waiting.setdefault(k, []).append(picture)
        while len(waiting.get(ready, ())) == frames:
            yield tuple(waiting.pop(ready))
            ready += 1


def decode(
    path: Path, *, sample_rate: int = SAMPLE_RATE, frames: int = FRAMES, seconds: float = CLIP_SECONDS
) -> DecodedClip:
    """The first `seconds` of a file: its waveform, and `frames` pictures evenly spaced over them.

    A missing stream gives None; a file with neither is refused.
    """
    info = open_media(path, until=seconds)
    waveform: Tensor | None = None
    pictures: Tensor | None = None
    times: tuple[float, ...] = ()
    if info.sound is not None:
        cut = Cut(0.0, min(seconds, info.sound[1]))
        excerpt = next(read_clips(path, [cut], info, sample_rate=sample_rate, picture=False))
        if excerpt.sound is not None and len(excerpt.sound):
            waveform = torch.from_numpy(excerpt.sound.astype(np.float32) / 32768)
    if info.picture is not None:
        cut = Cut(0.0, min(seconds, info.picture[1]))
        excerpt = next(read_clips(path, [cut], info, frames=frames, sound=False))
        pictures, times = stacked(excerpt.pictures), excerpt.times
    if waveform is None and pictures is None:
        raise MediaError(path, "holds neither sound nor picture that can be decoded")
    return DecodedClip(path.stem, waveform, sample_rate, pictures, times)


def stacked(pictures: Sequence[NDArray[np.uint8]]) -> UInt8[Tensor, "k 3 h w"]:
    """Pictures as one tensor; those whose size changed on the way are left at the size of the first by cutting."""
    height, width = min(p.shape[0] for p in pictures), min(p.shape[1] for p in pictures)
    stack = np.stack([p[:height, :width] for p in pictures])
    return torch.from_numpy(stack).permute(0, 3, 1, 2).contiguous()
