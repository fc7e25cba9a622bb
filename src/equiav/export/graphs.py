"""Towers written as ONNX files, and each compared with the model on sounds and pictures of the generated world."""

from __future__ import annotations

import importlib.util
import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from equiav.build import build_filter_bank
from equiav.data import World
from equiav.errors import EquiAVError
from equiav.export.towers import PictureTower, SoundTower
from equiav.inference import LoadedModel
from equiav.types import Modality

NEEDED = ("onnx", "onnxscript", "onnxruntime")
OPSET = 20  # the first whose Fourier transform takes its axis as an input
TOLERANCE = 1e-4
INPUTS = {Modality.AUDIO: "waveforms", Modality.VISUAL: "pictures"}
OUTPUT = "embeddings"
BATCHES = (1, 3)


@dataclass(frozen=True)
class Graph:
    """One tower as a file, and how far from the model its embeddings were."""

    file: Path
    modality: Modality
    difference: float  # largest absolute one over all embeddings compared
    compared: int  # how many embeddings


def require_onnx() -> None:
    """Refuses, in one line, where the packages that write and run ONNX are not installed."""
    missing = [name for name in NEEDED if importlib.util.find_spec(name) is None]
    if missing:
        raise EquiAVError(f"ONNX needs {', '.join(missing)}: pip install 'equiav[onnx]', or export with --no-onnx")


def write_graph(loaded: LoadedModel, modality: Modality, file: Path) -> Graph:
    """Writes one tower and checks it with onnxruntime; a graph that disagrees with the model is an error."""
    _write(loaded, modality, file)
    inputs = sounds(loaded) if modality is Modality.AUDIO else pictures(loaded)
    difference = max(_difference(loaded, modality, file, x) for x in inputs)
    if not difference <= TOLERANCE:
        raise EquiAVError(f"{file.name}: its embeddings differ from the model's by {difference:.1e}; not exported")
    return Graph(file, modality, difference, sum(len(x) for x in inputs))


def tower(loaded: LoadedModel, modality: Modality) -> nn.Module:
    """The tower of a modality, ready to be exported."""
    made = SoundTower(loaded) if modality is Modality.AUDIO else PictureTower(loaded)
    return made.eval()


def _write(loaded: LoadedModel, modality: Modality, file: Path) -> None:
    exported = tower(loaded, modality)
    name = INPUTS[modality]
    example = (sounds(loaded) if modality is Modality.AUDIO else pictures(loaded))[-1]
    dynamic: dict[int, object] = {0: torch.export.Dim("batch")}
    if modality is Modality.AUDIO:
        dynamic[1] = torch.export.Dim("samples", min=build_filter_bank(loaded.config.audio).window)
    with _quiet(), torch.no_grad():
        exported(example)  # constants that are made once and kept must not be made while tracing
        torch.onnx.export(
            exported, (example,), file, dynamo=True, opset_version=OPSET, dynamic_shapes=({**dynamic},),
            input_names=[name], output_names=[OUTPUT], external_data=False, verbose=False,
        )  # fmt: skip


@contextmanager
def _quiet() -> Iterator[None]:
    """The exporter speaks of what it skipped; none of it is about this model."""
    loggers = [logging.getLogger(name) for name in ("torch.onnx", "onnxscript", "onnx_ir")]
    levels = [logger.level for logger in loggers]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for logger in loggers:
            logger.setLevel(logging.ERROR)
        try:
            yield
        finally:
            for logger, level in zip(loggers, levels, strict=True):
                logger.setLevel(level)


def _difference(loaded: LoadedModel, modality: Modality, file: Path, x: Tensor) -> float:
    return float((run_graph(file, modality, x) - _reference(loaded, modality, x)).abs().max())


def run_graph(file: Path, modality: Modality, x: Tensor) -> Tensor:
    """The embeddings that onnxruntime computes with the file."""
    import onnxruntime

    session = onnxruntime.InferenceSession(str(file), providers=["CPUExecutionProvider"])
    return torch.from_numpy(session.run([OUTPUT], {INPUTS[modality]: x.numpy()})[0])


def _reference(loaded: LoadedModel, modality: Modality, x: Tensor) -> Tensor:
    """The model's own way, through its own filter bank."""
    if modality is Modality.AUDIO:
        return F.normalize(loaded.embed_spectrograms(loaded.spectrograms(x)), dim=1)
    return F.normalize(loaded.embed_pictures(loaded.pictures(x)), dim=1)


def sounds(loaded: LoadedModel) -> list[Tensor]:
    """Sounds to compare on: as long as the model listens, a third of it, twice of it, one window, and silence."""
    audio = loaded.config.audio
    length = audio.frames / 100  # rows come every 10 ms
    found = [torch.zeros(1, round(length * audio.sample_rate))]
    for seconds in (2 * length, length / 3, 0.025, length):
        world = World(seconds=seconds, sample_rate=audio.sample_rate)
        found += [torch.stack([world.waveform(i) for i in range(n)]) for n in BATCHES]
    return found


def pictures(loaded: LoadedModel) -> list[Tensor]:
    """Pictures to compare on: scenes of the generated world, and one that is black."""
    side = loaded.config.visual.size
    world = World(size=side)
    scenes = torch.stack([world.pictures(i)[0] for i in range(max(BATCHES))])
    return [torch.zeros(1, 3, side, side, dtype=torch.uint8), *(scenes[:n] for n in BATCHES)]
