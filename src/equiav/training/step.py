"""One training step, whole or in micro-batches; and batches brought to the device ahead of their step."""

from __future__ import annotations

import multiprocessing
import signal
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from equiav.distributed import RESUME, rank
from equiav.errors import TrainingError
from equiav.objectives import Draws, Objective, Outputs
from equiav.objectives.base import LOG
from equiav.types import Batch

Portion = tuple[slice, Batch, Draws]  # rows of a batch, and what they take of it


@dataclass(frozen=True)
class StepOutput:
    """What a step leaves beside the gradient, detached: the loss terms with `total`, and the objective's outputs."""

    terms: dict[str, Tensor]
    outputs: Outputs


@dataclass(frozen=True)
class Step:
    """What a step needs: the objective, the module that synchronises its gradients, and the precision."""

    objective: Objective
    module: nn.Module  # the objective, or DDP around it
    micro_batch: int | None
    autocast: torch.dtype | None

    def __call__(self, batch: Batch, draws: Draws, step: int, total: int) -> StepOutput:
        """Leaves the gradient of `total` in the parameters; `step` counts from 1."""
        size = self.micro_batch
        if size is None or size >= len(batch):
            outputs = self._forward(self.module, batch, draws)
            terms = self.objective.losses(outputs, step, total)
            terms["total"].backward()  # type: ignore[no-untyped-call]
            return _detached(terms, outputs)
        parts = [slice(i, min(i + size, len(batch))) for i in range(0, len(batch), size)]
        portions = [(p, batch.rows(p.start, p.stop), draws.rows(p.start, p.stop)) for p in parts]
        run = self._summed if self.objective.separable else self._cached
        return run(portions, len(batch), step, total)

    def _forward(self, module: nn.Module, batch: Batch, draws: Draws) -> Outputs:
        context = nullcontext() if self.autocast is None else torch.autocast(batch.device.type, dtype=self.autocast)
        with context:
            outputs = module(batch, draws)
        # Losses are always taken in at least single precision.
        low = (torch.bfloat16, torch.float16)
        return {name: x.float() if x.dtype in low else x for name, x in outputs.items()}

    def _synchronised(self, last: bool) -> AbstractContextManager[object]:
        """Ranks exchange gradients once per step, with the last portion."""
        if isinstance(self.module, DistributedDataParallel) and not last:
            return self.module.no_sync()
        return nullcontext()

    def _summed(self, portions: list[Portion], count: int, step: int, total: int) -> StepOutput:
        """Micro-batches of a loss that is a mean over clips: each adds its share."""
        summed: dict[str, Tensor] = {}
        found = []
        for part, batch, draws in portions:
            with self._synchronised(part.stop == count):
                outputs = self._forward(self.module, batch, draws)
                share = (part.stop - part.start) / count
                terms = {k: v * share for k, v in self.objective.losses(outputs, step, total).items()}
                terms["total"].backward()
            summed = {k: v.detach() + summed[k] if k in summed else v.detach() for k, v in terms.items()}
            found.append(outputs)
        return _detached(summed, {name: torch.cat([part[name] for part in found]) for name in found[0]})

    def _cached(self, portions: list[Portion], count: int, step: int, total: int) -> StepOutput:
        """The same gradient with the memory of one portion, for losses that compare clips (gradient cache).

        All outputs are computed without a graph, the loss is differentiated with respect to them, and then each
        portion is computed again, the same draws with it, to carry its share of that gradient to the weights.
        """
        with torch.no_grad():
            found = [self._forward(self.objective, batch, draws) for _, batch, draws in portions]
        whole = {name: torch.cat([part[name] for part in found]) for name in found[0]}
        leaves = {name: x.requires_grad_() for name, x in whole.items() if not name.startswith(LOG)}
        terms = self.objective.losses(whole, step, total)
        gradients = dict(zip(leaves, torch.autograd.grad(terms["total"], list(leaves.values())), strict=True))
        for part, batch, draws in portions:
            with self._synchronised(part.stop == count):
                outputs = self._forward(self.module, batch, draws)
                shares = [(outputs[name] * g[part]).sum() for name, g in gradients.items()]
                torch.stack(shares).sum().backward()  # type: ignore[no-untyped-call]
        return _detached(terms, whole)


def _detached(terms: dict[str, Tensor], outputs: Outputs) -> StepOutput:
    return StepOutput({k: v.detach() for k, v in terms.items()}, {k: v.detach() for k, v in outputs.items()})


@contextmanager
def worker_failures() -> Iterator[None]:
    """Makes one line of what torch raises, anywhere in the block, when a worker of the loader was killed."""
    try:
        yield
    except (RuntimeError, TimeoutError, ConnectionError, EOFError) as error:
        # One that dies while it hands a tensor over breaks a connection, of which torch says nothing more.
        if isinstance(error, RuntimeError) and "DataLoader" not in str(error):
            raise
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # torch would raise once more for each worker that ends now
        for worker in multiprocessing.active_children():
            worker.kill()  # a stopped one hears nothing else, and the end of this process would wait for it
        what = error if isinstance(error, TimeoutError) else "lost a worker, killed perhaps for want of memory"
        raise TrainingError(f"rank {rank()}: the loader {what}; {RESUME}") from error


def timed(batches: Iterator[Batch], timeout: float) -> Iterator[Batch]:
    """The batches; TimeoutError where one takes longer than `timeout` seconds.

    By an alarm, since the loader's own time-out does not cover a worker that stops while it hands a tensor over.
    """

    def ring(number: int, frame: object) -> None:
        raise TimeoutError(f"gave no batch for {timeout:g} s (train.timeout)")

    before = signal.signal(signal.SIGALRM, ring)
    try:
        while True:
            signal.setitimer(signal.ITIMER_REAL, timeout)
            batch = next(batches, None)
            signal.setitimer(signal.ITIMER_REAL, 0)
            if batch is None:
                return
            yield batch
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def prefetch(batches: Iterable[Batch], device: torch.device) -> Iterator[Batch]:
    """The batches in their order, on `device`, one ahead: on a GPU copies have a stream of their own.

    A step waits for its own result before it asks for the next batch, so that a copy begun only then would leave the
    GPU idle.
    """
    if device.type != "cuda":
        for batch in batches:
            yield batch.to(device)
        return
    copies = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
    before: tuple[Batch, Any] | None = None
    for batch in batches:
        with torch.cuda.stream(copies):
            begun = batch.to(device), copies.record_event()
        if before is not None:
            yield _arrived(*before, device)
        before = begun
    if before is not None:
        yield _arrived(*before, device)


def _arrived(batch: Batch, arrival: Any, device: torch.device) -> Batch:
    """The batch, for work on the device's current stream, which waits for this copy and no later one."""
    stream = torch.cuda.current_stream(device)
    stream.wait_event(arrival)
    for x in batch.tensors():
        x.record_stream(stream)  # allocated on the copies' stream: not to be reused before the step is done
    return batch
