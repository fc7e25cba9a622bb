"""The site builds without a warning, and needs nothing from the network."""

from __future__ import annotations

import os
import re
import subprocess
import sys

import pytest

from tests.docs.blocks import ROOT

pytest.importorskip("mkdocs")
pytestmark = pytest.mark.process

ASSET = re.compile(
    r"<(?:script|img|iframe|source)[^>]*\ssrc=\"?(https?:[^\s\">]+)|<link[^>]*\shref=\"?(https?:[^\s\">]+)"
)


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    out = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(out)]
    run = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, env={**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    )
    assert run.returncode == 0, run.stderr
    return out


def test_every_page_is_there(site):
    wanted = {page.relative_to(ROOT / "docs").with_suffix(".html") for page in (ROOT / "docs").rglob("*.md")}
    assert all((site / page).is_file() for page in wanted)


def test_nothing_is_fetched(site):
    for page in site.rglob("*.html"):
        fetched = [one or other for one, other in ASSET.findall(page.read_text())]
        assert not fetched, f"{page.name}: {fetched}"
    for style in site.rglob("*.css"):
        assert not re.search(r"url\(\s*['\"]?https?:", style.read_text()), style.name


def test_the_reference_holds_the_docstrings(site):
    page = (site / "reference/api.html").read_text()
    assert "Unit vectors (float32) of sounds and pictures" in page  # Embedder
    assert "The k nearest entries, best first" in page  # Index.search
    assert page.count("doc-heading") > 40
