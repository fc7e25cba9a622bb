"""Predictions in the form in which VGGSounder's benchmark reads a model's results."""

from __future__ import annotations

import pickle
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
from torch import Tensor

from equiav.errors import DataError
from equiav.io import write_whole

MODES = {"audio": "a", "visual": "v", "audiovisual": "av"}


def write_predictions(
    path: Path,
    ids: Sequence[str],
    scores: Mapping[str, Tensor],
    classes: Sequence[str],
    *,
    order: Sequence[str] | None = None,
    threshold: float = 0.5,
) -> None:
    """Writes scores of clips as a results file of VGGSounder (a pickle: the benchmark reads nothing else).

    Args:
        path: NAME.pkl; the benchmark calls the model NAME.
        ids: of the clips, as VGGSounder names them: YouTube id, underscore, six digits of the start.
        scores: probabilities (n, classes) by mode of the classifier: audio, visual, audiovisual.
        classes: names of the columns.
        order: the benchmark's classes, `VGGSounder().get_all_labels()`; columns are put in this order.
        threshold: classes above it count as predicted, the best one always.
    """
    if unknown := set(scores) - set(MODES):
        raise DataError(f"scores of {', '.join(sorted(unknown))}: VGGSounder knows {', '.join(MODES)}")
    columns = {name: i for i, name in enumerate(classes)}
    order = list(order or classes)
    if missing := [name for name in order if name not in columns]:
        raise DataError(f"the classifier has no class {missing[0]!r} and {len(missing) - 1} more of VGGSounder's")
    pick = torch.tensor([columns[name] for name in order])
    values = {MODES[mode]: table.float().cpu()[:, pick] for mode, table in scores.items()}
    for mode, table in values.items():
        if len(table) != len(ids):
            raise DataError(f"{len(table)} rows of scores ({mode}) for {len(ids)} clips")
    record = {}
    for row, id in enumerate(ids):
        best = {mode: (table[row] > threshold) | (table[row] == table[row].max()) for mode, table in values.items()}
        record[id] = {
            "predictions": {mode: [order[i] for i in on.nonzero()[:, 0].tolist()] for mode, on in best.items()},
            "logits": {mode: table[row].tolist() for mode, table in values.items()},
        }
    write_whole(path, pickle.dumps(record))
