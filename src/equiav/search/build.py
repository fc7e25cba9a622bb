"""Filling an index: media files or a prepared folder in, entries out; what is known already is left alone."""

from __future__ import annotations

import csv
import io
import logging
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from equiav.data import (
    META,
    SKIPPED,
    SPLITS,
    SUFFIXES,
    ShardDataset,
    Source,
    find_sources,
    further_columns,
    key_of,
    read_meta,
    read_skipped,
)
from equiav.data import Index as Prepared
from equiav.errors import DataError, EquiAVError, MediaError
from equiav.files import write_whole
from equiav.inference import Embedder
from equiav.inference.items import PICTURES, read_picture, resampled
from equiav.progress import duration
from equiav.search.index import INDEX, THUMBNAILS, Index
from equiav.search.media import PREPARED, SPLIT
from equiav.search.records import Entry
from equiav.search.state import STATE

logger = logging.getLogger(__name__)

COMMIT_ENTRIES = 1024
COMMIT_SECONDS = 60.0
SAY_SECONDS = 2.0

Say = Callable[[str], None]
Skipped = tuple[str, str, str]  # source, start (empty: all of it), reason


@dataclass(frozen=True)
class Summary:
    """What became of the files (or clips): entries added, files used, left out, and known before."""

    added: int
    files: int
    skipped: int
    known: int


def index_folder(
    index: Index,
    embedder: Embedder,
    place: Path,
    *,
    table: Path | None = None,
    seconds: float | None = None,
    overlap: float = 0.0,
    say: Say = lambda line: None,
) -> Summary:
    """A prepared folder, or a folder, list or file of media, whichever `place` is; see the two functions below."""
    if (place / META).is_file():
        if seconds or overlap:
            raise DataError(f"{place} is cut into clips already: --seconds and --overlap are for media")
        return index_prepared(index, embedder, place, table=table, say=say)
    if table is not None:
        raise DataError(f"--list goes with a prepared folder, which {place} is not; index the list itself instead")
    return index_media(index, embedder, place, seconds=seconds, overlap=overlap, say=say)


def index_media(
    index: Index,
    embedder: Embedder,
    place: Path,
    *,
    seconds: float | None = None,
    overlap: float = 0.0,
    say: Say = lambda line: None,
) -> Summary:
    """Cuts media into windows, embeds them and adds them; files that cannot be read go to skipped.csv.

    Args:
        index: of vectors of the embedder's model.
        embedder: makes the vectors.
        place: a folder (searched in depth), a list (.txt, .csv, .jsonl) or one file; videos, sounds, pictures.
        seconds: length of a window, at most the default: 10, or what the model hears if that is less.
        overlap: seconds that neighbouring windows share.
        say: is told how far it is and how long it will take.
    """
    index.check_model(embedder.digest)
    embedder.check_seconds(seconds)
    sources = _outside_indexes(find_sources(place, suffixes=SUFFIXES | PICTURES), index.folder, place)
    columns = further_columns(place)
    firsts = {_origin(source): key_of(_origin(source), 0) for source in sources}
    known = index.store.known(list(firsts.values()))
    todo = [source for source in sources if firsts[_origin(source)] not in known]
    with _Filling(index, embedder, len(todo), "files", say) as filling:
        for source in todo:
            more = columns.get(source.name, {})
            filling.add(source.name, _windows(embedder, source, more, seconds=seconds, overlap=overlap))
    return filling.summary(len(sources) - len(todo))


def _outside_indexes(sources: list[Source], own: Path, place: Path) -> list[Source]:
    """Media that are no index's thumbnails: those in the index's own folder and in folders of other indexes are not."""
    homes = [source.path.resolve().parent for source in sources]
    folders = {folder for home in set(homes) for folder in (home, *home.parents)}
    indexes = {own.resolve(), *filter(_holds_index, folders)}
    kept = [s for s, home in zip(sources, homes, strict=True) if indexes.isdisjoint((home, *home.parents))]
    if not kept:
        raise DataError(f"{place} names no media outside of indexes; give the index a folder of its own")
    return kept


def _holds_index(folder: Path) -> bool:
    return (folder / INDEX).is_file() and ((folder / STATE).is_file() or (folder / THUMBNAILS).is_dir())


def _origin(source: Source) -> str:
    """What tells a source from all others, in any list: its file, and the stretch of it."""
    place = str(source.path.resolve())
    return place if source.seconds is None and not source.start else f"{place}@{source.start:g}+{source.seconds}"


def _windows(
    embedder: Embedder, source: Source, more: Mapping[str, Any], *, seconds: float | None, overlap: float
) -> Iterator[Entry | Skipped]:
    facts: dict[str, Any] = {"labels": source.labels, "source": source.name, "path": source.path.resolve()}
    facts["metadata"] = {**more, **({SPLIT: source.split} if source.split else {})}
    if source.path.suffix.lower() in PICTURES:
        picture = read_picture(source.path)
        seen = embedder.image(picture)
        yield Entry(key_of(_origin(source), 0), start=0.0, end=0.0, visual=seen, picture=picture, **facts)
        return
    number = 0
    span = (source.start, source.seconds)
    for window in embedder.windows(source.path, seconds=seconds, overlap=overlap, span=span):
        if window.audio is None and window.visual is None:
            yield source.name, f"{window.start:.3f}", "silent"
            continue
        key = key_of(_origin(source), number)
        start, end = round(window.start, 6), round(window.end, 6)
        yield Entry(
            key, start=start, end=end, audio=window.audio, visual=window.visual, picture=window.picture, **facts
        )
        number += 1


