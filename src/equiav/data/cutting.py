"""From one source to the bytes of its clips: what a worker process does with a file."""

from __future__ import annotations

import hashlib
import json
import logging
import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray

from equiav.data.shards import StoredClip, flac, jpeg, pack
from equiav.data.sources import split_of
from equiav.errors import DataError, EquiAVError, MediaError
from equiav.media import (
    CLIP_SECONDS,
    FRAMES,
    LEAST_SECONDS,
    SAMPLE_RATE,
    Cut,
    Excerpt,
    FilterBank,
    Limits,
    cuts,
    open_media,
    read_clips,
    tick,
    usable_span,
)
from equiav.types import Clip, Split

logger = logging.getLogger(__name__)

SILENCE = 10 ** (-60 / 20)  # peak of full scale
SLUG = 40

Need = tuple[Literal["audio", "video"], ...]
Job = tuple[int, Clip]  # a source and its number


@dataclass(frozen=True)
class Settings:
    """What decides the content of the clips."""

    clip_seconds: float = CLIP_SECONDS
    overlap: float = 0.0
    short_side: int = 256
    frames: int = FRAMES
    sample_rate: int = SAMPLE_RATE
    need: Need = ("audio", "video")


def path_of(source: Clip) -> Path:
    """Where the source lies; one that says nothing about it is refused."""
    if source.path is None:
        raise DataError(f"{source.id}: has no path to read it from")
    return source.path


def split_for(source: Clip) -> Split:
    """As its owner says, otherwise by its group or name."""
    return source.split or split_of(source.group or source.id)


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
        split=split_for(source),
        group=source.group or source.id,
    )


@dataclass(frozen=True)
class Outcome:
    """What became of a source: clips in a fragment, stretches left out, or the reason why there is nothing."""

    number: int
    reason: str = ""
    clips: tuple[StoredClip, ...] = ()
    dropped: tuple[tuple[float, str], ...] = ()

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
            return Outcome(record["number"], record["reason"], tuple(clips), dropped)
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
        at, reason = source.start, ""
        with draft.open("wb") as file:
            try:
                for place, excerpt in enumerate(self._excerpts(source)):
                    at = excerpt.cut.stop
                    if unfit := self._unfit(excerpt):
                        dropped.append((excerpt.cut.start, unfit))
                    else:
                        blob, stored = self._packed(source, excerpt, place)
                        file.write(blob)
                        clips.append(stored)
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
            draft.unlink()
            return Outcome(number, reason or dropped[0][1])
        draft.replace(path)
        if reason:
            dropped.append((at, f"the rest: {reason}"))
        return Outcome(number, "", tuple(clips), tuple(dropped))

    def _excerpts(self, source: Clip) -> Iterator[Excerpt]:
        """The stretches of the file that become clips, decoded."""
        settings, path = self.settings, path_of(source)
        need = {name: name in settings.need for name in ("audio", "video")}
        until = None if source.seconds is None else source.start + source.seconds
        info = open_media(path, limits=self.limits, until=until)
        if need["audio"] and info.audio is None:
            raise MediaError(path, "no sound")
        if need["video"] and info.video is None:
            raise MediaError(path, "no picture")
        begin, end = usable_span(path, info, start=source.start, seconds=source.seconds, **need)
        if source.seconds is not None:
            wanted = [Cut(begin, end - begin)]
        else:
            wanted = cuts(begin, end, seconds=settings.clip_seconds, overlap=settings.overlap)
        return read_clips(
            path, wanted, info, sample_rate=settings.sample_rate, frames=settings.frames,
            short_side=settings.short_side, limits=self.limits, **need,
        )  # fmt: skip

    def _unfit(self, excerpt: Excerpt) -> str:
        """Why a clip is of no use, if it is not."""
        if excerpt.waveform is None:
            return ""
        if len(excerpt.waveform) < LEAST_SECONDS * self.settings.sample_rate:
            return "its sound cannot be decoded"
        waveform = excerpt.waveform.astype(np.float32) / 32768
        return "silent" if float(np.abs(waveform - waveform.mean()).max()) < SILENCE else ""

    def _packed(self, source: Clip, excerpt: Excerpt, number: int) -> tuple[bytes, StoredClip]:
        """The clip as it stands in a shard: audio, frames and a description."""
        rate, waveform = self.settings.sample_rate, excerpt.waveform
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
        contents = [("flac", b"" if waveform is None else flac(waveform, rate))]
        contents += [(f"{k}.jpg", jpeg(frame)) for k, frame in enumerate(excerpt.frames)]
        contents += [("json", json.dumps(description).encode())]
        return pack(clip, contents, statistics(waveform, rate))


def statistics(waveform: NDArray[np.int16] | None, sample_rate: int) -> tuple[float, float, float]:
    """Sum, sum of squares and number of the values of a clip's spectrogram, padding left out."""
    if waveform is None:
        return 0.0, 0.0, 0.0
    bank = FilterBank(sample_rate=sample_rate)
    samples = torch.from_numpy(waveform.astype(np.float32) / 32768)[None]
    rows = int(bank.rows(torch.tensor([samples.shape[1]])))
    values = bank(samples)[0, :rows].double()
    return float(values.sum()), float(values.square().sum()), float(values.numel())
