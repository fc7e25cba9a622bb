"""From one source to the bytes of its clips: what a worker process does with a file."""

from __future__ import annotations

import hashlib
import json
import logging
import os
import re
import zlib
from array import array
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray

from equiav.data.index import Member
from equiav.data.manifest import Source, Split, split_of
from equiav.data.shards import flac, jpeg, tar_member
from equiav.errors import EquiAVError, MediaError
from equiav.media import (
    CLIP_SECONDS,
    FRAMES,
    LEAST_SECONDS,
    SAMPLE_RATE,
    Cut,
    Excerpt,
    FilterBank,
    Limits,
    MediaInfo,
    common_span,
    cuts,
    open_media,
    read_clips,
)

logger = logging.getLogger(__name__)

Need = tuple[Literal["audio", "video"], ...]

SILENCE = 10 ** (-60 / 20)  # peak of full scale
SLUG = 40


@dataclass(frozen=True)
class Settings:
    """What decides the content of the clips."""

    clip_seconds: float = CLIP_SECONDS
    overlap: float = 0.0
    short_side: int = 256
    frames: int = FRAMES
    sample_rate: int = SAMPLE_RATE
    need: Need = ("audio", "video")


@dataclass(frozen=True)
class StoredClip:
    """One clip in a fragment: its length in bytes, and its members by offset, size and CRC-32 from its first byte.

    Members stand flat in an array: a preparation holds those of all its clips, and numbers as objects are six times as
    large.
    """

    key: str
    start: float
    seconds: float
    length: int
    members: Sequence[int]
    statistics: tuple[float, float, float]

    def placed(self, offset: int) -> tuple[Member, ...]:
        """Its members in a shard where it begins at `offset`; a member that is missing has no place."""
        flat = iter(self.members)
        return tuple((offset + at if size else 0, size, crc) for at, size, crc in zip(flat, flat, flat, strict=True))


@dataclass(frozen=True)
class Outcome:
    """What became of a source: clips in a fragment, stretches left out, or the reason why there is nothing."""

    number: int
    reason: str = ""
    clips: tuple[StoredClip, ...] = ()
    dropped: tuple[tuple[float, str], ...] = ()

    def to_json(self) -> str:
        """One line of the journal."""
        return json.dumps(asdict(self), separators=(",", ":"), default=list)

    @staticmethod
    def from_json(line: str) -> Outcome:
        """A line of the journal read back; ValueError if it was cut short."""
        try:
            record: dict[str, Any] = json.loads(line)
            clips = tuple(
                StoredClip(**{**c, "members": array("q", c["members"]), "statistics": tuple(c["statistics"])})
                for c in record["clips"]
            )
            dropped = tuple((start, reason) for start, reason in record["dropped"])
            return Outcome(record["number"], record["reason"], clips, dropped)
        except (KeyError, TypeError) as error:
            raise ValueError(f"not an outcome: {error}") from error


def split_for(source: Source) -> Split:
    """As its owner says, otherwise by its group or name."""
    return source.split or split_of(source.group or source.name)


def key_of(name: str, number: int) -> str:
    """A clip's name in its shard: readable, plain, and different for different sources whatever they are called."""
    slug = re.sub(r"[^a-z0-9]+", "-", Path(name).stem.lower()).strip("-")[:SLUG] or "clip"
    digest = hashlib.sha256(name.encode("utf-8", "backslashreplace")).hexdigest()[:12]
    return f"{slug}-{digest}-{number:04d}"


def fragment_path(folder: Path, number: int) -> Path:
    """Where the clips of a source wait until their shard is written."""
    return folder / f"{number:08d}.part"


