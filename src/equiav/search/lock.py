"""One writer at a time in a folder; the lock goes with the process, however it ends."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

from equiav.errors import DataError

LOCK = ".lock"


@contextlib.contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Refuses if another process is writing."""
    try:
        import fcntl
    except ImportError:  # no such locks there
        yield
        return
    with (folder / LOCK).open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise DataError(f"{folder} is being written by another process") from error
        yield
