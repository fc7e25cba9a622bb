"""The run: steps, evaluation, checkpoints; interrupted and resumed it ends where an uninterrupted one does."""

from __future__ import annotations

import inspect
import logging
import shutil
import signal
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from equiav.build import build_bank, build_inputs, build_model, build_pipelines
from equiav.build_data import build_clips, build_schedule
from equiav.checkpoint import CHECKPOINTS, STEP, checkpoints_of, load_checkpoint, load_state
from equiav.config import Config
from equiav.data.dataset import ClipDataset
from equiav.data.loader import training_batches
from equiav.distributed import broadcast_flag, everyone, rank, world_size
from equiav.errors import CheckpointError, DataError, EquiAVError, TrainingError
from equiav.evaluation.benchmark import Record, retrieval_record
from equiav.inference import BANK, save_model
from equiav.losses.equiav import LossWeights
from equiav.models.weights import load_strict
from equiav.training.guards import health, refuse_changed, refuse_impossible, refuse_nan
from equiav.training.log import Progress, RunLog
from equiav.training.objectives import Objective, Projections, draw_step, strategy_weights
from equiav.training.optim import adamw, optimiser_tensors, restore_optimiser, update_average
from equiav.training.schedule import WarmupCosine
from equiav.training.step import Step
from equiav.types import Batch, LossTerms, Modality

log = logging.getLogger(__name__)

RAW = "raw."  # weights as trained, kept in the state where the checkpoint's own are the moving average


@dataclass(frozen=True)
class Outcome:
    """How a run ended: the last step, and whether it was told to stop before its time."""

    step: int
    total: int
    interrupted: bool


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