def index_prepared(
    index: Index, embedder: Embedder, folder: Path, *, table: Path | None = None, say: Say = lambda line: None
) -> Summary:
    """Embeds and adds the clips of a prepared folder under their own names, all splits.

    A clip stays one entry: where the model hears less at once, its sound is the mean of windows across all of it.
    `table` is the list that was given to `prepare`: its further columns become metadata to filter by.
    """
    index.check_model(embedder.digest)
    columns = further_columns(table) if table is not None else {}
    prepared = Prepared(folder)
    keys = [prepared.text("keys", i) for i in range(len(prepared))]
    known = index.store.known(keys)
    rate = int(read_meta(folder)["sample_rate"])
    with _Filling(index, embedder, len(keys) - len(known), "clips", say) as filling:
        for number, split in enumerate(SPLITS):
            if not bool((prepared.split == number).any()):
                continue
            clips = ShardDataset(folder, split, size=embedder.model.config.visual.size)
            for i in range(len(clips)):
                if clips.name(i) not in known:
                    more = columns.get(clips.source(i), {})
                    filling.add(clips.name(i), _clip(embedder, clips, i, rate, more))
    return filling.summary(len(known))


def _clip(
    embedder: Embedder, clips: ShardDataset, i: int, rate: int, more: Mapping[str, Any]
) -> Iterator[Entry | Skipped]:
    wave = resampled(clips.waveform(i), rate, embedder.rate) if "audio" in clips.meta["modalities"] else None
    frames = clips.pictures(i) if clips.frames else None
    ((audio, visual),) = embedder.clips([(wave, frames)])
    picture = clips.whole_picture(i, clips.frames // 2).permute(1, 2, 0).numpy() if clips.frames else None
    row = int(clips.rows[i])
    start, seconds = (float(x) for x in clips.index.times[row])
    metadata = {**more, SPLIT: clips.split, "group": clips.group(i), PREPARED: str(clips.folder.resolve())}
    yield Entry(
        clips.name(i),
        source=clips.source(i),
        path=Path(clips.index.text("paths", row)).absolute(),
        start=round(start, 6),
        end=round(start + seconds, 6),
        audio=audio,
        visual=visual,
        labels=clips.labels(i),
        metadata=metadata,
        picture=picture,
    )


class _Filling:
    """Adds entries in portions, whole files at a time, and keeps count; what failed goes to skipped.csv."""

    def __init__(self, index: Index, embedder: Embedder, total: int, unit: str, say: Say) -> None:
        self.index, self.embedder, self.total, self.unit, self.say = index, embedder, total, unit, say
        self.waiting: list[Entry] = []
        self.bad: list[Skipped] = []
        self.seen: list[str] = []
        self.added = self.used = 0
        self.began = self.said = self.committed = time.monotonic()

    def __enter__(self) -> _Filling:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None or issubclass(kind, KeyboardInterrupt):
            self._commit()

    def add(self, name: str, found: Iterator[Entry | Skipped]) -> None:
        """All entries of one file, or the reason why there is none; a file that breaks keeps what came before."""
        self.seen.append(name)
        mine: list[Entry] = []
        try:
            for item in found:
                if isinstance(item, Entry):
                    mine.append(item)
                else:
                    self.bad.append(item)
        except (EquiAVError, MemoryError, ArithmeticError, LookupError, ValueError) as error:
            reason = error.reason if isinstance(error, MediaError) else str(error)
            if not isinstance(error, EquiAVError):
                # A file nobody foresaw must not end a run over thousands; the log keeps what is needed to mend it.
                logger.warning("%s: %r", name, error, exc_info=True)
                reason = f"cannot be read ({type(error).__name__}: {error})"
            self.bad.append((name, f"{mine[-1].end:.3f}", f"the rest: {reason}") if mine else (name, "", reason))
        self.waiting += mine
        self.used += bool(mine)
        if len(self.waiting) >= COMMIT_ENTRIES or time.monotonic() - self.committed > COMMIT_SECONDS:
            self._commit()
        self._speak()

    def summary(self, known: int) -> Summary:
        """Once all is done."""
        return Summary(self.added, self.used, len(self.seen) - self.used, known)

    def _commit(self) -> None:
        self.added += self.index.add(self.waiting, made_by=self.embedder.digest)
        self.waiting, self.committed = [], time.monotonic()
        _write_skipped(self.index.folder, self.seen, self.bad)

    def _speak(self) -> None:
        now, done = time.monotonic(), len(self.seen)
        if now - self.said < SAY_SECONDS and done < self.total:
            return
        self.said = now
        left = duration((now - self.began) / done * (self.total - done))
        self.say(
            f"{done}/{self.total} {self.unit}  {self.added + len(self.waiting)} entries  "
            f"{done - self.used} left out  {left} left"
        )


def _write_skipped(folder: Path, seen: list[str], bad: list[Skipped]) -> None:
    """The list of what was left out, with the files of this run anew and those of earlier ones kept."""
    again = set(seen)
    before = [row for row in read_skipped(folder) if row[0] not in again] if (folder / SKIPPED).is_file() else []
    text = io.StringIO()
    writer = csv.writer(text)
    writer.writerow(("source", "start", "reason"))
    writer.writerows([*before, *bad])
    write_whole(folder / SKIPPED, text.getvalue().encode("utf-8", "backslashreplace"))
