"""Files written whole or not at all, folders locked by their writer, progress lines, and where a result comes from."""

from __future__ import annotations

import contextlib
import ctypes
import glob
import hashlib
import json
import math
import os
import platform
import re
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from datetime import datetime, timezone
from importlib import metadata
from pathlib import Path
from typing import IO, Any

from equiav.errors import Busy, EquiAVError

LOCK = ".lock"
CGROUP = Path("/sys/fs/cgroup")  # where a container sees its own
SUMS = "SHA256SUMS"
FEW = 32  # files that are synced one by one: whatever else their file system has to write is not waited for
_held: set[IO[str]] = set()


def _leave_locks() -> None:
    # A forked worker that outlives a killed parent would keep its locks until it ends as well.
    for file in _held:
        file.close()
    _held.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_leave_locks)


@contextlib.contextmanager
def replacing(path: Path, *, sync: bool = True) -> Iterator[Path]:
    """A place beside `path` for a new file or folder, which takes the place of `path` when the block ends well.

    A reader sees the old one or the new one, never half of one; after a failure nothing is left. `sync` waits until
    the bytes are on the disk, so that a power cut does not undo the rename or empty the file.
    """
    draft = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    make_folder(path.parent, sync=sync)
    _remove(draft)
    try:
        yield draft
        if sync:
            for item in [*draft.rglob("*"), draft]:
                sync_path(item)
        if not (draft.is_dir() and path.is_dir()):
            draft.replace(path)
        elif not _exchange(draft, path):  # then not in one step: the old one goes once the new one is there
            old = path.with_name(f".{path.name}.{os.getpid()}.old")
            path.rename(old)
            draft.rename(path)
            _remove(old)
        if path.is_dir():
            sweep(path)
        if sync:
            sync_path(path.parent)
    finally:
        _remove(draft)


def make_folder(folder: Path, *, sync: bool = True) -> None:
    """Makes a folder and those above it; `sync` waits until their names are on the disk, or what is inside may go."""
    made = [path for path in (folder, *folder.parents) if not path.exists()]
    folder.mkdir(parents=True, exist_ok=True)
    for path in made if sync else ():
        sync_path(path.parent)


def write_whole(path: Path, content: bytes | str, *, sync: bool = True) -> None:
    """Writes a file whole or not at all."""
    try:
        with replacing(path, sync=sync) as draft:
            # Names of files may hold surrogates, which stand for bytes that are not UTF-8.
            draft.write_bytes(content.encode(errors="backslashreplace") if isinstance(content, str) else content)
    except (OSError, ValueError) as error:  # a NUL in a path is a ValueError
        raise EquiAVError(f"{path!s}: cannot be written ({getattr(error, 'strerror', None) or error})") from error


def check_writable(path: Path) -> None:
    """Refuses a file that could not be written, before the work whose result it is to hold."""
    try:
        if path.is_dir():
            raise EquiAVError(f"{path}: cannot be written (is a folder)")
        make_folder(path.parent)
        tempfile.TemporaryFile(dir=path.parent).close()
    except (OSError, ValueError) as error:
        raise EquiAVError(f"{path!s}: cannot be written ({getattr(error, 'strerror', None) or error})") from error


def write_json(path: Path, record: Any) -> None:
    """Writes a results file."""
    write_whole(path, json.dumps(record, indent=1) + "\n")


