"""What a measurement beside the run's own data depends on: a fine-tuning recipe, or the place of another set."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

from equiav.ablation.plan import FINETUNING, TRANSFER, Run, portable
from equiav.config import load_config


def finetune_recipe(run: Run, name: str) -> Path:
    """The recipe of a set: beside the folder of the recipe that was pre-trained."""
    return run.recipe.parents[1] / FINETUNING / f"{name}.yaml"


def task_facts(run: Run, task: str) -> dict[str, Any] | None:
    """What makes a measurement another one if it changes; None for those that the run's own recipe settles."""
    kind, *parts = task.split(".")
    if kind == FINETUNING:
        return portable(load_config(finetune_recipe(run, parts[0])))
    if kind == TRANSFER:
        chosen = run.sets[parts[0]]
        return {"data": Path(chosen.data).name, "list": Path(chosen.list).name if chosen.list else None}
    return None


def finetune_folder(run: Run, out: Path, name: str, mode: str) -> Path:
    """Where a run's fine-tuning goes; a recipe that was changed gets a folder of its own."""
    text = json.dumps(task_facts(run, f"{FINETUNING}.{name}.{mode}"), sort_keys=True)
    return out / FINETUNING / f"{name}-{mode}-{hashlib.sha256(text.encode()).hexdigest()[:8]}"
