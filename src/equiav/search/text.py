"""Results of a search as text: a table for people, JSON for programs."""

from __future__ import annotations

import json
from collections.abc import Sequence

from equiav.search.page import span
from equiav.search.records import Hit

WIDEST = 48


def to_json(hits: Sequence[Hit]) -> str:
    """A list of records."""
    return json.dumps([hit.record() for hit in hits], indent=1)


def as_table(hits: Sequence[Hit]) -> str:
    """One line per result: score, by what it was found, when in which file, labels, id."""
    if not hits:
        return "Nothing was found: the index is empty, or no entry meets the filters."
    header = ("", "score", "by its", "time", "source", "labels", "id")
    rows = [
        (
            str(place),
            f"{hit.score:.3f}",
            "sound" if hit.side == "audio" else "pictures",
            span(hit),
            _short(hit.source),
            _short(", ".join(hit.labels)),
            hit.id,
        )
        for place, hit in enumerate(hits, start=1)
    ]
    widths = [max(len(row[i]) for row in (header, *rows)) for i in range(len(header))]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in (header, *rows)]
    return "\n".join(line.rstrip() for line in lines)


def _short(text: str) -> str:
    """One line, cut in front where it is long: the end of a path says most."""
    line = " ".join(text.split())
    return line if len(line) <= WIDEST else "…" + line[1 - WIDEST :]
