"""What `format1.zip` holds: an index as the first format wrote it, with removed entries and compressed vectors."""

import json
import sqlite3
import zipfile
from contextlib import closing
from dataclasses import replace
from pathlib import Path

from tests.search.making import entries

REMOVED = [f"clip-{i}" for i in range(0, 120, 10)]
ODD = "ol\udcff\x00d*.mp4"  # a name that is not Unicode, with what filters and databases may stumble over
OLD_FILES = ("state.json", "entries.jsonl", "entries.ends", "entries.ids", "entries.places", "entries.tags")


def unpack(folder: Path) -> Path:
    with zipfile.ZipFile(Path(__file__).with_name("format1.zip")) as packed:
        packed.extractall(folder)
    return folder


def as_second_format(folder: Path) -> None:
    """Takes from a local index what the second format did not have: checksums."""
    with closing(sqlite3.connect(folder / "entries.db", isolation_level=None)) as sql:
        sql.executescript("ALTER TABLE sides DROP COLUMN owners; ALTER TABLE sides DROP COLUMN sha256;")
        sql.execute("PRAGMA user_version = 2")
    for path in (folder / "entries.sha256", *folder.glob("*.sums")):
        path.unlink()
    if (folder / "index.json").is_file():
        about = json.loads((folder / "index.json").read_text())
        del about["checksum"]
        (folder / "index.json").write_text(json.dumps({**about, "format": 2}))


def expected():
    """Its entries by id: added, twelve removed, thirty added, two of the twelve and three known added, one removed."""
    held = {e.clip.id: e for e in entries(120) if e.clip.id not in REMOVED}
    for i, e in enumerate(entries(30, first=120, seed=7)):
        metadata = {"city": None, "tags": ["a", 1, True, 2.5], "gain": float(i)}
        clip = replace(e.clip, path=None, source=ODD, labels=(), metadata=metadata)
        held[clip.id] = replace(e, clip=clip)
    held.update({e.clip.id: e for e in entries(5, seed=9) if e.clip.id not in held})
    del held["clip-125"]
    return held
