"""The local store: a folder with the entries in an SQLite database and the vectors in files that only grow.

Every entry has a number, the order in which it came, which is never given out twice. A change first appends vectors
behind those that count and writes new compressed indexes under new names; the database transaction that makes them
count comes last. A process killed at any moment leaves the state before it or the one after, and one process writes
at a time while any number read.

What the disk gives back is compared with checksums: the database when it is opened, the owners of vectors whenever they
are read, a compressed index when it is loaded, and each vector when it is used first.
"""

from __future__ import annotations

import json
import logging
import sqlite3
import threading
import zlib
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from equiav.errors import DataError, EquiAVError
from equiav.io import locked, sync_path
from equiav.search import database
from equiav.search import vectors as files
from equiav.search.database import told
from equiav.search.records import Entry, Filter, Progress, Vector, read_clip, spacing
from equiav.search.vectors import Numbers, side_files
from equiav.types import Clip

logger = logging.getLogger(__name__)

FEW = 20_000  # rows that a filter leaves: so many are compared exactly, at any size of the index
TAIL = 8192  # vectors that may wait outside the compressed index; each search compares all of them
RETRAIN = 1.5  # growth since training that asks for new lists
MASKS = 32  # filters whose answers are remembered
PAGE = 4096  # entries read at a time
ASKED = 500  # entries asked for by number in one statement; SQLite may take no more than 999
LINES = 20  # damaged vectors of a side that are named one by one

Mask = NDArray[np.bool_]


@dataclass(frozen=True)
class Part:
    """The vectors of one side: rows of the file, the entry that each belongs to, and the compressed index over them.

    `sums` are the checksums of the vectors and `checked` says which of them were compared; `crc` is that of the owners,
    `sha256` that of the compressed index. They are None in a copy of an earlier format, which has none.
    """

    vectors: NDArray[Any]  # (n, D)
    owners: Numbers  # ascending
    sums: NDArray[np.uint64] | None
    checked: Mask
    file: str | None = None
    covered: int = 0
    trained: int = 0
    crc: int | None = 0
    sha256: str | None = None


@dataclass(frozen=True)
class Snapshot:
    """What one change left: how many entries came and went, which are there, vectors by side, answers to filters."""

    generation: int
    entries: int
    removed: int
    alive: Mask
    parts: dict[str, Part]
    masks: dict[tuple[Filter, ...], Mask] = field(default_factory=dict)


