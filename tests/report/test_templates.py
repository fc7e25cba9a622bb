"""Templates: what is put in is escaped, what is missing is an error, files stand in the page."""

import pytest
from jinja2 import UndefinedError

from equiav.report import render
from equiav.report.templates import _environment

PAGE = """{% extends "base.html" %}{% from "macros.html" import table, cards, figure, audio %}{% block content %}
{{ table(["name", "R@1"], [["<b>", 0.5]]) }}{{ cards([["clips", 7]]) }}
{{ figure(png, "a <i>") }}{{ audio(wav) }}{% endblock %}"""


def test_macros():
    page = _environment().from_string(PAGE).render(title="1 < 2", png=b"png", wav=b"wav")
    assert page.startswith("<!doctype html>")
    assert "<title>1 &lt; 2</title>" in page
    assert "<td>&lt;b&gt;</td><td>0.5</td>" in page
    assert '<div class="card"><b>7</b>clips</div>' in page
    assert 'alt="a &lt;i&gt;" src="data:image/png;base64,cG5n"' in page
    assert "<figcaption>a &lt;i&gt;</figcaption>" in page
    assert '<audio controls preload="none" src="data:audio/wav;base64,d2F2"></audio>' in page
    assert "color-scheme" in page
    assert "<i>" not in page


def test_what_is_missing_is_an_error():
    with pytest.raises(UndefinedError, match="title"):
        render("base.html")
