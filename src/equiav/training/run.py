"""A run of any kind: steps, logs, checkpoints; interrupted and resumed it ends where an uninterrupted one does."""

from __future__ import annotations

import inspect
import logging
import shutil
import signal
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any, ClassVar, cast

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from equiav.checkpoint import CHECKPOINTS, STEP, checkpoints_of, load_checkpoint, load_state
from equiav.config import Config
from equiav.data import ClipDataset, Schedule, training_batches
from equiav.distributed import broadcast_flag, everyone, rank, world_size
from equiav.errors import CheckpointError, EquiAVError, TrainingError
from equiav.inference import BANK
from equiav.models import load_strict
from equiav.training.ahead import on_device
from equiav.training.guards import refuse_changed, refuse_nan
from equiav.training.log import Progress, RunLog
from equiav.training.optim import adamw, optimiser_tensors, restore_optimiser, set_rate, update_average
from equiav.training.schedule import WarmupCosine
from equiav.types import Batch

log = logging.getLogger(__name__)

Say = Callable[[str], None]
Weights = dict[str, Tensor]
RAW = "raw."  # weights as trained, kept in the state where the checkpoint's own are the moving average


@dataclass(frozen=True)
class Outcome:
    """How a run ended: the last step, and whether it was told to stop before its time."""

    step: int
    total: int
    interrupted: bool


@dataclass(frozen=True)
class Taken:
    """What a step leaves for guards and logs, beside the gradient.

    `outputs` have a row for each clip of this process; `values` are worked out by all processes together, when the
    step is logged.
    """

    loss: Tensor
    outputs: list[Tensor]
    values: Callable[[], dict[str, float]]


def choose_device() -> torch.device:
    """A GPU of this process where there is one."""
    if torch.cuda.is_available():
        return torch.device("cuda", rank() % torch.cuda.device_count())
    return torch.device("cpu")


def autocast_type(precision: str, device: torch.device) -> torch.dtype | None:
    """bfloat16 where the hardware gains from it; a processor does not."""
    if precision == "bfloat16" or (precision == "auto" and device.type == "cuda" and torch.cuda.is_bf16_supported()):
        return torch.bfloat16
    return None


def prepare_folder(out: Path) -> None:
    """Makes the folder of a run and tries to write there, before anything expensive."""
    try:
        (out / CHECKPOINTS).mkdir(parents=True, exist_ok=True)
        probe = out / f".probe-{rank()}"
        probe.touch()
        probe.unlink()
    except OSError as error:
        raise TrainingError(f"{out}: cannot be written ({error.strerror})") from error


def distributed_module(objective: nn.Module, devices: list[int] | None) -> nn.Module:
    """The objective under DDP; its buffers never change, so no step sends them."""
    names = inspect.signature(DistributedDataParallel).parameters
    key = "forward_sync_buffers" if "forward_sync_buffers" in names else "broadcast_buffers"  # renamed in torch 2.13
    return DistributedDataParallel(objective, devices, **cast(Any, {key: False}))


