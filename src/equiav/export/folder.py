"""`equiav export`: a folder that `load_model` opens and that can be shared as it is."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from equiav.checkpoint import Checkpoint, load_checkpoint, resolve, save_checkpoint
from equiav.config import Config, parse_config
from equiav.errors import CheckpointError, EquiAVError
from equiav.export.card import card, found_results
from equiav.export.graphs import Graph, require_onnx, write_graph
from equiav.inference import from_checkpoint
from equiav.io import write_whole
from equiav.types import Modality

CARD = "README.md"
PATHS = ("path", "train", "validation", "test", "weights")  # keys of a recipe that name files of this machine


def export(
    source: Path,
    out: Path,
    *,
    onnx: bool = True,
    licence: str = "apache-2.0",
    say: Callable[[str], None] = lambda line: None,
) -> list[Graph]:
    """Writes weights, recipe, card and (with `onnx`) both towers into `out`; whole or not at all."""
    if out.exists():
        raise EquiAVError(f"{out}: exists already; name a new place")
    if onnx:
        require_onnx()
    checkpoint = load_checkpoint(source)
    if checkpoint.config.classifier is not None:
        raise CheckpointError(f"{source}: holds a classifier, not a model with a shared space")
    checkpoint = replace(checkpoint, config=shareable(checkpoint.config))
    draft = out.with_name(f".{out.name}.{os.getpid()}.draft")
    try:
        save_checkpoint(draft, checkpoint.config, checkpoint.weights, checkpoint.meta, banks=checkpoint.banks)
        graphs = _graphs(checkpoint, draft, say) if onnx else []
        results = found_results(source, resolve(source))
        write_whole(draft / CARD, card(checkpoint, out.name, graphs, results, licence))
        draft.rename(out)
    except OSError as error:
        raise EquiAVError(f"{out}: cannot be written ({error.strerror or error})") from error
    finally:
        shutil.rmtree(draft, ignore_errors=True)
    return [Graph(out / g.file.name, g.modality, g.difference, g.compared) for g in graphs]


def _graphs(checkpoint: Checkpoint, folder: Path, say: Callable[[str], None]) -> list[Graph]:
    loaded = from_checkpoint(checkpoint, folder)
    graphs = []
    for modality in Modality:
        say(f"writing and checking {modality.value}.onnx")
        graphs.append(write_graph(loaded, modality, folder / f"{modality.value}.onnx"))
    return graphs


def shareable(config: Config) -> Config:
    """The recipe with files and folders by their names alone: where they lay says nothing to anybody else."""
    tree = config.model_dump(mode="json")
    for section in (tree["data"], tree):
        for key in PATHS:
            if isinstance(section.get(key), str):
                section[key] = Path(section[key]).name
    return parse_config(tree, "the exported recipe")
