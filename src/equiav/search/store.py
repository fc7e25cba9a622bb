"""The local store: a folder with the entries in an SQLite database and the vectors in files that only grow.

Every entry has a number, the order in which it came, which is never given out twice. A change first appends vectors
behind those that count and writes new compressed indexes under new names; the database transaction that makes them
count comes last. A process killed at any moment leaves the state before it or the one after, and one process writes
at a time while any number read.

The database uses a rollback journal rather than a write-ahead log: it works in folders that cannot be written and on
network disks, and readers, whose transactions last milliseconds, hold up a writer only for its commit.
"""

from __future__ import annotations

import json
import logging
import os
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from equiav.errors import Busy, DataError, EquiAVError
from equiav.io import locked
from equiav.search import vectors as files
from equiav.search.records import (
    NEAR,
    SIDES,
    TIMES,
    Entry,
    Filter,
    Vector,
    clip_record,
    facts,
    number_of,
    read_clip,
    spacing,
)
from equiav.search.vectors import Numbers, Rows
from equiav.types import Clip

logger = logging.getLogger(__name__)

DATABASE, STATE = "entries.db", "state.json"  # state.json belongs to the first format
FORMAT = 2
FEW = 20_000  # rows that a filter leaves: so many are compared exactly, at any size of the index
TAIL = 8192  # vectors that may wait outside the compressed index; each search compares all of them
RETRAIN = 4  # growth since training that asks for new lists
MASKS = 32  # filters whose answers are remembered
PORTION = 4096  # entries read or converted at a time
WAIT = 60.0  # seconds that a reader waits for a commit, and a commit for readers

SCHEMA = f"""
PRAGMA user_version = {FORMAT};
CREATE TABLE state (generation INTEGER NOT NULL, entries INTEGER NOT NULL); -- one row: changes made, numbers given out
CREATE TABLE entries (number INTEGER PRIMARY KEY, id NOT NULL UNIQUE, clip TEXT NOT NULL);
CREATE TABLE removed (number INTEGER PRIMARY KEY);
CREATE TABLE sides ( -- vectors that count of each modality; the file of its compressed index and what that covers
  side TEXT PRIMARY KEY, rows INTEGER NOT NULL, file TEXT, covered INTEGER NOT NULL, trained INTEGER NOT NULL);
CREATE TABLE facts ( -- every key=value that filters can ask for, once; its number where it is one
  fact INTEGER PRIMARY KEY, key NOT NULL, value NOT NULL, number REAL, UNIQUE (key, value));
CREATE TABLE postings ( -- entries of which a fact holds, as 32-bit numbers; a row for each portion added
  fact INTEGER NOT NULL, first INTEGER NOT NULL, entries BLOB NOT NULL, PRIMARY KEY (fact, first)) WITHOUT ROWID;
INSERT INTO state VALUES (0, 0);
"""
BY_FACT = "SELECT entries FROM postings WHERE fact IN (SELECT fact FROM facts WHERE key = ? AND {})"
BY_ID = "SELECT entry FROM (SELECT number AS entry, id AS value, number_of(id) AS number FROM entries) WHERE {}"

Mask = NDArray[np.bool_]
Progress = Callable[[str], None]


@dataclass(frozen=True)
class Part:
    """The vectors of one side: rows of the file, the entry that each belongs to, and the compressed index over them."""

    vectors: NDArray[Any]  # (n, D)
    owners: Numbers  # ascending
    file: str | None = None
    covered: int = 0
    trained: int = 0


