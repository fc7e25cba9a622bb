"""Links of README and docs lead somewhere: files, headings and pictures; nothing asks the network for what it shows."""

from __future__ import annotations

import ast
import re
import runpy
from pathlib import Path

import pytest

from tests.docs.blocks import ROOT, pages

LINK = re.compile(r"!?\[[^\]]*\]\(([^)\s]+)\)")
INCLUDED = {ROOT / "docs/explanation/paper.md": ROOT / "PAPER.md"}  # by --8<--
FENCED = re.compile(r"^```.*?^```", re.DOTALL | re.MULTILINE)


def text_of(page: Path) -> str:
    return FENCED.sub("", INCLUDED.get(page, page).read_text(encoding="utf-8"))


def anchors(page: Path) -> set[str]:
    """Headings as the site (and code hosts) name them."""
    found = re.findall(r"^#+\s+(.*)$", text_of(page), re.MULTILINE)
    return {re.sub(r"[\s-]+", "-", re.sub(r"[^\w\s-]", "", title.lower()).strip()) for title in found}


@pytest.mark.parametrize("page", pages(), ids=lambda page: page.name)
def test_links(page):
    for target in LINK.findall(text_of(page)):
        if target.startswith(("https://", "mailto:")):
            continue
        assert not target.startswith("http://"), target
        name, _, anchor = target.partition("#")
        place = (page.parent / name).resolve() if name else page
        assert place.exists(), f"{page.name}: {target} leads nowhere"
        if anchor:
            assert anchor in anchors(place), (
                f"{page.name}: {target}: no such heading; there are {sorted(anchors(place))}"
            )


@pytest.mark.parametrize("page", pages(), ids=lambda page: page.name)
def test_pictures_are_ours(page):
    shown = re.findall(r"!\[[^\]]*\]\(([^)\s]+)\)", text_of(page))
    assert all((page.parent / picture).is_file() for picture in shown)


def test_every_table_is_shown_somewhere(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    tables = runpy.run_path(str(ROOT / "benchmarks/tables.py"))["TABLES"]
    shown = {name for page in pages() for name in re.findall(r"<!-- table:(\w+) -->", page.read_text())}
    assert set(tables) == shown


def said_by_the_code() -> list[str]:
    """Every text of the package, with … where something is put in."""
    found = []
    for file in sorted((ROOT / "src").rglob("*.py")):
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.JoinedStr):
                parts = [v.value if isinstance(v, ast.Constant) else "…" for v in node.values]
                found.append("".join(map(str, parts)))
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                found.append(node.value)
    return found


def messages() -> list[str]:
    page = (ROOT / "docs/how-to/troubleshooting.md").read_text()
    return re.findall(r"^\| `(.*?)` \|", page, re.MULTILINE)


def test_messages_are_those_of_the_code():
    said = said_by_the_code()
    assert len(messages()) >= 40
    for message in messages():
        pieces = [piece.strip() for piece in message.removeprefix("…: ").split("…") if piece.strip(" :.,;()")]
        pattern = re.compile(".*".join(map(re.escape, pieces)), re.DOTALL)
        assert any(pattern.search(text) for text in said), f"nothing says {message!r}"


def test_what_the_data_say_is_said_shortly():
    """Six hundred words beside tables: who doubts a claim reads it whole."""
    text = re.sub(
        r"<!-- table.*?<!-- /table -->", "", (ROOT / "docs/explanation/evidence.md").read_text(), flags=re.DOTALL
    )
    words = re.sub(r"\]\([^)]*\)", "]", text).split()
    assert len([word for word in words if re.search(r"\w", word)]) <= 600
