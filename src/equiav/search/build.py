"""Filling an index: media files or a prepared folder in, entries out; what is known already is left alone."""

from __future__ import annotations

import csv
import io
import logging
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from equiav.data import (
    META,
    SKIPPED,
    SPLITS,
    SUFFIXES,
    ShardDataset,
    find_sources,
    key_of,
    read_skipped,
)
from equiav.errors import DataError, EquiAVError, MediaError
from equiav.inference import PICTURES, Embedder, resampled
from equiav.io import duration, write_whole
from equiav.media import read_image
from equiav.search.database import DATABASE, STATE
from equiav.search.index import INDEX, THUMBNAILS, Index
from equiav.search.records import Entry, Progress, Vector
from equiav.search.results import PREPARED
from equiav.types import Clip

logger = logging.getLogger(__name__)

COMMIT_ENTRIES = 1024
COMMIT_SECONDS = 60.0
PROGRESS_SECONDS = 2.0

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
    progress: Progress = lambda line: None,
) -> Summary:
    """A prepared folder, or a folder, list or file of media, whichever `place` is; see the two functions below."""
    if (place / META).is_file():
        if seconds or overlap:
            raise DataError(f"{place} is cut into clips already: --seconds and --overlap are for media")
        return index_prepared(index, embedder, place, table=table, progress=progress)
    if table is not None:
        raise DataError(f"--list goes with a prepared folder, which {place} is not; index the list itself instead")
    return index_media(index, embedder, place, seconds=seconds, overlap=overlap, progress=progress)


def index_media(
    index: Index,
    embedder: Embedder,
    place: Path,
    *,
    seconds: float | None = None,
    overlap: float = 0.0,
    progress: Progress = lambda line: None,
) -> Summary:
    """Cuts media into windows, embeds them and adds them; files that cannot be read go to skipped.csv.

    Args:
        index: of vectors of the embedder's model.
        embedder: makes the vectors.
        place: a folder (searched in depth), a list (.txt, .csv, .jsonl) or one file; videos, audio, images.
        seconds: length of a window, at most the default: 10, or what the model hears if that is less.
        overlap: seconds that neighbouring windows share.
        progress: is told how far it is and how long it will take.
    """
    index.check_model(embedder.digest)
    embedder.check_seconds(seconds)
    sources = _outside_indexes(find_sources(place, suffixes=SUFFIXES | PICTURES), index.folder, place)
    firsts = {_origin(source): key_of(_origin(source), 0) for source in sources}
    known = index.store.known(list(firsts.values()))
    todo = [source for source in sources if firsts[_origin(source)] not in known]
    files = ((s.id, _windows(embedder, s, seconds=seconds, overlap=overlap)) for s in todo)
    done = len(sources) - len(todo)
    return _fill(index, embedder, files, total=len(todo), known=done, unit="files", progress=progress)


def _outside_indexes(sources: list[Clip], own: Path, place: Path) -> list[Clip]:
    """Media that are no index's thumbnails: those in the index's own folder and in folders of other indexes are not."""
    homes = [_file(source).resolve().parent for source in sources]
    folders = {folder for home in set(homes) for folder in (home, *home.parents)}
    made = (DATABASE, STATE, THUMBNAILS)
    others = {f for f in folders if (f / INDEX).is_file() and any((f / name).exists() for name in made)}
    indexes = {own.resolve(), *others}
    kept = [s for s, home in zip(sources, homes, strict=True) if indexes.isdisjoint((home, *home.parents))]
    if not kept:
        raise DataError(f"{place} names no media outside of indexes; give the index a folder of its own")
    return kept


def _file(source: Clip) -> Path:
    assert source.path is not None  # found on disk
    return source.path


def _origin(source: Clip) -> str:
    """What tells a source from all others, in any list: its file, and the stretch of it."""
    place = str(_file(source).resolve())
    return place if source.seconds is None and not source.start else f"{place}@{source.start:g}+{source.seconds}"


def _windows(embedder: Embedder, source: Clip, *, seconds: float | None, overlap: float) -> Iterator[Entry | Skipped]:
    path = _file(source)

    def entry(number: int, start: float, end: float, vectors: Mapping[str, Vector | None], picture: Any) -> Entry:
        clip = Clip(
            key_of(_origin(source), number),
            source=source.id,
            path=path.resolve(),
            start=start,
            seconds=end - start,
            labels=source.labels,
            split=source.split,
            metadata=source.metadata,
        )
        return Entry(clip, {side: vector for side, vector in vectors.items() if vector is not None}, picture)

    if path.suffix.lower() in PICTURES:
        picture = read_image(path)
        yield entry(0, 0.0, 0.0, {"visual": embedder.image(picture)}, picture)
        return
    number = 0
    span = (source.start, source.seconds)
    for window in embedder.windows(path, seconds=seconds, overlap=overlap, span=span):
        if window.audio is None and window.visual is None:
            yield source.id, f"{window.start:.3f}", "silent"
            continue
        start, end = round(window.start, 6), round(window.end, 6)
        yield entry(number, start, end, {"audio": window.audio, "visual": window.visual}, window.picture)
        number += 1


