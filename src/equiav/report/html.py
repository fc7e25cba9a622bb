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

STYLE = """
:root { color-scheme: light dark; --ink: #1c1e21; --paper: #fcfcfa; --soft: #6b7280; --line: #d9d9d4; --good: #1a7f4b; }
@media (prefers-color-scheme: dark) { :root { --ink: #e8e8e4; --paper: #17181a; --soft: #9aa0a8; --line: #34363a; } }
body { font: 16px/1.5 system-ui, sans-serif; color: var(--ink); background: var(--paper); max-width: 66rem;
       margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.7rem; margin-bottom: .2rem; } h2 { font-size: 1.2rem; margin-top: 2.2rem; }
p.note, td.note, figcaption { color: var(--soft); font-size: .9rem; }
table { border-collapse: collapse; margin: .6rem 0; } th, td { padding: .3rem .8rem; text-align: right;
       border-bottom: 1px solid var(--line); } th:first-child, td:first-child { text-align: left; }
img { max-width: 100%; height: auto; } img.pixel { image-rendering: pixelated; }
.figure { margin: 1rem 0; } .figure img { background: #fff; border-radius: 4px; }
.row { display: flex; flex-wrap: wrap; gap: .6rem; align-items: flex-end; margin: .8rem 0;
       padding-bottom: .8rem; border-bottom: 1px solid var(--line); }
.cell { text-align: center; font-size: .8rem; color: var(--soft); max-width: 13rem; }
.cell img { display: block; border: 3px solid transparent; border-radius: 4px; }
.cell.hit img { border-color: var(--good); } .cell.hit { color: var(--good); font-weight: 600; }
audio { width: 11rem; height: 2.2rem; display: block; }
.cards { display: flex; flex-wrap: wrap; gap: 1rem; } .card { border: 1px solid var(--line); border-radius: 6px;
       padding: .6rem 1rem; } .card b { font-size: 1.5rem; display: block; }
"""


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