@dataclass(frozen=True)
class Cutter:
    """Turns (number, source) into a fragment in `folder`; calls `tick` whenever a clip is done."""

    folder: Path
    settings: Settings
    limits: Limits

    def __call__(self, job: tuple[int, Source], tick: Callable[[], None]) -> Outcome:
        """Never raises for bad media: the reason is part of the outcome."""
        number, source = job
        path = fragment_path(self.folder, number)
        draft = path.with_name(f".{path.name}.{os.getpid()}.tmp")
        with draft.open("wb") as file:
            clips, dropped, reason = self._clips(source, file.write, tick)
            if clips:
                file.flush()
                os.fsync(file.fileno())
        if clips:
            draft.replace(path)
            return Outcome(number, "", clips, dropped)
        draft.unlink()
        return Outcome(number, reason or dropped[0][1])

    def _clips(
        self, source: Source, write: Callable[[bytes], Any], tick: Callable[[], None]
    ) -> tuple[tuple[StoredClip, ...], tuple[tuple[float, str], ...], str]:
        clips: list[StoredClip] = []
        dropped: list[tuple[float, str]] = []
        at, reason = source.start, ""
        try:
            info, wanted = self._plan(source)
            for number, excerpt in enumerate(self._read(source, wanted, info)):
                at = excerpt.cut.stop
                unfit = self._unfit(excerpt)
                if unfit:
                    dropped.append((excerpt.cut.start, unfit))
                else:
                    blob, clip = self._pack(source, excerpt, number)
                    write(blob)
                    clips.append(clip)
                tick()
        except MediaError as error:
            reason = error.reason
        except (EquiAVError, MemoryError, ArithmeticError, LookupError, ValueError, TypeError) as error:
            # A file nobody foresaw must not end a run over millions; the log keeps what is needed to mend it.
            logger.warning("%s: %r", source.path, error, exc_info=True)
            reason = f"cannot be read ({type(error).__name__}: {error})"
        if clips and reason:
            dropped.append((at, f"the rest: {reason}"))
        return tuple(clips), tuple(dropped), reason

    def _plan(self, source: Source) -> tuple[MediaInfo, list[Cut]]:
        """Which stretches of the file become clips."""
        need, path = self.settings.need, source.path
        until = None if source.seconds is None else source.start + source.seconds
        info = open_media(path, limits=self.limits, until=until)
        if "audio" in need and not info.has_audio:
            raise MediaError(path, "no sound")
        if "video" in need and not info.has_video:
            raise MediaError(path, "no picture")
        begin, end = common_span(info, sound="audio" in need, picture="video" in need)
        begin = max(begin, source.start)
        if until is not None:
            end = min(end, until)
        if end - begin < LEAST_SECONDS:
            what = "sound and picture overlap for" if len(need) > 1 else "lasts"
            raise MediaError(path, f"{what} only {max(0.0, end - begin):.2f} s")
        if source.seconds is not None:
            return info, [Cut(begin, end - begin)]
        return info, cuts(begin, end, seconds=self.settings.clip_seconds, overlap=self.settings.overlap)

    def _read(self, source: Source, wanted: list[Cut], info: MediaInfo) -> Any:
        settings = self.settings
        return read_clips(
            source.path,
            wanted,
            info,
            sample_rate=settings.sample_rate,
            frames=settings.frames,
            short_side=settings.short_side,
            sound="audio" in settings.need,
            picture="video" in settings.need,
            limits=self.limits,
        )

    def _unfit(self, excerpt: Excerpt) -> str:
        """Why a clip is of no use, if it is not."""
        if excerpt.sound is None:
            return ""
        if len(excerpt.sound) < LEAST_SECONDS * self.settings.sample_rate:
            return "its sound cannot be decoded"
        sound = excerpt.sound.astype(np.float32) / 32768
        return "silent" if float(np.abs(sound - sound.mean()).max()) < SILENCE else ""

    def _pack(self, source: Source, excerpt: Excerpt, number: int) -> tuple[bytes, StoredClip]:
        """The clip as members of a tar, and where each lies in it."""
        settings, key = self.settings, key_of(source.name, number)
        seconds = excerpt.cut.seconds if excerpt.sound is None else len(excerpt.sound) / settings.sample_rate
        contents: list[tuple[str, bytes]] = [("flac", b"" if excerpt.sound is None else self._flac(excerpt.sound))]
        contents += [(f"{k}.jpg", jpeg(picture)) for k, picture in enumerate(excerpt.pictures)]
        contents += [("json", _description(source, excerpt, key, seconds, settings))]
        blob, members = b"", array("q")
        for suffix, content in contents:
            if not content:
                members.extend((0, 0, 0))
                continue
            entry = tar_member(f"{key}.{suffix}", content)
            header = len(entry) - len(content) - (-len(content) % 512)
            members.extend((len(blob) + header, len(content), zlib.crc32(content)))
            blob += entry
        return blob, StoredClip(
            key, excerpt.cut.start, seconds, len(blob), members, statistics(excerpt.sound, settings.sample_rate)
        )

    def _flac(self, sound: NDArray[np.int16]) -> bytes:
        return flac(sound, self.settings.sample_rate)


def _description(source: Source, excerpt: Excerpt, key: str, seconds: float, settings: Settings) -> bytes:
    record = {
        "key": key,
        "name": source.name,
        "split": split_for(source),
        "group": source.group or source.name,
        "labels": source.labels,
        "start": round(excerpt.cut.start, 6),
        "seconds": round(seconds, 6),
        "times": [round(t, 6) for t in excerpt.times],
        "sample_rate": settings.sample_rate,
        "boxes": source.boxes,
        "fold": source.fold,
    }
    return json.dumps(record).encode()


def statistics(sound: NDArray[np.int16] | None, sample_rate: int) -> tuple[float, float, float]:
    """Sum, sum of squares and number of the values of a clip's spectrogram, padding left out."""
    if sound is None:
        return 0.0, 0.0, 0.0
    bank = FilterBank(sample_rate=sample_rate)
    waveform = torch.from_numpy(sound.astype(np.float32) / 32768)[None]
    rows = int(bank.rows(torch.tensor([waveform.shape[1]])))
    values = bank(waveform)[0, :rows].double()
    return float(values.sum()), float(values.square().sum()), float(values.numel())
