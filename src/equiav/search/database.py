"""The database of a local store: entries, filters and what counts of the vector files, in SQLite; and its conversion.

It uses a rollback journal rather than a write-ahead log: that works in folders that cannot be written and on network
disks, and readers, whose transactions last milliseconds, hold up a writer only for its commit.
"""

from __future__ import annotations

import json
import logging
import os
import sqlite3
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from fnmatch import fnmatchcase
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from equiav.errors import Busy, DataError, EquiAVError
from equiav.io import locked
from equiav.search.records import NEAR, SIDES, TIMES, Filter, Progress, clip_record, facts, number_of, read_clip
from equiav.search.vectors import DRAFT, Numbers, Rows
from equiav.types import Clip

logger = logging.getLogger(__name__)

DATABASE, STATE = "entries.db", "state.json"  # state.json belongs to the first format
FORMAT = 2
PORTION = 4096  # entries converted at a time
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


def stored(text: str) -> str | bytes:
    """A text as SQLite can keep it: bytes for names of files that are not Unicode, which Python tells by surrogates."""
    try:
        text.encode()
        return text
    except UnicodeEncodeError:
        return text.encode("utf-8", "surrogatepass")


def unstored(value: str | bytes) -> str:
    """The opposite of `stored`."""
    return value if isinstance(value, str) else value.decode("utf-8", "surrogatepass")


def connect(folder: Path | None) -> sqlite3.Connection:
    """A connection to the database of a folder; without one to an empty database of its own that goes with it."""
    place = "" if folder is None else f"{(folder / DATABASE).absolute().as_uri()}?mode=rw"
    sql = sqlite3.connect(place, uri=True, timeout=WAIT, isolation_level=None, check_same_thread=False)
    sql.execute("PRAGMA trusted_schema = OFF")
    sql.create_function("matches", 2, lambda text, p: fnmatchcase(unstored(text), unstored(p)), deterministic=True)
    sql.create_function("number_of", 1, lambda text: number_of(unstored(text)), deterministic=True)
    return sql


def numbers_of(sql: sqlite3.Connection, ids: Sequence[str]) -> dict[str, int]:
    """Numbers of those of the ids that are there."""
    find = "SELECT number FROM entries WHERE id = ?"
    rows = {id: sql.execute(find, (stored(id),)).fetchone() for id in dict.fromkeys(ids)}
    return {id: row[0] for id, row in rows.items() if row is not None}


def insert(sql: sqlite3.Connection, numbers: Sequence[int], clips: Sequence[Clip]) -> None:
    """Adds clips under numbers, ascending, that were never given out."""
    texts = [json.dumps(clip_record(clip)) for clip in clips]
    ids = [stored(clip.id) for clip in clips]
    sql.executemany("INSERT INTO entries VALUES (?, ?, ?)", zip(numbers, ids, texts, strict=True))
    held: dict[tuple[str, str], list[int]] = {}
    for number, text in zip(numbers, texts, strict=True):
        for fact in facts(read_clip(json.loads(text))):  # of the clip as it will be read
            held.setdefault(fact, []).append(number)
    for (key, value), having in held.items():
        pair = stored(key), stored(value)
        sql.execute("INSERT OR IGNORE INTO facts (key, value, number) VALUES (?, ?, ?)", (*pair, number_of(value)))
        (fact,) = sql.execute("SELECT fact FROM facts WHERE key = ? AND value = ?", pair).fetchone()
        sql.execute("INSERT INTO postings VALUES (?, ?, ?)", (fact, having[0], np.array(having, "<u4").tobytes()))