class Trainer:
    """Pre-trains one recipe into one folder; `say` receives progress lines."""

    def __init__(self, config: Config, out: Path, say: Callable[[str], None] = log.info) -> None:
        refuse_impossible(config)
        self.config, self.out, self.say = config, out, say
        self.device = choose_device()
        self._prepare_folder()
        self.clips = build_clips(config, "train")
        train = config.train
        self.validation = self._validation_clips()
        self.schedule = build_schedule(config, self.clips)
        per_epoch = self.schedule.steps_per_epoch
        self.total = train.steps or max(1, round((train.epochs or 0) * per_epoch))
        optim = config.optim
        warmup = optim.warmup_steps if optim.warmup_steps is not None else round((optim.warmup_epochs or 0) * per_epoch)
        self.rate = WarmupCosine(optim.rate, self.total, warmup, optim.start_rate, optim.final_rate)
        self.model = build_model(config).to(self.device)
        self.objective = self._build_objective()
        self.optimiser = adamw(self.objective, rate=optim.rate, weight_decay=optim.weight_decay, betas=optim.betas)
        self.average = {k: v.clone() for k, v in self.model.state_dict().items()} if train.ema else None
        self.step = self._resume()
        self._stop = False

    def _prepare_folder(self) -> None:
        try:
            (self.out / CHECKPOINTS).mkdir(parents=True, exist_ok=True)
            probe = self.out / f".probe-{rank()}"
            probe.touch()
            probe.unlink()
        except OSError as error:
            raise TrainingError(f"{self.out}: cannot be written ({error.strerror})") from error

    def _validation_clips(self) -> ClipDataset | None:
        """Read at the start: a run must not find out at its end that there is nothing to validate on."""
        if self.config.train.evaluate_every is None:
            return None
        try:
            return build_clips(self.config, "validation")
        except DataError as error:
            if rank() == 0:
                self.say(f"no validation in this run: {error}")
            return None

    def _build_objective(self) -> Objective:
        cfg = self.config.objective
        return Objective(
            self.model,
            build_pipelines(self.config.augment),
            build_inputs(self.config.audio),
            intra=cfg.intra,
            inter=cfg.inter,
            loss=cfg.loss,
            tau=cfg.temperature,
        )

    def _resume(self) -> int:
        """Loads the newest checkpoint of the folder, or the given starting weights; returns the step it stands at."""
        found = checkpoints_of(self.out)
        if not found:
            if self.config.weights:
                self._load(Path(self.config.weights), load_checkpoint(Path(self.config.weights)).weights)
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
        self._load(path, raw or weights)
        restore_optimiser(self.objective, self.optimiser, state)
        if self.average is not None:
            self.average = {k: v.to(self.device) for k, v in weights.items()}
        return step

    def _load(self, path: Path, weights: dict[str, Tensor]) -> None:
        load_strict(self.model, {k: v for k, v in weights.items() if not k.startswith(BANK)}, str(path))

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
        module: nn.Module = self.objective
        if world_size() > 1:
            devices = [self.device.index] if self.device.type == "cuda" else None
            module = distributed_module(self.objective, devices)
        take = Step(self.objective, module, train.micro_batch, autocast_type(train.precision, self.device))
        batches = training_batches(
            self.clips, self.schedule, start=self.step, stop=self.total,
            rank=rank(), world_size=world_size(), workers=train.workers,
        )  # fmt: skip
        progress = Progress(self.total, self.step, self.say if rank() == 0 else _silent)
        for batch in batches:
            self._take(take, cast(Batch, batch), journal, progress)
            stop = broadcast_flag(self._stop)
            if stop or self.step % train.checkpoint_every == 0 or self.step == self.total:
                self._save()
            if stop:
                break

    def _take(self, take: Step, batch: Batch, journal: RunLog | None, progress: Progress) -> None:
        """One step: draws, losses, update, records."""
        cfg = self.config
        draws = draw_step(
            self.objective.augment, cfg.train.batch, cfg.objective.representations, cfg.seed, self.step
        ).rows(rank() * len(batch), (rank() + 1) * len(batch))
        rate = self.rate(self.step)
        for group in self.optimiser.param_groups:
            group["lr"] = rate
        w = cfg.objective.weights
        weights = strategy_weights(
            LossWeights(w.inter, w.intra_audio, w.intra_visual), cfg.objective.strategy, self.step + 1, self.total
        )
        self.optimiser.zero_grad(set_to_none=True)
        terms, z = take(batch.to(self.device), draws, weights)
        norm = self._clip()
        refuse_nan(terms, norm, z, batch, self.step + 1)
        self.optimiser.step()
        self.step += 1
        if self.average is not None and cfg.train.ema:
            update_average(self.average, self.model, cfg.train.ema)
        self._record(terms, z, rate, norm, journal, progress)

    def _clip(self) -> float:
        """Clips the gradient where the recipe says so; its norm before that."""
        limit = self.config.optim.clip
        if limit is not None:
            return float(nn.utils.clip_grad_norm_(self.objective.parameters(), limit))
        return float(nn.utils.get_total_norm([p.grad for p in self.objective.parameters() if p.grad is not None]))

    def _record(
        self, terms: LossTerms, z: Projections, rate: float, norm: float,
        journal: RunLog | None, progress: Progress,
    ) -> None:  # fmt: skip
        total = float(terms.total)
        progress.update(self.step, f"loss {total:.3f}")
        train = self.config.train
        if self.step % train.log_every == 0 or self.step in (1, self.total):
            values = {
                "loss": total,
                "inter": float(terms.inter),
                "intra_audio": float(terms.intra_audio),
                "intra_visual": float(terms.intra_visual),
                "rate": rate,
                "gradient_norm": norm,
                **health(z),
            }
            if journal:
                journal.write("train", self.step, values)
        every = train.evaluate_every
        if every and self.validation and (self.step % every == 0 or self.step == self.total):
            result = self.evaluate(self.validation)
            if journal:
                journal.write("validation", self.step, _flat(result))
                self.say(f"validation at step {self.step}: {_headline(result)}")

    def evaluate(self, clips: ClipDataset) -> Record:
        """Zero-shot retrieval, as the model would be used: with the moving average where there is one."""
        cfg = self.config
        model = self.model
        if self.average is not None:
            model = build_model(cfg).to(self.device)
            model.load_state_dict(self.average)
        return retrieval_record(
            model,
            clips,
            build_inputs(cfg.audio),
            {m: build_bank(cfg, m) for m in Modality},
            cfg.objective.representation,
        )

    def _save(self) -> None:
        """The first process writes the checkpoint; where it cannot, all stop."""
        failure: EquiAVError | None = None
        if rank() == 0:
            try:
                self._write()
            except EquiAVError as error:
                failure = error
        failed = broadcast_flag(failure is not None)
        if failure:
            raise failure
        if failed:
            raise TrainingError(f"{self.out}: the first process could not write its checkpoint")

    def _write(self) -> None:
        """Writes the checkpoint of this step and removes those no longer kept."""
        state = optimiser_tensors(self.objective, self.optimiser)
        weights = self.model.state_dict()
        if not all(bool(value.isfinite().all()) for value in weights.values()):
            raise TrainingError(
                f"the weights are no numbers any more at step {self.step}; the checkpoint before it stays"
            )
        if self.average is not None:
            state |= {RAW + k: v for k, v in weights.items()}
            weights = self.average
        meta: dict[str, Any] = {
            "kind": "pretrained", "step": self.step, "total": self.total, "clips": len(self.clips),
        }  # fmt: skip
        path = self.out / CHECKPOINTS / f"{STEP}{self.step:08d}"
        save_model(path, self.config, weights, meta, state=state)
        for _, old in checkpoints_of(self.out)[: -self.config.train.keep]:
            shutil.rmtree(old, ignore_errors=True)
        for draft in (self.out / CHECKPOINTS).glob(".*"):  # what a kill left half-written
            shutil.rmtree(draft, ignore_errors=True)


def distributed_module(objective: nn.Module, devices: list[int] | None) -> nn.Module:
    """The objective under DDP; its buffers never change, so no step sends them."""
    names = inspect.signature(DistributedDataParallel).parameters
    key = "forward_sync_buffers" if "forward_sync_buffers" in names else "broadcast_buffers"  # renamed in torch 2.13
    return DistributedDataParallel(objective, devices, **cast(Any, {key: False}))


def _silent(line: str) -> None:
    pass


def _flat(result: Record) -> dict[str, float]:
    return {f"{way}/{k}": v for way, values in result.items() for k, v in values.items()}


def _headline(result: Record) -> str:
    """The figure to watch: R@10, or P@10 where only classes pair."""
    forth, back = result["audio_to_video"], result["video_to_audio"]
    key = "R@10" if "R@10" in forth else "P@10"
    return f"{key} {forth[key]:.1f} % (audio to video), {back[key]:.1f} %"
