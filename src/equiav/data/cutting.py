"""From one source to the bytes of its clips: what a worker process does with a file."""

from __future__ import annotations

import hashlib
import json
import logging
import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from equiav.data.shards import StoredClip, flac, jpeg, pack
from equiav.data.sources import IMAGE_SUFFIXES, split_of
from equiav.errors import DataError, EquiAVError, MediaError
from equiav.io import sync_path
from equiav.media import (
    CLIP_SECONDS,
    FRAMES,
    LEAST_SECONDS,
    SAMPLE_RATE,
    Cut,
    Excerpt,
    Limits,
    cuts,
    open_media,
    read_clips,
    read_image,
    tick,
    usable_span,
)
from equiav.types import Clip

logger = logging.getLogger(__name__)

SILENCE = 10 ** (-60 / 20)  # peak of full scale
SLUG = 40
SHORT, SILENT = "short", "silent"  # what is remarked on where it is kept

Need = tuple[Literal["audio", "video"], ...]
Channels = Literal["mean", "first"]
Job = tuple[int, Clip]  # a source and its number


@dataclass(frozen=True)
class Settings:
    """What decides the content of the clips.

    With `partial`, what lacks one of the needed modalities is kept with the other. Of a `published` dataset whatever
    can be decoded is kept: sounds too short are padded, silent ones and copies stay.
    """

    clip_seconds: float = CLIP_SECONDS
    overlap: float = 0.0
    short_side: int = 256
    frames: int = FRAMES
    sample_rate: int = SAMPLE_RATE
    need: Need = ("audio", "video")
    channels: Channels = "mean"
    partial: bool = False
    published: bool = False

    def __post_init__(self) -> None:
        if not 0.5 <= self.clip_seconds <= 600 or not 0 <= self.overlap < self.clip_seconds:
            raise DataError(f"clips of {self.clip_seconds:g} s overlapping by {self.overlap:g} s make no sense")
        if not 16 <= self.short_side <= 4096 or not 1 <= self.frames <= 1000:
            raise DataError("short_side must be 16 to 4096, frames 1 to 1000")
        if not self.need or not set(self.need) <= {"audio", "video"}:
            raise DataError(f"need must name audio, video or both, not {self.need}")
        if self.channels not in ("mean", "first"):
            raise DataError(f"channels must be mean or first, not {self.channels}")

    def identity(self) -> dict[str, Any]:
        """What tells settings apart; options that came later count only where they are used, for folders of before."""
        later = {"channels": "mean", "partial": False, "published": False}
        return {name: value for name, value in asdict(self).items() if later.get(name) != value}


def path_of(source: Clip) -> Path:
    """Where the source lies; one that says nothing about it is refused."""
    if source.path is None:
        raise DataError(f"{source.id}: has no path to read it from")
    return source.path


def key_of(name: str, number: int) -> str:
    """A clip's name in its shard: readable, plain, and different for different sources whatever they are called."""
    slug = re.sub(r"[^a-z0-9]+", "-", Path(name).stem.lower()).strip("-")[:SLUG] or "clip"
    digest = hashlib.sha256(name.encode("utf-8", "backslashreplace")).hexdigest()[:12]
    return f"{slug}-{digest}-{number:04d}"


def clip_of(source: Clip, key: str, start: float, seconds: float) -> Clip:
    """The record of a clip that was cut from a source."""
    return replace(
        source,
        id=key,
        source=source.id,
        start=start,
        seconds=seconds,
        split=source.split or split_of(source.group or source.id),
        group=source.group or source.id,
    )


