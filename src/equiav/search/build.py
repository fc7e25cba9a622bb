"""Filling an index: media files or a prepared folder in, entries out; what is known already is left alone.

Media are decoded in worker processes, as many as there are cores, which also scale frames to what the model sees; the
vectors are made in this process. A file that crashes its decoder, hangs or asks for too much memory is left out.
"""

from __future__ import annotations

import csv
import io
import json
import logging
import threading
import time
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch

from equiav.data import META, SKIPPED, SPLITS, SUFFIXES, ShardDataset, cell, find_sources, key_of, read_skipped
from equiav.errors import DataError, EquiAVError, MediaError
from equiav.inference import PICTURES, Embedder, resampled
from equiav.io import cores, duration, sha256, write_whole
from equiav.media import HOP_SECONDS, Limits, Piece, Workers, keep_memory, read_pieces, streamed_in
from equiav.search.database import DATABASE
from equiav.search.index import INDEX, Index
from equiav.search.records import FILE, PREPARED, Entry, Progress
from equiav.types import Clip

logger = logging.getLogger(__name__)

COMMIT_ENTRIES, COMMIT_MOST = 1024, 4096  # more as the index grows: each commit reads its whole database
COMMIT_SECONDS = 60.0
PROGRESS_SECONDS = 2.0
EMBEDDED = 4  # files that are embedded at a time
AHEAD = 8  # files per worker process that may be done before their turn has come

Skipped = tuple[str, str, str]  # source, start (empty: all of it), reason
Filled = tuple[str, list[Entry], list[Skipped]]  # a file, and what became of it


@dataclass(frozen=True)
class Summary:
    """What became of the files (or clips): entries added, files used, left out, known before, and changed since."""

    added: int
    files: int
    skipped: int
    known: int
    changed: int = 0


def index_folder(
    index: Index,
    embedder: Embedder,
    place: Path,
    *,
    table: Path | None = None,
    seconds: float | None = None,
    overlap: float = 0.0,
    workers: int | None = None,
    progress: Progress = lambda line: None,
) -> Summary:
    """Embeds media or prepared clips and adds them; files that cannot be read go to skipped.csv.

    Media are cut into windows; entries of files that have changed since are replaced. Prepared clips go in under their
    own names, all splits, one entry each: where the model hears less at once, their sound is the mean of windows.

    Args:
        index: of vectors of the embedder's model.
        embedder: makes the vectors.
        place: a prepared folder; or a folder (searched in depth), a list (.txt, .csv, .jsonl) or one file of media.
        table: the list that was given to `prepare`: its further columns become metadata to filter by.
        seconds: length of a window, at most the default: 10, or what the model hears if that is less.
        overlap: seconds that neighbouring windows share.
        workers: processes that decode, one for each core without it; the index is the same for any number.
        progress: is told how far it is and how long it will take.
    """
    index.check_model(embedder.digest)
    if (place / META).is_file():
        if seconds or overlap:
            raise DataError(f"{place} is cut into clips already: --seconds and --overlap are for media")
        columns = {clip.id: clip.metadata for clip in find_sources(table)} if table is not None else {}
        clips = ShardDataset(place, None, size=embedder.model.config.visual.size)
        names = [clips.name(i) for i in range(len(clips))]
        known = index.store.known(names)
        _refuse_namesakes(clips, names, known)
        new = [i for i, name in enumerate(names) if name not in known]
        filled = (_prepared(index, embedder, clips, i, columns.get(clips.source(i), {})) for i in new)
        return _fill(index, embedder, filled, total=len(new), known=len(known), unit="clips", progress=progress)
    if table is not None:
        raise DataError(f"--list goes with a prepared folder, which {place} is not; index the list itself instead")
    embedder.check_seconds(seconds, overlap)
    sources = _outside_indexes(find_sources(place, suffixes=SUFFIXES | PICTURES), index.folder, place)
    keys = {source.id: key_of(_origin(source), 0) for source in sources}
    known = index.store.known(list(keys.values()))
    changed = {s.id for s in sources if (key := keys[s.id]) in known and _changed(known[key])}
    todo = [source for source in sources if keys[source.id] not in known or source.id in changed]
    old = {source.id: _ids_of(index, source) for source in todo}
    config, limits = embedder.model.config, embedder.limits or Limits()
    how = {
        "seconds": seconds or embedder.seconds, "overlap": overlap, "rate": embedder.rate, "limits": limits,
        "most": config.audio.frames * HOP_SECONDS, "size": config.visual.size,
    }  # fmt: skip
    keep_memory()
    count = workers or cores()
    pool = Workers(count, patience=1.5 * limits.wall + 5)
    # A small model leaves cores idle however many threads it has: some files are embedded side by side, and the threads
    # are shared out among them.
    beside = min(count, EMBEDDED) if embedder.model.device.type == "cpu" else 1
    turn = threading.Semaphore(beside)

    def fill(source: Clip) -> Filled:
        pieces = streamed_in(pool, read_pieces, _file(source), span=(source.start, source.seconds), **how)
        return _entries_of(index, source.id, _windows(embedder, source, pieces, turn))

    # More than processes: one decodes the next file while a thread embeds the last.
    with _shared_cores(beside), pool, ThreadPoolExecutor(count + beside) as threads:
        waiting: deque[Future[Filled]] = deque()

        def files() -> Iterator[Filled]:
            for source in todo:
                waiting.append(threads.submit(fill, source))
                if len(waiting) > AHEAD * count:
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()

        try:
            done = len(sources) - len(todo)
            found = _fill(
                index, embedder, files(), total=len(todo), known=done, unit="files", replaced=old, progress=progress
            )
            return replace(found, changed=len(changed))
        finally:
            for future in waiting:
                future.cancel()
            pool.close()  # or the threads would go on to the end of their files