def meeting(sql: sqlite3.Connection, one: Filter) -> Numbers:
    """Numbers of the entries that meet a condition; for `!=` those that do not. Some may have been removed."""
    given: tuple[Any, ...]
    if one.operator in (">=", "<="):
        condition, given = f"number {one.operator} ?", (float(one.value),)
    elif one.key in TIMES:
        condition, given = "abs(number - ?) <= ?", (float(one.value), NEAR)
    else:
        condition, given = "value = ?" if one.plain else "matches(value, ?)", (stored(one.value),)
    if one.key == "id":
        return np.array([number for (number,) in sql.execute(BY_ID.format(condition), given)], np.int64)
    rows = sql.execute(BY_FACT.format(condition), (stored(one.key), *given))
    return np.frombuffer(b"".join(entries for (entries,) in rows), "<u4").astype(np.int64)


@contextmanager
def told(folder: Path, what: str = "read") -> Iterator[None]:
    """Errors of the database and the disk in one line."""
    try:
        yield
    except (sqlite3.Error, OSError) as error:
        reason = str(error) if isinstance(error, sqlite3.Error) else str(error.strerror)
        if "is locked" in reason:
            raise Busy(f"{folder}: another process keeps its database locked") from error
        if what == "written":
            raise EquiAVError(f"{folder}: cannot be written ({reason})") from error
        if "readonly" in reason:
            raise EquiAVError(f"{folder}: a change was cut short; open it once where it can be written") from error
        raise DataError(f"{folder / DATABASE} cannot be read ({reason}); make the index again") from error


def sync(path: Path) -> None:
    """Waits until a file, or the names in a folder, are on the disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def place_database(folder: Path, fill: Callable[[sqlite3.Connection], None]) -> None:
    """A new database, filled elsewhere and moved to its place once all of it is on the disk."""
    draft = folder / f".{DATABASE}{DRAFT}"
    draft.unlink(missing_ok=True)
    with closing(sqlite3.connect(draft, isolation_level=None)) as sql:
        sql.executescript("PRAGMA journal_mode = OFF; PRAGMA synchronous = OFF; BEGIN;" + SCHEMA)
        fill(sql)
        sql.execute("COMMIT")
    sync(draft)
    (folder / f"{DATABASE}-journal").unlink(missing_ok=True)  # it would be taken for one of the new database
    draft.replace(folder / DATABASE)
    sync(folder)


def open_database(folder: Path, progress: Progress) -> tuple[sqlite3.Connection, bool]:
    """A connection, and whether it is to a copy for this process alone: of a folder in the first format, read-only.

    The first format is converted on opening; its files go once the database is in place, whoever is killed meanwhile.
    """
    place, old = folder / DATABASE, folder / STATE
    while old.is_file() and os.access(folder, os.W_OK):
        try:
            with locked(folder):
                if not place.is_file():
                    progress(f"{folder}: converting its entries to this version's format")
                    place_database(folder, partial(_convert, folder))
                names = ("entries.jsonl", "entries.ends", "entries.ids", "entries.places", "entries.tags")
                for path in [*(folder / name for name in names), *folder.glob("removed-*.i64"), old]:
                    path.unlink(missing_ok=True)
        except Busy:
            if place.is_file():
                break
            time.sleep(0.1)  # another process is converting it
    if old.is_file() and not place.is_file():
        logger.warning("%s is of an earlier format and read-only: it is converted for this process alone", folder)
        sql = connect(None)
        sql.executescript(SCHEMA)
        _convert(folder, sql)
        return sql, True
    if not place.is_file():
        raise DataError(f"{place} cannot be read (no such file); make the index again")
    sql = connect(folder)
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
            insert(sql, numbers, [read_clip(json.loads(text[ends[n] : ends[n + 1]].tobytes())) for n in numbers])
        sql.executemany("INSERT INTO removed VALUES (?)", [(number,) for number in sorted(gone)])
        for side in [side for side in SIDES if state[side]]:
            made = state["compressed"].get(side, {"file": None, "rows": 0, "trained": 0})
            row = (side, state[side], made["file"], made["rows"], made["trained"])
            sql.execute("INSERT INTO sides VALUES (?, ?, ?, ?, ?)", row)
        sql.execute("UPDATE state SET generation = ?, entries = ?", (state["generation"], state["entries"]))
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
        raise DataError(f"{folder / STATE} cannot be read ({error}); make the index again") from error