@dataclass(frozen=True)
class Outcome:
    """What became of a source: clips in a fragment, stretches left out, or the reason why there is nothing.

    `remarks` are on clips that were kept although they are short or silent.
    """

    number: int
    reason: str = ""
    clips: tuple[StoredClip, ...] = ()
    dropped: tuple[tuple[float, str], ...] = ()
    remarks: tuple[str, ...] = ()

    def to_json(self) -> str:
        """One line of the journal."""
        clips = [
            {
                "key": stored.clip.id,
                "start": stored.clip.start,
                "seconds": stored.clip.seconds,
                "members": [number for member in stored.members for number in member],
                "statistics": stored.statistics,
            }
            for stored in self.clips
        ]
        record = {"number": self.number, "reason": self.reason, "clips": clips, "dropped": self.dropped}
        if self.remarks:
            record["remarks"] = self.remarks
        return json.dumps(record, separators=(",", ":"))

    @staticmethod
    def from_json(line: bytes, sources: Sequence[Clip]) -> Outcome:
        """A line of the journal read back; ValueError if it was cut short."""
        try:
            record: dict[str, Any] = json.loads(line)
            source = sources[record["number"]]
            clips = []
            for c in record["clips"]:
                flat, (total, squares, count) = iter(c["members"]), c["statistics"]
                members = tuple(zip(flat, flat, flat, strict=True))
                clip = clip_of(source, c["key"], c["start"], c["seconds"])
                clips.append(StoredClip(clip, members, (total, squares, count)))
            dropped = tuple((start, reason) for start, reason in record["dropped"])
            remarks = tuple(record.get("remarks", ()))
            return Outcome(record["number"], record["reason"], tuple(clips), dropped, remarks)
        except (KeyError, TypeError, IndexError) as error:
            raise ValueError(f"not an outcome: {error}") from error


def fragment_path(folder: Path, number: int) -> Path:
    """Where the clips of a source wait until their shard is written."""
    return folder / f"{number:08d}.part"


