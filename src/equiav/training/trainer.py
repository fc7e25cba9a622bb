"""A training run: steps, logs, checkpoints; interrupted and resumed it ends where an uninterrupted one does."""

from __future__ import annotations

import inspect
import logging
import math
import shutil
import signal
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any, ClassVar, cast

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from equiav.build import (
    build_dataset,
    build_inputs,
    build_model,
    build_objective,
    build_schedule,
    load_pretrained,
    modalities_of,
    with_encoders,
)
from equiav.checkpoint import CHECKPOINTS, CONFIG, STEP, checkpoints_of, load_checkpoint, load_state, save_model
from equiav.config import CHANGED, Config, parse_config, read_yaml, with_earlier_defaults
from equiav.data import Dataset, Schedule, Subset, training_batches
from equiav.distributed import broadcast_flag, everyone, first_rank, gather, rank, world_size
from equiav.errors import Busy, CheckpointError, ConfigError, DataError, TrainingError
from equiav.evaluation import Evaluator, Reconstruction, Retrieval
from equiav.inference import LoadedModel, with_banks
from equiav.io import locked, make_folder
from equiav.models import EmbeddingModel, cavmae_from_vits, load_strict
from equiav.objectives import EquiAVObjective, Objective, StepDraws
from equiav.training.log import Progress, RunLog, check_trackers
from equiav.training.optim import (
    WarmupCosine,
    adamw,
    add_lora,
    compile_blocks,
    encoders_of,
    freeze,
    merge_lora,
    optimiser_tensors,
    part_scales,
    restore_optimiser,
    set_lr,
    update_average,
)
from equiav.training.step import Step, StepOutput, prefetch, timed, worker_failures
from equiav.training.tokens import KeptSpectrograms, StoredDataset, Views, ViewsDataset, check_views, token_store
from equiav.types import AUDIO, Batch

log = logging.getLogger(__name__)

Report = Callable[[str], None]
Weights = dict[str, Tensor]
LOCK = ".training.lock"
AVERAGE = "average."  # the moving average with its adapters, where the checkpoint's own weights have them merged
RAW = "raw."  # weights as trained, where the checkpoint's own are their moving average or have adapters merged
CLIPS_NAMED = 8


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
    """bfloat16 where the hardware gains from it; a CPU does not, nor does an older GPU that only emulates it."""
    if precision == "auto" and device.type == "cuda" and torch.cuda.is_bf16_supported(including_emulation=False):
        precision = "bfloat16"
    return torch.bfloat16 if precision == "bfloat16" else None


def prepare_folder(out: Path) -> None:
    """Makes the folder of a run and tries to write there, before anything expensive."""
    try:
        make_folder(out / CHECKPOINTS)
        probe = out / f".probe-{rank()}"
        probe.touch()
        probe.unlink()
    except OSError as error:
        raise TrainingError(f"{out}: cannot be written ({error.strerror})") from error


@contextmanager
def run_lock(out: Path) -> Iterator[None]:
    """One run at a time in a folder: its first process takes the lock, and where it cannot all raise Busy.

    Where the run fails before it has written anything, what was made for it is removed.
    """
    made = [folder for folder in (out, *out.parents) if not folder.exists()]
    prepare_folder(out)
    with ExitStack() as stack:
        refused = []
        if rank() == 0:
            try:
                stack.enter_context(locked(out, LOCK))
            except Busy as error:
                refused.append(str(error))
        for reason in everyone(refused):
            raise Busy(f"{reason}; wait for it, or choose another --out")
        try:
            yield
        except BaseException:
            if world_size() == 1:  # other processes may still be about to write there
                _remove_unused(out, made)
            raise


def _remove_unused(out: Path, made: Sequence[Path]) -> None:
    """Removes a run's empty folder of checkpoints and its lock (held by the caller), then the empty ones of `made`."""
    with suppress(OSError):
        if {path.name for path in out.iterdir()} <= {CHECKPOINTS, LOCK}:
            (out / CHECKPOINTS).rmdir()  # an error where there are checkpoints
            (out / LOCK).unlink()
            for folder in made:
                folder.rmdir()


