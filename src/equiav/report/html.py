"""Self-contained HTML: text, tables, figures, pictures and sounds in one file that needs nothing else."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from html import escape
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from equiav.io import write_whole
from equiav.report.images import data_uri, wav

STYLE = (Path(__file__).with_name("templates") / "style.css").read_text(encoding="utf-8")


def player(samples: NDArray[np.float32], rate: int) -> str:
    """A sound to play."""
    return f'<audio controls preload="none" src="{data_uri("audio/wav", wav(samples, rate))}"></audio>'


def image(png: bytes, caption: str = "", *, hit: bool = False, pixel: bool = False) -> str:
    """A picture with a caption under it, framed if it is the right one."""
    classes = "cell hit" if hit else "cell"
    look = ' class="pixel"' if pixel else ""
    text = escape(caption)
    return f'<div class="{classes}"><img{look} alt="{text}" src="{data_uri("image/png", png)}">{text}</div>'


def row(cells: Sequence[str]) -> str:
    """Things side by side."""
    return f'<div class="row">{"".join(cells)}</div>'


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table; the first column is text."""
    head = "".join(f"<th>{escape(h)}</th>" for h in header)
    body = "".join("<tr>" + "".join(f"<td>{escape(c)}</td>" for c in r) + "</tr>" for r in rows)
    return f"<table><tr>{head}</tr>{body}</table>"


def cards(values: Sequence[tuple[str, str]]) -> str:
    """A few numbers that matter, large."""
    return (
        '<div class="cards">'
        + "".join(f'<div class="card"><b>{escape(v)}</b>{escape(k)}</div>' for k, v in values)
        + "</div>"
    )


@dataclass
class Page:
    """A page built from top to bottom."""

    title: str
    parts: list[str] = field(default_factory=list)

    def add(self, *html: str) -> Page:
        """Appends ready HTML."""
        self.parts.extend(html)
        return self

    def heading(self, text: str) -> Page:
        """A section."""
        return self.add(f"<h2>{escape(text)}</h2>")

    def text(self, text: str, *, note: bool = False) -> Page:
        """A paragraph; notes are small."""
        return self.add(f"<p{' class=note' if note else ''}>{escape(text)}</p>")

    def figure(self, png: bytes, caption: str = "") -> Page:
        """A figure across the page."""
        note = f"<figcaption>{escape(caption)}</figcaption>" if caption else ""
        return self.add(
            f'<div class="figure"><img alt="{escape(caption)}" src="{data_uri("image/png", png)}">{note}</div>'
        )

    def html(self) -> str:
        """The whole page."""
        head = '<meta charset="utf-8"><meta name="viewport" content="width=device-width">'
        head += f"<title>{escape(self.title)}</title>"
        body = f"<h1>{escape(self.title)}</h1>" + "\n".join(self.parts)
        return f"<!doctype html><html lang=en><head>{head}<style>{STYLE}</style></head><body>{body}</body></html>"

    def write(self, path: Path) -> None:
        """Writes the page."""
        write_whole(path, self.html())
