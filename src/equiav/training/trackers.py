"""Experiment trackers that a run reports to beside its own log: TensorBoard, Weights & Biases, MLflow, Trackio."""

from __future__ import annotations

import importlib
import logging
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from equiav.errors import EquiAVError

logger = logging.getLogger(__name__)

PROJECT = "equiav"
# What has to be installed for each; the packages are imported when a run starts, on its first process only.
PACKAGES = {"tensorboard": "tensorboard", "wandb": "wandb", "mlflow": "mlflow", "trackio": "trackio"}

Write = Callable[[Mapping[str, float], int], None]


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
            with _harmless(name):
                self._open[name] = _opened(name, folder, step, config)

    def write(self, values: Mapping[str, float], step: int) -> None:
        """The numbers of one record, named kind/name."""
        for name, (write, _) in list(self._open.items()):
            with _harmless(name) as failed:
                write(values, step)
            if failed:
                del self._open[name]

    def close(self) -> None:
        """Ends all of them."""
        for name, (_, close) in self._open.items():
            with _harmless(name):
                close()
        self._open.clear()


class _harmless:
    """Turns whatever a tracker raises (network, disk, its own bugs) into a warning: it must never end a run."""

    def __init__(self, name: str) -> None:
        self.name, self.failed = name, False

    def __enter__(self) -> _harmless:
        return self

    def __bool__(self) -> bool:
        return self.failed

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: Any) -> bool:
        if error is None or not isinstance(error, Exception):
            return False
        self.failed = True
        lines = str(error).splitlines() or [""]
        warnings.warn(f"{self.name}: {type(error).__name__}: {lines[0]}; reporting to it ends here", stacklevel=3)
        return True


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

            run = wandb.init(
                project=PROJECT, name=folder.name, id=_id(folder), resume="allow", dir=str(folder), config=dict(config)
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


def _id(folder: Path) -> str:
    """The same for every part of a run that was interrupted, other runs of the same name apart."""
    import hashlib

    return hashlib.sha256(str(folder.resolve()).encode()).hexdigest()[:12]
