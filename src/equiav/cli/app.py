"""The application itself, what its commands share, and how they speak while they work."""

from __future__ import annotations

import importlib
import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from equiav import __version__
from equiav.errors import EquiAVError

if TYPE_CHECKING:
    from equiav.evaluation import Results

# Rooms are imported inside the commands: torch alone would make `--help` take seconds.
app = typer.Typer(
    name="equiav",
    help="Learn a shared embedding space of audio and video from your own videos, and use it (EquiAV, ICML 2024).",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
)
evaluate = typer.Typer(help="Measure a model, or what it costs.", no_args_is_help=True)
app.add_typer(evaluate, name="evaluate")

Overrides = Annotated[list[str] | None, typer.Argument(help="key=value, such as train.steps=100.")]
Model = Annotated[Path, typer.Argument(help="A run's folder or a checkpoint.")]
OtherData = Annotated[
    Path | None,
    typer.Option(help="Other data: a prepared folder, a collection paired by class, or a data file of CAV-MAE (JSON)."),
]
SplitName = Annotated[str, typer.Option(help="train, validation or test.")]
OutFolder = Annotated[Path | None, typer.Option(help="Folder for results and report (default: MODEL/evaluation/TASK).")]


def _version(asked: bool) -> bool:
    if asked:
        print(f"equiav {__version__}")
        raise typer.Exit
    return asked


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print and exit.")
    ] = False,
    modules: Annotated[
        list[str] | None,
        typer.Option("--import", metavar="MODULE", help="Import a module of yours, whose parts a recipe names."),
    ] = None,
) -> None:
    """What every command shares."""
    for name in modules or ():
        if str(Path.cwd()) not in sys.path:
            sys.path.insert(0, str(Path.cwd()))  # as `python -m` does: your file lies where you work
        try:
            importlib.import_module(name)
        except ImportError as error:
            raise EquiAVError(f"--import {name}: {error}") from error


def say(line: str) -> None:
    """Progress: one living line on a terminal, plain lines elsewhere."""
    if sys.stderr.isatty():
        width = shutil.get_terminal_size().columns - 1
        print(f"\r{line[:width]:<{width}}", end="", file=sys.stderr, flush=True)
    else:
        print(line, file=sys.stderr, flush=True)


def end_line() -> None:
    """Leaves the living line of a terminal."""
    if sys.stderr.isatty():
        print(file=sys.stderr)


def choose(option: str, value: str | None, *known: str) -> Any:
    """The value of an option if it is one of those known (or not given), else a refusal."""
    if value is not None and value not in known:
        raise EquiAVError(f"{option} {value}: choose {', '.join(known[:-1])} or {known[-1]}")
    return value


def split_name(value: str) -> Any:
    """A split by its name, or a refusal."""
    return choose("--split", value, "train", "validation", "test")


def finish(results: Results, out: Path | None, model: Path, task: str) -> None:
    """Prints what an evaluation found, and where its report is: beside the model if nobody says."""
    from equiav.evaluation import evaluation_folder

    end_line()
    print("\n".join(results.lines))
    print(f"Report: {results.write(out or evaluation_folder(model, task))}")
