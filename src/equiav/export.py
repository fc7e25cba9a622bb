"""A model to give away: its towers as ONNX, its weights, its recipe and a card, in one folder."""

from __future__ import annotations

import importlib.util
import json
import logging
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
import yaml
from torch import Tensor, nn

from equiav.build import build_filter_bank, encoder_size
from equiav.checkpoint import CHECKPOINTS, Checkpoint, encoder_text, load_checkpoint, resolve, save_checkpoint
from equiav.config import Config, parse_config
from equiav.data import World
from equiav.errors import CheckpointError, EquiAVError
from equiav.inference import LoadedModel, from_checkpoint
from equiav.io import replacing, write_sums, write_whole
from equiav.media import LOG_FLOOR, standardise
from equiav.report import render
from equiav.types import AUDIO, VISUAL, Modality

NEEDED = ("onnx", "onnxscript", "onnxruntime")
OPSET = 20  # the first whose Fourier transform takes its axis as an input
TOLERANCE = 1e-4
INPUTS = {AUDIO: "waveforms", VISUAL: "pictures"}
OUTPUT = "embeddings"
BATCHES = (1, 3)
CARD, RESULTS = "README.md", "results.json"
PATHS = ("path", "train", "validation", "test", "weights")  # keys of a recipe that name files of this machine
# Facts about a measurement, not measurements.
APART = ("provenance", "checkpoint", "seed", "bank_seed", "steps", "seconds_of_training", "queries", "gallery", "pool")


def export(
    source: Path,
    out: Path,
    *,
    onnx: bool = True,
    licence: str = "apache-2.0",
    report: Callable[[str], None] = lambda line: None,
) -> list[Graph]:
    """Writes weights, recipe, card and (with `onnx`) both towers into `out`; whole or not at all."""
    if out.exists():
        raise EquiAVError(f"{out}: exists already; name a new place")
    if onnx and (missing := [name for name in NEEDED if importlib.util.find_spec(name) is None]):
        raise EquiAVError(f"ONNX needs {', '.join(missing)}: pip install 'equiav[onnx]', or export with --no-onnx")
    checkpoint = load_checkpoint(source)
    if checkpoint.config.classifier is not None:
        raise CheckpointError(f"{source}: holds a classifier, not a model with a shared space")
    if checkpoint.config.objective.kind == "masked":
        raise CheckpointError(
            f"{source}: masked autoencoders have no shared space; `equiav convert` writes MAE's format"
        )
    checkpoint = replace(checkpoint, config=shareable(checkpoint.config))
    graphs = []
    try:
        with replacing(out) as draft:
            save_checkpoint(draft, checkpoint.config, checkpoint.weights, checkpoint.meta, banks=checkpoint.banks)
            if onnx:
                loaded = from_checkpoint(checkpoint, draft)
                for modality in (AUDIO, VISUAL):
                    report(f"writing and checking {modality}.onnx")
                    graphs.append(write_graph(loaded, modality, draft / f"{modality}.onnx"))
            results = found_results(source, resolve(source))
            write_whole(draft / CARD, card(checkpoint, out.name, graphs, results, licence))
            write_sums(draft)
    except OSError as error:
        raise EquiAVError(f"{out}: cannot be written ({error.strerror or error})") from error
    return [replace(g, file=out / g.file.name) for g in graphs]


def shareable(config: Config) -> Config:
    """The recipe with files and folders by their names alone: where they lay says nothing to anybody else."""
    tree = config.model_dump(mode="json")
    for section in (tree["data"], tree):
        for key in PATHS:
            if isinstance(section.get(key), str):
                section[key] = Path(section[key]).name
    encoders = [tree["model"][modality]["encoder"] for modality in (AUDIO, VISUAL)]
    for encoder in [*encoders, *(m["options"] for m in tree["modalities"].values() if m["kind"] == "text")]:
        if encoder and encoder.get("name") and (encoder["name"].count("/") != 1 or encoder["name"][0] in "./~"):
            encoder["name"] = Path(encoder["name"]).name  # a folder; on the Hub it is owner/name
    return parse_config(tree, "the exported recipe")


