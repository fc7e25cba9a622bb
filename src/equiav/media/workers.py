"""Work in processes that may die, hang or ask for too much memory: each costs the job it had in hand, and no more.

Media that nobody vouches for are decoded there: a decoder that crashes, loops or allocates without end is killed.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import pickle
import signal
import sys
import threading
import time
from collections.abc import Callable, Generator, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from functools import partial
from io import FileIO
from itertools import islice
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from equiav.errors import DataError, EquiAVError, MediaError
from equiav.media.container import Limits

J = TypeVar("J")
R = TypeVar("R")

CRASHED, SLOW, TOO_LARGE = "decoder crashed", "took too long", "took too much memory"
START_SECONDS = 120.0
PATIENCE = 1.5 * Limits().wall + 5  # decoding counts its own time, and should notice first
MEMORY = 4 << 30
KEPT = 31 << 20  # bytes; of larger ones it learns nothing
LOOK_SECONDS = 0.25  # how often the time of a job is looked at

_START = threading.Lock()  # the environment is everybody's
_tick: Callable[[], None] = lambda: None  # noqa: E731 - replaced in worker processes


def tick() -> None:
    """A sign of life from inside a long job, which starts its time anew; does nothing outside a worker process."""
    _tick()


class Failure(EquiAVError):
    """Why a job has no result: its process crashed, took too long or too much memory."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class Workers:
    """Processes in which functions are called; started when needed, used again, replaced when they die.

    A job whose process dies is tried once more; one that gives no sign of life (`tick`, or a result of `stream`) for
    `patience` seconds is killed, after `hurry` seconds already while other calls wait for a process. `memory` bounds
    the bytes each process may allocate. Calls may come from several threads; `count` of them run at a time. Modules in
    `preload` are imported once for all processes.
    """

    def __init__(
        self,
        count: int = 1,
        *,
        patience: float = PATIENCE,
        hurry: float | None = None,
        memory: int = MEMORY,
        niceness: int = 0,
        preload: tuple[str, ...] = ("equiav.media",),
    ) -> None:
        if count < 1:
            raise DataError(f"at least one worker process is needed, not {count}")
        self.count, self.patience, self.hurry = count, patience, hurry
        self.memory, self.niceness = memory, niceness
        # A server without threads forks the workers: quick to replace, and safe whatever this process runs.
        self._context: Any = multiprocessing.get_context("forkserver" if sys.platform == "linux" else "spawn")
        if sys.platform == "linux":
            self._context.set_forkserver_preload(list(preload))
        self._free = threading.Semaphore(count)
        self._lock = threading.Lock()
        self._waiting = 0
        self._idle: list[_Worker] = []
        self._all: set[_Worker] = set()
        self._closed = False

    def __enter__(self) -> Workers:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Ends all processes, whatever they are doing; calls in progress fail."""
        with self._lock:
            self._closed = True
            idle, self._idle = self._idle, []
            for worker in self._all:
                worker.process.kill()  # those at work are put away by the calls that wait for them
        for worker in idle:
            self._end(worker)

    def call(self, function: Callable[..., R], *arguments: Any) -> R:
        """What the function gives or raises (errors of the package) there; `Failure` if it does not come to that."""
        with self._turn():
            try:
                (result,) = self._answers(function, arguments, streamed=False)
            except Failure as failure:
                if failure.reason != CRASHED:
                    raise
                # A process may also die for reasons that are not its file's: killed with all others, or out of memory.
                (result,) = self._answers(function, arguments, streamed=False)
            found: R = result
            return found

    def stream(self, function: Callable[..., Iterator[R]], *arguments: Any) -> Generator[R, None, None]:
        """The results of a function that yields them, each as soon as it is there; errors as for `call`.

        It is begun once only, and its process is ended if the caller does not want the rest.
        """
        with self._turn():
            yield from self._answers(function, arguments, streamed=True)

    def _answers(
        self, function: Callable[..., Any], arguments: tuple[Any, ...], *, streamed: bool
    ) -> Generator[Any, None, None]:
        worker, kind = self._take(), ""
        try:
            kind, answer = worker.ask((function, arguments, streamed), self._patience)
            while kind == "item":
                yield answer
                kind, answer = worker.message(self._patience)
        finally:
            self._put_back(worker, usable=kind in ("done", "raised"))
        if kind == "raised":
            raise answer
        if kind != "done":
            raise Failure(SLOW if kind == "slow" else CRASHED)

    def map(self, function: Callable[[J], R], jobs: Iterable[J]) -> Iterator[tuple[J, R | Failure]]:
        """Every job with its result, in the order of completion; errors other than failures end the work."""
        waiting, pending = iter(jobs), dict[Future[R], J]()
        with ThreadPoolExecutor(self.count) as threads:
            try:
                while True:
                    # As many again wait their turn, so that no process is idle while results are dealt with.
                    for job in islice(waiting, 2 * self.count - len(pending)):
                        pending[threads.submit(self.call, function, job)] = job
                    if not pending:
                        return
                    for future in wait(pending, return_when=FIRST_COMPLETED).done:
                        job, error = pending.pop(future), future.exception()
                        if error is not None and not isinstance(error, Failure):
                            raise error
                        yield job, future.result() if error is None else error
            finally:
                for future in pending:
                    future.cancel()
                if pending:
                    self.close()

    @contextlib.contextmanager
    def _turn(self) -> Iterator[None]:
        """Waits until one of `count` processes may be used."""
        with self._lock:
            self._waiting += 1
        try:
            self._free.acquire()
        finally:
            with self._lock:
                self._waiting -= 1
        try:
            yield
        finally:
            self._free.release()

    def _patience(self) -> float:
        return self.patience if self.hurry is None or not self._waiting else min(self.hurry, self.patience)

    def _take(self) -> _Worker:
        with self._lock:
            if self._closed:
                raise Failure(CRASHED)
            if self._idle:
                return self._idle.pop()
            worker = _Worker(self._context, self.memory, self.niceness)
            self._all.add(worker)
        if worker.message(lambda: START_SECONDS)[0] != "ready":
            self._end(worker)
            raise DataError(
                "a worker process did not start; a script that prepares or decodes media must do so under "
                '`if __name__ == "__main__":`'
            )
        return worker

    def _put_back(self, worker: _Worker, *, usable: bool) -> None:
        with self._lock:
            usable = usable and not self._closed
            if usable:
                self._idle.append(worker)
        if not usable:
            self._end(worker)

    def _end(self, worker: _Worker) -> None:
        with self._lock:
            self._all.discard(worker)
        worker.process.kill()
        worker.process.join()
        worker.connection.close()


class _Worker:
    """A process, and the line to it."""

    def __init__(self, context: Any, memory: int, niceness: int) -> None:
        self.connection, theirs = context.Pipe()
        self.process = context.Process(target=_serve, args=(theirs, memory, niceness), daemon=True)
        with _START, _one_thread():
            self.process.start()
        theirs.close()

    def ask(
        self, job: tuple[Callable[..., Any], tuple[Any, ...], bool], patience: Callable[[], float]
    ) -> tuple[str, Any]:
        """Its answer to a job."""
        # One that died idle cannot take it; that is noticed with the next message.
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            self.connection.send(job)
        # The first tick says that it has the job: modules may have to be loaded.
        message = self.message(lambda: START_SECONDS)
        while message[0] == "tick":
            message = self.message(patience)
        return message

    def message(self, patience: Callable[[], float]) -> tuple[str, Any]:
        """The next message: "crash" from a process that died, "slow" if none comes for as long as is allowed."""
        began = time.monotonic()
        try:
            while (left := began + patience() - time.monotonic()) > 0:
                if self.connection.poll(min(left, LOOK_SECONDS)):
                    return _receive(self.connection)
            return "slow", None
        except Exception:  # no more messages, or half of one from a process that was killed while sending
            return "crash", None


@contextlib.contextmanager
def _one_thread() -> Iterator[None]:
    """What is started meanwhile computes with one thread: numpy and torch look when they are imported, then no more."""
    before = os.environ.get("OMP_NUM_THREADS")
    os.environ["OMP_NUM_THREADS"] = "1"
    try:
        yield
    finally:
        if before is None:
            del os.environ["OMP_NUM_THREADS"]
        else:
            os.environ["OMP_NUM_THREADS"] = before


def _serve(connection: Connection, memory: int, niceness: int) -> None:
    """The life of a worker: ends when its parent does."""
    global _tick
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent decides what an interruption means
    os.environ["OMP_NUM_THREADS"] = "1"  # for a job that needs torch, where somebody else had started the server
    if "torch" in sys.modules:
        sys.modules["torch"].set_num_threads(1)
    if niceness and hasattr(os, "nice"):
        os.nice(niceness)
    _limit_memory(memory)
    keep_memory()
    _tick = lambda: _send(connection, ("tick", None))  # noqa: E731
    try:
        _send(connection, ("ready", None))
        while True:
            function, arguments, streamed = connection.recv()
            _tick()
            try:
                result = function(*arguments)
                for item in result if streamed else (result,):
                    _send(connection, ("item", item))
                answer: tuple[str, Any] = ("done", None)
            except MemoryError:
                answer = ("raised", Failure(TOO_LARGE))
            except EquiAVError as error:
                answer = ("raised", error)
            except OSError as error:
                answer = ("raised", DataError(str(error)))
            _send(connection, answer)
    except (EOFError, BrokenPipeError, ConnectionResetError):
        return


def decoded_in(workers: Workers | None, function: Callable[..., R], path: Path, **settings: Any) -> R:
    """`function(path, **settings)` in a worker process, or here without workers; if that fails, the file is refused."""
    if workers is None:
        return function(path, **settings)
    with _refused(path):
        return workers.call(partial(function, path, **settings))


def streamed_in(
    workers: Workers | None, function: Callable[..., Iterator[R]], path: Path, **settings: Any
) -> Iterator[R]:
    """The same for a function that yields its results."""
    if workers is None:
        yield from function(path, **settings)
    else:
        with _refused(path):
            yield from workers.stream(partial(function, path, **settings))


@contextlib.contextmanager
def _refused(path: Path) -> Iterator[None]:
    try:
        yield
    except Failure as failure:
        raise MediaError(path, failure.reason) from None


def _send(connection: Connection, message: tuple[str, Any]) -> None:
    """A message to the parent; its arrays follow as they are, which takes a third of the time of pickling them."""
    buffers: list[pickle.PickleBuffer] = []
    apart = None if sys.platform == "win32" else buffers.append  # whose pipes are no files
    content = pickle.dumps(message, protocol=5, buffer_callback=apart)
    views = [buffer.raw() for buffer in buffers]
    connection.send_bytes(pickle.dumps((content, [len(view) for view in views])))
    for view in views:
        while len(view):
            view = view[os.write(connection.fileno(), view) :]


def _receive(connection: Connection) -> tuple[str, Any]:
    content, sizes = pickle.loads(connection.recv_bytes())
    buffers = [np.empty(size, np.uint8) for size in sizes]
    for buffer in buffers:
        file, rest = FileIO(connection.fileno(), closefd=False), buffer.data
        while len(rest):
            count = file.readinto(rest)
            if not count:
                raise EOFError
            rest = rest[count:]
    message: tuple[str, Any] = pickle.loads(content, buffers=buffers)
    return message


def keep_memory() -> None:
    """Frees a large block: glibc then keeps blocks up to that size, before it hands each back and has it cleared."""
    bytearray(KEPT)


def _limit_memory(memory: int) -> None:
    if sys.platform == "linux":
        import resource

        hard = resource.getrlimit(resource.RLIMIT_DATA)[1]
        limit = memory if hard == resource.RLIM_INFINITY else min(memory, hard)
        resource.setrlimit(resource.RLIMIT_DATA, (limit, hard))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
