"""Pages from Jinja2 templates: everything that is put in is escaped, and a name that was not given is an error."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from equiav.io import write_whole
from equiav.report.images import data_uri


def render(template_name: str, **data: Any) -> str:
    """A template of `report/templates` with its data; `bytes | data_uri("image/png")` puts a file into the page."""
    return _environment().get_template(template_name).render(**data)


@cache
def _environment() -> Environment:
    found = Environment(
        loader=FileSystemLoader(Path(__file__).with_name("templates")),
        autoescape=lambda name: not (name or "").endswith(".md"),  # pages; model cards are plain text
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        extensions=["jinja2.ext.do"],
    )
    found.filters["data_uri"] = lambda content, kind: data_uri(kind, content)
    return found


def write_page(results: Path, page: Path, template_name: str) -> Path:
    """Writes the page of a results file, from what stands in it alone, as one file that needs nothing else.

    Templates get the record as `results`, the plots as `figures`, and `asset(name)`: the bytes of a file beside it.
    """
    from equiav.report import figures

    record = json.loads(results.read_text(encoding="utf-8"))
    html = render(
        template_name, results=record, figures=figures, asset=lambda name: (results.parent / name).read_bytes()
    )
    write_whole(page, html)
    return page