class Tower(nn.Module):
    """Raw inputs of one modality to unit embeddings (N, D), with all that lies between inside.

    Audio: waveforms (N, samples) in [-1, 1], all of one length; longer ones than the model listens to are cut. Visual:
    frames (N, 3, side, side), uint8, of the side that the model wants.
    """

    bank: Tensor | None

    def __init__(self, loaded: LoadedModel, modality: Modality) -> None:
        super().__init__()
        self.model, self.modality, self.transform = loaded.model, modality, loaded.inputs[modality]
        self.register_buffer("bank", loaded.banks.get(modality))
        self.audio = loaded.config.audio
        self.filter_bank = build_filter_bank(self.audio)

    def forward(self, inputs: Tensor) -> Tensor:
        """Embeddings of a batch."""
        x = self.spectrograms(inputs) if self.modality == AUDIO else self.transform.finish(inputs.float() / 255)
        return F.normalize(self.model.embed(self.modality, x, self.bank), dim=1)

    def spectrograms(self, waveforms: Tensor) -> Tensor:
        """What `FilterBank` does for waveforms of one length, without the checks and portions no graph can hold."""
        bank = self.filter_bank
        used = bank.window + bank.hop * (bank.frames - 1)
        whole = (waveforms.shape[1] - bank.window) // bank.hop + 1
        centred = waveforms - waveforms.mean(dim=1, keepdim=True)
        energies = bank.energies(F.pad(centred, (0, used))[:, :used])
        fill = LOG_FLOOR if bank.padding == "floor" else 0.0
        keep = torch.arange(bank.frames, device=waveforms.device) < whole
        energies = torch.where(keep[None, :, None], energies, fill)
        return standardise(energies, self.audio.mean, self.audio.std)[:, None]


@dataclass(frozen=True)
class Graph:
    """One tower as a file, and how far from the model its embeddings were."""

    file: Path
    modality: Modality
    difference: float  # largest absolute one over all embeddings compared
    compared: int  # how many embeddings


def write_graph(loaded: LoadedModel, modality: Modality, file: Path) -> Graph:
    """Writes one tower and checks it with onnxruntime; a graph that disagrees with the model is an error."""
    tower, inputs = Tower(loaded, modality).eval(), example_inputs(loaded, modality)
    dynamic: dict[int, object] = {0: torch.export.Dim("batch")}
    if modality == AUDIO:
        dynamic[1] = torch.export.Dim("samples", min=tower.filter_bank.window)
    with _quiet(), torch.no_grad():
        tower(inputs[-1])  # constants that are made once and kept must not be made while tracing
        torch.onnx.export(
            tower, (inputs[-1],), file, dynamo=True, opset_version=OPSET, dynamic_shapes=({**dynamic},),
            input_names=[INPUTS[modality]], output_names=[OUTPUT], external_data=False, verbose=False,
        )  # fmt: skip
    found, transform = [], loaded.inputs[modality]
    for x in inputs:  # beside the model's own way, through its own filter bank
        own = F.normalize(loaded.embed(modality, transform.finish(transform.prepare(x))), dim=1)
        found.append((run_graph(file, modality, x) - own).abs().max())
    difference = float(torch.stack(found).max())  # NaN where any is
    if not difference <= TOLERANCE:
        raise EquiAVError(f"{file.name}: its embeddings differ from the model's by {difference:.1e}; not exported")
    return Graph(file, modality, difference, sum(len(x) for x in inputs))


@contextmanager
def _quiet() -> Iterator[None]:
    """The exporter speaks of what it skipped; none of it is about this model."""
    loggers = {name: logging.getLogger(name) for name in ("torch.onnx", "onnxscript", "onnx_ir")}
    levels = {name: logger.level for name, logger in loggers.items()}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            for logger in loggers.values():
                logger.setLevel(logging.ERROR)
            yield
        finally:
            for name, level in levels.items():
                loggers[name].setLevel(level)


