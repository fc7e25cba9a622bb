"""Examples to click: sounds, pictures and films out of the collection itself, so that the page is never empty."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import count, islice
from pathlib import Path

import numpy as np
from PIL import Image

from equiav.media import Workers, read_image
from equiav.report import wav
from equiav.search import Index, Sound, sound_of
from equiav.types import Clip
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


def write_examples(index: Index, folder: Path, *, largest: int, workers: Workers | None = None) -> Examples:
    """Writes a few evenly spaced entries as small files; films are offered as they lie if not `largest` bytes."""
    folder.mkdir(parents=True, exist_ok=True)
    found = Examples()
    for entry in _chosen(list(islice(index.clips(), LOOKED_AT))):
        thumbnail = index.thumbnail(entry.id)
        if thumbnail is not None and len(found.pictures) < EXAMPLES:
            _add_picture(entry, thumbnail, folder, found)
        sound = sound_of(entry, workers) if len(found.sounds) < EXAMPLES and entry.end > entry.start else None
        if sound is not None:
            _add_sound(entry, sound, folder, found)
            if thumbnail is not None:
                _add_film(entry.path, found, largest)
    return found


def as_wav(sound: Sound) -> bytes:
    """16-bit sound as a WAV file."""
    rate, samples = sound
    return wav(np.asarray(samples / 32768, dtype=np.float32), rate)


def _chosen(entries: list[Clip]) -> list[Clip]:
    """Entries to try: the first of every source, evenly spaced, then others."""
    firsts: dict[Path | str, Clip] = {}
    others = []
    for entry in entries:
        if firsts.setdefault(entry.path or entry.source, entry) is not entry:
            others.append(entry)
    return [*_spread(list(firsts.values())), *_spread(others)]


def _spread(entries: list[Clip]) -> list[Clip]:
    most = min(len(entries), EXAMPLES * TRIES)
    return [entries[i * len(entries) // most] for i in range(most)]


def _place(entry: Clip, folder: Path, suffix: str) -> Path:
    """A file name that tells people what it is, and that no other example has."""
    name = Path(entry.source).stem[:40] + (f"-{entry.start:g}s" if entry.start > 0 else "")
    place = folder / f"{name}{suffix}"
    numbers = count(2)
    while place.exists():
        place = folder / f"{name}-{next(numbers)}{suffix}"
    return place


def _add_sound(entry: Clip, sound: Sound, folder: Path, found: Examples) -> None:
    place = _place(entry, folder, ".wav")
    place.write_bytes(as_wav(sound))
    found.sounds.append(place)


def _add_picture(entry: Clip, thumbnail: Path, folder: Path, found: Examples) -> None:
    place = _place(entry, folder, ".png")
    Image.fromarray(read_image(thumbnail, formats=("JPEG",))).save(place)
    found.pictures.append(place)


def _add_film(path: Path | None, found: Examples, largest: int) -> None:
    if path is None or path.suffix.lower() not in FILMS or path in found.films or not path.is_file():
        return
    if path.stat().st_size <= largest:
        found.films.append(path)