class LocalStore:
    """Entries and vectors in a folder; readers notice what a writer in this or another process has changed."""

    def __init__(
        self,
        folder: Path,
        width: int,
        *,
        limit: int = files.LIMIT,
        probes: int | None = None,
        candidates: int = files.CANDIDATES,
        progress: Progress = lambda line: None,
    ) -> None:
        self.folder, self.width, self.limit, self.progress = folder, width, limit, progress
        self.probes, self.candidates = probes, candidates
        self._lock = threading.RLock()  # one connection serves all threads, one transaction at a time
        with told(folder):
            self._sql, self._borrowed = database.open_database(folder, width, progress)
        self._snapshot: tuple[int, Snapshot] | None = None
        self._indexes: dict[str, Any] = {}  # compressed indexes that were loaded, by file; None for a damaged one

    @staticmethod
    def create(folder: Path) -> None:
        """An empty store, in place of what a creation cut short may have left."""
        with told(folder, "written"), locked(folder):
            database.place_database(folder, lambda sql: None)

    @property
    def state(self) -> Snapshot:
        """What is there now."""
        with self._reading() as now:
            return now

    def sides(self) -> tuple[str, ...]:
        """Modalities that there are vectors of."""
        return tuple(self.state.parts)

    def generation(self) -> int:
        """The number of changes."""
        return self.state.generation

    def __len__(self) -> int:
        now = self.state
        return now.entries - now.removed

    def known(self, ids: Sequence[str]) -> dict[str, Clip]:
        """The clips of those of the ids that are there."""
        with self._reading():
            numbers = database.numbers_of(self._sql, ids)
            texts = self._column("clip", numbers.values())
        return {id: read_clip(json.loads(texts[number])) for id, number in numbers.items()}

    def paths(self) -> set[str]:
        """The files that entries are of."""
        with self._reading() as now:
            rows = self._sql.execute(database.BY_KEY, ("path",)).fetchall()
        return {database.unstored(value) for value, held in rows if now.alive[np.frombuffer(held, "<u4")].any()}

    def of_file(self, path: str) -> list[Clip]:
        """The clips of the entries of a file."""
        with self._reading() as now:
            rows = self._sql.execute(database.BY_FACT.format("value = ?"), ("path", database.stored(path))).fetchall()
            numbers = [n for (held,) in rows for n in np.frombuffer(held, "<u4").tolist() if now.alive[n]]
            texts = self._column("clip", numbers)
        return [read_clip(json.loads(texts[number])) for number in numbers]

    def get(self, id: str) -> Entry | None:
        """An entry with its vectors."""
        with self._reading() as now:
            find = "SELECT number, clip FROM entries WHERE id = ?"
            found = self._sql.execute(find, (database.stored(id),)).fetchone()
        if found is None:
            return None
        number, text = found
        vectors = {}
        for side, part in now.parts.items():
            row = int(np.searchsorted(part.owners, number))
            if row < len(part.owners) and part.owners[row] == number:
                self._check(side, part, np.array([row]))
                vectors[side] = np.array(part.vectors[row])
        return Entry(read_clip(json.loads(text)), vectors)

    def clips(self) -> Iterator[Clip]:
        """The clips of all entries, in the order they came."""
        last = -1
        page = "SELECT number, clip FROM entries WHERE number > ? ORDER BY number LIMIT ?"
        while True:
            with self._reading():  # not across a yield: whoever iterates may take long, and writers wait for readers
                rows = self._sql.execute(page, (last, PAGE)).fetchall()
            if not rows:
                return
            yield from (read_clip(json.loads(text)) for _, text in rows)
            last = rows[-1][0]

    def vectors(self, side: str, most: int | None = None) -> tuple[list[str], Vector]:
        """Ids and vectors (n, D) of the entries that have one on a side: all, or `most` evenly spaced ones."""
        with self._reading() as now:
            if side not in now.parts:
                return [], np.zeros((0, self.width), np.float32)
            part = now.parts[side]
            rows = np.flatnonzero(now.alive[part.owners])
            rows = rows[:: spacing(len(rows), most)]
            self._check(side, part, rows)
            ids = self._column("id", part.owners[rows].tolist())
            return [database.unstored(id) for id in ids.values()], np.array(part.vectors[rows])

    def search(self, vector: Vector, side: str, k: int, filters: Sequence[Filter]) -> list[tuple[Clip, float]]:
        """The nearest k clips on a side that meet all filters, best first; ties in the order they came."""
        while True:
            with self._reading() as now:
                if side not in now.parts:
                    return []
                part = now.parts[side]
                mask = self._mask(now, tuple(filters)) if filters else now.alive
                index = self._index(part)
            allowed = mask[part.owners] if filters or now.removed else None
            rows = self._candidates(vector, part, index, k, allowed)
            self._check(side, part, rows)
            scores = files.exact(part.vectors, vector, rows)
            if isinstance(rows, str):
                rows = np.arange(len(part.owners))
            best = _best(scores, rows, k)
            numbers = part.owners[rows[best]].tolist()
            texts = self._column("clip", numbers)
            if len(texts) == len(numbers):
                clips = [read_clip(json.loads(texts[number])) for number in numbers]
                return list(zip(clips, scores[best].tolist(), strict=True))
            if self.state is now:
                place = self.folder / database.DATABASE
                raise DataError(f"{place} is damaged: entries are missing; {database.REMEDY}")
            # One was removed between the two readings: search again among what is left.

    def _check(self, side: str, part: Part, rows: Numbers | Literal["all"]) -> None:
        """Refuses to go on with vectors that are not as they were written; each is looked at once."""
        damaged = _damaged(part, rows)
        if len(damaged):
            raise DataError(f"{self.folder}: {self._damage(side, part, damaged[:1])[0]}")

    def _damage(self, side: str, part: Part, damaged: Numbers) -> list[str]:
        """A line for each damaged vector."""
        ids = self._column("id", part.owners[damaged].tolist()).values()
        return [f"the {side} vector of {database.unstored(id)} is damaged; {database.REMOVE}" for id in ids] or [
            "damaged vectors have been removed meanwhile; search again"
        ]

    def verify(self, progress: Progress) -> list[str]:
        """Compares every vector and every compressed index with its checksum; one line for each problem."""
        now, problems = self.state, []
        for side, part in now.parts.items():
            part.checked[:] = False
            rows = np.flatnonzero(now.alive[part.owners])
            damaged = _damaged(part, rows)
            progress(f"{self.folder}: {len(rows):,} {side} vectors compared with their checksums")
            problems += self._damage(side, part, damaged[:LINES]) if len(damaged) else []
            if len(damaged) > LINES:
                problems.append(f"{len(damaged) - LINES:,} more {side} vectors are damaged; {database.REMEDY}")
            try:
                if part.file is not None:
                    files.load(self.folder / part.file, part.covered, self.width, part.sha256)
            except DataError as error:
                problems.append(str(error))
        return problems

    def _column(self, name: Literal["id", "clip"], numbers: Iterable[int]) -> dict[int, Any]:
        """A column of entries by their numbers, as it is stored; those removed since are left out."""
        asked, rows = list(numbers), dict[int, Any]()
        with self._lock, told(self.folder):
            for some in (asked[start : start + ASKED] for start in range(0, len(asked), ASKED)):
                find = f"SELECT number, {name} FROM entries WHERE number IN ({','.join('?' * len(some))})"
                rows.update(self._sql.execute(find, some))
        return {number: rows[number] for number in asked if number in rows}

    def _candidates(self, vector: Vector, part: Part, index: Any, k: int, allowed: Mask | None) -> Any:
        """Rows to compare exactly: all that may be found, or in a large index those the compressed one proposes."""
        count = len(part.owners) if allowed is None else int(allowed.sum())
        if index is None or count <= FEW:
            return "all" if allowed is None else np.flatnonzero(allowed)
        head = None if allowed is None else allowed[: part.covered]
        tail = np.arange(part.covered, len(part.owners))
        if allowed is not None:
            tail = tail[allowed[part.covered :]]
        proposed = files.candidates(index, vector, allowed=head, probes=self.probes, count=self.candidates + 4 * k)
        return np.concatenate([proposed, tail])

    def _mask(self, now: Snapshot, filters: tuple[Filter, ...]) -> Mask:
        """For every entry whether it is there and meets all filters."""
        if filters in now.masks:
            return now.masks[filters]
        mask = now.alive.copy()
        for one in filters:
            meets = np.zeros_like(mask)
            meets[database.meeting(self._sql, one)] = True
            mask &= ~meets if one.operator == "!=" else meets
        if len(now.masks) >= MASKS:
            del now.masks[next(iter(now.masks))]
        now.masks[filters] = mask
        return mask

    def _index(self, part: Part) -> Any:
        """The compressed index of a side, once loaded kept; inside a transaction, where no writer replaces its file."""
        if part.file is not None and part.file not in self._indexes:
            self._indexes[part.file] = self._loaded(part)
        return self._indexes.get(part.file or "")

    def _loaded(self, part: Part) -> Any:
        """A compressed index; None, and a notice, if its file is damaged."""
        try:
            return files.load(self.folder / str(part.file), part.covered, self.width, part.sha256)
        except DataError as error:
            logger.warning("%s; until then every vector is compared, which is slower", error)
            return None

    def add(self, entries: Sequence[Entry]) -> None:
        """Adds entries whose ids are new: appends their vectors, then commits."""
        with self._writing() as sql:
            now = self._read(sql)
            # Another process may have added some of them meanwhile.
            known = database.numbers_of(sql, [entry.clip.id for entry in entries])
            new = [entry for entry in entries if entry.clip.id not in known]
            if not new:
                return
            numbers = range(now.entries, now.entries + len(new))
            for side in sorted({side for entry in new for side in entry.vectors}):
                vectors = {n: e.vectors[side] for n, e in zip(numbers, new, strict=True) if side in e.vectors}
                self._append(sql, now, side, vectors)
            database.insert(sql, numbers, [entry.clip for entry in new])
            sql.execute("UPDATE state SET entries = entries + ?", (len(new),))

    def _append(self, sql: sqlite3.Connection, now: Snapshot, side: str, vectors: dict[int, Vector]) -> None:
        """Appends the vectors of a side, by their entries' numbers, and brings its compressed index up to them."""
        empty = np.zeros((0, self.width), "<f4"), np.zeros(0, "<i8"), np.zeros(0, "<u8"), np.zeros(0, bool)
        old = now.parts.get(side) or Part(*empty)
        new, numbers, count = np.stack(list(vectors.values())), np.array(list(vectors), "<i8"), len(old.owners)
        stored, owners, sums = side_files(self.folder, side, self.width)
        for rows, values in ((stored, new), (owners, numbers), (sums, files.row_sums(new))):
            rows.append(values, count)
        total, crc = count + len(vectors), zlib.crc32(numbers.data, old.crc or 0)
        file, covered, trained, digest = old.file, old.covered, old.trained, old.sha256
        if total >= self.limit and (file is None or total - covered > TAIL):
            every = stored.view(total)
            index = None if total > RETRAIN * trained else self._loaded(old)
            if index is None:
                index, trained = files.train(every, self.progress), total
            else:
                files.extend(index, every, covered, self.progress)
            file, covered = f"{side}-{now.generation + 1:06d}.faiss", total
            digest = files.save(index, self.folder / file)
        row = (side, total, file, covered, trained, crc, digest)
        sql.execute("REPLACE INTO sides VALUES (?, ?, ?, ?, ?, ?, ?)", row)

    def remove(self, ids: Sequence[str]) -> int:
        """Removes entries from the database; their vectors stay where they are and are passed over."""
        with self._writing() as sql:
            gone = [(number,) for number in database.numbers_of(sql, ids).values()]
            sql.executemany("DELETE FROM entries WHERE number = ?", gone)
            sql.executemany("INSERT INTO removed VALUES (?)", gone)
            return len(gone)

    def close(self) -> None:
        """Releases the database and the memory maps."""
        with self._lock:
            self._sql.close()
            self._snapshot = None
            self._indexes.clear()

    @contextmanager
    def _reading(self) -> Iterator[Snapshot]:
        """A read transaction, with what the last change left; it is read again if there was another since."""
        with self._lock, told(self.folder):
            self._sql.execute("BEGIN")
            try:
                (version,) = self._sql.execute("PRAGMA data_version").fetchone()
                if self._snapshot is None or self._snapshot[0] != version:
                    self._snapshot = version, self._read(self._sql)
                    used = {part.file for part in self._snapshot[1].parts.values()}
                    self._indexes = {file: index for file, index in self._indexes.items() if file in used}
                yield self._snapshot[1]
            finally:
                if self._sql.in_transaction:
                    self._sql.execute("ROLLBACK")

    @contextmanager
    def _writing(self) -> Iterator[sqlite3.Connection]:
        """A change, in the database whole or not at all; readers go on until it is committed, other writers get Busy.

        It has a connection of its own, so that threads that read wait for nothing but the commit.
        """
        if self._borrowed:
            raise EquiAVError(f"{self.folder}: cannot be written (read-only when it was opened)")
        with told(self.folder, "written"), locked(self.folder), closing(database.connect(self.folder)) as sql:
            sql.execute("PRAGMA journal_mode = TRUNCATE")
            sql.execute("PRAGMA synchronous = FULL")
            # Pages written before the commit would lock readers out, and no checksum would stand for them.
            sql.execute("PRAGMA cache_spill = OFF")
            sql.execute("BEGIN IMMEDIATE")
            before = sql.total_changes
            yield sql  # an exception leaves without a commit: closing rolls back
            if sql.total_changes == before:
                return
            sql.execute("UPDATE state SET generation = generation + 1")
            used = {file for (file,) in sql.execute("SELECT file FROM sides")}
            sync_path(self.folder)  # names of new files, before what refers to them
            database.commit(self.folder, sql)
            for pattern in ("*.faiss", f".*.faiss.*{files.DRAFT}"):
                for path in [path for path in self.folder.glob(pattern) if path.name not in used]:
                    path.unlink(missing_ok=True)

    def _read(self, sql: sqlite3.Connection) -> Snapshot:
        generation, entries = sql.execute("SELECT generation, entries FROM state").fetchone()
        removed = [number for (number,) in sql.execute("SELECT number FROM removed")]
        alive = np.ones(entries, bool)
        alive[removed] = False
        parts = {}
        sides = sql.execute("SELECT * FROM sides ORDER BY side").fetchall()
        for side, rows, file, covered, trained, crc, digest in sides:
            stored, owners, sums = side_files(self.folder, side, self.width)
            numbers, checked = owners.view(rows), np.zeros(rows, bool)
            if crc is not None and zlib.crc32(numbers.data) != crc:
                raise DataError(f"{owners.path} is damaged: not as it was written; {database.REMEDY}")
            if self._snapshot is not None and side in self._snapshot[1].parts:
                before = self._snapshot[1].parts[side].checked
                checked[: len(before)] = before
            written = None if crc is None else sums.view(rows)
            parts[side] = Part(stored.view(rows), numbers, written, checked, file, covered, trained, crc, digest)
        return Snapshot(generation, entries, len(removed), alive, parts)


