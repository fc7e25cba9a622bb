"""Where a number comes from: commit, versions, hardware, date."""

from __future__ import annotations

import json
import os
import platform
import subprocess
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from equiav.files import write_whole


def provenance(**more: Any) -> dict[str, Any]:
    """What a results file must say about the run that made it."""
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
    """Commit of the source tree, marked where it was changed since; unknown for an installed package."""
    here = Path(__file__)
    try:
        # An environment may lie inside another project's checkout: only a tracked file speaks for its commit.
        _git(here.parent, "ls-files", "--error-unmatch", here.name)
        return _git(here.parent, "describe", "--always", "--dirty", "--abbrev=12")
    except (OSError, subprocess.SubprocessError):
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


def write_json(path: Path, record: Any) -> None:
    """Writes a results file."""
    write_whole(path, json.dumps(record, indent=1) + "\n")
