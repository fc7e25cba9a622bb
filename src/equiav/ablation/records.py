"""Results files of runs: one per run, complete or extended later, with what it cost and where it was made."""

from __future__ import annotations

import json
import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from equiav.ablation.experiment import ScaleName
from equiav.ablation.plan import Run
from equiav.ablation.tasks import task_facts
from equiav.errors import EquiAVError
from equiav.io import write_json

OUTPUT = "output.log"
CLOCK = "clock.json"
TABLES = "tables"
PARENT = "EQUIAV_ABLATE_PARENT"  # set for workers: the process that watches over them
Record = dict[str, Any]


@dataclass(frozen=True)
class Folders:
    """Where results are kept for good, and where runs train; both by scale."""

    results: Path
    runs: Path

    def record(self, scale: ScaleName, key: str) -> Path:
        """The results file of a run."""
        return self.results / scale / f"{key}.json"

    def failure(self, run: Run) -> Path:
        """The last lines of a run that failed."""
        return self.results / run.scale / f"{run.key}.failed.txt"

    def run(self, run: Run) -> Path:
        """The folder a run trains in."""
        return self.runs / run.scale / run.key

    def tables(self, scale: ScaleName) -> Path:
        """The folder of finished tables."""
        return self.results / scale / TABLES


def read_record(path: Path) -> Record | None:
    """A results file, or none where there is none yet."""
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise EquiAVError(f"{path}: not a results file ({error}); delete it to run it again") from error
    if not isinstance(record, dict) or "tasks" not in record:
        raise EquiAVError(f"{path}: not a results file of `equiav ablate`")
    return record


def missing(run: Run, folders: Folders) -> frozenset[str]:
    """What is still to be measured of a run, or again because its recipe or set is another now."""
    record = read_record(folders.record(run.scale, run.key))
    if record is None:
        return run.tasks
    known = record.get("facts", {})
    done = {task for task in run.tasks & frozenset(record["tasks"]) if known.get(task) == task_facts(run, task)}
    return run.tasks - done


def figure(record: Record, place: str, split: str) -> float | None:
    """The number at a place such as `retrieval.video_to_audio.R@1`, of a split of the run's data.

    Other sets and fine-tunings were measured on their test split and belong to that only; cost has no split.
    """
    elsewhere = record.get("elsewhere", {})
    if split != "test":
        elsewhere = {"cost": elsewhere.get("cost")}
    tree: Any = {**elsewhere, **record.get(split, {})}
    for part in place.split("."):
        tree = tree.get(part) if isinstance(tree, dict) else None
    return float(tree) if isinstance(tree, int | float) else None


def _now() -> tuple[float, float]:
    """Wall time, and processor time of this process and of those it waited for."""
    used = os.times()
    return time.monotonic(), used.user + used.system + used.children_user + used.children_system


class Clock:
    """Wall and processor time of a run over all its pieces: kept in its folder, so that kills do not lose it."""

    def __init__(self, folder: Path, every: float = 10.0) -> None:
        self._path, self._every = folder / CLOCK, every
        before = json.loads(self._path.read_text()) if self._path.exists() else {"wall": 0.0, "cpu": 0.0}
        self._before = (float(before["wall"]), float(before["cpu"]))
        self._start = self._said = _now()

    def total(self) -> dict[str, float]:
        """Seconds so far."""
        now = _now()
        wall, cpu = (b + n - s for b, n, s in zip(self._before, now, self._start, strict=True))
        return {"wall": round(wall, 1), "cpu": round(cpu, 1)}

    def tick(self, *, at_once: bool = False) -> None:
        """Writes the time down, now and then."""
        now = _now()
        if at_once or now[0] - self._said[0] >= self._every:
            self._said = now
            write_json(self._path, self.total())
