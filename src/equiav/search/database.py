"""The database of a local store: entries, filters and what counts of the vector files, in SQLite; and its conversion.

It uses a rollback journal rather than a write-ahead log: that works in folders that cannot be written and on network
disks, and readers, whose transactions last milliseconds, hold up a writer only for its commit.

SQLite does not notice a bit that flipped on the disk. The SHA-256 of the database stands in a file beside it, which
says while a change is being committed that it is about to be another.
"""

from __future__ import annotations

import json
import logging
import os
import re
import sqlite3
import time
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np

from equiav.errors import Busy, DataError, EquiAVError
from equiav.io import locked, sha256, sync_path
from equiav.search.records import (
    NEAR,
    SIDES,
    TIMES,
    Filter,
    Progress,
    clip_record,
    facts,
    matches,
    number_of,
    read_clip,
)
from equiav.search.vectors import BLOCK, DRAFT, Numbers, Rows, row_sums, side_files
from equiav.types import Clip

logger = logging.getLogger(__name__)

DATABASE, CHECKSUM = "entries.db", "entries.sha256"
STATE = "state.json"  # of the first format, which had no database
FORMAT = 3  # the second had no checksums
PORTION = 4096  # entries converted at a time
REMEDY = "restore a copy, or make the index again"
REMOVE = "remove its file (equiav index INDEX --remove-source FILE) and index that again, or restore a copy"
WAIT = 60.0  # seconds that a reader waits for a commit, and a commit for readers

SCHEMA = f"""
PRAGMA user_version = {FORMAT};
CREATE TABLE state (generation INTEGER NOT NULL, entries INTEGER NOT NULL); -- one row: changes made, numbers given out
CREATE TABLE entries (number INTEGER PRIMARY KEY, id NOT NULL UNIQUE, clip TEXT NOT NULL);
CREATE TABLE removed (number INTEGER PRIMARY KEY);
CREATE TABLE sides ( -- vectors that count of each modality; the file of its compressed index and what that covers;
  -- CRC-32 of the owners that count and SHA-256 of the compressed index, NULL in a copy of an earlier format
  side TEXT PRIMARY KEY, rows INTEGER NOT NULL, file TEXT, covered INTEGER NOT NULL, trained INTEGER NOT NULL,
  owners INTEGER, sha256 TEXT);
CREATE TABLE facts ( -- every key=value that filters can ask for, once; its number where it is one
  fact INTEGER PRIMARY KEY, key NOT NULL, value NOT NULL, number REAL, UNIQUE (key, value));
CREATE TABLE postings ( -- entries of which a fact holds, as 32-bit numbers; a row for each portion added
  fact INTEGER NOT NULL, first INTEGER NOT NULL, entries BLOB NOT NULL, PRIMARY KEY (fact, first)) WITHOUT ROWID;
INSERT INTO state VALUES (0, 0);
"""
SECOND_TO_THIRD = f"""
ALTER TABLE sides ADD COLUMN owners INTEGER;
ALTER TABLE sides ADD COLUMN sha256 TEXT;
PRAGMA user_version = {FORMAT};
"""
BY_FACT = "SELECT entries FROM postings WHERE fact IN (SELECT fact FROM facts WHERE key = ? AND {})"
BY_KEY = "SELECT value, entries FROM facts JOIN postings USING (fact) WHERE key = ?"
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
    sql.create_function("matches", 2, lambda text, p: matches(unstored(text), unstored(p)), deterministic=True)
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
    except (sqlite3.Error, OSError, UnicodeDecodeError) as error:
        # SQLite quotes what it could not read: several lines, or no text, on which Python fails.
        reason = " ".join(str(getattr(error, "strerror", None) or error).split())
        if "is locked" in reason:
            raise Busy(f"{folder}: another process keeps its database locked") from error
        if what == "written":
            raise EquiAVError(f"{folder}: cannot be written ({reason})") from error
        if "readonly" in reason:
            raise EquiAVError(f"{folder}: a change was cut short; open it once where it can be written") from error
        raise DataError(f"{folder / DATABASE} cannot be read ({reason}); {REMEDY}") from error


