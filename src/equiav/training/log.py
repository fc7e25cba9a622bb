"""What a run writes as it goes: JSON lines, experiment trackers beside them, a live line with the time left."""

from __future__ import annotations

import hashlib
import importlib
import json
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

from equiav.errors import EquiAVError, TrainingError
from equiav.io import duration, write_whole

LOG = "log.jsonl"
PROJECT = "equiav"
# What has to be installed for each; the packages are imported when a run starts, on its first process only.
PACKAGES = {"tensorboard": "tensorboard", "wandb": "wandb", "mlflow": "mlflow", "trackio": "trackio"}

Write = Callable[[Mapping[str, float], int], None]
T = TypeVar("T")


def check_trackers(names: Sequence[str]) -> None:
    """Refuses a tracker whose package is missing, before anything is loaded or trained."""
    for name in names:
        try:
            importlib.import_module(PACKAGES[name])
        except ImportError as error:
            message = f"train.report_to names {name}, which is not installed: pip install {PACKAGES[name]}"
            raise EquiAVError(message) from error


class Trackers:
    """Passes numbers on to every tracker; one that fails is left out from then on with a warning.

    Runs are named after the folder; a resumed run is continued where the tracker can do so.
    """

    def __init__(self, names: Sequence[str], folder: Path, step: int, config: Mapping[str, Any]) -> None:
        self._open: dict[str, tuple[Write, Callable[[], None]]] = {}
        for name in names:
            if opened := self._try(name, _opened, name, folder, step, config):
                self._open[name] = opened

    def write(self, values: Mapping[str, float], step: int) -> None:
        """The numbers of one record, named kind/name."""
        for name, (write, _) in list(self._open.items()):
            self._try(name, write, values, step)

    def close(self) -> None:
        """Ends all of them."""
        for name, (_, close) in list(self._open.items()):
            self._try(name, close)
        self._open.clear()

    def _try(self, name: str, action: Callable[..., T], *arguments: Any) -> T | None:
        """Whatever a tracker raises (network, disk, its own bugs) is a warning: it must never end a run."""
        try:
            return action(*arguments)
        except Exception as error:
            line = (str(error).splitlines() or [""])[0]
            warnings.warn(f"{name}: {type(error).__name__}: {line}; reporting to it ends here", stacklevel=3)
            self._open.pop(name, None)
            return None


def _opened(name: str, folder: Path, step: int, config: Mapping[str, Any]) -> tuple[Write, Callable[[], None]]:
    """How to write numbers to a tracker, and how to end it."""
    match name:
        case "tensorboard":
            from torch.utils.tensorboard import SummaryWriter

            board = SummaryWriter(str(folder / "tensorboard"), purge_step=step + 1)

            def scalars(values: Mapping[str, float], step: int) -> None:
                for key, value in values.items():
                    board.add_scalar(key, value, step)

            return scalars, board.close
        case "wandb":
            import wandb

            # The same for every part of a run that was interrupted, other runs of the same name apart.
            key = hashlib.sha256(str(folder.resolve()).encode()).hexdigest()[:12]
            run = wandb.init(
                project=PROJECT, name=folder.name, id=key, resume="allow", dir=str(folder), config=dict(config)
            )
            return lambda values, step: run.log(dict(values), step=step), run.finish
        case "mlflow":
            import mlflow

            mlflow.set_experiment(PROJECT)
            mlflow.start_run(run_name=folder.name)
            mlflow.log_dict(dict(config), "config.json")
            return lambda values, step: mlflow.log_metrics(dict(values), step=step), mlflow.end_run
        case "trackio":
            import trackio

            trackio.init(project=PROJECT, name=folder.name, config=dict(config), resume="allow", embed=False)
            return lambda values, step: trackio.log(dict(values), step=step), trackio.finish
        case _:
            raise ValueError(f"no tracker {name!r}")


def cut_log(path: Path, step: int) -> None:
    """Keeps the lines up to `step`: a resumed run writes the later ones again."""
    if not path.exists():
        return
    kept = []
    for line in path.read_text(encoding="utf-8").splitlines():
        try:
            record = json.loads(line)
        except ValueError:
            continue  # the line a kill cut short
        if isinstance(record, dict) and record.get("step", 0) <= step:
            kept.append(line)
    write_whole(path, "".join(f"{line}\n" for line in kept))


class RunLog:
    """JSON lines, and the trackers of the recipe beside them, continued from `step`."""

    def __init__(
        self, folder: Path, step: int, trackers: Sequence[str] = (), config: Mapping[str, Any] | None = None
    ) -> None:
        try:
            cut_log(folder / LOG, step)
            self._lines = (folder / LOG).open("a", encoding="utf-8")
        except OSError as error:
            raise TrainingError(f"{folder}: cannot be written ({error.strerror})") from error
        self._trackers = Trackers(trackers, folder, step, config or {})

    def write(self, kind: str, step: int, values: dict[str, Any]) -> None:
        """One record: a line of JSON, and every number to the trackers."""
        try:
            self._lines.write(json.dumps({"kind": kind, "step": step, **values}) + "\n")
            self._lines.flush()
        except OSError as error:
            raise TrainingError(f"{self._lines.name}: cannot be written ({error.strerror})") from error
        self._trackers.write({f"{kind}/{k}": v for k, v in values.items() if isinstance(v, int | float)}, step)

    def close(self) -> None:
        """Closes all of them; what a full disk did not take was reported when it was written."""
        with suppress(OSError):
            self._lines.close()
        self._trackers.close()


class Progress:
    """A line that says where a run is and how long it will take; `say` gets a line every few seconds."""

    def __init__(self, total: int, start: int, say: Callable[[str], None], every: float = 2.0) -> None:
        self.total, self.start, self.say, self.every = total, start, say, every
        self.began = self.said = time.monotonic()

    def update(self, step: int, detail: str) -> None:
        """Called every step; speaks when it is time, and at the end."""
        now = time.monotonic()
        if now - self.said < self.every and step < self.total:
            return
        self.said = now
        rate = (step - self.start) / max(now - self.began, 1e-9)
        left = duration((self.total - step) / rate) if rate else "unknown"
        self.say(f"step {step}/{self.total}  {detail}  {rate:.2f} steps/s  {left} left")