@dataclass(frozen=True)
class Snapshot:
    """What one change left: so many entries, those still there (None: all), vectors by side, answers to filters."""

    generation: int
    entries: int
    removed: int
    alive: Mask | None
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
        probes: int = files.PROBES,
        candidates: int = files.CANDIDATES,
        progress: Progress = lambda line: None,
    ) -> None:
        self.folder, self.width, self.limit, self.progress = folder, width, limit, progress
        self.probes, self.candidates = probes, candidates
        self._lock = threading.RLock()  # one connection serves all threads, one transaction at a time
        with _told(folder):
            self._sql, self._borrowed = _opened(folder, progress)
        self._snapshot: tuple[int, Snapshot] | None = None
        self._indexes: dict[str, Any] = {}  # compressed indexes that were loaded, by file; None for a damaged one

    @staticmethod
    def create(folder: Path) -> None:
        """An empty store, in place of what a creation cut short may have left."""
        folder.mkdir(parents=True, exist_ok=True)
        with locked(folder), _told(folder, "written"):
            _place_database(folder, lambda sql: None)

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

    def known(self, ids: Sequence[str]) -> set[str]:
        """Those of the ids that are there."""
        with self._reading():
            return set(_numbers(self._sql, ids))

    def get(self, id: str) -> Entry | None:
        """An entry with its vectors."""
        with self._reading() as now:
            found = self._sql.execute("SELECT number, clip FROM entries WHERE id = ?", (_stored(id),)).fetchone()
        if found is None:
            return None
        vectors = {}
        for side, part in now.parts.items():
            row = int(np.searchsorted(part.owners, found[0]))
            if row < len(part.owners) and part.owners[row] == found[0]:
                vectors[side] = np.array(part.vectors[row])
        return Entry(read_clip(json.loads(found[1])), vectors)

    def clips(self) -> Iterator[Clip]:
        """The clips of all entries, in the order they came."""
        last = -1
        page = "SELECT number, clip FROM entries WHERE number > ? ORDER BY number LIMIT ?"
        while True:
            with self._reading():  # not across a yield: whoever iterates may take long, and writers wait for readers
                rows = self._sql.execute(page, (last, PORTION)).fetchall()
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
            rows = np.arange(len(part.owners)) if now.alive is None else np.flatnonzero(now.alive[part.owners])
            rows = rows[:: spacing(len(rows), most)]
            numbers = part.owners[rows].tolist()
            find = "SELECT id FROM entries WHERE number = ?"
            ids = [_text(self._sql.execute(find, (number,)).fetchone()[0]) for number in numbers]
            return ids, np.array(part.vectors[rows])

    def search(self, vector: Vector, side: str, k: int, filters: Sequence[Filter]) -> list[tuple[Clip, float]]:
        """The nearest k clips on a side that meet all filters, best first; ties in the order they came."""
        while True:
            with self._reading() as now:
                if side not in now.parts:
                    return []
                part = now.parts[side]
                mask = self._mask(now, tuple(filters)) if filters else now.alive
                index = self._index(part)
            allowed = None if mask is None else mask[part.owners]
            rows = self._candidates(vector, part, index, k, allowed)
            scores = files.exact(part.vectors, vector, rows)
            if isinstance(rows, str):
                rows = np.arange(len(part.owners))
            best = _best(scores, rows, k)
            texts = self._texts(part.owners[rows[best]].tolist())
            if None not in texts:
                return [(read_clip(json.loads(t)), float(s)) for t, s in zip(texts, scores[best], strict=True)]
            if self.state is now:
                raise DataError(f"{self.folder / DATABASE} is damaged: entries are missing; make the index again")
            # One was removed between the two readings: search again among what is left.

    def _texts(self, numbers: list[int]) -> list[Any]:
        with self._reading():
            find = "SELECT clip FROM entries WHERE number = ?"
            rows = [self._sql.execute(find, (number,)).fetchone() for number in numbers]
        return [None if row is None else row[0] for row in rows]

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
        mask = np.ones(now.entries, bool) if now.alive is None else now.alive.copy()
        for one in filters:
            meets = np.zeros_like(mask)
            meets[_meeting(self._sql, one)] = True
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
            return files.load(self.folder / str(part.file), part.covered, self.width)
        except DataError as error:
            logger.warning("%s; until then every vector is compared, which is slower", error)
            return None

    def add(self, entries: Sequence[Entry]) -> None:
        """Adds entries whose ids are new: appends their vectors, then commits."""
        with self._writing() as sql:
            now = self._read(sql)
            known = _numbers(sql, [entry.clip.id for entry in entries])  # another process may have been faster
            new = [entry for entry in entries if entry.clip.id not in known]
            if not new:
                return
            for side in sorted({side for entry in new for side in entry.vectors}):
                vectors = {i: e.vectors[side] for i, e in enumerate(new, start=now.entries) if side in e.vectors}
                self._append(sql, now, side, vectors)
            _insert(sql, now.entries, [entry.clip for entry in new])
            sql.execute("UPDATE state SET entries = entries + ?", (len(new),))

    def _append(self, sql: sqlite3.Connection, now: Snapshot, side: str, vectors: dict[int, Vector]) -> None:
        """Appends the vectors of a side, by their entries' numbers, and brings its compressed index up to them."""
        old = now.parts.get(side) or Part(np.zeros((0, self.width), "<f4"), np.zeros(0, "<i8"))
        stored, owners = _side_files(self.folder, side, self.width)
        stored.append(np.stack(list(vectors.values())), len(old.owners))
        owners.append(np.array(list(vectors)), len(old.owners))
        rows, file, covered, trained = len(old.owners) + len(vectors), old.file, old.covered, old.trained
        if rows >= self.limit and (file is None or rows - covered > TAIL):
            every = stored.view(rows)
            index = None if rows > RETRAIN * trained else self._loaded(old)
            if index is None:
                index, trained = files.train(every, self.progress), rows
            else:
                files.extend(index, every, covered, self.progress)
            file, covered = f"{side}-{now.generation + 1:06d}.faiss", rows
            files.save(index, self.folder / file)
        sql.execute("REPLACE INTO sides VALUES (?, ?, ?, ?, ?)", (side, rows, file, covered, trained))

    def remove(self, ids: Sequence[str]) -> int:
        """Removes entries from the database; their vectors stay where they are and are passed over."""
        with self._writing() as sql:
            gone = [(number,) for number in _numbers(sql, ids).values()]
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
        with self._lock, _told(self.folder):
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
        with _told(self.folder, "written"), locked(self.folder), closing(_connected(self.folder)) as sql:
            sql.execute("PRAGMA journal_mode = TRUNCATE")
            sql.execute("PRAGMA synchronous = FULL")
            sql.execute("PRAGMA cache_size = -65536")  # a portion fits: pages written early would lock readers out
            sql.execute("BEGIN IMMEDIATE")
            before = sql.total_changes
            yield sql  # an exception leaves without a commit: closing rolls back
            if sql.total_changes == before:
                return
            sql.execute("UPDATE state SET generation = generation + 1")
            used = {file for (file,) in sql.execute("SELECT file FROM sides")}
            _sync(self.folder)  # names of new files, before what refers to them
            sql.execute("COMMIT")
            for pattern in ("*.faiss", f".*.faiss.*{files.DRAFT}"):
                for path in [path for path in self.folder.glob(pattern) if path.name not in used]:
                    path.unlink(missing_ok=True)

    def _read(self, sql: sqlite3.Connection) -> Snapshot:
        generation, entries = sql.execute("SELECT generation, entries FROM state").fetchone()
        removed = [number for (number,) in sql.execute("SELECT number FROM removed")]
        alive = None
        if removed:
            alive = np.ones(entries, bool)
            alive[removed] = False
        parts = {}
        for side, rows, file, covered, trained in sql.execute("SELECT * FROM sides ORDER BY side"):
            stored, owners = _side_files(self.folder, side, self.width)
            parts[side] = Part(stored.view(rows), owners.view(rows), file, covered, trained)
        return Snapshot(generation, entries, len(removed), alive, parts)


