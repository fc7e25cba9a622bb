"""Fine-tuning of a run on a published set, in a folder of its own below the run's."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

from equiav.ablation.plan import Run
from equiav.ablation.tasks import finetune_folder, finetune_recipe
from equiav.config import load_config
from equiav.errors import ConfigError, TrainingError
from equiav.evaluation import RESULTS
from equiav.training import run_on_cores

BY_FOLDS = ("esc50",)  # published with folds: the score is their mean


def finetuned(run: Run, out: Path, name: str, mode: str, say: Callable[[str], None]) -> float:
    """Fine-tunes the run's encoders (or finds that done) and gives the recipe's own score on the test split."""
    recipe = finetune_recipe(run, name)
    tune = load_config(recipe).finetune
    if tune is None:
        raise ConfigError(f"{recipe}: not a recipe for fine-tuning, it has no section finetune")
    folder = finetune_folder(run, out, name, mode)
    say(f"fine-tuning on {name} ({mode})")
    changes = [f"weights={out}", f"classifier.mode={mode}", f"seed={run.seed}"]
    folds = ["--folds"] if name in BY_FOLDS else []
    arguments = ["finetune", str(recipe), *changes, *folds, "--out", str(folder)]
    run_on_cores(arguments, processes=run.processes, say=say)
    record = json.loads((folder / RESULTS).read_text(encoding="utf-8"))
    score = record["mean" if folds else "metrics"][tune.metric]
    if score is None:
        raise TrainingError(f"{folder / RESULTS}: {tune.metric} is not defined on this test split")
    return float(score)
