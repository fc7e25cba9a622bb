"""Files written whole or not at all, folders written by one process at a time."""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from equiav.errors import Busy, EquiAVError

LOCK = ".lock"
_held: set[IO[str]] = set()


def _leave_locks() -> None:
    # A forked worker that outlives a killed parent would keep its locks until it ends as well.
    for file in _held:
        file.close()
    _held.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_leave_locks)


def write_whole(path: Path, content: bytes | str) -> None:
    """Writes beside the place and moves there, so that a reader never sees half a file."""
    draft = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        draft.write_bytes(content.encode() if isinstance(content, str) else content)
        draft.replace(path)
    except OSError as error:
        raise EquiAVError(f"{path}: cannot be written ({error.strerror})") from error


@contextlib.contextmanager
def locked(folder: Path, name: str = LOCK) -> Iterator[None]:
    """One process at a time works in a folder, the others get Busy; the lock goes with the process, however it ends.

    `name` is the file that carries the lock: another one for work that is done under the first.
    """
    folder.mkdir(parents=True, exist_ok=True)
    try:
        import fcntl
    except ImportError:  # no such locks there
        yield
        return
    with (folder / name).open("a+") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            file.seek(0)
            raise Busy(f"{folder}: is being written by {file.read().strip() or 'another process'}") from error
        file.truncate(0)
        file.write(f"process {os.getpid()} on {socket.gethostname()}\n")
        file.flush()
        _held.add(file)
        try:
            yield
        finally:
            _held.discard(file)
