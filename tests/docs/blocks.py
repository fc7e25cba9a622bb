"""Code blocks of Markdown pages, each with a class that says how the tests check it.

Classes follow from the fence's language and, where it matters, an HTML comment on the line above:

    ```python                      run, in order, one session per page
    ```console / indented block    read by the real command line, make, torchrun or pip; and run, in order with the
                                   page's Python, unless `running.ONLY_READ` says why it cannot be
    ```text                        what the block before it printed, figures aside
    ```csv, ```bash                checked by a test of their own
    ```text map                    (or an indented listing) paths that must exist

A block that is none of these fails: nothing is left out in silence.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
FENCE = re.compile(r"^(`{3,}|~{3,})\s*(\S*)\s*(.*)$")
MARK = re.compile(r"<!--\s*test:\s*(\w+)\s*-->")
RUNNERS = ("equiav", "make", "torchrun", "pip", "ray", "python", "$")


@dataclass(frozen=True)
class Block:
    page: Path
    line: int
    kind: str  # python, console, output, csv, bash, map
    text: str

    def __str__(self) -> str:
        return f"{self.page.name}:{self.line}"

    def commands(self) -> list[str]:
        """The commands of a console block: without prompt, comments and line ends that go on."""
        joined = re.sub(r"\\\n\s*", " ", self.text)
        lines = (re.sub(r"(^|\s)#.*$", "", line).strip().removeprefix("$ ") for line in joined.splitlines())
        return [line for line in lines if line]


def pages() -> list[Path]:
    return [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "PAPER.md", *sorted((ROOT / "docs").rglob("*.md"))]


def blocks(page: Path) -> list[Block]:
    """All blocks of a page, fenced and indented, in order."""
    lines = page.read_text(encoding="utf-8").splitlines()
    found: list[Block] = []
    i = 0
    while i < len(lines):
        fence = FENCE.match(lines[i])
        if fence:
            end = next(j for j in range(i + 1, len(lines)) if lines[j].strip() == fence[1])
            mark = MARK.search(lines[i - 1]) if i else None
            body = "\n".join(lines[i + 1 : end])
            found.append(Block(page, i + 1, fenced_kind(fence[2], mark[1] if mark else "", page, i + 1), body))
            i = end
        elif lines[i].startswith("    ") and not lines[i - 1].strip() and not in_list(lines, i):
            end = next(
                (j for j in range(i, len(lines)) if lines[j].strip() and not lines[j].startswith("    ")), len(lines)
            )
            body = "\n".join(line[4:] for line in lines[i:end]).rstrip()
            found.append(Block(page, i + 1, indented_kind(body, page, i + 1), body))
            i = end - 1
        i += 1
    return found


def fenced_kind(language: str, mark: str, page: Path, line: int) -> str:
    kinds = {"python": "python", "console": "console", "text": "output", "csv": "csv", "bash": "bash"}
    if mark == "map":
        return "map"
    if language not in kinds or mark:
        raise AssertionError(f"{page.name}:{line}: a block of {language or 'no language'} ({mark}): nothing checks it")
    return kinds[language]


def indented_kind(body: str, page: Path, line: int) -> str:
    first = body.split()[0]
    if first in RUNNERS:
        return "console"
    if first.endswith("/"):
        return "map"
    raise AssertionError(f"{page.name}:{line}: an indented block that starts with {first!r}: nothing checks it")


def in_list(lines: list[str], i: int) -> bool:
    """Whether an indented line goes on a list item and is no block."""
    before = next((line for line in reversed(lines[:i]) if line.strip()), "")
    return bool(re.match(r"\s*([-*]|\d+\.)\s", before)) or before.startswith("  ")