def _damaged(part: Part, rows: Numbers | Literal["all"]) -> Numbers:
    """Those of some rows, or of all, that are not as they were written; the others are not looked at again."""
    if part.sums is None:
        return np.zeros(0, np.int64)
    todo = np.flatnonzero(~part.checked) if isinstance(rows, str) else rows[~part.checked[rows]]
    bad = []
    for start in range(0, len(todo), files.BLOCK):
        some = todo[start : start + files.BLOCK]
        whole = len(some) == some[-1] - some[0] + 1 and bool((np.diff(some) == 1).all())
        place = slice(some[0], some[-1] + 1) if whole else some  # read where they lie, if they lie together
        good = files.row_sums(part.vectors[place]) == part.sums[place]
        part.checked[some[good]] = True
        bad.append(some[~good])
    return np.concatenate(bad) if bad else np.zeros(0, np.int64)


def _best(scores: NDArray[np.float32], rows: Numbers, k: int) -> Numbers:
    """Places of the k highest scores, best first; equal ones by row."""
    if k < len(scores):
        edge = np.partition(scores, len(scores) - k)[len(scores) - k]
        places = np.flatnonzero(scores >= edge)
    else:
        places = np.arange(len(scores))
    order: Numbers = places[np.lexsort((rows[places], -scores[places]))][:k]
    return order
