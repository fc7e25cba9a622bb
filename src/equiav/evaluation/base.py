"""What an evaluation is: a callable on a model and a dataset, whose results are plain data with examples to look at."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import numpy as np
import torch.nn.functional as F
from jaxtyping import Float, UInt8
from numpy.typing import NDArray
from torch import Tensor

from equiav.build import build_filter_bank
from equiav.config import Config
from equiav.data import Dataset
from equiav.hub import on_hub
from equiav.io import provenance, write_json, write_whole
from equiav.report import image_png, wav, write_page
from equiav.types import AUDIO, VISUAL, Modality

RESULTS, REPORT = "results.json", "report.html"
ASSETS = "assets"  # the folder of images and audio beside results.json
SIDE = 112  # pixels of a small image
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


def of_list(dataset: Dataset, listed: int | None) -> dict[str, dict[str, int]]:
    """What a record says of a published list that its clips were chosen by: how many were found of how many."""
    return {"listed": {"found": len(dataset), "listed": listed}} if listed else {}


def of_list_lines(record: Mapping[str, Any]) -> list[str]:
    """The same for a terminal."""
    counts = record.get("listed")
    return [f"found {counts['found']} of the {counts['listed']} clips on the list"] if counts else []


def evaluation_folder(model: Path, task: str) -> Path:
    """Where the results of a task go if nobody says: beside the model they are about; runs/NAME for one on the Hub."""
    if on_hub(model):
        model = Path("runs") / model.name.partition("@")[0]
    return model / "evaluation" / task


def pixels(frame: UInt8[Tensor, "3 h w"] | Float[Tensor, "3 h w"], scale: int = 1) -> NDArray[np.uint8]:
    """A frame as an array (H, W, 3) of bytes, each pixel `scale` times as large."""
    values = frame if not frame.is_floating_point() else (frame.clamp(0, 1) * 255).round().byte()
    return values.permute(1, 2, 0).cpu().numpy().repeat(scale, 0).repeat(scale, 1)


class Examples:
    """Makes the records of the examples on a page; `assets` collects their files, each made once.

    Audio is shown as a spectrogram and can be played, visual input as its middle frame; of another modality there is
    only the clip's id.
    """

    def __init__(self, sides: Mapping[Modality, Dataset], config: Config) -> None:
        self.sides, self.config = sides, config
        self.filter_bank = build_filter_bank(config.audio)
        self.assets: dict[str, bytes] = {}

    def item(self, modality: Modality, index: int, *, play: bool = False) -> dict[str, Any]:
        """One modality of a clip: id and labels, the file `image` to look at, and with `play` the file `audio`."""
        side = self.sides[modality]
        clip = side.clip(index)
        record: dict[str, Any] = {"id": clip.id, "labels": list(clip.labels)}
        if modality not in (AUDIO, VISUAL):
            return record
        stem = f"{ASSETS}/{modality}-{index}"
        files = {"image": f"{stem}.png"} | ({"audio": f"{stem}.wav"} if play and modality == AUDIO else {})
        if not set(files.values()) <= self.assets.keys():
            raw = side.part(index, side.frames // 2, (modality,)).inputs[modality]
            if modality == VISUAL:
                if raw.shape[1] > SIDE:
                    raw = F.interpolate(raw[None].float(), scale_factor=SIDE / raw.shape[1], mode="area")[0]
                    raw = raw.round().byte()
                self.assets[files["image"]] = image_png(pixels(raw), scale=max(1, SIDE // raw.shape[1]))
            else:
                from equiav.report import spectrogram_png  # it brings matplotlib, which training does without

                self.assets[files["image"]] = spectrogram_png(self.filter_bank(raw[None])[0].numpy())
            if "audio" in files:
                self.assets[files["audio"]] = wav(raw.numpy(), self.config.audio.sample_rate)
        return record | files
