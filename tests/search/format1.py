"""What `format1.zip` holds: an index as the first format wrote it, with removed entries and compressed vectors."""

import zipfile
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
