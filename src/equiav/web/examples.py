"""Examples to click: sounds, pictures and films out of the collection itself, so that the page is never empty."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from equiav.errors import MediaError
from equiav.inference import Embedder
from equiav.inference.items import excerpt
from equiav.media.decode import Excerpt
from equiav.report.html import wav
from equiav.search.index import Index
from equiav.search.records import Entry
from equiav.web.cards import FILMS

EXAMPLES = 4
LOOKED_AT = 2000  # entries among which examples are chosen
TRIES = 8  # entries tried for each example: files may have gone since


@dataclass(frozen=True)
class Examples:
    """Files to offer; lists stay shorter, or empty, where the collection has nothing of a kind."""

    sounds: list[Path] = field(default_factory=list)
    pictures: list[Path] = field(default_factory=list)
    films: list[Path] = field(default_factory=list)


def write_examples(index: Index, embedder: Embedder, folder: Path, *, largest: int) -> Examples:
    """Writes a few evenly spaced entries as small files; films are offered as they lie if not `largest` bytes."""
    entries = [e for e in islice(index.entries(), LOOKED_AT) if e.path is not None and e.end > e.start]
    found = Examples()
    step = max(1, len(entries) // (EXAMPLES * TRIES))
    for entry in entries[::step]:
        if len(found.sounds) >= EXAMPLES and len(found.pictures) >= EXAMPLES:
            break
        piece = read_entry(entry, embedder)
        if piece is not None:
            _write(entry, piece, embedder.rate, folder, found, largest)
    return found


def read_entry(entry: Entry, embedder: Embedder) -> Excerpt | None:
    """The stretch of the file that an entry is about; None where the file is gone or broken."""
    if entry.path is None:
        return None
    try:
        return excerpt(entry.path, start=entry.start, seconds=entry.end - entry.start, rate=embedder.rate)
    except MediaError:
        return None


def as_float(sound: NDArray[np.int16]) -> NDArray[np.float32]:
    """16-bit sound in [-1, 1]."""
    return np.asarray(sound / 32768, dtype=np.float32)


def _write(entry: Entry, piece: Excerpt, rate: int, folder: Path, found: Examples, largest: int) -> None:
    assert entry.path is not None  # read_entry has read it
    name = Path(entry.source).stem[:40]
    folder.mkdir(parents=True, exist_ok=True)
    if piece.sound is not None and len(found.sounds) < EXAMPLES:
        file = folder / f"{name}.wav"
        file.write_bytes(wav(as_float(piece.sound), rate))
        found.sounds.append(file)
    if piece.pictures and len(found.pictures) < EXAMPLES:
        file = folder / f"{name}.png"
        Image.fromarray(piece.pictures[len(piece.pictures) // 2]).save(file)
        found.pictures.append(file)
    both = piece.sound is not None and piece.pictures
    fits = entry.path.suffix.lower() in FILMS and entry.path.stat().st_size <= largest
    if both and fits and len(found.films) < EXAMPLES:
        found.films.append(entry.path)