def _side_files(folder: Path, side: str, width: int) -> tuple[Rows, Rows]:
    """Vectors of a side, and the numbers of the entries that they belong to."""
    return Rows(folder / f"{side}.vectors", "<f4", width), Rows(folder / f"{side}.owners", "<i8")


def _best(scores: NDArray[np.float32], rows: Numbers, k: int) -> Numbers:
    """Places of the k highest scores, best first; equal ones by row."""
    if k < len(scores):
        edge = np.partition(scores, len(scores) - k)[len(scores) - k]
        places = np.flatnonzero(scores >= edge)
    else:
        places = np.arange(len(scores))
    order: Numbers = places[np.lexsort((rows[places], -scores[places]))][:k]
    return order


# The database


def _stored(text: str) -> str | bytes:
    """A text as SQLite can keep it: bytes for names of files that are not Unicode, which Python tells by surrogates."""
    try:
        text.encode()
        return text
    except UnicodeEncodeError:
        return text.encode("utf-8", "surrogatepass")


def _text(stored: str | bytes) -> str:
    return stored if isinstance(stored, str) else stored.decode("utf-8", "surrogatepass")


def _connected(folder: Path | None) -> sqlite3.Connection:
    """A connection to the database of a folder; without one to an empty database of its own that goes with it."""
    place = "" if folder is None else f"{(folder / DATABASE).absolute().as_uri()}?mode=rw"
    sql = sqlite3.connect(place, uri=True, timeout=WAIT, isolation_level=None, check_same_thread=False)
    sql.execute("PRAGMA trusted_schema = OFF")
    sql.create_function("matches", 2, lambda text, p: fnmatchcase(_text(text), _text(p)), deterministic=True)
    sql.create_function("number_of", 1, lambda text: number_of(_text(text)), deterministic=True)
    return sql