def run_graph(file: Path, modality: Modality, x: Tensor) -> Tensor:
    """The embeddings that onnxruntime computes with the file."""
    import onnxruntime

    session = onnxruntime.InferenceSession(str(file), providers=["CPUExecutionProvider"])
    return torch.from_numpy(session.run([OUTPUT], {INPUTS[modality]: x.numpy()})[0])


def example_inputs(loaded: LoadedModel, modality: Modality) -> list[Tensor]:
    """Scenes of the generated world to compare on, and silence or black.

    Waveforms are twice as long as the model listens, a third of it, one window, and just as long.
    """
    audio, side = loaded.config.audio, loaded.config.visual.size
    if modality == VISUAL:
        world = World(size=side)
        scenes = torch.stack([world.video(i)[0] for i in range(max(BATCHES))])
        return [torch.zeros(1, 3, side, side, dtype=torch.uint8), *(scenes[:n] for n in BATCHES)]
    length = audio.frames / 100  # rows come every 10 ms
    found = [torch.zeros(1, round(length * audio.sample_rate))]
    for seconds in (2 * length, length / 3, 0.025, length):
        world = World(seconds=seconds, sample_rate=audio.sample_rate)
        found += [torch.stack([world.waveform(i) for i in range(n)]) for n in BATCHES]
    return found


def found_results(*folders: Path) -> dict[str, dict[str, Any]]:
    """Results files beside a model or in the run that it belongs to, by task; broken ones are passed over."""
    found: dict[str, dict[str, Any]] = {}
    for folder in folders:
        run = folder.parent.parent if folder.parent.name == CHECKPOINTS else folder
        for file in [*(run / "evaluation").glob(f"**/{RESULTS}"), run / RESULTS]:
            try:
                record = json.loads(file.read_text(encoding="utf-8"))
            except (OSError, ValueError):
                continue
            if isinstance(record, dict):
                found[str(record.get("task", file.parent.name))] = record
    return found


def measurements(record: Any, prefix: str = "") -> Iterator[tuple[str, float]]:
    """Every number of a results file that is a measurement, with the keys that lead to it."""
    for key, value in record.items():
        name = f"{prefix}{key}".replace("_", " ")
        if key in APART:
            continue
        if isinstance(value, dict):
            yield from measurements(value, f"{name}, ")
        elif isinstance(value, int | float) and not isinstance(value, bool):
            yield name, float(value)


def card(
    checkpoint: Checkpoint, name: str, graphs: Sequence[Graph], results: dict[str, dict[str, Any]], licence: str
) -> str:
    """README.md of the exported folder, with the header that model hubs read."""
    tags = ["audio-visual", "audio", "image", "self-supervised", "contrastive", "retrieval", "equiav"]
    header = {
        "library_name": "equiav",
        "license": licence,
        "pipeline_tag": "feature-extraction",
        "tags": [*tags, "onnx"] if graphs else tags,
    }
    config = checkpoint.config
    joint = config.objective.kind == "cavmae"  # its embeddings are the encoders' own
    return render(
        "card.md",
        name=name,
        header=yaml.safe_dump(header, sort_keys=False),
        config=config,
        meta={"kind": "unknown", **checkpoint.meta},
        banks=checkpoint.banks,
        parameters=sum(v.numel() for v in checkpoint.weights.values() if v.is_floating_point()),
        encoders="; ".join(dict.fromkeys(encoder_text(config.model.encoder_for(m)) for m in (AUDIO, VISUAL))),
        width=encoder_size(config.model.encoder).width if joint else config.model.heads.inter,
        results={task: rows for task in sorted(results) if (rows := list(measurements(results[task])))},
        graphs=graphs,
        inputs=INPUTS,
        output=OUTPUT,
    )
