"""Runs side by side, one process each: a failed one does not stop the others, all are resumable.

`Runner` starts the processes and watches over them; `perform` is what one of them does: train or resume, measure,
write the results file.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import yaml

from equiav.build import resolve
from equiav.checkpoint import CHECKPOINTS, CONFIG, checkpoints_of, load_checkpoint
from equiav.config import Config, load_config, parse_config, with_earlier_defaults
from equiav.errors import EquiAVError, TrainingError
from equiav.evaluation import RESULTS
from equiav.inference import load_model
from equiav.io import duration, locked, provenance, write_json, write_whole
from equiav.reproduction.measure import (
    Progress,
    measure_best,
    measure_cost,
    measure_own,
    measure_retrieval,
    set_clips,
    validation_curve,
    vectors_in_training,
)
from equiav.reproduction.plan import (
    FINETUNING,
    START,
    TRANSFER,
    TRANSFER_BANK_S,
    Folders,
    Record,
    Run,
    finetune_folder,
    finetune_recipe,
    missing,
    portable,
    read_record,
    run_key,
    task_facts,
    training_recipe,
)
from equiav.reproduction.tables import Table
from equiav.training import LOG, Stopped, Trainer, choose_device, run_on_cores, train_on_cores

OUTPUT = "output.log"
CLOCK = "clock.json"
PARENT = "EQUIAV_ABLATE_PARENT"  # set for workers: the process that watches over them
BUSY = 75  # exit code of a worker: another process has the run
KEPT_LINES = 20  # last lines of a failed run
RETRY_SECONDS = 30.0  # until a run that another process has is looked at again
POLL_SECONDS = 0.2  # between two looks at the workers
REPORT_SECONDS = 15.0  # between two lines of progress
TRAINING_SHARE = 0.95  # of a run is training, the rest measuring
STEP = re.compile(r"step (\d+)/(\d+)")
BY_FOLDS = ("esc50", "hmdb51", "ucf101")  # published with folds or several splits: the score is their mean


@dataclass
class _Worker:
    run: Run
    process: subprocess.Popen[bytes]
    output: Path

    def share(self) -> float:
        """How much of the run is done, by the last step it has reported; the rest is measuring."""
        with self.output.open("rb") as file:
            file.seek(max(0, self.output.stat().st_size - 4000))
            steps = STEP.findall(file.read().decode(errors="replace"))
        return TRAINING_SHARE * int(steps[-1][0]) / max(1, int(steps[-1][1])) if steps else 0.0


@dataclass
class Runner:
    """A queue of runs and the processes that work on it; `command` gives the arguments of a run's worker.

    Afterwards it says how many runs had been done `before`, were `done` now and `failed` (with their reason), and
    whether a signal `interrupted` it.
    """

    folders: Folders
    command: Callable[[Run], list[str]]
    processes: int
    progress: Progress
    before: int = 0
    done: int = 0
    failed: dict[str, str] = field(default_factory=dict)
    interrupted: bool = False
    _working: list[_Worker] = field(default_factory=list)

    def run(self, runs: Sequence[Run]) -> None:
        """Does all runs that are not done; a signal stops the workers, who save."""
        queue = [run for run in runs if missing(run, self.folders)]
        self.before = len(runs) - len(queue)
        handlers = {s: signal.signal(s, self._on_signal) for s in (signal.SIGTERM, signal.SIGINT)}
        try:
            self._loop(queue)
        finally:
            for worker in self._working:
                worker.process.terminate()
            for worker in self._working:
                worker.process.wait()
            for number, handler in handlers.items():
                signal.signal(number, handler)

    def _on_signal(self, number: int, frame: object) -> None:
        self.interrupted = True

    def _loop(self, queue: list[Run]) -> None:
        total, began, reported = len(queue), time.monotonic(), 0.0
        not_before: dict[str, float] = {}
        while (queue or self._working) and not self.interrupted:
            now = time.monotonic()
            while len(self._working) < self.processes:
                ready = next((r for r in queue if not_before.get(r.key, 0) <= now), None)
                if ready is None:
                    break
                queue.remove(ready)
                self._start(ready)
            for worker in [w for w in self._working if w.process.poll() is not None]:
                self._working.remove(worker)
                if worker.process.returncode == BUSY:
                    queue.append(worker.run)
                    not_before[worker.run.key] = now + RETRY_SECONDS
                else:
                    self._ended(worker)
            if now - reported >= REPORT_SECONDS:
                reported = now
                self._report(total, now - began)
            time.sleep(POLL_SECONDS)

    def _start(self, run: Run) -> None:
        if not missing(run, self.folders):  # done by another process in the meantime
            self.done += 1
            return
        output = self.folders.run(run) / OUTPUT
        output.parent.mkdir(parents=True, exist_ok=True)
        environment = {**os.environ, "PYTHONUNBUFFERED": "1", PARENT: str(os.getpid())}
        if run.processes == 1:
            environment["OMP_NUM_THREADS"] = "1"  # runs side by side: threads would fight
        with output.open("ab") as file:  # a worker of another session may be writing to it
            process = subprocess.Popen(
                [sys.executable, "-m", "equiav.cli", *self.command(run)],
                env=environment, stdin=subprocess.DEVNULL, stdout=file, stderr=file,
                start_new_session=True,  # a Ctrl-C goes to this process, which stops them in order
            )  # fmt: skip
        self._working.append(_Worker(run, process, output))

    def _ended(self, worker: _Worker) -> None:
        run, code = worker.run, worker.process.returncode
        if code == 0:
            self.done += 1
            return
        lines = worker.output.read_text(encoding="utf-8", errors="replace").splitlines()[-KEPT_LINES:]
        reasons = [line.removeprefix("equiav: ") for line in lines if line.startswith("equiav: ")]
        reason = (reasons or lines or ["no output"])[-1] + ("" if reasons else f" (exit code {code})")
        self.failed[run.label] = reason
        kept = [run.label, f"exit code {code}", shlex.join(["equiav", *self.command(run)]), "", *lines]
        write_whole(self.folders.failure(run), "\n".join(kept) + "\n")
        self.progress(f"FAILED {run.label}: {reason}")

    def _report(self, total: int, elapsed: float) -> None:
        share = self.done + len(self.failed) + sum(worker.share() for worker in self._working)
        left = duration((total - share) * elapsed / share) if share > 0.05 else "unknown time"
        failed = f", {len(self.failed)} failed" if self.failed else ""
        now = "; ".join(f"{w.run.label} {100 * w.share():.0f} %" for w in self._working)
        self.progress(f"{self.done} of {total} runs done{failed}, {left} left [{now}]")


def worker_arguments(
    tables: Sequence[Table], run: Run, folders: Folders, *, extra: tuple[str, ...], discard: bool
) -> list[str]:
    """The arguments of `equiav` that do one run alone: for our own workers, and for a scheduler."""
    wanting = {label.split(": ")[0] for label in run.wanted_by}
    files = [str(table.path) for table in tables if table.name in wanting]
    if not files:
        raise EquiAVError(f"run {run.key}: no table wants it")
    more = [part for override in extra for part in ("--set", override)]
    places = ["--runs", str(folders.runs), "--results", str(folders.results)]
    return [
        "ablate", *files, "--scale", run.scale, "--only", run.key, *places, *more, *(["--discard"] if discard else []),
    ]  # fmt: skip


def _now() -> tuple[float, float]:
    """Wall time, and CPU time of this process and of those it waited for."""
    used = os.times()
    return time.monotonic(), used.user + used.system + used.children_user + used.children_system


class Clock:
    """Wall and CPU time of a run over all its pieces: kept in its folder, so that kills do not lose it."""

    def __init__(self, folder: Path, every: float = 10.0) -> None:
        self._path, self._every = folder / CLOCK, every
        before = json.loads(self._path.read_text()) if self._path.exists() else {"wall": 0.0, "cpu": 0.0}
        self._before = (float(before["wall"]), float(before["cpu"]))
        self._start = self._written = _now()

    def total(self) -> dict[str, float]:
        """Seconds so far."""
        wall, cpu = (b + n - s for b, n, s in zip(self._before, _now(), self._start, strict=True))
        return {"wall": round(wall, 1), "cpu": round(cpu, 1)}

    def tick(self, *, at_once: bool = False) -> None:
        """Writes the time down, now and then."""
        now = _now()
        if at_once or now[0] - self._written[0] >= self._every:
            self._written = now
            write_json(self._path, self.total())


def perform(run: Run, folders: Folders, *, discard: bool, progress: Progress) -> None:
    """Does what is missing of a run and writes its results file; raises Busy, Stopped, or what went wrong."""
    out = folders.run(run)
    with locked(out):
        todo = missing(run, folders)
        if not todo:
            return
        clock, made = Clock(out), provenance()  # before the work: the tree may change during it
        begun = clock.total()
        if run.start is not None:
            weights = out / (run.config.weights or "")
            _train(replace(run, config=run.start, start=None), weights, clock, progress)
            run = replace(run, config=run.config.model_copy(update={"weights": str(weights)}))
        if run.trained:
            _train(run, out, clock, progress)
        record = read_record(folders.record(run.scale, run.key)) or {}
        record = _measured(run, out, todo, record, progress)
        clock.tick(at_once=True)
        record["tasks"] = sorted({*record.get("tasks", []), *todo})
        # Measurements added to an older record keep its origin and its cost, and add their own.
        if "provenance" in record:
            spent = {kind: round(value - begun[kind], 1) for kind, value in clock.total().items()}
            record["extended"] = [*record.get("extended", []), {**made, "seconds": spent}]
        else:
            record |= {"seconds": clock.total(), "provenance": made}
        write_json(folders.record(run.scale, run.key), record)
        folders.failure(run).unlink(missing_ok=True)
        if discard:
            for folder in (out / CHECKPOINTS, *out.glob(f"{START}*")):
                shutil.rmtree(folder, ignore_errors=True)


def _train(run: Run, out: Path, clock: Clock, progress: Progress) -> None:
    """Trains to the end; from the newest checkpoint where there is one."""
    found = checkpoints_of(out)
    meta = load_checkpoint(found[-1][1]).meta if found else {}
    if found and meta.get("step") == meta.get("total"):
        return
    parent = os.environ.get(PARENT)

    def watched(line: str) -> None:
        clock.tick()
        progress(line)
        if parent is not None and os.getppid() != int(parent):  # whoever watched over this process is gone
            os.kill(os.getpid(), signal.SIGTERM)  # the trainer saves and stops

    if run.processes > 1:
        try:
            train_on_cores(run.recipe, run.overrides, out, processes=run.processes, say=watched)
        finally:
            clock.tick(at_once=True)
        return
    config, notices = resolve(resumable(run, out), 1)
    for line in notices:
        progress(line)
    if Trainer(config, out, watched).run().interrupted:
        clock.tick(at_once=True)
        raise Stopped


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


def _measured(run: Run, out: Path, todo: frozenset[str], record: Record, progress: Progress) -> Record:
    """The record with what was missing added."""
    rows = sorted({*record.get("rows", []), *run.wanted_by})
    known = {"key": run.key, "scale": run.scale, "seed": run.seed, "rows": rows}
    # What is only counted does not depend on how inputs are drawn: neither its key nor its record names that.
    recipe = training_recipe(run.config) if run.trained else portable(with_earlier_defaults(run.config))
    record = {**record, **known, "recipe": run.recipe.name, "config": recipe}
    if run.start is not None:
        record["start"] = training_recipe(run.start)
    elsewhere: dict[str, Any] = dict(record.get("elsewhere", {}))
    if not run.trained:
        elsewhere["cost"] = measure_cost(run.config)
        return {**record, "elsewhere": elsewhere}
    loaded = load_model(out, str(choose_device()))
    loaded = replace(loaded, config=loaded.config.model_copy(update={"data": run.config.data}))
    record |= {"steps": loaded.meta["step"], "clips": loaded.meta["clips"], "curve": validation_curve(out / LOG)}
    found = measure_own(loaded, todo, progress, run.sets.get(run.similarity_on or ""))
    if "retrieval_best" in todo and found.keys() >= {"validation", "test"}:
        for split, values in measure_best(loaded, checkpoints_of(out), progress).items():
            found[split]["retrieval_best"] = values
    for split, values in found.items():
        record[split] = {**record.get(split, {}), **values}
    for task in sorted(todo):
        match task.split("."):
            case [kind, name] if kind in (TRANSFER, TRANSFER_BANK_S):
                progress(f"measuring retrieval on {name}")
                size = vectors_in_training(run.config) if kind == TRANSFER_BANK_S else None
                clips, listed = set_clips(loaded, run.sets[name])
                elsewhere.setdefault(kind, {})[name] = measure_retrieval(loaded, clips, bank_size=size) | listed
            case [kind, name, mode] if kind == FINETUNING:
                elsewhere.setdefault(kind, {}).setdefault(name, {})[mode] = _finetuned(run, out, name, mode, progress)
    facts = {task: fact for task in sorted(todo) if (fact := task_facts(run, task)) is not None}
    return {**record, "elsewhere": elsewhere, "facts": {**record.get("facts", {}), **facts}}


def _finetuned(run: Run, out: Path, name: str, mode: str, progress: Progress) -> float:
    """Fine-tunes the run's encoders (or finds that done) and gives the recipe's own score on the test split."""
    recipe, overrides = finetune_recipe(run, name)
    tune = load_config(recipe, overrides).finetune
    assert tune is not None  # checked before anything was trained
    folder = finetune_folder(run, out, name, mode)
    progress(f"fine-tuning on {name} ({mode})")
    changes = [*overrides, f"weights={out}", f"classifier.mode={mode}", f"seed={run.seed}"]
    folds = ["--folds"] if name in BY_FOLDS else []
    arguments = ["finetune", str(recipe), *changes, *folds, "--out", str(folder)]
    run_on_cores(arguments, processes=run.processes, say=progress)
    record = json.loads((folder / RESULTS).read_text(encoding="utf-8"))
    score = record["mean" if folds else "metrics"][tune.metric]
    if score is None:
        raise TrainingError(f"{folder / RESULTS}: {tune.metric} is not defined on this test split")
    return float(score)