def _numbers(sql: sqlite3.Connection, ids: Sequence[str]) -> dict[str, int]:
    """Numbers of those of the ids that are there."""
    find = "SELECT number FROM entries WHERE id = ?"
    rows = {id: sql.execute(find, (_stored(id),)).fetchone() for id in dict.fromkeys(ids)}
    return {id: row[0] for id, row in rows.items() if row is not None}


def _insert(sql: sqlite3.Connection, first: int, clips: Sequence[Clip], numbers: Sequence[int] | None = None) -> None:
    """Adds clips under the numbers from `first` on, or under those given."""
    texts = [json.dumps(clip_record(clip), separators=(",", ":")) for clip in clips]
    given = range(first, first + len(clips)) if numbers is None else numbers
    ids = [_stored(clip.id) for clip in clips]
    sql.executemany("INSERT INTO entries VALUES (?, ?, ?)", zip(given, ids, texts, strict=True))
    held: dict[tuple[str, str], list[int]] = {}
    for number, text in zip(given, texts, strict=True):
        for fact in facts(read_clip(json.loads(text))):  # of the clip as it will be read
            held.setdefault(fact, []).append(number)
    for (key, value), having in held.items():
        pair = _stored(key), _stored(value)
        sql.execute("INSERT OR IGNORE INTO facts (key, value, number) VALUES (?, ?, ?)", (*pair, number_of(value)))
        (fact,) = sql.execute("SELECT fact FROM facts WHERE key = ? AND value = ?", pair).fetchone()
        sql.execute("INSERT INTO postings VALUES (?, ?, ?)", (fact, having[0], np.array(having, "<u4").tobytes()))


def _meeting(sql: sqlite3.Connection, one: Filter) -> Numbers:
    """Numbers of the entries that meet a condition; for `!=` those that do not. Some may have been removed."""
    given: tuple[Any, ...]
    if one.operator in (">=", "<="):
        condition, given = f"number {one.operator} ?", (float(one.value),)
    elif one.key in TIMES:
        condition, given = "abs(number - ?) <= ?", (float(one.value), NEAR)
    else:
        condition, given = "value = ?" if one.plain else "matches(value, ?)", (_stored(one.value),)
    if one.key == "id":
        return np.array([number for (number,) in sql.execute(BY_ID.format(condition), given)], np.int64)
    rows = sql.execute(BY_FACT.format(condition), (_stored(one.key), *given))
    return np.frombuffer(b"".join(entries for (entries,) in rows), "<u4").astype(np.int64)


@contextmanager
def _told(folder: Path, what: str = "read") -> Iterator[None]:
    """Errors of the database and the disk in one line."""
    try:
        yield
    except (sqlite3.Error, OSError) as error:
        reason = str(error) if isinstance(error, sqlite3.Error) else error.strerror
        if "locked" in str(error):
            raise Busy(f"{folder}: another process keeps its database locked") from error
        if what == "written":
            raise EquiAVError(f"{folder}: cannot be written ({reason})") from error
        if "readonly" in str(error):
            raise EquiAVError(f"{folder}: a change was cut short; open it once where it can be written") from error
        raise DataError(f"{folder / DATABASE} cannot be read ({reason}); make the index again") from error


