"""Work shared out to processes that may die or hang: each costs the piece of work it had in hand, and no more."""

from __future__ import annotations

import contextlib
import multiprocessing
import signal
import sys
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from typing import Any, Generic, TypeVar

import torch

from equiav.errors import DataError

J = TypeVar("J")
R = TypeVar("R")
Task = Callable[[J, Callable[[], None]], R]

CRASHED, SLOW = "decoder crashed", "took too long"
TRIES = 2  # a process may also die for reasons that are not its file's: killed with all others, or out of memory


@dataclass(frozen=True)
class Failure:
    """Why a piece of work has no result."""

    reason: str


class _Worker(Generic[J]):
    """A process, and the work it has in hand."""

    def __init__(self, context: Any, task: Any, memory: int) -> None:
        self.connection, theirs = context.Pipe()
        self.process = context.Process(target=_serve, args=(theirs, task, memory), daemon=True)
        self.process.start()
        theirs.close()
        self.work: tuple[J, int] | None = None  # the job, and how often it was tried before
        self.seen = time.monotonic()

    def give(self, work: tuple[J, int]) -> None:
        """Hands it a job."""
        self.work, self.seen = work, time.monotonic()
        # One that died idle cannot take it; that is noticed with the next messages.
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            self.connection.send(work[0])

    def end(self) -> None:
        """Ends the process, whatever it is doing."""
        self.connection.close()
        self.process.kill()
        self.process.join()


def _serve(connection: Connection, task: Any, memory: int) -> None:
    """The life of a worker: ends when its parent does."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent decides what an interruption means
    torch.set_num_threads(1)
    _limit_memory(memory)
    try:
        while True:
            job = connection.recv()
            try:
                result = task(job, lambda: connection.send(("tick", None)))
            except (OSError, DataError) as error:
                connection.send(("fatal", str(error)))
                return
            connection.send(("done", result))
    except (EOFError, BrokenPipeError, ConnectionResetError):
        return


def _limit_memory(memory: int) -> None:
    if sys.platform == "linux":
        import resource

        hard = resource.getrlimit(resource.RLIMIT_DATA)[1]
        limit = memory if hard == resource.RLIM_INFINITY else min(memory, hard)
        resource.setrlimit(resource.RLIMIT_DATA, (limit, hard))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def run_isolated(
    task: Task[J, R], jobs: Iterable[J], *, workers: int, patience: float, memory: int = 4 << 30
) -> Iterator[tuple[J, R | Failure]]:
    """Results in the order of completion. `task` gets a job and a function to call as a sign of life.

    A process that dies is replaced and its job tried once more; one silent for `patience` seconds is killed.
    `memory` bounds the bytes each process may allocate.
    """
    if workers < 1:
        raise DataError(f"at least one worker process is needed, not {workers}")
    # A server without threads forks the workers: quick to replace, and safe whatever this process runs.
    context: Any = multiprocessing.get_context("forkserver" if sys.platform == "linux" else "spawn")
    if sys.platform == "linux":
        context.set_forkserver_preload(["equiav.data.cutting"])
    crew = _Crew(jobs, lambda: _Worker(context, task, memory), workers)
    try:
        while busy := crew.busy():
            for worker, message in _messages(busy, patience):
                yield from crew.conclude(worker, message)
    finally:
        crew.dismiss()


class _Crew(Generic[J]):
    """The workers, and the work that waits for them."""

    def __init__(self, jobs: Iterable[J], hire: Callable[[], _Worker[J]], most: int) -> None:
        self.waiting, self.again = iter(jobs), deque[tuple[J, int]]()
        self.hire, self.most = hire, most
        self.workers: list[_Worker[J]] = []

    def busy(self) -> list[_Worker[J]]:
        """All who have work, after handing out what there is."""
        while True:
            idle = next((worker for worker in self.workers if worker.work is None), None)
            if idle is None and len(self.workers) >= self.most:
                break
            work = self.again.popleft() if self.again else next(((job, 0) for job in self.waiting), None)
            if work is None:
                break
            if idle is None:
                idle = self.hire()
                self.workers.append(idle)
            idle.give(work)
        return [worker for worker in self.workers if worker.work is not None]

    def conclude(self, worker: _Worker[J], message: tuple[str, Any]) -> Iterator[tuple[J, Any]]:
        """What a message means for the work in hand: its result, its failure, or nothing yet."""
        assert worker.work is not None
        job, tries = worker.work
        match message:
            case ("tick", _):
                worker.seen = time.monotonic()
                return
            case ("fatal", reason):
                raise DataError(str(reason))
            case ("done", result):
                worker.work = None
                yield job, result
                return
        self.workers.remove(worker)
        worker.end()
        if message[0] == "slow":
            yield job, Failure(SLOW)
        elif tries + 1 < TRIES:
            self.again.append((job, tries + 1))
        else:
            yield job, Failure(CRASHED)

    def dismiss(self) -> None:
        """Ends all processes."""
        for worker in self.workers:
            worker.end()


def _messages(busy: list[_Worker[J]], patience: float) -> Iterator[tuple[_Worker[J], tuple[str, Any]]]:
    """What workers say, and what their silence means."""
    by_connection = {worker.connection: worker for worker in busy}
    for ready in wait(list(by_connection), timeout=0.5):
        worker = by_connection[ready]
        try:
            yield worker, worker.connection.recv()
        except (EOFError, ConnectionResetError):
            yield worker, ("crash", None)
        except Exception:  # half a message from a process that was killed while sending
            yield worker, ("crash", None)
        by_connection.pop(worker.connection, None)
    for worker in by_connection.values():
        if time.monotonic() - worker.seen > patience:
            yield worker, ("slow", None)
