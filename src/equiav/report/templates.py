"""Pages from Jinja2 templates: everything that is put in is escaped, and a name that was not given is an error."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from equiav.report.html import data_uri


def render(template_name: str, **data: Any) -> str:
    """A template of `report/templates` with its data; `bytes | data_uri("image/png")` puts a file into the page."""
    return _environment().get_template(template_name).render(**data)


@cache
def _environment() -> Environment:
    found = Environment(
        loader=FileSystemLoader(Path(__file__).with_name("templates")),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    found.filters["data_uri"] = lambda content, kind: data_uri(kind, content)
    return found
