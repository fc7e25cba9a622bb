"""Commands of the documentation, read by the programs they name without being run."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any

import typer

from equiav import __version__
from equiav.cli import app
from equiav.config import load_config

ROOT = Path(__file__).parents[2]
# Other people's programs, word for word.
FOREIGN = (
    "ray start --head", "ray start --address=first-machine:6379", "sbatch --array=1-$(wc -l < runs.txt) table.sh",
    "hf download facebook/dinov2-small --local-dir encoders/dinov2",
    "hf download MIT/ast-finetuned-audioset-10-10-0.4593 --local-dir encoders/ast",
)  # fmt: skip
VARIABLE = re.compile(r"\$\w+|\$\(.*?\)")


def check(command: str) -> None:
    """Fails unless the command could be typed as it stands."""
    words = shlex.split(VARIABLE.sub("1", command))
    match words[0]:
        case "equiav":
            parsed(words[1 : words.index(">")] if ">" in words else words[1:])
        case "make":
            check_make(words[1:])
        case "torchrun":
            check_torchrun(words[1:])
        case "pip":
            check_pip(words[1:])
        case "curl":
            pass  # tests/browser/test_api.py runs them against a server
        case "python":
            assert (ROOT / words[1]).is_file(), f"{words[1]}: no such script"
        case _:
            assert command in FOREIGN, f"{command!r}: nothing checks it"


def parsed(words: list[str]) -> None:
    """Options and arguments of `equiav ...` by its own parser; recipes exist and accept the overrides."""
    group: Any = typer.main.get_command(app)
    context = group.context_class(group, info_name="equiav")
    path: list[str] = []
    words = words[2:] if words[0] == "--import" else words
    while hasattr(group, "get_command"):  # a group of commands
        name = words[0]
        command = group.get_command(context, name)
        assert command is not None, f"equiav {' '.join([*path, name])}: no such command"
        group, words, path = command, words[1:], [*path, name]
    try:
        values = group.make_context(" ".join(path), words, parent=context).params
    except Exception as error:
        if not hasattr(error, "format_message"):  # what the command line says of wrong options
            raise
        raise AssertionError(f"equiav {' '.join(path)}: {error.format_message()}") from error
    if path[0] in ("pretrain", "finetune"):
        recipe = ROOT / values["recipe"]
        load_config(recipe, tuple(values["overrides"] or ()))
    for word in words:
        if word.startswith("configs/"):
            assert (ROOT / word).is_file(), f"{word}: no such file"


def check_make(words: list[str]) -> None:
    targets = re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
    for word in words:
        assert word in targets or "=" in word, f"make {word}: no such target"


def check_torchrun(words: list[str]) -> None:
    from torch.distributed.run import get_args_parser

    found = get_args_parser().parse_args(words)
    assert found.module, "torchrun starts the module equiav.cli with -m"
    assert found.training_script == "equiav.cli"
    parsed(found.training_script_args)


def check_pip(words: list[str]) -> None:
    project = (ROOT / "pyproject.toml").read_text()
    wheel = f"equiav-{__version__}-py3-none-any.whl"
    if words in (["install", "--editable", "."], ["install", "."], ["install", wheel]):
        return
    assert words[0] == "install", words
    for word in words[1:]:
        name = re.fullmatch(r"equiav(?:\[([\w,-]+)\])?", word)
        assert name, f"pip install {word}: not ours"
        for extra in (name[1] or "").split(",") if name[1] else ():
            assert re.search(rf"^{extra} = \[", project, re.MULTILINE), f"equiav[{extra}]: no such extra"
