"""Results of a search: a table for people, JSON for programs, a page with thumbnails and players; and their audio."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from equiav.data import ShardDataset, flac, read_flac
from equiav.errors import EquiAVError
from equiav.inference import frames_of
from equiav.io import write_whole
from equiav.media import CLIP_SECONDS, SAMPLE_RATE, Workers, decoded_in, excerpt, thumbnail
from equiav.search.records import PREPARED, Hit
from equiav.types import Clip

NOTHING = (
    "Nothing was found: no entry meets the filters, or none has the modality that was looked among (--among both looks "
    "at all), or the index is empty."
)
BY = {"audio": "sound", "visual": "pictures"}  # what people call a modality; others go by their name
WIDEST = 48  # characters of a column of the table

Sound = tuple[int, NDArray[np.int16]]


def sound_of(clip: Clip, workers: Workers | None = None) -> Sound | None:
    """Sample rate and waveform of a clip, from its file or the prepared folder; None where neither has audio of it."""
    if clip.path is not None and clip.path.is_file():
        try:
            how = {"start": clip.start, "seconds": clip.seconds or 0.0, "picture": False}
            sound = decoded_in(workers, excerpt, clip.path, **how).waveform
            return None if sound is None else (SAMPLE_RATE, sound)
        except EquiAVError:
            return None
    if PREPARED not in clip.metadata:
        return None
    try:
        clips = ShardDataset(Path(clip.metadata[PREPARED]), None)
        number = next(i for i in range(len(clips)) if clips.name(i) == clip.id)
        return clips.sample_rate, read_flac(clips.audio_file(number))
    except (EquiAVError, StopIteration):
        return None


def to_json(hits: Sequence[Hit]) -> str:
    """A list of records."""
    return json.dumps([hit.record() for hit in hits], indent=1)


def as_table(hits: Sequence[Hit]) -> str:
    """One line per result: score, by what it was found, when in which file, labels, id."""
    if not hits:
        return NOTHING
    rows = [("", "score", "by its", "time", "source", "labels", "id")]
    for place, hit in enumerate(hits, start=1):
        clip, by = hit.clip, BY.get(hit.side, hit.side)
        cells = (span(clip), _short(clip.source), _short(", ".join(clip.labels)), clip.id)
        rows.append((str(place), f"{hit.score:.3f}", by, *cells))
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in rows]
    return "\n".join(line.rstrip() for line in lines)


def _short(text: str) -> str:
    """One line, cut in front where it is long: the end of a path says most."""
    line = " ".join(text.split())
    return line if len(line) <= WIDEST else "…" + line[1 - WIDEST :]


def write_results(
    hits: Sequence[Hit],
    path: Path,
    *,
    title: str,
    query: Path | None = None,
    kind: str = "",
    start: float = 0.0,
    workers: Workers | None = None,
) -> None:
    """Writes the page, one file that needs nothing else; `query` is the file that was asked with, `kind` as what.

    Files are decoded in `workers`, if they are given.
    """
    from equiav.report import render  # templates, which worker processes and searches do without

    asked: dict[str, Any] = {"image": None, "audio": None}
    if query is not None and kind == "image":
        frames = frames_of(query, start=start, seconds=CLIP_SECONDS, workers=workers)
        asked["image"] = thumbnail(frames[0].permute(1, 2, 0).numpy())
    elif query is not None:
        asked["audio"] = _flac(Clip("", path=query, start=start, seconds=CLIP_SECONDS), workers)
    cards = [
        {
            "place": place,
            "score": f"{hit.score:.3f}",
            "source": hit.clip.source,
            "link": _link(hit.clip),
            "labels": ", ".join(hit.clip.labels),
            "span": span(hit.clip),
            "by": BY.get(hit.side, hit.side),
            "image": None if hit.thumbnail is None else hit.thumbnail.read_bytes(),
            "audio": _flac(hit.clip, workers),
        }
        for place, hit in enumerate(hits, start=1)
    ]
    name = "" if query is None else f"{kind}: {query.name}"
    write_whole(path, render("search.html", title=title, query=name, asked=asked, hits=cards, nothing=NOTHING))


def _flac(clip: Clip, workers: Workers | None) -> bytes | None:
    """The audio of a clip as a FLAC file."""
    sound = sound_of(clip, workers)
    return None if sound is None else flac(np.ascontiguousarray(sound[1]), sound[0])


def _link(clip: Clip) -> str:
    """Where a player finds the clip; nothing if its file is gone."""
    if clip.path is None or not clip.path.is_file():
        return ""
    return clip.path.absolute().as_uri() + (f"#t={clip.start:g},{clip.end:g}" if clip.end > clip.start else "")


def span(clip: Clip) -> str:
    """When in the file: 1:05-1:15; nothing for a picture."""
    return f"{clock(clip.start)}-{clock(clip.end)}" if clip.end > clip.start else ""


def clock(seconds: float) -> str:
    """75.5 s as 1:15.5."""
    whole, tenths = divmod(round(seconds * 10), 10)
    minutes, rest = divmod(whole, 60)
    hours, minutes = divmod(minutes, 60)
    text = f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"
    return f"{text}.{tenths}" if tenths else text
