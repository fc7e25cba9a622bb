"""Training on all cores of one machine: one process per core is half as fast again as one process with many threads."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from equiav.errors import TrainingError

KEPT = 3  # last lines of a run that failed without a reason


def train_on_cores(
    recipe: Path, overrides: tuple[str, ...], out: Path, *, processes: int, say: Callable[[str], None]
) -> None:
    """Runs `equiav pretrain` on several processes."""
    run_on_cores(["pretrain", str(recipe), *overrides, "--out", str(out)], processes=processes, say=say)


def run_on_cores(arguments: list[str], *, processes: int, say: Callable[[str], None]) -> None:
    """Runs an `equiav` command under torchrun, one thread per process, passing its progress lines on."""
    launcher = [sys.executable]
    if processes > 1:
        launcher += ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(processes)]
    command = [*launcher, "-m", "equiav.cli", *arguments]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"}
    last: list[str] = []
    reason = ""  # torchrun prints a long summary behind it
    with subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        for line in process.stderr:
            last = [*last[-KEPT:], line.rstrip()]
            if line.startswith("equiav: ") and not reason:
                reason = line.removeprefix("equiav: ").rstrip()
            if line.startswith(("step ", "validation ", "resuming ")):
                say(line.rstrip())
    if process.returncode:
        raise TrainingError(reason or f"training failed (exit code {process.returncode}): " + " | ".join(last))
