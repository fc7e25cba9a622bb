"""Examples to click: sounds, pictures and films out of the collection itself, so that the page is never empty."""

from __future__ import annotations

from itertools import count, islice
from pathlib import Path

import numpy as np
from PIL import Image

from equiav.media import Workers, read_image
from equiav.report import wav
from equiav.search import Index, Sound, sound_of
from equiav.types import Clip
from equiav.web.service import Kind
from equiav.web.views import FILMS

EXAMPLES = 4
LOOKED_AT = 2000  # entries among which examples are chosen
TRIES = 8  # entries tried for each example: files may have gone since


def write_examples(
    index: Index, folder: Path, *, largest: int, workers: Workers | None = None
) -> dict[Kind, list[Path]]:
    """Writes a few evenly spaced entries as small files; films are offered as they lie if not `largest` bytes.

    Lists stay shorter, or empty, where the collection has nothing of a kind.
    """
    folder.mkdir(parents=True, exist_ok=True)
    found: dict[Kind, list[Path]] = {"audio": [], "image": [], "video": []}
    for clip in _chosen(list(islice(index.clips(), LOOKED_AT))):
        thumbnail = index.thumbnail(clip.id)
        if thumbnail is not None and len(found["image"]) < EXAMPLES:
            found["image"].append(_place(clip, folder, ".png"))
            Image.fromarray(read_image(thumbnail, formats=("JPEG",))).save(found["image"][-1])
        if len(found["audio"]) == EXAMPLES or clip.end <= clip.start or (sound := sound_of(clip, workers)) is None:
            continue
        found["audio"].append(_place(clip, folder, ".wav"))
        found["audio"][-1].write_bytes(as_wav(sound))
        film = clip.path
        if thumbnail is None or film is None or film in found["video"] or film.suffix.lower() not in FILMS:
            continue
        if film.is_file() and film.stat().st_size <= largest:
            found["video"].append(film)
    return found


def as_wav(sound: Sound) -> bytes:
    """16-bit sound as a WAV file."""
    rate, samples = sound
    return wav(np.asarray(samples / 32768, dtype=np.float32), rate)


def _chosen(clips: list[Clip]) -> list[Clip]:
    """Entries to try: the first of every source, evenly spaced, then others."""
    firsts: dict[Path | str, Clip] = {}
    others = [clip for clip in clips if firsts.setdefault(clip.path or clip.source, clip) is not clip]
    chosen = []
    for some in (list(firsts.values()), others):
        most = min(len(some), EXAMPLES * TRIES)
        chosen += [some[i * len(some) // most] for i in range(most)]
    return chosen


def _place(clip: Clip, folder: Path, suffix: str) -> Path:
    """A file name that tells people what it is, and that no other example has."""
    name = Path(clip.source).stem[:40] + (f"-{clip.start:g}s" if clip.start > 0 else "")
    names = (f"{name}{'' if number == 1 else f'-{number}'}{suffix}" for number in count(1))
    return next(folder / each for each in names if not (folder / each).exists())
