"""The pages, really run: Python and commands in order, page by page, on small media and a small model."""

from __future__ import annotations

import contextlib
import io
import re
import shutil
from pathlib import Path

import jaxtyping
import pytest

from tests.docs.blocks import Block, blocks, pages
from tests.docs.reader import furnish
from tests.docs.running import ONLY_READ, STANDS_FOR, only_read, run

pytestmark = pytest.mark.process

COMMANDS = [c for page in pages() for b in blocks(page) if b.kind == "console" for c in b.commands()]
RUNNING = [
    page for page in pages()
    if any(b.kind == "python" or (b.kind == "console" and not all(map(only_read, b.commands()))) for b in blocks(page))
]  # fmt: skip


@pytest.fixture(scope="module", autouse=True)
def symbolic_shapes():
    """Checking the shapes of a tensor whose batch is a symbol, as ONNX wants it, would fix the symbol."""
    jaxtyping.config.update("jaxtyping_disable", True)
    yield
    jaxtyping.config.update("jaxtyping_disable", False)


@pytest.fixture(scope="module")
def furnished(tmp_path_factory) -> Path:
    place = tmp_path_factory.mktemp("reader")
    furnish(place)
    return place


@pytest.mark.parametrize("page", RUNNING, ids=lambda page: page.name)
def test_page(page, furnished, tmp_path, monkeypatch):
    place = tmp_path / "reader"
    shutil.copytree(furnished, place, symlinks=True)
    monkeypatch.chdir(place)
    session: dict[str, object] = {}
    printed = ""
    for block in blocks(page):
        if block.kind == "output":
            assert alike(block.text) == alike(printed), f"{block}: says\n{block.text}\nbut it prints\n{printed}"
        elif block.kind in ("python", "console"):
            printed = done(block, session)


def done(block: Block, session: dict[str, object]) -> str:
    """What a block prints."""
    heard = io.StringIO()
    with contextlib.redirect_stdout(heard):
        if block.kind == "python":
            exec(compile(block.text, str(block), "exec"), session)
        else:
            for command in block.commands():
                if only_read(command) is None:
                    run(command)
    return heard.getvalue()


def alike(text: str) -> str:
    """Text without its figures and spacing: models differ, forms must not."""
    return " ".join(re.sub(r"-?\d+(\.\d*)?", "0", re.sub(r"([\[\]])", r" \1 ", text)).split())


def test_alike_is_strict_about_words():
    assert alike("(2, 128) float32\n[[ 0.13 -0.2]]") == alike("(2, 32) float32\n[[-0.5  1. ]]")
    assert alike("1 added") != alike("1 removed")


@pytest.mark.parametrize("pattern", ONLY_READ)
def test_what_is_only_read_stands_on_a_page(pattern):
    assert any(re.fullmatch(pattern, command) for command in COMMANDS)


@pytest.mark.parametrize("name", STANDS_FOR)
def test_what_is_replaced_stands_on_a_page(name):
    assert any(name in command for command in COMMANDS)


def test_a_command_that_fails_is_noticed(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for command in ("equiav info runs/none", "rm -r somewhere", "equiav search none.index --audio bark.wav"):
        with pytest.raises(Exception, match=r"none|only our own commands"):
            run(command)


def test_nearly_all_of_ours_are_run():
    ours = [command for command in COMMANDS if command.startswith("equiav ")]
    assert len(ours) > 60
    assert sum(only_read(command) is not None for command in ours) <= 12
    assert len(RUNNING) >= 10
