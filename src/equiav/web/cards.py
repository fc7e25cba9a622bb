"""Pieces of the page as HTML: nearest clips with players, pictures under their heat maps, the map of a collection."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from pathlib import Path
from urllib.parse import quote

from equiav.report import data_uri, image_png
from equiav.search import PREPARED, Hit
from equiav.web.service import Look

# What browsers play by themselves; of anything else the sound is decoded for them.
FILMS = {".mp4": "video/mp4", ".m4v": "video/mp4", ".webm": "video/webm", ".mov": "video/quicktime"}

# Trimming in the browser would load a library from elsewhere: its buttons go.
STYLE = """
.gradio-container { max-width: 62rem !important; width: 100% !important; margin: 0 auto !important; }
.found { display: grid; grid-template-columns: repeat(auto-fill, minmax(8.2rem, 1fr)); gap: .8rem; padding: .2rem; }
.found figure { margin: 0; border: 1px solid var(--border-color-primary); border-radius: 8px; overflow: hidden;
  background: var(--block-background-fill); }
.found figure { position: relative; }
.found img, .found video { width: 100%; aspect-ratio: 4 / 3; object-fit: contain; display: block;
  background: var(--background-fill-secondary); }
.found video:not([controls]) + .play { position: absolute; top: .4rem; left: .4rem; padding: .1rem .5rem;
  border-radius: 99px; background: #000a; color: #fff; font-size: .75rem; pointer-events: none; }
.found video[controls] + .play { display: none; }
.found audio { width: 100%; height: 2.2rem; display: block; }
.found .silent { aspect-ratio: 4 / 3; display: grid; place-items: center; color: var(--body-text-color-subdued); }
.found figcaption { padding: .4rem .6rem; font-size: .8rem; line-height: 1.35; overflow-wrap: anywhere; }
.found figcaption b { float: right; font-variant-numeric: tabular-nums; margin-left: .4rem; }
.found small, .quiet { opacity: .7; }
.looks { display: grid; grid-template-columns: repeat(auto-fill, minmax(8.2rem, 1fr)); gap: .8rem; }
.looks figure { margin: 0; font-size: .8rem; } .looks img { width: 100%; border-radius: 6px; display: block; }
button[title^="Trim video"], button[title^="Reset video"] { display: none !important; }
svg.map { width: 100%; height: auto; border: 1px solid var(--border-color-primary); border-radius: 8px; }
svg.map image { display: none; } svg.map g:hover image { display: block; } svg.map g:hover circle { stroke: #000; }
"""


def address(kind: str, name: str) -> str:
    """Where the page finds the film or the sound of an entry."""
    return f"/clip/{kind}?id={quote(name, safe='')}"


def clips_html(hits: Sequence[Hit]) -> str:
    """The clips that were found, nearest first."""
    if not hits:
        return '<p class="quiet">Nothing found: the collection holds nothing to compare it with.</p>'
    return f'<div class="found">{"".join(_clip(hit) for hit in hits)}</div>'


def _clip(hit: Hit) -> str:
    clip = hit.clip
    title = escape(Path(clip.source).name)
    by = "by its sound" if hit.side == "audio" else "by its picture"
    labels = f"<br>{escape(', '.join(clip.labels))}" if clip.labels else ""
    span = f"{clip.start:.0f}–{clip.end:.0f} s, " if clip.end > clip.start else ""
    caption = f"<figcaption><b>{hit.score:.2f}</b>{title}<br><small>{span}{by}{labels}</small></figcaption>"
    return f"<figure>{_player(hit)}{caption}</figure>"


def _player(hit: Hit) -> str:
    clip = hit.clip
    poster = address("picture", clip.id) if hit.thumbnail is not None else ""
    here = clip.path is not None and clip.path.is_file()
    if clip.path is not None and here and clip.path.suffix.lower() in FILMS:
        source = f"{address('film', clip.id)}#t={clip.start:.2f},{clip.end:.2f}"
        look = f' poster="{poster}"' if poster else ""
        # Controls would cover half of a small picture: they come with the pointer, a touch or the focus.
        show = "".join(f' {event}="this.controls=true"' for event in ("onpointerenter", "onfocus", "ontouchstart"))
        show += """ onpointerleave="if (event.pointerType === 'mouse') this.controls = !this.paused" """
        film = f'<video playsinline tabindex="0" preload="none"{show}{look} src="{source}"></video>'
        return f'{film}<span class="play">▶</span>'
    image = f'<img alt="" src="{poster}">' if poster else '<div class="silent">sound</div>'
    if clip.end <= clip.start or not (here or PREPARED in clip.metadata):  # a still picture, or its file is gone
        return image
    return f'{image}<audio controls preload="none" src="{address("sound", clip.id)}"></audio>'


def looks_html(looks: Sequence[Look]) -> str:
    """Pictures and the same under their heat maps, in pairs."""
    cells = []
    for look in looks:
        when = "" if look.second is None else f"{look.second:.1f} s"
        cells.append(_picture(image_png(look.picture), when or "the picture"))
        cells.append(_picture(image_png(look.overlay), "where it sounds" + (f", {when}" if when else "")))
    return (
        f'<div class="looks">{"".join(cells)}</div><p class="quiet">Bright is where the picture fits the sound best. '
        "The map tells places of one picture apart; it does not say that there is a match.</p>"
    )


def _picture(png: bytes, caption: str) -> str:
    text = escape(caption)
    return f'<figure><img alt="{text}" src="{data_uri("image/png", png)}"><figcaption>{text}</figcaption></figure>'