class Trainer:
    """Trains one recipe into one folder; `report` receives progress lines.

    Objective, data and evaluators are built from the recipe; any of them can be given instead: a method of your own,
    your own dataset, other numbers to watch on validation.
    """

    kind: ClassVar[str] = "pretrained"  # what its checkpoints call themselves

    def __init__(
        self,
        config: Config,
        out: Path,
        report: Report = log.info,
        *,
        objective: Objective | None = None,
        dataset: Dataset | None = None,
        validation: Dataset | None = None,
        evaluators: Sequence[Evaluator] | None = None,
    ) -> None:
        self.config = config = with_encoders(as_begun(config, out, report))
        self.out, self.report = out, report
        masked = config.objective.kind == "masked"
        self.evaluators = evaluators or ((Reconstruction(examples=0),) if masked else (Retrieval(examples=0),))
        self._check_recipe()
        if rank() == 0:
            check_trackers(config.train.report_to)
        prepare_folder(out)
        self.clips = self._wanted(build_dataset(config, "train") if dataset is None else dataset)
        if config.train.views is not None:
            self.clips = ViewsDataset(self.clips, config.train.views.count, config.train.views.frames)
        elif config.train.keep_spectrograms and AUDIO in self.clips.modalities:
            if not self.clips.one_to_one:
                raise ConfigError("train.keep_spectrograms: a clip of these data meets another sound in every epoch")
            self.clips = KeptSpectrograms(self.clips, build_inputs(config))
        self.validation = self._validation() if validation is None else validation
        self.schedule: Schedule = build_schedule(config, self.clips)
        self.device = choose_device()
        self.objective = build_objective(config, build_model(config)) if objective is None else objective
        self.objective.to(self.device)
        self.model = self.objective.model
        train, optim, per_epoch = config.train, config.optim, self.schedule.steps_per_epoch
        self.total = train.steps or max(1, round((train.epochs or 0) * per_epoch))
        warmup = optim.warmup_steps if optim.warmup_steps is not None else round((optim.warmup_epochs or 0) * per_epoch)
        self.lr = WarmupCosine(optim.lr, self.total, warmup, optim.start_lr, optim.final_lr)
        if not checkpoints_of(out):
            self._start()
        freeze(self.model, optim.freeze)
        if optim.lora is not None:
            add_lora(encoders_of(self.model), rank=optim.lora.rank, alpha=optim.lora.alpha, seed=config.seed)
            self.objective.to(self.device)
        if train.compile:
            compile_blocks(self.model)
        self.optimiser = adamw(
            self.objective, lr=optim.lr, weight_decay=optim.weight_decay, betas=optim.betas, scales=self._lr_scales()
        )
        self.autocast = autocast_type(train.precision, self.device)
        self.module: nn.Module = self.objective  # under DDP once the loop begins
        self.average = {k: v.clone() for k, v in self.model.state_dict().items()} if train.ema else None
        self._stop = False
        self.step = self._resume()
        self._requests = self.schedule.requests(self.step, self.total)
        self.views: Views | None = None
        if train.views is not None:  # the augmentations of every clip are fixed
            pipelines = cast(EquiAVObjective, self.objective).augment
            self.views = Views(pipelines, len(self.clips), train.views.count, train.views.seed)

    def _check_recipe(self) -> None:
        """Refuses recipes that are valid as files and senseless as pre-training."""
        config = self.config
        check_views(config)
        if config.classifier is not None:
            raise ConfigError("classifier: a pre-training recipe has none")
        if config.augment.layout != "paper":
            raise ConfigError("augment.layout: the released layout is for using imported checkpoints; train with paper")
        views = config.objective.has_predictor and config.objective.intra == "equivariant"
        if config.model.encoder.norm_augmented and not views:
            raise ConfigError("model.encoder.norm_augmented: only intra equivariant has an augmented view of its own")

    def _stored(self) -> Dataset | None:
        """The clips as tokens of the recipe's store, filled by the first process; None where it was told to stop."""
        assert self.views is not None
        objective, clips, views = cast(EquiAVObjective, self.objective), cast(ViewsDataset, self.clips), self.views
        store = token_store(self.config, objective, clips)
        self._first_process(lambda: store.fill(objective, clips, views, self.report, lambda: self._stop))
        if broadcast_flag(self._stop):
            return None
        store.open()
        return StoredDataset(clips, store)

    def _lr_scales(self) -> dict[str, float]:
        """What the learning rate is multiplied with, by parameter name."""
        return part_scales(self.objective, self.config.optim.lr_scales)

    def _wanted(self, clips: Dataset) -> Dataset:
        """Masked autoencoding decodes the modalities that it learns; clips may lack some of them."""
        if self.config.objective.kind != "masked":
            return clips
        wanted = [m for m in modalities_of(self.config) if m in clips.modalities]
        if not wanted:
            raise DataError(f"these clips hold {' and '.join(clips.modalities)}, none of objective.masked.modalities")
        return Subset(clips, range(len(clips)), wanted)

    def _validation(self) -> Dataset | None:
        """Read at the start: a run must not find out at its end that there is nothing to validate on."""
        if self.config.train.evaluate_every is None:
            return None
        try:
            return self._wanted(build_dataset(self.config, "validation"))
        except DataError as error:
            if rank() == 0:
                self.report(f"no validation in this run: {error}")
            return None

    def _resume(self) -> int:
        """Loads the newest checkpoint of the folder; returns the step it stands at."""
        found = checkpoints_of(self.out)
        if not found:
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
        weights = checkpoint.weights
        load_strict(self.model, raw or weights, str(path))
        restore_optimiser(self.objective, self.optimiser, state)
        if self.average is not None:
            own = {k.removeprefix(AVERAGE): v for k, v in state.items() if k.startswith(AVERAGE)}
            self.average = {k: v.to(self.device) for k, v in (own or weights).items()}
        self._restore_meta(checkpoint.meta)
        return step

    def _start(self) -> None:
        """A new run begins with the recipe's weights, or with those its encoders were published with."""
        if self.config.weights:
            self._start_from(Path(self.config.weights))
        else:
            load_pretrained(self.config, encoders_of(self.model))

    def _start_from(self, path: Path) -> None:
        """Loads the recipe's starting weights."""
        checkpoint = load_checkpoint(path)
        weights, saved, asked = checkpoint.weights, checkpoint.config, self.config
        before, now = saved.objective.kind, asked.objective.kind
        if saved.classifier is not None:
            raise CheckpointError(f"{path}: holds a classifier, which no pre-training starts from")
        if checkpoint.meta.get("kind") == "mae" or before == "masked" != now:
            # These give encoders; predictor, heads and decoders stay as the recipe draws them.
            encoders = tuple(f"{m}.f." for m in modalities_of(saved) if m in modalities_of(asked))
            if not encoders:
                raise CheckpointError(f"{path}: holds no encoder of {' or '.join(modalities_of(asked))}")
            given = {k: v for k, v in weights.items() if k.startswith(encoders)}
            own = self.model.state_dict()
            if now == "cavmae":
                given, encoders = cavmae_from_vits(given, own), ()
            weights = {k: v for k, v in own.items() if not k.startswith(encoders)} | given
        elif before != now and not {before, now}.isdisjoint(("masked", "cavmae")):
            raise CheckpointError(
                f"{path}: was trained with objective.kind {before}, whose weights cannot start {now}; "
                "masked autoencoders can start any method, the others only their own"
            )
        load_strict(self.model, weights, str(path))

    def run(self) -> Outcome:
        """Trains to the end, or until told to stop; SIGTERM saves and returns."""

        def on_signal(number: int, frame: FrameType | None) -> None:
            self._stop = True

        before = signal.signal(signal.SIGTERM, on_signal)
        recipe = self.config.model_dump(mode="json")
        journal = RunLog(self.out, self.step, self.config.train.report_to, recipe) if rank() == 0 else None
        try:
            if self.step < self.total:
                self._loop(journal)
        finally:
            signal.signal(signal.SIGTERM, before)
            if journal:
                journal.close()
        return Outcome(self.step, self.total, self.step < self.total)

    def _loop(self, journal: RunLog | None) -> None:
        train = self.config.train
        if world_size() > 1:
            devices = [self.device.index] if self.device.type == "cuda" else None
            self.module = distributed_module(self.objective, devices)
        clips: Dataset | None = self.clips
        if train.views is not None and train.views.store is not None:
            clips = self._stored()
        if clips is None:
            return
        batches = training_batches(
            clips, self.schedule, start=self.step, stop=self.total,
            rank=rank(), world_size=world_size(), workers=train.workers, further_rows=self._further_rows,
        )  # fmt: skip
        progress = Progress(self.total, self.step, self.report if rank() == 0 else lambda line: None)
        with worker_failures():
            for batch in prefetch(timed(batches, train.timeout), self.device):
                self._take(batch, journal, progress)
                stop = broadcast_flag(self._stop)
                if stop or self.step % train.checkpoint_every == 0 or self.step == self.total:
                    self._first_process(self._write)
                if stop:
                    break

    def _further_rows(self, step: int) -> list[int]:
        """Rows of a step's global batch that this process reads beside its own (mixup)."""
        return []

    def _prepared(self, batch: Batch) -> Batch:
        """The batch as the objective takes it."""
        return batch

    def _take(self, batch: Batch, journal: RunLog | None, progress: Progress) -> None:
        """One step: draws, losses, update, records."""
        config = self.config
        lr = self.lr(self.step)
        set_lr(self.optimiser, lr)
        self.optimiser.zero_grad(set_to_none=True)
        batch = self._prepared(batch)
        draws = self.objective.draw(config.train.batch, config.seed, self.step)
        if self.views is not None:
            draws = self.views.fix(cast(StepDraws, draws), next(self._requests))
        draws = draws.rows(*self._rows())
        step = Step(self.objective, self.module, config.train.micro_batch, self.autocast)
        done = step(batch, draws, self.step + 1, self.total)
        gradients = [p.grad for p in self.objective.parameters() if p.grad is not None]
        before_clipping = nn.utils.get_total_norm(gradients)
        if config.optim.clip is not None:
            nn.utils.clip_grads_with_norm_(self.objective.parameters(), config.optim.clip, before_clipping)
        norm = float(before_clipping)
        refuse_nan(done, norm, batch.ids, self.step + 1)
        self.optimiser.step()
        self.step += 1
        if self.average is not None and config.train.ema:
            update_average(self.average, self.model, config.train.ema)
        progress.update(self.step, f"loss {float(done.terms['total']):.3f}")
        if self.step % config.train.log_every == 0 or self.step in (1, self.total):
            # What the log says is worked out by all processes together.
            terms = {name: float(gather(value[None]).mean()) for name, value in done.terms.items()}
            values = {"loss": terms.pop("total"), **terms, **self.objective.health(done.outputs)}
            if journal:
                journal.write("train", self.step, {**values, "lr": lr, "gradient_norm": norm})
        self._evaluate(journal)

    def _rows(self) -> tuple[int, int]:
        """Which rows of the global batch belong to this process."""
        share = self.config.train.batch // world_size()
        return rank() * share, (rank() + 1) * share

    def _evaluate(self, journal: RunLog | None) -> None:
        """Called after every step: evaluates when it is time."""
        every = self.config.train.evaluate_every
        if not (every and self.validation and (self.step % every == 0 or self.step == self.total)):
            return
        for evaluator in self.evaluators:
            results = evaluator(self.loaded(), self.validation)
            if journal:
                journal.write("validation", self.step, results.scalars())
                self.report(f"validation at step {self.step}: {results.headline()}")

    def loaded(self) -> LoadedModel:
        """The model as it would be used now: with its banks, and with the moving average where there is one."""
        model = self.model
        if self.average is not None:
            model = build_model(self.config).to(self.device)
            model.load_state_dict(self._merged(self.average))
        return with_banks(cast(EmbeddingModel, model), self.config)

    def _first_process(self, write: Callable[[], object]) -> None:
        """The first process writes; where it cannot, all stop."""
        first_rank(write, f"{self.out}: the first process could not write its checkpoint")

    def _write(self) -> None:
        """The checkpoint of this step; those no longer kept go."""
        state = optimiser_tensors(self.objective, self.optimiser)
        weights = self.model.state_dict()
        if not all(bool(value.isfinite().all()) for value in weights.values()):
            raise TrainingError(
                f"the weights are no numbers any more at step {self.step}; the checkpoint before it stays"
            )
        if self.average is not None or self.config.optim.lora is not None:
            state |= {RAW + k: v for k, v in weights.items()}
        if self.average is not None:
            if self.config.optim.lora is not None:
                state |= {AVERAGE + k: v for k, v in self.average.items()}
            weights = self.average
        self._store(self.out / CHECKPOINTS / f"{STEP}{self.step:08d}", self._merged(weights), state)
        for _, old in checkpoints_of(self.out)[: -self.config.train.keep]:
            shutil.rmtree(old, ignore_errors=True)
        for draft in (self.out / CHECKPOINTS).glob(".*"):  # what a kill left half-written
            shutil.rmtree(draft, ignore_errors=True)

    def _merged(self, weights: Weights) -> Weights:
        """The weights as a model without adapters has them."""
        lora = self.config.optim.lora
        return weights if lora is None else merge_lora(weights, rank=lora.rank, alpha=lora.alpha)

    def _store(self, path: Path, weights: Weights, state: Weights | None) -> None:
        """Writes a checkpoint folder."""
        save_model(path, self.config, weights, self._meta(), state=state)

    def _meta(self) -> dict[str, Any]:
        """What a checkpoint's meta.json says."""
        return {"kind": self.kind, "step": self.step, "total": self.total, "clips": len(self.clips)}

    def _restore_meta(self, meta: dict[str, Any]) -> None:
        """Takes back from a checkpoint what a resumed run must know."""


