"""What an evaluation is: a callable on a model and a dataset, whose results are plain data."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from equiav.data import Dataset
from equiav.hub import on_hub
from equiav.io import provenance, write_json, write_whole
from equiav.report import write_page

RESULTS, REPORT = "results.json", "report.html"
Report = Callable[[str], None]


def silent(line: str) -> None:
    """Reports nothing."""


@dataclass(frozen=True)
class Results:
    """What an evaluation found: the same in Python, in results.json, on its page and in the tables.

    `record` is plain data and holds whatever the page shows; `primary` is the place of the metric to watch in it, keys
    joined by "/". `assets` are images and audio by their path beside results.json, as the record names them. `lines`
    are for a terminal.
    """

    record: Mapping[str, Any]  # with its "task"
    primary: str
    lines: tuple[str, ...] = ()
    template: str = "results.html"  # of the page; this one is a table of all numbers
    assets: Mapping[str, bytes] = field(default_factory=dict, repr=False)
    watch: str = ""  # the part of the record whose numbers go into a training log
    digits: int = 1  # of the headline

    def __getitem__(self, place: str) -> Any:
        """A value by its place, keys joined by "/": results["retrieval/audio_to_video/R@10"]."""
        found: Any = self.record
        for key in place.split("/"):
            found = found[key]
        return found

    @property
    def value(self) -> float:
        """The primary metric."""
        return float(self[self.primary])

    def scalars(self) -> dict[str, float]:
        """The numbers worth a curve, by their place."""
        return dict(_flat(self[self.watch] if self.watch else self.record))

    def headline(self) -> str:
        """The metric to watch, in a few words."""
        return f"{self.primary.split('/', 1)[-1].replace('/', ' ').replace('_', ' ')} {self.value:.{self.digits}f}"

    def write(self, folder: str | Path) -> Path:
        """Writes assets, results.json with its provenance, and report.html; returns the page's path."""
        folder = Path(folder)
        for name, content in self.assets.items():
            write_whole(folder / name, content)
        write_json(folder / RESULTS, {**self.record, "provenance": self.record.get("provenance") or provenance()})
        return write_page(folder / RESULTS, folder / REPORT, self.template)


def _flat(tree: Any, place: str = "") -> list[tuple[str, float]]:
    if isinstance(tree, Mapping):
        return [pair for key, value in tree.items() for pair in _flat(value, f"{place}/{key}" if place else str(key))]
    return [(place, float(tree))] if isinstance(tree, int | float) else []


@runtime_checkable
class Evaluator(Protocol):
    """Measures a model on a dataset; used by the trainer, the demo, the command line and the tables alike."""

    @property
    def primary(self) -> str:
        """The place of the metric to watch in the record."""
        ...

    @property
    def greater_is_better(self) -> bool:
        """Which way that metric improves."""
        ...

    def __call__(self, model: Any, dataset: Dataset) -> Results:
        """What was found; `model` is a LoadedModel, or a LoadedClassifier where classifiers are evaluated."""
        ...


def evaluation_folder(model: Path, task: str) -> Path:
    """Where the results of a task go if nobody says: beside the model they are about; runs/NAME for one on the Hub."""
    if on_hub(model):
        model = Path("runs") / model.name.partition("@")[0]
    return model / "evaluation" / task
