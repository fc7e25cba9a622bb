"""The sound of what was found, from the file it came from or the prepared folder it was indexed from."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from equiav.data import SPLITS, ShardDataset, flac, read_flac
from equiav.errors import EquiAVError
from equiav.inference.items import excerpt
from equiav.media import SAMPLE_RATE
from equiav.search.records import Entry, Hit

PREPARED, SPLIT = "prepared", "split"  # keys of an entry's metadata

Sound = tuple[int, NDArray[np.int16]]


def sound_of(hit: Hit | Entry) -> Sound | None:
    """Rate and samples of the stretch that was found; None where its file is gone or has no sound."""
    if hit.path is not None and hit.path.is_file():
        try:
            sound = excerpt(hit.path, start=hit.start, seconds=hit.end - hit.start, picture=False).sound
            return None if sound is None else (SAMPLE_RATE, sound)
        except EquiAVError:
            return None
    return _prepared_sound(hit)


def _prepared_sound(hit: Hit | Entry) -> Sound | None:
    folder, split = hit.metadata.get(PREPARED), hit.metadata.get(SPLIT)
    if folder is None or split not in SPLITS:
        return None
    try:
        clips = ShardDataset(Path(folder), split)
        number = next(i for i in range(len(clips)) if clips.name(i) == hit.id)
        return clips.sample_rate, read_flac(clips.sound_file(number))
    except (EquiAVError, StopIteration):
        return None


def sound_file(sound: Sound) -> bytes:
    """The sound as a FLAC file."""
    rate, samples = sound
    return flac(np.ascontiguousarray(samples), rate)


def picture_file(picture: NDArray[np.uint8], side: int = 256) -> bytes:
    """A picture (H, W, 3) as a small PNG."""
    image = Image.fromarray(picture)
    image.thumbnail((2 * side, side))
    buffer = io.BytesIO()
    image.save(buffer, "PNG")
    return buffer.getvalue()