def index_prepared(
    index: Index, embedder: Embedder, folder: Path, *, table: Path | None = None, progress: Progress = lambda line: None
) -> Summary:
    """Embeds and adds the clips of a prepared folder under their own names, all splits.

    A clip stays one entry: where the model hears less at once, its sound is the mean of windows across all of it.
    `table` is the list that was given to `prepare`: its further columns become metadata to filter by.
    """
    index.check_model(embedder.digest)
    columns = {clip.id: clip.metadata for clip in find_sources(table)} if table is not None else {}
    clips = ShardDataset(folder, None, size=embedder.model.config.visual.size)
    names = [clips.name(i) for i in range(len(clips))]
    known = index.store.known(names)
    todo = [i for i, name in enumerate(names) if name not in known]
    files = ((names[i], _clip(embedder, clips, i, columns.get(clips.source(i), {}))) for i in todo)
    return _fill(index, embedder, files, total=len(todo), known=len(known), unit="clips", progress=progress)


def _clip(embedder: Embedder, clips: ShardDataset, i: int, more: Mapping[str, Any]) -> Iterator[Entry | Skipped]:
    heard = "audio" in clips.modalities
    wave = resampled(clips.waveform(i), clips.sample_rate, embedder.rate) if heard else None
    frames = clips.video(i) if clips.frames else None
    ((audio, visual),) = embedder.clips([(wave, frames)])
    picture = clips.frame(i, clips.frames // 2, whole=True).permute(1, 2, 0).numpy() if clips.frames else None
    row = int(clips.rows[i])
    start, seconds = (float(x) for x in clips.index.times[row])
    clip = Clip(
        clips.name(i),
        source=clips.source(i),
        path=Path(clips.index.text("paths", row)).absolute(),
        start=round(start, 6),
        seconds=round(start + seconds, 6) - round(start, 6),
        labels=clips.labels(i),
        split=SPLITS[int(clips.index.split[row])],
        group=clips.group(i),
        metadata={**more, PREPARED: str(clips.folder.resolve())},
    )
    yield Entry(clip, {s: v for s, v in (("audio", audio), ("visual", visual)) if v is not None}, picture)


def _fill(
    index: Index,
    embedder: Embedder,
    files: Iterable[tuple[str, Iterator[Entry | Skipped]]],
    *,
    total: int,
    known: int,
    unit: str,
    progress: Progress,
) -> Summary:
    """Adds entries in portions, whole files at a time; what failed goes to skipped.csv.

    A file that breaks keeps the entries that came before; Ctrl-C keeps the files that were done.
    """
    waiting: list[Entry] = []
    bad: list[Skipped] = []
    seen: list[str] = []
    added = used = 0
    began = spoken = committed = time.monotonic()

    def commit() -> None:
        nonlocal added, committed
        added += index.add(waiting, made_by=embedder.digest)
        waiting.clear()
        committed = time.monotonic()
        _write_skipped(index.folder, seen, bad)

    try:
        for name, found in files:
            mine, reasons = _entries_of(name, found)
            seen.append(name)
            waiting += mine
            bad += reasons
            used += bool(mine)
            now, done = time.monotonic(), len(seen)
            if len(waiting) >= COMMIT_ENTRIES or now - committed > COMMIT_SECONDS:
                commit()
            if now - spoken >= PROGRESS_SECONDS or done >= total:
                spoken = now
                counts = f"{done}/{total} {unit}  {added + len(waiting)} entries  {done - used} left out"
                progress(f"{counts}  {duration((now - began) / done * (total - done))} left")
    except KeyboardInterrupt:
        commit()
        raise
    commit()
    return Summary(added, used, len(seen) - used, known)


def _entries_of(name: str, found: Iterator[Entry | Skipped]) -> tuple[list[Entry], list[Skipped]]:
    """The entries of one file, and why there are not more."""
    entries: list[Entry] = []
    bad: list[Skipped] = []
    try:
        for item in found:
            if isinstance(item, Entry):
                entries.append(item)
            else:
                bad.append(item)
    except (EquiAVError, MemoryError, ArithmeticError, LookupError, ValueError) as error:
        reason = error.reason if isinstance(error, MediaError) else str(error)
        if not isinstance(error, EquiAVError):
            # A file nobody foresaw must not end a run over thousands; the log keeps what is needed to mend it.
            logger.warning("%s: %r", name, error, exc_info=True)
            reason = f"cannot be read ({type(error).__name__}: {error})"
        rest = (name, f"{entries[-1].clip.end:.3f}", f"the rest: {reason}") if entries else (name, "", reason)
        bad.append(rest)
    return entries, bad


def _write_skipped(folder: Path, seen: list[str], bad: list[Skipped]) -> None:
    """The list of what was left out, with the files of this run anew and those of earlier ones kept."""
    again = set(seen)
    before = [row for row in read_skipped(folder) if row[0] not in again] if (folder / SKIPPED).is_file() else []
    text = io.StringIO()
    writer = csv.writer(text)
    writer.writerow(("source", "start", "reason"))
    writer.writerows([*before, *bad])
    write_whole(folder / SKIPPED, text.getvalue().encode("utf-8", "backslashreplace"))
