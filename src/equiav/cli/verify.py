"""The command that says whether files are still what was written."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from equiav.cli.app import app, end_line, say
from equiav.errors import EquiAVError


@app.command()
def verify(
    path: Annotated[
        Path, typer.Argument(help="A checkpoint, a run's folder, an exported or prepared folder, an index.")
    ],
) -> None:
    """Compare every file with the checksum that was recorded when it was written.

    Exit code 0: all as written. 2: one line for each damaged file, with what to do.
    """
    from equiav.checkpoint import BEST, CHECKPOINTS, verify_checkpoint
    from equiav.data import INDEX as CLIPS
    from equiav.io import SUMS
    from equiav.search import INDEX

    folders, sums = [path], True
    if not path.is_dir():
        raise EquiAVError(f"{path}: no such folder")
    if (path / INDEX).is_file():
        from equiav.search import verify_index

        problems = verify_index(path, say)
    elif (path / CLIPS).is_dir():
        from equiav.data import verify_prepared

        problems = verify_prepared(path, say)
    else:
        problems = verify_checkpoint(path)
        if (path / CHECKPOINTS).is_dir():
            folders = [path / CHECKPOINTS, path / BEST]  # logs and pages of a run are not checked
        sums = all((meta.parent / SUMS).is_file() for folder in folders for meta in folder.rglob("meta.json"))
    end_line()
    for problem in problems:
        print(f"equiav: {problem}", file=sys.stderr)
    if problems:
        raise typer.Exit(2)
    files = [file for folder in folders for file in folder.rglob("*") if file.is_file() and file.name != SUMS]
    count = sum(1 for file in files if not file.name.startswith("."))
    if sums:
        print(f"all {count} files as written")
    else:
        print(f"all {count} files can be read; without {SUMS} (an earlier version wrote none) a change would not show")
