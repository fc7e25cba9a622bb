"""Results of a search as a page: thumbnails, players, times; one file that needs nothing else."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from pathlib import Path

from equiav.inference.items import frames_of
from equiav.media import CLIP_SECONDS as QUERY_SECONDS
from equiav.report import Page, data_uri
from equiav.search.media import Sound, picture_file, sound_file, sound_of
from equiav.search.records import Hit

STYLE = """<style>
.hits { display: grid; grid-template-columns: repeat(auto-fill, minmax(15rem, 1fr)); gap: 1rem; margin: 1rem 0; }
.hit { border: 1px solid var(--line); border-radius: 6px; padding: .6rem; font-size: .85rem; overflow-wrap: anywhere; }
.hit img, .hit .none { width: 100%; aspect-ratio: 16 / 10; object-fit: cover; border-radius: 4px; display: block; }
.hit .none { background: var(--line); color: var(--soft); display: grid; place-items: center; }
.hit audio { width: 100%; margin: .4rem 0; } .hit b { float: right; } .hit p { margin: .2rem 0; }
</style>"""


def write_results(hits: Sequence[Hit], path: Path, *, title: str, query: str = "") -> None:
    """Writes the page; `query` is ready HTML that shows what was asked."""
    page = Page(title)
    page.add(STYLE, query)
    if not hits:
        page.text("Nothing was found: the index is empty, or no entry meets the filters.")
    page.add(f'<div class="hits">{"".join(_card(place, hit) for place, hit in enumerate(hits, start=1))}</div>')
    page.write(path)


def _card(place: int, hit: Hit) -> str:
    picture = '<div class="none">no picture</div>'
    if hit.thumbnail is not None:
        source = data_uri("image/jpeg", hit.thumbnail.read_bytes())
        picture = f'<img alt="{escape(hit.source)}" src="{source}">'
    heard = sound_of(hit)
    sound = "" if heard is None else player(heard)
    found = "by its sound" if hit.side == "audio" else "by its pictures"
    labels = f"<p>{escape(', '.join(hit.labels))}</p>" if hit.labels else ""
    return (
        f'<div class="hit">{picture}{sound}<p><b>{hit.score:.3f}</b>{place}. {_name(hit)}</p>'
        f'{labels}<p class="note">{escape(span(hit))} {found}</p></div>'
    )


def _name(hit: Hit) -> str:
    """The file's name, as a link into the stretch where the file is still there."""
    if hit.path is None or not hit.path.is_file():
        return escape(hit.source)
    moment = f"#t={hit.start:g},{hit.end:g}" if hit.end > hit.start else ""
    return f'<a href="{escape(hit.path.absolute().as_uri() + moment)}">{escape(hit.source)}</a>'


def span(hit: Hit) -> str:
    """When in the file: 1:05-1:15; nothing for a picture."""
    return f"{clock(hit.start)}-{clock(hit.end)}" if hit.end > hit.start else ""


def clock(seconds: float) -> str:
    """75.5 s as 1:15.5."""
    whole, tenths = divmod(round(seconds * 10), 10)
    minutes, rest = divmod(whole, 60)
    hours, minutes = divmod(minutes, 60)
    text = f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"
    return f"{text}.{tenths}" if tenths else text


def asked(path: Path, kind: str, *, start: float = 0.0) -> str:
    """What was asked, to see or to hear: a picture for `image`, else the sound where there is one."""
    line = f"<p>{escape(kind)}: {escape(path.name)}</p>"
    if kind == "image":
        picture = frames_of(path, start=start, seconds=QUERY_SECONDS)[0].permute(1, 2, 0).numpy()
        return line + f'<img alt="the query" src="{data_uri("image/png", picture_file(picture))}">'
    heard = sound_of(Hit("", 0.0, "audio", path.name, path, start, start + QUERY_SECONDS, (), {}, None))
    return line if heard is None else line + player(heard)


def player(sound: Sound) -> str:
    """A sound to play."""
    return f'<audio controls preload="none" src="{data_uri("audio/flac", sound_file(sound))}"></audio>'