@dataclass(frozen=True)
class Cutter:
    """What a worker process does with a source: decode it, cut it, and write its clips to a fragment in `folder`."""

    folder: Path
    settings: Settings
    limits: Limits

    def __call__(self, job: Job) -> Outcome:
        """Never raises for bad media: the reason is part of the outcome."""
        number, source = job
        path = fragment_path(self.folder, number)
        draft = path.with_name(f".{path.name}.{os.getpid()}.tmp")
        clips: list[StoredClip] = []
        dropped: list[tuple[float, str]] = []
        remarks: list[str] = []
        at, reason = source.start, ""
        try:
            with draft.open("wb") as file:
                try:
                    for place, excerpt in enumerate(self._excerpts(source)):
                        at = excerpt.cut.stop
                        kept, unfit = self._judged(excerpt)
                        if kept is None:
                            dropped.append((excerpt.cut.start, unfit))
                        else:
                            blob, stored = self._packed(source, kept, place)
                            file.write(blob)
                            clips.append(stored)
                            remarks += [unfit] if unfit else []
                        tick()
                except MediaError as error:
                    reason = error.reason
                except (EquiAVError, MemoryError, ArithmeticError, LookupError, ValueError, TypeError) as error:
                    # A file nobody foresaw must not end a run over millions; the log keeps what is needed to mend it.
                    logger.warning("%s: %r", source.path, error, exc_info=True)
                    reason = f"cannot be read ({type(error).__name__}: {error})"
                if clips:
                    file.flush()
                    os.fsync(file.fileno())
            if not clips:
                return Outcome(number, reason or dropped[0][1])
            draft.replace(path)
            sync_path(self.folder)  # the journal, which speaks of it, may reach the disk first
        finally:
            draft.unlink(missing_ok=True)
        if reason:
            dropped.append((at, f"the rest: {reason}"))
        return Outcome(number, "", tuple(clips), tuple(dropped), tuple(remarks))

    def _excerpts(self, source: Clip) -> Iterator[Excerpt]:
        """The stretches of the file that become clips, decoded."""
        settings, path = self.settings, path_of(source)
        if settings.partial and path.suffix.lower() in IMAGE_SUFFIXES:
            return iter([self._image(path)])
        until = None if source.seconds is None else source.start + source.seconds
        info = open_media(path, limits=self.limits, until=until)
        has = {"audio": info.audio is not None, "video": info.video is not None}
        absent = [name for name in settings.need if not has[name]]
        if absent and (not settings.partial or len(absent) == len(settings.need)):
            raise MediaError(path, "no sound" if absent[0] == "audio" else "no picture")
        need = {name: name in settings.need and has[name] for name in has}
        least = 1 / settings.sample_rate if settings.published else LEAST_SECONDS
        begin, end = usable_span(path, info, start=source.start, seconds=source.seconds, least=least, **need)
        if source.seconds is not None:
            wanted = [Cut(begin, end - begin)]
        else:
            wanted = cuts(begin, end, seconds=settings.clip_seconds, overlap=settings.overlap)
        return read_clips(
            path, wanted, info, sample_rate=settings.sample_rate, frames=settings.frames,
            short_side=settings.short_side, first_channel=settings.channels == "first", limits=self.limits, **need,
        )  # fmt: skip

    def _image(self, path: Path) -> Excerpt:
        """An image file as a clip of one frame that lasts no time."""
        image = Image.fromarray(read_image(path, limits=self.limits))
        scale = self.settings.short_side / min(image.size)
        if scale < 1:
            width, height = (max(1, round(side * scale)) for side in image.size)
            image = image.resize((width, height), Image.Resampling.BICUBIC)
        return Excerpt(Cut(0.0, 0.0), None, (np.array(image),), (0.0,))

    def _judged(self, excerpt: Excerpt) -> tuple[Excerpt | None, str]:
        """The clip as it is kept, if it is, and what is wrong with its sound."""
        waveform = excerpt.waveform
        if waveform is None:
            return excerpt, ""
        short = len(waveform) < LEAST_SECONDS * self.settings.sample_rate
        samples = waveform.astype(np.float32) / 32768
        if not len(waveform) or (short and not self.settings.published):
            wrong = "its sound cannot be decoded"
        elif float(np.abs(samples - samples.mean()).max()) < SILENCE:
            wrong = SILENT
        else:
            wrong = SHORT if short else ""
        if not wrong or (self.settings.published and len(waveform)):
            return excerpt, wrong
        if self.settings.partial and excerpt.frames:
            return replace(excerpt, waveform=None), ""
        return None, wrong

    def _packed(self, source: Clip, excerpt: Excerpt, number: int) -> tuple[bytes, StoredClip]:
        """The clip as it stands in a shard: audio, frames and a description."""
        rate, waveform, frames = self.settings.sample_rate, excerpt.waveform, [jpeg(f) for f in excerpt.frames]
        sums = statistics(waveform, rate)
        if waveform is not None:  # padding does not count in the statistics
            waveform = np.pad(waveform, (0, max(0, round(LEAST_SECONDS * rate) - len(waveform))))
        seconds = excerpt.cut.seconds if waveform is None else len(waveform) / rate
        clip = clip_of(source, key_of(source.id, number), excerpt.cut.start, seconds)
        description = {
            "key": clip.id,
            "name": source.id,
            "split": clip.split,
            "group": clip.group,
            "labels": clip.labels,
            "start": round(clip.start, 6),
            "seconds": round(seconds, 6),
            "times": [round(t, 6) for t in excerpt.times],
            "sample_rate": rate,
            "boxes": clip.boxes,
            "fold": clip.fold,
        }
        missing = self.settings.frames - len(frames) if "video" in self.settings.need else 0
        contents = [("flac", b"" if waveform is None else flac(waveform, rate))]
        contents += [(f"{k}.jpg", frame) for k, frame in enumerate(frames + [b""] * missing)]
        contents += [("json", json.dumps(description).encode())]
        blob, stored = pack(clip, contents, sums)
        if frames and missing:  # an image is stored once, and stands for all frames
            audio, image, *_, last = stored.members
            stored = replace(stored, members=(audio, *[image] * self.settings.frames, last))
        return blob, stored


def statistics(waveform: NDArray[np.int16] | None, sample_rate: int) -> tuple[float, float, float]:
    """Sum, sum of squares and number of the values of a clip's spectrogram, padding left out."""
    # Only processes that cut need torch; not the one that hands out the files, and none that merges.
    import torch

    from equiav.media import FilterBank

    bank = FilterBank(sample_rate=sample_rate)
    if waveform is None or len(waveform) < bank.window:
        return 0.0, 0.0, 0.0
    samples = torch.from_numpy(waveform.astype(np.float32) / 32768)[None]
    rows = int(bank.rows(torch.tensor([samples.shape[1]])))
    values = bank(samples)[0, :rows].double()
    return float(values.sum()), float(values.square().sum()), float(values.numel())