@contextmanager
def _shared_cores(shares: int) -> Iterator[None]:
    """Threads that are started meanwhile compute with a share of torch's cores each."""
    cores = torch.get_num_threads()
    torch.set_num_threads(max(1, cores // shares))
    try:
        yield
    finally:
        torch.set_num_threads(cores)


def _changed(clip: Clip) -> bool:
    """Is the file of a clip another than it was? One of the same size and time is not read."""
    if clip.path is None or FILE not in clip.metadata:
        return False  # an earlier version did not write that down
    size, modified, digest = str(clip.metadata[FILE]).split()
    try:
        status = clip.path.stat()
        if str(status.st_size) != size:
            return True
        return str(status.st_mtime_ns) != modified and sha256(clip.path) != digest
    except OSError:
        return False


def _ids_of(index: Index, source: Clip) -> list[str]:
    """The entries of a source: those of its file that are named after its stretch. Some numbers may be gone."""
    name, _, _ = key_of(_origin(source), 0).rpartition("-")
    clips = index.store.of_file(str(_file(source).resolve()))
    return [clip.id for clip in clips if clip.id.rpartition("-")[0] == name]


def _refuse_namesakes(clips: ShardDataset, names: Sequence[str], known: Mapping[str, Clip]) -> None:
    """Clips of two prepared folders may be called alike and be of different files: those would be taken for known."""
    for i, name in enumerate(names):
        there = known.get(name)
        other = None if there is None else there.metadata.get(PREPARED)
        if there is None or other is None or Path(other) == clips.folder.resolve() or not Path(other, META).is_file():
            continue  # new; or of this folder, or of one that has moved here
        if there.path != Path(clips.index.text("paths", int(clips.rows[i]))).absolute():
            raise DataError(
                f"{clips.folder}: its clip {name} is called like another one, of {other}; make an index for each folder"
            )


def _outside_indexes(sources: Sequence[Clip], own: Path, place: Path) -> list[Clip]:
    """Media that are no index's thumbnails: those in the index's own folder and in folders of other indexes are not."""
    homes = [_file(source).resolve().parent for source in sources]
    folders = {folder for home in set(homes) for folder in (home, *home.parents)}
    indexes = {own.resolve(), *(f for f in folders if (f / INDEX).is_file() and _is_index(f))}
    kept = [s for s, home in zip(sources, homes, strict=True) if indexes.isdisjoint((home, *home.parents))]
    if not kept:
        raise DataError(f"{place} names no media outside of indexes; give the index a folder of its own")
    return kept


def _is_index(folder: Path) -> bool:
    """Other programs call files index.json too."""
    try:
        about = json.loads((folder / INDEX).read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        about = None
    return (folder / DATABASE).exists() or (isinstance(about, dict) and {"digest", "width", "store"} <= about.keys())


def _file(source: Clip) -> Path:
    assert source.path is not None  # found on disk
    return source.path


def _origin(source: Clip) -> str:
    """What tells a source from all others, in any list: its file, and the stretch of it."""
    place = str(_file(source).resolve())
    return place if source.seconds is None and not source.start else f"{place}@{source.start:g}+{source.seconds}"


def _windows(
    embedder: Embedder, source: Clip, pieces: Iterator[Piece | str], turn: threading.Semaphore
) -> Iterator[Entry | Skipped]:
    """The windows of a file as entries; of one that breaks, those before."""
    stamp, number = next(pieces), 0

    def until_broken() -> Iterator[Any]:
        try:
            yield from pieces
        except EquiAVError as error:
            yield error

    found = until_broken()
    while batch := list(islice(found, embedder.batch)):
        broken = batch.pop() if isinstance(batch[-1], EquiAVError) else None
        waves = [
            None if wave is None else torch.from_numpy(wave.astype(np.float32) / 32768) for _, _, wave, *_ in batch
        ]
        films = [None if frames is None else torch.from_numpy(frames) for *_, frames, _ in batch]
        with turn:
            vectors = embedder.clips(list(zip(waves, films, strict=True)))
        for (start, end, *_, picture), pair in zip(batch, vectors, strict=True):
            made = {side: vector for side, vector in zip(("audio", "visual"), pair, strict=True) if vector is not None}
            if not made:
                yield source.id, f"{start:.3f}", "silent"
                continue
            clip = Clip(
                key_of(_origin(source), number),
                source=source.id,
                path=_file(source).resolve(),
                start=start,
                seconds=end - start,
                labels=source.labels,
                split=source.split,
                metadata={**source.metadata, FILE: stamp},
            )
            yield Entry(clip, made, picture)
            number += 1
        if broken is not None:
            raise broken


def _prepared(index: Index, embedder: Embedder, clips: ShardDataset, i: int, more: Mapping[str, Any]) -> Filled:
    """A prepared clip as an entry, with further columns as metadata."""

    def entry() -> Iterator[Entry]:
        has = clips.has(i)
        wave = resampled(clips.waveform(i), clips.sample_rate, embedder.rate) if "audio" in has else None
        frames, picture = clips.shown(i) if "visual" in has else (None, None)
        ((audio, visual),) = embedder.clips([(wave, frames)])
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

    return _entries_of(index, clips.name(i), entry())


def _entries_of(index: Index, name: str, found: Iterator[Entry | Skipped]) -> Filled:
    """The entries of one file, and why there are not more; one that breaks keeps those that came before."""
    entries: list[Entry] = []
    bad: list[Skipped] = []
    try:
        for item in found:
            if isinstance(item, Entry):
                index.check_entry(item)
                entries.append(item)
            else:
                bad.append(item)
    except EquiAVError as error:
        reason = error.reason if isinstance(error, MediaError) else str(error)
        bad.append((name, f"{entries[-1].clip.end:.3f}", f"the rest: {reason}") if entries else (name, "", reason))
    return name, entries, bad


def _fill(
    index: Index,
    embedder: Embedder,
    files: Iterable[Filled],
    *,
    total: int,
    known: int,
    unit: str,
    replaced: Mapping[str, Sequence[str]] | None = None,
    progress: Progress,
) -> Summary:
    """Adds entries in portions, whole files at a time; what failed goes to skipped.csv.

    Ctrl-C keeps the files that were done. `replaced` are the entries that those of a file take the place of.
    """
    waiting: list[Entry] = []
    bad: list[Skipped] = []
    seen: list[str] = []
    old = dict(replaced or {})
    added = used = 0
    began = spoken = committed = time.monotonic()

    def commit() -> None:
        nonlocal added, committed
        if gone := [id for name in seen for id in old.pop(name, ())]:
            index.remove(gone)
        added += index.add(waiting, made_by=embedder.digest)
        waiting.clear()
        committed = time.monotonic()
        _write_skipped(index.folder, seen, bad)

    try:
        for name, mine, reasons in files:
            seen.append(name)
            waiting += mine
            bad += reasons
            used += bool(mine)
            now, done = time.monotonic(), len(seen)
            if len(waiting) >= min(max(COMMIT_ENTRIES, added // 4), COMMIT_MOST) or now - committed > COMMIT_SECONDS:
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


def _write_skipped(folder: Path, seen: list[str], bad: list[Skipped]) -> None:
    """The list of what was left out, those of earlier runs included unless their files were seen again."""
    again = set(seen)
    try:
        before = [row for row in read_skipped(folder) if row[0] not in again] if (folder / SKIPPED).is_file() else []
    except (OSError, ValueError, KeyError, csv.Error) as error:
        logger.warning("%s cannot be read (%s) and is begun again", folder / SKIPPED, error)
        before = []
    text = io.StringIO()
    writer = csv.writer(text)
    writer.writerow(("source", "start", "reason"))
    writer.writerows((cell(source), start, cell(reason)) for source, start, reason in [*before, *bad])
    write_whole(folder / SKIPPED, text.getvalue().encode("utf-8", "backslashreplace"))
