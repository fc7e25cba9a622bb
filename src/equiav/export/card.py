"""The model card: what the model is, what it was trained on, how good it was found to be, how to use it."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import yaml

from equiav.build import encoder_size
from equiav.checkpoint import CHECKPOINTS, Checkpoint
from equiav.config import CavMaeConfig, Config, ForeignDataConfig, PairedConfig, ShardsConfig, WorldConfig
from equiav.export.graphs import INPUTS, OUTPUT, Graph
from equiav.types import Modality

RESULTS = "results.json"
# Facts about a measurement, not measurements.
APART = ("provenance", "checkpoint", "seed", "bank_seed", "steps", "seconds_of_training", "queries", "gallery", "pool")


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
    parts = [
        f"---\n{yaml.safe_dump(header, sort_keys=False)}---",
        f"# {name}",
        "Embeds sounds and pictures in one space: a sound lies near pictures of what makes it. Trained with EquiAV "
        "(ICML 2024), in which a predictor learns what augmentations do to a representation.",
        _architecture(checkpoint),
        _training(checkpoint),
        _results(results),
        _use(name),
        _onnx(checkpoint.config, graphs) if graphs else "",
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def _architecture(checkpoint: Checkpoint) -> str:
    config = checkpoint.config
    size = encoder_size(config.model.encoder)
    count = sum(v.numel() for v in checkpoint.weights.values())
    audio, visual = config.audio, config.visual
    rows = [
        ("parameters", f"{count / 1e6:.2f} M"),
        ("encoders", f"two vision transformers: width {size.width}, depth {size.depth}, {size.heads} heads"),
        ("sound", f"mono, {audio.sample_rate} Hz; {audio.frames} x {audio.bins} log-mel, {audio.frames / 100:g} s"),
        ("picture", f"{visual.size} x {visual.size}, RGB"),
        ("embedding", f"{config.model.heads.inter} numbers, length 1; compare by dot product"),
        ("vectors", f"a fixed bank of {config.bank.size}, seed {config.bank.seed}, stored with the weights"),
    ]
    return _table(["model", ""], rows)


def _training(checkpoint: Checkpoint) -> str:
    meta, objective = checkpoint.meta, checkpoint.config.objective
    lines = ["## What it was trained on", _data(checkpoint)]
    if "step" in meta:
        lines.append(
            f"{meta['step']} of {meta['total']} steps of {checkpoint.config.train.batch} clips; intra-modal term "
            f"{objective.intra}, inter-modal term {objective.inter}, S = {objective.representations}. `config.yaml` is "
            "the whole recipe."
        )
    else:
        lines.append(f"Kind of checkpoint: {meta.get('kind', 'unknown')}. `config.yaml` is the whole recipe.")
    return "\n\n".join(lines)


def _data(checkpoint: Checkpoint) -> str:
    if checkpoint.meta.get("kind") != "pretrained":
        return f"Imported weights ({checkpoint.meta.get('source', 'source unknown')}); see where they came from."
    data = checkpoint.config.data
    if isinstance(data, WorldConfig):
        return (
            f"A generated world of shapes and tones ({data.count} clips of {data.seconds:g} s, seed {data.seed}): it "
            "knows nothing of real sounds and pictures."
        )
    if isinstance(data, ShardsConfig):
        return f"Unlabelled videos, prepared as `{data.path}`."
    if isinstance(data, PairedConfig):
        return f"Sounds and images of `{data.path}`, paired by class: labels were used."
    if isinstance(data, ForeignDataConfig):
        return f"A dataset of its makers' own, `{data.kind}`."
    assert isinstance(data, CavMaeConfig)
    return f"Videos listed in `{data.train}`."


def _results(results: dict[str, dict[str, Any]]) -> str:
    tables = []
    for task, record in sorted(results.items()):
        rows = [(name, f"{value:.4g}") for name, value in measurements(record)]
        if rows:
            tables.append(_table([task, ""], rows))
    if not tables:
        return "## Results\n\nNone were stored with the model."
    return "\n\n".join(["## Results", *tables])


def _use(name: str) -> str:
    return f"""## How to use it

```python
import equiav

model = equiav.load_model("{name}")
embed = equiav.Embedder(model)
sound, picture = embed.audio("bark.wav"), embed.image("dog.jpg")
print(float(sound @ picture))
```"""


def _onnx(config: Config, graphs: Sequence[Graph]) -> str:
    audio, side = config.audio, config.visual.size
    least = round(audio.sample_rate * 0.025)
    takes = {
        Modality.AUDIO: f"`{INPUTS[Modality.AUDIO]}` float32 (batch, samples), mono at {audio.sample_rate} Hz in "
        f"[-1, 1], at least {least} samples; sounds of one batch have one length",
        Modality.VISUAL: f"`{INPUTS[Modality.VISUAL]}` uint8 (batch, 3, {side}, {side}), RGB: short side scaled to "
        f"{side}, then the middle",
    }
    rows = [(f"`{g.file.name}`", takes[g.modality], f"{g.difference:.1e} over {g.compared} embeddings") for g in graphs]
    return f"""## Without equiav: ONNX

Filter bank, normalisation and the bank of vectors are inside; both give `{OUTPUT}` float32 (batch,
{config.model.heads.inter}) of length 1. Checked with onnxruntime when this folder was written.

{_table(["file", "takes", "largest difference from the model"], rows)}

```python
import numpy as np
import onnxruntime

session = onnxruntime.InferenceSession("audio.onnx")
waveforms = np.zeros((1, {audio.sample_rate}), dtype=np.float32)
(embeddings,) = session.run(["{OUTPUT}"], {{"{INPUTS[Modality.AUDIO]}": waveforms}})
```"""


def _table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [f"| {' | '.join(row)} |" for row in (header, ["---"] * len(header), *rows)]
    return "\n".join(lines)