def distributed_module(objective: nn.Module, devices: list[int] | None) -> nn.Module:
    """The objective under DDP; its buffers never change, so no step sends them."""
    names = inspect.signature(DistributedDataParallel).parameters
    key = "forward_sync_buffers" if "forward_sync_buffers" in names else "broadcast_buffers"  # renamed in torch 2.13
    return DistributedDataParallel(objective, devices, **cast(Any, {key: False}))


def as_begun(config: Config, out: Path, report: Report) -> Config:
    """The recipe; where a run was begun before a default of recipes changed, as it was meant then."""
    begun = checkpoints_of(out)
    if not begun or (before := with_earlier_defaults(config)) == config:
        return config
    path = begun[-1][1] / CONFIG
    if not path.is_file() or parse_config(read_yaml(path), str(path)) != before:
        return config
    if rank() == 0:
        report(f"{out} goes on with the defaults it was begun with: {', '.join(CHANGED)}")
    return before


def refuse_changed(saved: Config, asked: Config, path: Path) -> None:
    """A run is resumed under its own recipe or not at all; the first differing keys are named."""
    changed = [
        line
        for line in _differences(saved.model_dump(mode="json"), asked.model_dump(mode="json"))
        if not line.startswith(("train.timeout ", "train.report_to"))
    ]
    if not changed:
        return
    shown = "; ".join(changed[:3])
    raise CheckpointError(f"{path}: was made with another recipe ({shown}); use the same recipe or a new --out")