def record_checksum(folder: Path, digest: str, *, changing: bool = False) -> None:
    """Writes down which database counts, as `sha256sum` does; `changing` says that a commit may have replaced it."""
    draft = folder / f".{CHECKSUM}{DRAFT}"  # always the same: what a killed process leaves is written over
    draft.write_text(f"{digest}  {DATABASE}\n" + "changing\n" * changing)
    sync_path(draft)
    draft.replace(folder / CHECKSUM)
    sync_path(folder)


def read_checksum(folder: Path) -> tuple[str, bool]:
    """The checksum of the database, and whether it was about to change."""
    place = folder / CHECKSUM
    try:
        found = re.fullmatch(rb"([0-9a-f]{64})  entries\.db\n(changing\n)?", place.read_bytes())
    except OSError as error:
        raise DataError(f"{place} cannot be read ({error.strerror}); {REMEDY}") from error
    if found is None:
        raise DataError(f"{place} is damaged; {REMEDY}")
    return found[1].decode(), found[2] is not None


def commit(folder: Path, sql: sqlite3.Connection) -> None:
    """Commits a change and writes down the checksum of what it left; cut short, the next to open it sees to that."""
    record_checksum(folder, read_checksum(folder)[0], changing=True)
    sql.execute("COMMIT")
    record_checksum(folder, sha256(folder / DATABASE))


def check_database(folder: Path, sql: sqlite3.Connection) -> None:
    """Refuses a database that is not the one written; all of it is read.

    One that a killed process was about to change is examined by SQLite instead, and its checksum written anew.
    """
    while True:
        wanted, changing = read_checksum(folder)
        sql.execute("BEGIN")
        try:
            sql.execute("SELECT count(*) FROM sqlite_schema").fetchone()  # from here on nobody commits
            found = sha256(folder / DATABASE)
        finally:
            sql.execute("ROLLBACK")
        if found == wanted:
            return
        if (wanted, changing) == read_checksum(folder):
            break
    if not changing:
        raise DataError(f"{folder / DATABASE} is damaged: not as it was written; {REMEDY}")
    if not os.access(folder, os.W_OK):
        return
    try:
        with locked(folder):
            if read_checksum(folder)[1]:
                check_structure(folder, sql)
                record_checksum(folder, sha256(folder / DATABASE))
    except Busy:
        return  # it is being changed now


def check_structure(folder: Path, sql: sqlite3.Connection) -> None:
    """Refuses a database that SQLite finds faults in, where there is no checksum to compare it with."""
    ((first, *_), *_) = sql.execute("PRAGMA integrity_check(1)").fetchall()
    if first != "ok":
        raise DataError(f"{folder / DATABASE} is damaged ({str(first).splitlines()[-1]}); {REMEDY}")


def place_database(folder: Path, fill: Callable[[sqlite3.Connection], None]) -> None:
    """A new database, filled elsewhere and moved to its place once all of it is on the disk."""
    draft = folder / f".{DATABASE}{DRAFT}"
    draft.unlink(missing_ok=True)
    with closing(sqlite3.connect(draft, isolation_level=None)) as sql:
        sql.executescript("PRAGMA journal_mode = OFF; PRAGMA synchronous = OFF; BEGIN;" + SCHEMA)
        fill(sql)
        sql.execute("COMMIT")
    sync_path(draft)
    (folder / f"{DATABASE}-journal").unlink(missing_ok=True)  # it would be taken for one of the new database
    record_checksum(folder, sha256(draft))
    draft.replace(folder / DATABASE)
    sync_path(folder)


