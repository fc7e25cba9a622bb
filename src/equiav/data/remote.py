"""Prepared folders at an address (https://, s3://, gs://, hf://): the index is copied here, clips are read by range."""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import shutil
import time
from collections.abc import Callable, Iterator
from functools import lru_cache
from importlib import import_module
from pathlib import Path
from typing import Any, TypeVar

from equiav.errors import Busy, DataError
from equiav.io import SUMS, locked, replacing, write_whole

R = TypeVar("R")

PROTOCOLS = ("https", "http", "s3", "gs", "hf")
EXTRA = "pip install 'equiav[remote]'"
META, INDEX, SHARDS, CLIPS = "meta.json", "index", "shards", "clips"  # CLIPS is only in the copy
TRIES = 5
DELAY = 0.5  # seconds before the second try; each further one waits twice as long
SOCKET_SECONDS = 30.0  # without a byte
PORTION = 8 << 20  # bytes of a file of the index that are asked for at a time
CACHE_GB = 10.0


def is_address(place: Path | str) -> bool:
    """Whether a prepared folder is named by an address rather than by its path."""
    return isinstance(place, str) and "://" in place


class RemoteFolder:
    """A prepared folder at an address; `folder` is its copy here, which holds everything but the shards.

    Copies lie in EQUIAV_CACHE (by default in ~/.cache/equiav). A folder that is prepared again at the same address has
    other checksums, so it is copied again. Reads that fail are tried TRIES times. It may be used in forked processes.
    """

    def __init__(self, address: str) -> None:
        self.address, self._process = address.rstrip("/"), -1
        sums = self._whole(SUMS)
        self._range(META, 0, 1)  # a server that gives whole files only is refused before it sends a shard
        digests = [hashlib.sha256(x).hexdigest()[:16] for x in (self.address.encode(), sums)]
        home = Path(os.environ.get("EQUIAV_CACHE") or Path.home() / ".cache" / "equiav") / f"remote-{digests[0]}"
        self.folder = home / digests[1]
        with _waiting_for(home):
            self._copy(sums)
            for older in home.iterdir():
                if older.is_dir() and older != self.folder:
                    shutil.rmtree(older, ignore_errors=True)

    def _copy(self, sums: bytes) -> None:
        """Fills `folder`: each file is put there whole, SHA256SUMS last, which says that all are there."""
        if (self.folder / SUMS).exists():
            return
        lines = [line.split("  ", 1) for line in sums.decode("ascii", "replace").splitlines()]
        listed = {line[-1]: line[0] for line in lines}
        names = [META, *(name for name in listed if name.startswith(INDEX))]
        if META not in listed or not all(re.fullmatch(rf"({INDEX}/)?\w+[.](npy|json)", name) for name in names):
            raise DataError(f"{self.address}/{SUMS}: lists other files than those of a prepared folder")
        for name in names:
            if not (self.folder / name).exists():
                content = self._whole(name)
                if hashlib.sha256(content).hexdigest() != listed[name]:
                    raise DataError(f"{self.address}/{name}: differs from its checksum in {SUMS}; upload it again")
                write_whole(self.folder / name, content)
        write_whole(self.folder / SUMS, sums)

    def read(self, shard: str, start: int, stop: int, clip: tuple[int, int] | None = None) -> bytes:
        """Bytes of a shard; with `clip`, the stretch they lie in, all of that is read and kept on the disk."""
        name = f"{SHARDS}/{shard}"
        if clip is None:
            return self._range(name, start, stop)
        kept, content = self.folder / CLIPS / shard / str(clip[0]), b""
        with contextlib.suppress(OSError):
            content = kept.read_bytes()
        if len(content) != clip[1] - clip[0]:
            content = self._range(name, *clip)
            with contextlib.suppress(OSError), replacing(kept, sync=False) as draft:  # a full disk costs only the copy
                draft.write_bytes(content)
        return content[start - clip[0] : stop - clip[0]]

    def forget(self, shard: str, clip: tuple[int, int]) -> None:
        """Removes a clip that was kept: its bytes turned out to be wrong."""
        (self.folder / CLIPS / shard / str(clip[0])).unlink(missing_ok=True)

    def _range(self, name: str, start: int, stop: int) -> bytes:
        def read() -> bytes:
            files = self._files()
            # Of the Hub's files fsspec would read megabytes ahead; the others take a range as it is.
            more = {"cache_type": "none"} if self.address.startswith("hf://") else {}
            content: bytes = files.cat_file(f"{self._root}/{name}", start=start, end=stop, **more)
            if len(content) > stop - start:
                raise DataError(
                    f"{self.address}: its server gives whole files only, no ranges of bytes; copy the folder to a disk"
                )
            if len(content) < stop - start:
                raise OSError(f"{len(content)} bytes came instead of {stop - start}")
            return content

        return self._tried(name, read)

    def _whole(self, name: str) -> bytes:
        size = self._tried(name, lambda: self._files().info(f"{self._root}/{name}"))["size"]
        if size is None:
            raise DataError(f"{self.address}/{name}: its server does not say how long it is; copy the folder to a disk")
        return b"".join(self._range(name, at, min(at + PORTION, size)) for at in range(0, size, PORTION))

    def _tried(self, name: str, action: Callable[[], R]) -> R:
        """What the action gives; what may succeed the next time is tried again, all else is one line."""
        for tries in range(1, TRIES + 1):
            try:
                return action()
            except DataError:
                raise
            except Exception as error:  # each protocol has a library of its own, with errors of its own
                # fsspec reports a dropped connection as a missing file, with what happened as its cause.
                failure = error.__cause__ if isinstance(error, FileNotFoundError) and error.__cause__ else error
            status = getattr(failure, "status", 0)
            refused = isinstance(status, int) and 400 <= status < 500 and status not in (408, 429)
            if refused or isinstance(failure, FileNotFoundError | PermissionError | NotImplementedError):
                break
            if tries < TRIES:
                time.sleep(DELAY * 2 ** (tries - 1))
        if isinstance(failure, FileNotFoundError) or status == 404:
            what = "no such file; is this the address of a prepared folder?"
        else:
            said = str(failure).partition("\n")[0]
            what = f"cannot be read ({type(failure).__name__}: {said})" + f", tried {tries} times" * (tries > 1)
        raise DataError(f"{self.address}/{name}: {what}") from failure

    def _files(self) -> Any:
        """The file system, opened anew in a forked process: its connections are those of a thread of the parent."""
        if self._process != os.getpid():
            protocol = self.address.partition("://")[0]
            if protocol not in PROTOCOLS:
                raise DataError(f"{self.address}: an address begins with {', '.join(f'{p}://' for p in PROTOCOLS)}")
            options: dict[str, Any] = {"skip_instance_cache": True}
            try:
                if protocol in ("http", "https"):
                    seconds = {"total": None, "sock_connect": SOCKET_SECONDS, "sock_read": SOCKET_SECONDS}
                    options["headers"] = {"Accept-Encoding": "identity"}  # ranges of the file, not of a packed form
                    options["client_kwargs"] = {"timeout": import_module("aiohttp").ClientTimeout(**seconds)}
                self._fs, self._root = import_module("fsspec").core.url_to_fs(self.address, **options)
            except ImportError as error:
                raise DataError(f"{self.address}: {protocol}:// needs further packages ({error}); {EXTRA}") from error
            except ValueError as error:
                raise DataError(f"{self.address}: not an address ({error})") from error
            self._process = os.getpid()
        return self._fs


@contextlib.contextmanager
def _waiting_for(folder: Path) -> Iterator[None]:
    """The lock of a folder; processes of one run all copy the same data, and one of them is enough."""
    with contextlib.ExitStack() as stack:
        while True:
            try:
                stack.enter_context(locked(folder))
                break
            except Busy:
                time.sleep(0.2)
        yield


@lru_cache(maxsize=8)
def open_remote(address: str) -> RemoteFolder:
    """The folder at an address, looked up once by a process."""
    return RemoteFolder(address)


def prepared_folder(place: Path | str) -> Path:
    """Where meta.json and the index of a prepared folder lie on this machine: in it, or in the copy of an address."""
    return open_remote(str(place)).folder if is_address(place) else Path(place)


def cache_bytes() -> int:
    """How much of the clips of an address is kept here: EQUIAV_CACHE_GB."""
    written = os.environ.get("EQUIAV_CACHE_GB", str(CACHE_GB))
    try:
        return int(float(written) * 1e9)
    except (ValueError, OverflowError) as error:
        raise DataError(f"EQUIAV_CACHE_GB is a number of gigabytes, not {written!r}") from error