class Run(ABC):
    """One recipe in one folder. A subclass says what a step computes, how weights are stored, what is evaluated."""

    kind: ClassVar[str]  # what its checkpoints call themselves

    def __init__(
        self,
        config: Config,
        out: Path,
        say: Say,
        *,
        clips: ClipDataset,
        schedule: Schedule,
        model: nn.Module,
        objective: nn.Module,
        scales: Mapping[str, float] | None = None,
    ) -> None:
        self.config, self.out, self.say = config, out, say
        self.clips, self.schedule, self.model, self.objective = clips, schedule, model, objective
        self.device = next(model.parameters()).device
        train, optim, per_epoch = config.train, config.optim, schedule.steps_per_epoch
        self.total = train.steps or max(1, round((train.epochs or 0) * per_epoch))
        warmup = optim.warmup_steps if optim.warmup_steps is not None else round((optim.warmup_epochs or 0) * per_epoch)
        self.rate = WarmupCosine(optim.rate, self.total, warmup, optim.start_rate, optim.final_rate)
        self.optimiser = adamw(
            objective, rate=optim.rate, weight_decay=optim.weight_decay, betas=optim.betas, scales=scales
        )
        self.autocast = autocast_type(train.precision, self.device)
        self.module = objective  # under DDP once the loop begins
        self.average = {k: v.clone() for k, v in model.state_dict().items()} if train.ema else None
        self.step = self._resume()
        self._stop = False

    @abstractmethod
    def _gradient(self, batch: Batch) -> Taken:
        """Leaves the gradient of the step in the parameters."""

    @abstractmethod
    def _start_from(self, path: Path) -> None:
        """Loads the recipe's starting weights."""

    @abstractmethod
    def _store(self, path: Path, weights: Weights, meta: dict[str, Any], state: Weights | None) -> None:
        """Writes a checkpoint folder."""

    @abstractmethod
    def _evaluate(self, journal: RunLog | None) -> None:
        """Called after every step: evaluates when it is time."""

    def _remember(self, meta: dict[str, Any]) -> None:
        """Takes back what `_facts` put into a checkpoint."""
        return

    def _facts(self) -> dict[str, Any]:
        """What a checkpoint's meta.json says beside step, length and number of clips."""
        return {}

    def _visitors(self, step: int) -> list[int]:
        """Rows of a step's global batch that this process reads beside its own."""
        return []

    def _resume(self) -> int:
        """Loads the newest checkpoint of the folder, or the given starting weights; returns the step it stands at."""
        found = checkpoints_of(self.out)
        if not found:
            if self.config.weights:
                self._start_from(Path(self.config.weights))
                if self.average is not None:
                    self.average = {k: v.clone() for k, v in self.model.state_dict().items()}
            return 0
        step, path = found[-1]
        checkpoint = load_checkpoint(path)
        refuse_changed(checkpoint.config, self.config, path)
        clips = checkpoint.meta.get("clips")
        if clips != len(self.clips):
            raise CheckpointError(
                f"{path}: was made with {clips} clips, now there are {len(self.clips)}; use a new --out"
            )
        if len(set(everyone([step]))) > 1:
            raise CheckpointError(f"{self.out}: processes see different checkpoints; it must be a folder they share")
        state = load_state(path)
        raw = {k.removeprefix(RAW): v for k, v in state.items() if k.startswith(RAW)}
        weights = {k: v for k, v in checkpoint.weights.items() if not k.startswith(BANK)}
        load_strict(self.model, raw or weights, str(path))
        restore_optimiser(self.objective, self.optimiser, state)
        if self.average is not None:
            self.average = {k: v.to(self.device) for k, v in weights.items()}
        self._remember(checkpoint.meta)
        return step

    def run(self) -> Outcome:
        """Trains to the end, or until told to stop; SIGTERM saves and returns."""
        before = signal.signal(signal.SIGTERM, self._on_signal)
        journal = RunLog(self.out, self.step) if rank() == 0 else None
        try:
            if self.step < self.total:
                self._loop(journal)
        finally:
            signal.signal(signal.SIGTERM, before)
            if journal:
                journal.close()
        return Outcome(self.step, self.total, self.step < self.total)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        self._stop = True

    def _loop(self, journal: RunLog | None) -> None:
        train = self.config.train
        if world_size() > 1:
            devices = [self.device.index] if self.device.type == "cuda" else None
            self.module = distributed_module(self.objective, devices)
        batches = training_batches(
            self.clips, self.schedule, start=self.step, stop=self.total,
            rank=rank(), world_size=world_size(), workers=train.workers, visitors=self._visitors,
        )  # fmt: skip
        progress = Progress(self.total, self.step, self.say if rank() == 0 else _silent)
        for batch in on_device(cast(Iterable[Batch], batches), self.device):
            self._take(batch, journal, progress)
            stop = broadcast_flag(self._stop)
            if stop or self.step % train.checkpoint_every == 0 or self.step == self.total:
                self._save()
            if stop:
                break

    def _take(self, batch: Batch, journal: RunLog | None, progress: Progress) -> None:
        """One step: draws, losses, update, records."""
        rate = self.rate(self.step)
        set_rate(self.optimiser, rate)
        self.optimiser.zero_grad(set_to_none=True)
        taken = self._gradient(batch)
        norm = self._clip()
        refuse_nan(taken.loss, norm, taken.outputs, batch.names[: len(taken.outputs[0])], self.step + 1)
        self.optimiser.step()
        self.step += 1
        train = self.config.train
        if self.average is not None and train.ema:
            update_average(self.average, self.model, train.ema)
        progress.update(self.step, f"loss {float(taken.loss):.3f}")
        if self.step % train.log_every == 0 or self.step in (1, self.total):
            values = taken.values()
            if journal:
                journal.write("train", self.step, {**values, "rate": rate, "gradient_norm": norm})
        self._evaluate(journal)

    def _clip(self) -> float:
        """Clips the gradient where the recipe says so; its norm before that."""
        limit = self.config.optim.clip
        if limit is not None:
            return float(nn.utils.clip_grad_norm_(self.objective.parameters(), limit))
        return float(nn.utils.get_total_norm([p.grad for p in self.objective.parameters() if p.grad is not None]))

    def _rows(self) -> tuple[int, int]:
        """Which rows of the global batch belong to this process."""
        share = self.config.train.batch // world_size()
        return rank() * share, (rank() + 1) * share

    def _save(self) -> None:
        """The checkpoint of this step; those no longer kept go."""
        self._first_process(self._write)

    def _first_process(self, write: Callable[[], None]) -> None:
        """The first process writes; where it cannot, all stop."""
        failure: EquiAVError | None = None
        if rank() == 0:
            try:
                write()
            except EquiAVError as error:
                failure = error
        failed = broadcast_flag(failure is not None)
        if failure:
            raise failure
        if failed:
            raise TrainingError(f"{self.out}: the first process could not write its checkpoint")

    def _write(self) -> None:
        state = optimiser_tensors(self.objective, self.optimiser)
        weights = self.model.state_dict()
        if not all(bool(value.isfinite().all()) for value in weights.values()):
            raise TrainingError(
                f"the weights are no numbers any more at step {self.step}; the checkpoint before it stays"
            )
        if self.average is not None:
            state |= {RAW + k: v for k, v in weights.items()}
            weights = self.average
        self._store(self.out / CHECKPOINTS / f"{STEP}{self.step:08d}", weights, self._meta(), state)
        for _, old in checkpoints_of(self.out)[: -self.config.train.keep]:
            shutil.rmtree(old, ignore_errors=True)
        for draft in (self.out / CHECKPOINTS).glob(".*"):  # what a kill left half-written
            shutil.rmtree(draft, ignore_errors=True)

    def _meta(self) -> dict[str, Any]:
        return {
            "kind": self.kind, "step": self.step, "total": self.total, "clips": len(self.clips), **self._facts(),
        }  # fmt: skip


def _silent(line: str) -> None:
    pass
