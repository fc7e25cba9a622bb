"""Training on all cores of one machine: one process per core, with one thread each."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from equiav.errors import TrainingError

KEPT = 3  # last lines of a run that failed without a reason
STOPPED = 143  # exit code of a command that was told to stop and has saved


class Stopped(Exception):
    """The run was told to stop and has saved where it stands."""


@contextmanager
def _passed_on(process: subprocess.Popen[str]) -> Iterator[list[int]]:
    """Hands SIGTERM to the process, which saves and ends; gives the list that then holds the signal."""
    told: list[int] = []
    if threading.current_thread() is not threading.main_thread():  # only that one gets signals
        yield told
        return

    def pass_on(number: int, frame: object) -> None:
        told.append(number)
        process.terminate()

    before = signal.signal(signal.SIGTERM, pass_on)
    try:
        yield told
    finally:
        signal.signal(signal.SIGTERM, before)


def train_on_cores(
    recipe: Path, overrides: tuple[str, ...], out: Path, *, processes: int, say: Callable[[str], None]
) -> None:
    """Runs `equiav pretrain` on several processes."""
    run_on_cores(["pretrain", str(recipe), *overrides, "--out", str(out)], processes=processes, say=say)


def run_on_cores(arguments: list[str], *, processes: int, say: Callable[[str], None]) -> None:
    """Runs an `equiav` command under torchrun, one thread per process, passing its progress lines on.

    SIGTERM goes to the command, which saves; then, or where somebody else stopped it, raises Stopped.
    """
    launcher = [sys.executable]
    if processes > 1:
        launcher += ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(processes)]
    command = [*launcher, "-m", "equiav.cli", *arguments]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"}
    last: list[str] = []
    reason = ""  # torchrun prints a long summary behind it
    with (
        subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True) as process,
        _passed_on(process) as told,
    ):
        assert process.stderr is not None
        for line in process.stderr:
            last = [*last[-KEPT:], line.rstrip()]
            if line.startswith("equiav: ") and not reason:
                reason = line.removeprefix("equiav: ").rstrip()
            if line.startswith(("step ", "validation ", "resuming ")):
                say(line.rstrip())
        process.wait()  # still with the signals passed on
    if told or process.returncode in (STOPPED, -signal.SIGTERM):  # torchrun has a code of its own for having been told
        raise Stopped
    if process.returncode:
        raise TrainingError(reason or f"training failed (exit code {process.returncode}): " + " | ".join(last))
