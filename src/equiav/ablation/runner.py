"""Runs of several tables side by side: one process each, a failed one does not stop the others, all resumable."""

from __future__ import annotations

import os
import re
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from equiav.ablation.plan import Experiment, Run
from equiav.ablation.records import OUTPUT, PARENT, Folders, missing
from equiav.errors import EquiAVError
from equiav.io import duration, write_whole

BUSY = 75  # exit code of a worker: another process has the run
KEPT = 20  # last lines of a failed run
AGAIN = 30.0  # seconds until a run that another process has is looked at again
POLL = 0.2  # seconds between two looks at the workers
MEASURING = 0.95  # of a run is training
SPOKEN = 15.0  # seconds between two lines of progress
STEP = re.compile(r"step (\d+)/(\d+)")
Say = Callable[[str], None]


@dataclass(frozen=True)
class Outcome:
    """How a session ended: runs that were done before, done now, and failed (with their reason)."""

    before: int
    done: int
    failed: dict[str, str]
    interrupted: bool


@dataclass
class _Worker:
    run: Run
    process: subprocess.Popen[bytes]
    output: Path

    def share(self) -> float:
        """How much of the run is done, by the last step it has told of; the rest is measuring."""
        with self.output.open("rb") as file:
            file.seek(max(0, self.output.stat().st_size - 4000))
            steps = STEP.findall(file.read().decode(errors="replace"))
        return MEASURING * int(steps[-1][0]) / max(1, int(steps[-1][1])) if steps else 0.0


@dataclass
class Runner:
    """A queue of runs and the processes that work on it; `command` gives the arguments of a run's worker."""

    folders: Folders
    command: Callable[[Run], list[str]]
    processes: int
    say: Say
    failed: dict[str, str] = field(default_factory=dict)
    done: int = 0
    _working: list[_Worker] = field(default_factory=list)
    _stop: bool = False

    def run(self, runs: Sequence[Run]) -> Outcome:
        """Does all runs that are not done; a signal stops the workers, who save."""
        queue = [run for run in runs if missing(run, self.folders)]
        before = len(runs) - len(queue)
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
        return Outcome(before, self.done, self.failed, self._stop)

    def _on_signal(self, number: int, frame: object) -> None:
        self._stop = True

    def _loop(self, queue: list[Run]) -> None:
        total, began, said = len(queue), time.monotonic(), 0.0
        not_before: dict[str, float] = {}
        while (queue or self._working) and not self._stop:
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
                    not_before[worker.run.key] = now + AGAIN
                else:
                    self._ended(worker)
            if now - said >= SPOKEN:
                said = now
                self._speak(total, now - began)
            time.sleep(POLL)

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
        lines = worker.output.read_text(encoding="utf-8", errors="replace").splitlines()[-KEPT:]
        reasons = [line.removeprefix("equiav: ") for line in lines if line.startswith("equiav: ")]
        reason = (reasons or lines or ["no output"])[-1] + ("" if reasons else f" (exit code {code})")
        self.failed[run.label] = reason
        kept = [f"{run.label}", f"exit code {code}", shlex.join(["equiav", *self.command(run)]), "", *lines]
        write_whole(self.folders.failure(run), "\n".join(kept) + "\n")
        self.say(f"FAILED {run.label}: {reason}")

    def _speak(self, total: int, elapsed: float) -> None:
        finished = self.done + len(self.failed)
        progress = finished + sum(worker.share() for worker in self._working)
        left = duration((total - progress) * elapsed / progress) if progress > 0.05 else "unknown time"
        failed = f", {len(self.failed)} failed" if self.failed else ""
        now = "; ".join(f"{w.run.label} {100 * w.share():.0f} %" for w in self._working)
        self.say(f"{self.done} of {total} runs done{failed}, {left} left [{now}]")


def worker_arguments(
    experiments: Sequence[Experiment], run: Run, folders: Folders, *, extra: tuple[str, ...], discard: bool
) -> list[str]:
    """The arguments of `equiav` that do one run alone: for our own workers, and for a scheduler."""
    wanting = {label.split(": ")[0] for label in run.wanted_by}
    files = [str(e.path) for e in experiments if e.name in wanting]
    if not files:
        raise EquiAVError(f"run {run.key}: no table wants it")
    more = [part for override in extra for part in ("--set", override)]
    places = ["--runs", str(folders.runs), "--results", str(folders.results)]
    return [
        "ablate", *files, "--scale", run.scale, "--only", run.key, *places, *more, *(["--discard"] if discard else []),
    ]  # fmt: skip
