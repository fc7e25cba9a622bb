"""From clips to batches: which clips a step sees is a function of (seed, step), whatever the number of processes."""

from __future__ import annotations

import signal
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.utils.data import DataLoader
from torch.utils.data import Dataset as TorchDataset

from equiav.data.datasets import Dataset, collate
from equiav.errors import DataError, EquiAVError
from equiav.randomness import generator
from equiav.types import Batch, Sample

Request = tuple[int, int]  # clip, frame


@dataclass(frozen=True)
class Schedule:
    """Which clip and frame stand in which row of which step; steps count from 0, the last partial batch is dropped."""

    clips: int
    frames: int
    batch: int
    seed: int
    weights: Tensor | None = None  # one per clip: an epoch then draws clips in proportion, with replacement
    groups: tuple[str, ...] | None = None  # one per clip: no two of a group in one batch

    def __post_init__(self) -> None:
        if self.clips < self.batch:
            raise DataError(f"{self.clips} clips do not fill one batch of {self.batch}; lower train.batch")

    @property
    def steps_per_epoch(self) -> int:
        """Whole batches in one pass over the clips."""
        return self.clips // self.batch

    def order(self, epoch: int) -> list[int]:
        """The clips in the order of one epoch."""
        rng = generator(self.seed, epoch, "order")
        if self.weights is None:
            drawn = torch.randperm(self.clips, generator=rng)
        else:
            drawn = torch.multinomial(self.weights, self.clips, replacement=True, generator=rng)
        order: list[int] = drawn.tolist()
        return order if self.groups is None else apart(order, self.groups, self.batch)

    def requests(self, start: int, stop: int) -> Iterator[list[Request]]:
        """The global batches of steps `start` up to `stop`."""
        epoch, order = -1, []
        for step in range(start, stop):
            now, k = divmod(step, self.steps_per_epoch)
            if now != epoch:
                epoch, order = now, self.order(now)
            chosen = order[k * self.batch : (k + 1) * self.batch]
            frames = torch.randint(self.frames, (self.batch,), generator=generator(self.seed, step, "frame"))
            yield list(zip(chosen, frames.tolist(), strict=True))


def apart(order: Sequence[int], groups: Sequence[str], batch: int) -> list[int]:
    """The same clips in nearly the same order, so that no batch holds two of one group.

    A clip whose group stands in the current batch already waits for the next one. What can never be placed apart
    (a group with more clips than there are batches) fills the end, where the last partial batch is dropped.
    """
    out: list[int] = []
    waiting = deque(order)
    while waiting:
        used: set[str] = set()
        held: list[int] = []
        while waiting and len(used) < batch:
            clip = waiting.popleft()
            if groups[clip] in used:
                held.append(clip)
            else:
                used.add(groups[clip])
                out.append(clip)
        if held and not waiting and len(used) < batch:
            return [*out, *held]
        waiting.extendleft(reversed(held))
    return out


class _Requested(TorchDataset[Sample | EquiAVError]):
    """A dataset addressed by (clip, frame), as worker processes want it."""

    def __init__(self, clips: Dataset) -> None:
        self.clips = clips

    def __getitem__(self, request: Request) -> Sample | EquiAVError:
        try:
            return self.clips.sample(*request)
        except EquiAVError as error:
            return error


def balanced_weights(labels: Sequence[Sequence[str]]) -> Tensor:
    """The paper's class-balancing weights: per clip the sum over its labels of 1000 / (count + 0.01)."""
    counts = Counter(label for of_clip in labels for label in of_clip)
    weights = [sum(1000 / (counts[label] + 0.01) for label in of_clip) for of_clip in labels]
    return torch.tensor(weights, dtype=torch.float64)


def training_batches(
    clips: Dataset,
    schedule: Schedule,
    *,
    start: int,
    stop: int,
    rank: int,
    world_size: int,
    workers: int,
    further_rows: Callable[[int], list[int]] | None = None,
) -> Iterator[Batch]:
    """The batches of steps `start` up to `stop` for one process: its rows of each global batch.

    `further_rows` names rows of other processes that a step needs as well (mixup); they stand behind its own.
    """
    if schedule.batch % world_size:
        raise DataError(f"a batch of {schedule.batch} cannot be shared by {world_size} processes; make it a multiple")
    share = schedule.batch // world_size
    own = range(rank * share, (rank + 1) * share)
    rows = (
        [requests[row] for row in (*own, *(further_rows(step) if further_rows else ()))]
        for step, requests in enumerate(schedule.requests(start, stop), start)
    )
    return _batches(clips, rows, workers)


def _outlive_sigterm(worker: int) -> None:
    """Schedulers signal the whole process group; the run needs its workers until it has saved and lets them go."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)


def _batches(clips: Dataset, batches: Iterable[list[Request]], workers: int) -> Iterator[Batch]:
    loader: DataLoader[Sample | EquiAVError] = DataLoader(
        _Requested(clips),
        batch_sampler=batches,
        collate_fn=_collated,
        num_workers=workers,
        worker_init_fn=_outlive_sigterm,
        pin_memory=torch.cuda.is_available(),
    )
    for batch in loader:
        if isinstance(batch, EquiAVError):
            raise batch
        yield batch


def _collated(samples: list[Sample | EquiAVError]) -> Batch | EquiAVError:
    """The batch, or the error of one of its clips: raised in a worker, its one line would become a traceback."""
    errors = [sample for sample in samples if isinstance(sample, EquiAVError)]
    return errors[0] if errors else collate([sample for sample in samples if isinstance(sample, Sample)])


def evaluation_batches(
    clips: Dataset,
    *,
    batch: int,
    workers: int = 0,
    first: int = 0,
    last: int | None = None,
    frame: int | None = None,
) -> Iterator[Batch]:
    """Clips `first` up to `last` in order, with their middle frame or the given one; nothing dropped or padded."""
    chosen = clips.frames // 2 if frame is None else frame
    numbers = [(i, chosen) for i in range(first, len(clips) if last is None else last)]
    yield from _batches(clips, [numbers[i : i + batch] for i in range(0, len(numbers), batch)], workers)
