"""The command line: parses, calls, prints; bad input becomes one line and exit code 2."""

from __future__ import annotations

import contextlib
import os
import sys

# Commands register themselves where they are defined, in the order in which `--help` lists them.
from equiav.cli import train, data, models, evaluate, ablate, search  # isort: skip  # noqa: F401
from equiav.cli.app import app, end_line
from equiav.errors import EquiAVError

__all__ = ["app", "main"]

INTERRUPTED = 130  # exit code of a command that Ctrl-C ended


def main() -> None:
    """Entry point: one line for bad input, a traceback for a bug."""
    with contextlib.suppress(AttributeError):  # replaced by something of a caller's
        sys.stdout.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]  # names that are not UTF-8
    try:
        app()
    except SystemExit as end:
        _leave(end.code if isinstance(end.code, int) else 1 if end.code else 0)
    except EquiAVError as error:
        rank = os.environ.get("RANK", "0")
        print(f"equiav: {'' if rank == '0' else f'process {rank}: '}{error}", file=sys.stderr)
        _leave(2)
    except OSError as error:  # a full disk, a folder that cannot be written: the machine's, not a bug
        where = f"{error.filename}: " if error.filename else ""
        print(f"equiav: {where}{error.strerror or error}", file=sys.stderr)
        _leave(2)
    except KeyboardInterrupt:
        _leave(INTERRUPTED)


def _leave(code: int) -> None:
    """Ends the process; under torchrun without tearing the interpreter down.

    Threads of the process group that outlive it may reach for the interpreter while it goes and abort a run that
    has finished.
    """
    if code == INTERRUPTED and os.environ.get("RANK", "0") == "0":
        end_line()
        print("equiav: interrupted", file=sys.stderr)
    if "TORCHELASTIC_RUN_ID" in os.environ:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
    sys.exit(code)