def sha256(path: Path) -> str:
    """SHA-256 of a file, read in portions; what checksums of checkpoints, indexes and prepared folders record."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while portion := file.read(1 << 20):
            digest.update(portion)
    return digest.hexdigest()


def write_sums(folder: Path) -> None:
    """Writes SHA256SUMS with the checksum of every file of a folder; `sha256sum -c` reads it too."""
    names = sorted(path.name for path in folder.iterdir() if path.is_file() and path.name != SUMS)
    (folder / SUMS).write_text("".join(f"{sha256(folder / name)}  {name}\n" for name in names), encoding="utf-8")


def check_sums(folder: Path, names: Sequence[str] = ()) -> list[str]:
    """What differs from SHA256SUMS, a line each: of the files `names`, or of all; none where a folder has no sums."""
    if not (folder / SUMS).is_file():
        return []
    try:
        lines = (folder / SUMS).read_text(encoding="utf-8", errors="replace").splitlines()
        matched = [re.fullmatch(r"([0-9a-f]{64})  ([\w.-]+)", line) for line in lines]
        listed = {found[2]: found[1] for found in matched if found}
        if len(listed) < len(lines):
            return [f"{folder / SUMS}: damaged, so that no file can be checked"]
        problems = []
        for name in names or listed:
            path = folder / name
            if name not in listed:
                problems.append(f"{path}: not among the files of {SUMS}")
            elif not path.is_file():
                problems.append(f"{path}: missing")
            elif sha256(path) != listed[name]:
                problems.append(f"{path}: differs from its checksum in {SUMS}: damaged or changed since")
        return problems
    except OSError as error:
        return [f"{folder}: its files cannot be read ({error})"]


def sync_path(path: Path) -> None:
    """Waits until a file, or the names in a folder, are on the disk."""
    if path.is_dir() and os.name == "nt":  # folders cannot be opened there
        return
    handle = os.open(path, os.O_RDWR if os.name == "nt" else os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def sync_paths(paths: Collection[Path]) -> None:
    """`sync_path` of each; of many by syncing their whole file systems, which is one wait instead of one for each."""
    systems = {path.stat().st_dev: path for path in paths}.values() if len(paths) > FEW else []
    if not systems or not all(_sync_system(path) for path in systems):
        for path in paths:
            sync_path(path)


def _sync_system(path: Path) -> bool:
    """Waits until all of a file system is on the disk, where that can be asked for; Python has no call for it."""
    try:
        sync = ctypes.CDLL(None).syncfs
        handle = os.open(path, os.O_RDONLY)
    except (OSError, AttributeError, TypeError):
        return False
    try:
        return bool(sync(handle) == 0)
    finally:
        os.close(handle)


def _exchange(a: Path, b: Path) -> bool:
    """Swaps two folders in one step, where system and file system can; Python has no call for it."""
    try:
        libc = ctypes.CDLL(None)
        return bool(libc.renameat2(-100, os.fsencode(a), -100, os.fsencode(b), 2) == 0)
    except (OSError, AttributeError, TypeError):
        return False


def sweep(path: Path) -> None:
    """Removes drafts that killed processes left beside a file or folder.

    `replacing` does so for folders; files may be written often, among too many neighbours for that.
    """
    # A draft inside a draft has the names of both.
    drafts = re.compile(rf"\.+{re.escape(path.name)}(?:\.\d+\.tmp)*\.(\d+)\.(?:tmp|old)")
    for left in path.parent.glob(f".*{glob.escape(path.name)}.*"):
        found = drafts.fullmatch(left.name)
        # Without /proc nobody knows who is alive.
        if found and Path("/proc/self").exists() and not Path(f"/proc/{found[1]}").exists():
            _remove(left)


def _remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path, ignore_errors=True)
    else:
        with contextlib.suppress(OSError):
            path.unlink()


@contextlib.contextmanager
def locked(folder: Path, name: str = LOCK) -> Iterator[None]:
    """One process at a time works in a folder, the others get Busy; the lock goes with the process, however it ends.

    `name` is the file that carries the lock: another one for work that is done under the first.
    """
    try:
        import fcntl
    except ImportError:  # no such locks there
        fcntl = None  # type: ignore[assignment]
    try:
        make_folder(folder)
        file = (folder / name).open("a+")
    except (OSError, ValueError) as error:
        raise EquiAVError(f"{folder}: cannot be written ({getattr(error, 'strerror', None) or error})") from error
    with file:
        if fcntl is not None:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError as error:
                file.seek(0)
                raise Busy(f"{folder}: is being written by {file.read().strip() or 'another process'}") from error
            if not (folder / name).exists():  # its last holder has just removed it: the next would lock another file
                raise Busy(f"{folder}: is being written by another process")
        file.truncate(0)
        file.write(f"process {os.getpid()} on {socket.gethostname()}\n")
        file.flush()
        _held.add(file)
        try:
            yield
        finally:
            _held.discard(file)


def duration(seconds: float) -> str:
    """45 s, 3 min 20 s, 2 h 5 min."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3600} h {whole % 3600 // 60} min"


class Progress:
    """Tells `progress` every few seconds how much of a known amount of work is done and how long the rest will take.

    `start` is how much was done before, by a run that is resumed.
    """

    def __init__(
        self, total: int, progress: Callable[[str], None], what: str, *, start: int = 0, every: float = 2.0
    ) -> None:
        self.total, self.progress, self.what, self.start, self.every = total, progress, what, start, every
        self.began = self.said = time.monotonic()

    def update(self, done: int, detail: str = "") -> None:
        """Called after every portion; passes a line on when it is time, and at the end."""
        now = time.monotonic()
        if now - self.said < self.every and done < self.total:
            return
        self.said = now
        left = duration((now - self.began) / max(done - self.start, 1) * (self.total - done))
        more = f", {detail}" if detail else ""
        self.progress(f"{self.what}: {done} of {self.total}{more}, {left} left")


def cores() -> int:
    """Cores that this process may use: on a shared machine, or in a container with a quota, fewer than there are."""
    count = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    for names in (("cpu.max",), ("cpu/cpu.cfs_quota_us", "cpu/cpu.cfs_period_us")):  # cgroup version 2, version 1
        with contextlib.suppress(OSError, ValueError):  # no such file; "max", which means no quota
            quota, period = map(int, " ".join((CGROUP / name).read_text() for name in names).split())
            if quota > 0:  # -1: none
                count = min(count, math.ceil(quota / period))
    return count


def provenance(**more: Any) -> dict[str, Any]:
    """What a results file must say about the run that made it: commit, versions, hardware, date."""
    import torch

    return {
        "commit": _commit(),
        "utc": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "torch": torch.__version__,
        "python": platform.python_version(),
        "threads": torch.get_num_threads(),
        "cpu": _cpu(),
        "cores": os.cpu_count(),
        **more,
    }


def _commit() -> str:
    """Commit of the source tree, marked where it was changed since, or of the checkout that pip installed from."""
    here = Path(__file__)
    try:
        # An environment may lie inside another project's checkout: only a tracked file speaks for its commit.
        _git(here.parent, "ls-files", "--error-unmatch", here.name)
        return _git(here.parent, "describe", "--always", "--dirty", "--abbrev=12", "--exclude=*")
    except (OSError, subprocess.SubprocessError):
        return _installed_commit()


def _installed_commit() -> str:
    """What pip notes of a package that it installed from a version control system (PEP 610)."""
    try:
        origin = json.loads(metadata.distribution("equiav").read_text("direct_url.json") or "{}")
        return str(origin["vcs_info"]["commit_id"])[:12]
    except (metadata.PackageNotFoundError, KeyError, ValueError):
        return "unknown"


def _git(folder: Path, *arguments: str) -> str:
    run = ["git", "-C", str(folder), *arguments]
    return subprocess.run(run, capture_output=True, text=True, check=True, timeout=10).stdout.strip()


def _cpu() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
        return next(line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor() or platform.machine()