def _sync(path: Path) -> None:
    """Waits until a file, or the names in a folder, are on the disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _place_database(folder: Path, fill: Callable[[sqlite3.Connection], None]) -> None:
    """A new database, filled elsewhere and moved to its place once all of it is on the disk."""
    draft = folder / f".{DATABASE}{files.DRAFT}"
    draft.unlink(missing_ok=True)
    with closing(sqlite3.connect(draft, isolation_level=None)) as sql:
        sql.executescript("PRAGMA journal_mode = OFF; PRAGMA synchronous = OFF; BEGIN;" + SCHEMA)
        fill(sql)
        sql.execute("COMMIT")
    _sync(draft)
    (folder / f"{DATABASE}-journal").unlink(missing_ok=True)  # it would be taken for one of the new database
    draft.replace(folder / DATABASE)
    _sync(folder)


def _opened(folder: Path, progress: Progress) -> tuple[sqlite3.Connection, bool]:
    """A connection, and whether it is to a copy for this process alone: of a folder in the first format, read-only.

    The first format is converted on opening; its files go once the database is in place, whoever is killed meanwhile.
    """
    place, old = folder / DATABASE, folder / STATE
    while old.is_file() and os.access(folder, os.W_OK):
        try:
            with locked(folder):
                if not place.is_file():
                    progress(f"{folder}: converting its entries to this version's format")
                    _place_database(folder, partial(_convert, folder))
                names = ("entries.jsonl", "entries.ends", "entries.ids", "entries.places", "entries.tags")
                for path in [*(folder / name for name in names), *folder.glob("removed-*.i64"), old]:
                    path.unlink(missing_ok=True)
        except Busy:
            if place.is_file():
                break
            time.sleep(0.1)  # another process is converting it
    if old.is_file() and not place.is_file():
        logger.warning("%s is of an earlier format and read-only: it is converted for this process alone", folder)
        sql = _connected(None)
        sql.executescript(SCHEMA)
        _convert(folder, sql)
        return sql, True
    if not place.is_file():
        raise DataError(f"{place} cannot be read (no such file); make the index again")
    sql = _connected(folder)
    if sql.execute("PRAGMA user_version").fetchone()[0] != FORMAT:
        raise DataError(f"{place} is of another format; make the index again with this version")
    pages, size = (sql.execute(f"PRAGMA {name}").fetchone()[0] for name in ("page_count", "page_size"))
    if place.stat().st_size < pages * size:  # SQLite takes the rest of its last page for zeros
        raise DataError(f"{place} is damaged: shorter than it says; make the index again")
    return sql, False


def _convert(folder: Path, sql: sqlite3.Connection) -> None:
    """Copies the entries of the first format under their numbers; vectors and owners stay where they are."""
    try:
        state = json.loads((folder / STATE).read_text(encoding="utf-8"))
        text = Rows(folder / "entries.jsonl", "u1").view(state["text"])
        ends = [0, *Rows(folder / "entries.ends", "<i8").view(state["entries"]).tolist()]
        gone: set[int] = set()
        if state["removed"] is not None:
            gone.update(Rows(folder / Path(state["removed"]).name, "<i8").view(state["removed_count"]).tolist())
        for start in range(0, state["entries"], PORTION):
            numbers = [n for n in range(start, min(start + PORTION, state["entries"])) if n not in gone]
            _insert(sql, 0, [read_clip(json.loads(text[ends[n] : ends[n + 1]].tobytes())) for n in numbers], numbers)
        sql.executemany("INSERT INTO removed VALUES (?)", [(number,) for number in sorted(gone)])
        for side in [side for side in SIDES if state[side]]:
            made = state["compressed"].get(side, {"file": None, "rows": 0, "trained": 0})
            row = (side, state[side], made["file"], made["rows"], made["trained"])
            sql.execute("INSERT INTO sides VALUES (?, ?, ?, ?, ?)", row)
        sql.execute("UPDATE state SET generation = ?, entries = ?", (state["generation"], state["entries"]))
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
        raise DataError(f"{folder / STATE} cannot be read ({error}); make the index again") from error