def _differences(a: Any, b: Any, where: str = "") -> list[str]:
    if isinstance(a, dict) and isinstance(b, dict):
        keys = [*a, *(k for k in b if k not in a)]
        return [d for k in keys for d in _differences(a.get(k), b.get(k), f"{where}.{k}" if where else str(k))]
    return [] if a == b else [f"{where} was {a}, now {b}"]


def refuse_nan(done: StepOutput, norm: float, ids: Sequence[str], step: int) -> None:
    """Stops a run whose loss or gradient is not a number, naming the step and the clips it came from."""
    loss = float(done.terms["total"])
    if broadcast_flag(not (math.isfinite(loss) and math.isfinite(norm))):
        rows = torch.stack([~x.isfinite().reshape(len(x), -1).all(dim=1) for x in done.outputs.values()])
        bad = everyone([name for name, is_bad in zip(ids, rows.any(dim=0).tolist(), strict=True) if is_bad])
        bad = bad or everyone(list(ids))
        more = f" and {len(bad) - CLIPS_NAMED} more" if len(bad) > CLIPS_NAMED else ""
        what = "gradient" if math.isfinite(loss) else "loss"
        shown = ", ".join(bad[:CLIPS_NAMED])
        raise TrainingError(f"the {what} is not a number at step {step}; clips: {shown}{more}; nothing of it was saved")