def open_database(folder: Path, width: int, progress: Progress) -> tuple[sqlite3.Connection, bool]:
    """A connection, and whether it is to a copy for this process alone: of an earlier format, where nothing is written.

    Earlier formats are converted on opening; what was is removed once the new is in place, whoever is killed meanwhile.
    """
    place = folder / DATABASE
    while (version := _format(folder)) < FORMAT and os.access(folder, os.W_OK):
        try:
            with locked(folder):
                _migrate(folder, width, progress)
        except Busy:
            time.sleep(0.1)  # another process is converting it
    if (folder / STATE).is_file() and os.access(folder, os.W_OK):
        with suppress(Busy), locked(folder):
            names = ("entries.jsonl", "entries.ends", "entries.ids", "entries.places", "entries.tags")
            for path in [*(folder / name for name in names), *folder.glob("removed-*.i64"), folder / STATE]:
                path.unlink(missing_ok=True)
    if version > FORMAT:
        raise DataError(f"{place} is of another format; make the index again with this version")
    if version == FORMAT:
        sql = connect(folder)
        check_database(folder, sql)
        return sql, False
    logger.warning("%s is of an earlier format and read-only: it is converted for this process alone", folder)
    sql = connect(None)
    if version == 1:
        sql.executescript(SCHEMA)
        _convert(folder, sql)
    else:
        with closing(connect(folder)) as stored:
            stored.backup(sql)
        check_structure(folder, sql)
        sql.executescript(SECOND_TO_THIRD)
    return sql, True


def _format(folder: Path) -> int:
    """Which format a folder is in; asking SQLite, which first undoes what a killed process had begun."""
    place = folder / DATABASE
    if not place.is_file():
        if (folder / STATE).is_file():
            return 1
        raise DataError(f"{place} cannot be read (no such file); {REMEDY}")
    with closing(connect(folder)) as sql:
        version = int(sql.execute("PRAGMA user_version").fetchone()[0])
        if version < FORMAT and (folder / CHECKSUM).is_file():
            check_database(folder, sql)  # the second format has none: that number is no longer what was written
    return max(version, 2)


def _migrate(folder: Path, width: int, progress: Progress) -> None:
    """Brings an earlier format to this one, checksums included; under the folder's lock."""
    version = _format(folder)
    if version < FORMAT:
        progress(f"{folder}: converting its entries to this version's format")
    if version == 1:

        def fill(sql: sqlite3.Connection) -> None:
            _convert(folder, sql)
            _add_checksums(folder, sql, width)

        place_database(folder, fill)
    elif version == 2:
        with closing(connect(folder)) as sql:
            check_structure(folder, sql)
            sql.execute("PRAGMA synchronous = FULL")
            sql.execute("PRAGMA cache_spill = OFF")
            sql.executescript("BEGIN IMMEDIATE;" + SECOND_TO_THIRD)
            _add_checksums(folder, sql, width)
            sync_path(folder)
            record_checksum(folder, sha256(folder / DATABASE), changing=True)
            commit(folder, sql)


def _add_checksums(folder: Path, sql: sqlite3.Connection, width: int) -> None:
    """Checksums of all that earlier formats wrote without."""
    for side, rows, file in sql.execute("SELECT side, rows, file FROM sides").fetchall():
        stored, owners, sums = side_files(folder, side, width)
        vectors = stored.view(rows)
        for start in range(0, rows, BLOCK):
            sums.append(row_sums(vectors[start : start + BLOCK]), start)
        try:
            digest = None if file is None else sha256(folder / file)
        except OSError:
            digest = ""  # that of no file: it counts as damaged, and is made again when the index grows
        crc = zlib.crc32(owners.view(rows).data)
        sql.execute("UPDATE sides SET owners = ?, sha256 = ? WHERE side = ?", (crc, digest, side))


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
            sql.execute("INSERT INTO sides (side, rows, file, covered, trained) VALUES (?, ?, ?, ?, ?)", row)
        sql.execute("UPDATE state SET generation = ?, entries = ?", (state["generation"], state["entries"]))
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
        raise DataError(f"{folder / STATE} cannot be read ({error}); make the index again") from error
