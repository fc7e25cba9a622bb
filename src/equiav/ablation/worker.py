"""One run from start to results file: train or resume, measure, write down, tidy up."""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import yaml

from equiav.ablation.finetuning import finetuned
from equiav.ablation.measure import measure_cost, measure_own, measure_set, validation_curve
from equiav.ablation.plan import FINETUNING, TRANSFER, Run, portable, run_key
from equiav.ablation.records import PARENT, Clock, Folders, missing, read_record
from equiav.ablation.tasks import task_facts
from equiav.build_data import resolve
from equiav.checkpoint import CHECKPOINTS, CONFIG, checkpoints_of, load_checkpoint
from equiav.config import Config, parse_config
from equiav.files import locked
from equiav.inference import load_model
from equiav.provenance import provenance, write_json
from equiav.training import LOG, Stopped, Trainer, choose_device, train_on_cores

Say = Callable[[str], None]


def perform(run: Run, folders: Folders, *, discard: bool, say: Say) -> None:
    """Does what is missing of a run and writes its results file; raises Busy, Stopped, or what went wrong."""
    out = folders.run(run)
    with locked(out):
        todo = missing(run, folders)
        if not todo:
            return
        clock, made = Clock(out), provenance()  # before the work: the tree may change during it
        if run.trained:
            _train(run, out, clock, say)
        record = read_record(folders.record(run.scale, run.key)) or {}
        record = _measured(run, out, todo, record, say)
        clock.tick(at_once=True)
        record |= {"tasks": sorted({*record.get("tasks", []), *todo}), "seconds": clock.total()}
        write_json(folders.record(run.scale, run.key), _signed(record, made))
        folders.failure(run).unlink(missing_ok=True)
        if discard:
            shutil.rmtree(out / CHECKPOINTS, ignore_errors=True)


def _signed(record: dict[str, Any], made: dict[str, Any]) -> dict[str, Any]:
    """The record with where it was made; measurements added to an older one keep that one's and add theirs."""
    if "provenance" not in record:
        return {**record, "provenance": made}
    return {**record, "extended": [*record.get("extended", []), made]}


def _train(run: Run, out: Path, clock: Clock, say: Say) -> None:
    """Trains to the end; from the newest checkpoint where there is one."""
    if finished(out):
        return

    def watched(line: str) -> None:
        clock.tick()
        say(line)
        if orphaned():
            os.kill(os.getpid(), signal.SIGTERM)  # the trainer saves and stops

    if run.processes > 1:
        try:
            train_on_cores(run.recipe, run.overrides, out, processes=run.processes, say=watched)
        finally:
            clock.tick(at_once=True)
        return
    config, notices = resolve(resumable(run, out), 1)
    for line in notices:
        say(line)
    if Trainer(config, out, watched).run().interrupted:
        clock.tick(at_once=True)
        raise Stopped


def finished(out: Path) -> bool:
    """Whether the newest checkpoint of a run is its last."""
    found = checkpoints_of(out)
    meta = load_checkpoint(found[-1][1]).meta if found else {}
    return bool(found) and meta.get("step") == meta.get("total")


def resumable(run: Run, out: Path) -> Config:
    """The run's recipe; that of its checkpoint where only cosmetic keys have changed since it was written.

    Data that have moved since are no reason to look for them at their old place.
    """
    found = checkpoints_of(out)
    if not found:
        return run.config
    path = found[-1][1] / CONFIG
    saved = parse_config(yaml.safe_load(path.read_text(encoding="utf-8")), str(path))
    same = run_key(saved, trained=True) == run.key
    moved = (saved.data, saved.weights) != (run.config.data, run.config.weights)
    return saved if same and not moved else run.config


def orphaned() -> bool:
    """Whether the process that watched over this one is gone."""
    parent = os.environ.get(PARENT)
    return parent is not None and os.getppid() != int(parent)


def _measured(run: Run, out: Path, todo: frozenset[str], record: dict[str, Any], say: Say) -> dict[str, Any]:
    """The record with what was missing added."""
    facts = {"key": run.key, "scale": run.scale, "seed": run.seed, "rows": list(run.wanted_by)}
    record = {**record, **facts, "recipe": run.recipe.name, "config": portable(run.config)}
    elsewhere = dict(record.get("elsewhere", {}))
    if not run.trained:
        elsewhere["cost"] = measure_cost(run.config)
        return {**record, "elsewhere": elsewhere}
    loaded = load_model(out, str(choose_device()))
    loaded = replace(loaded, config=loaded.config.model_copy(update={"data": run.config.data}))
    record |= {"steps": loaded.meta["step"], "clips": loaded.meta["clips"], "curve": validation_curve(out / LOG)}
    for split, values in measure_own(loaded, todo, say, run.sets.get(run.similarity_on or "")).items():
        record[split] = {**record.get(split, {}), **values}
    for task in sorted(todo):
        kind, *parts = task.split(".")
        if kind == TRANSFER:
            say(f"measuring retrieval on {parts[0]}")
            elsewhere.setdefault(kind, {})[parts[0]] = measure_set(loaded, run.sets[parts[0]])
        elif kind == FINETUNING:
            elsewhere.setdefault(kind, {}).setdefault(parts[0], {})[parts[1]] = finetuned(
                run, out, parts[0], parts[1], say
            )
    facts_of = {task: found for task in sorted(todo) if (found := task_facts(run, task)) is not None}
    return {**record, "elsewhere": elsewhere, "facts": {**record.get("facts", {}), **facts_of}}
