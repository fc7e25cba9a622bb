"""Fine-tuning: a classifier on the encoders, chosen on validation, evaluated on test once; and cross-validation."""

from __future__ import annotations

import json
import shutil
import statistics
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import torch
from jaxtyping import Float, Int64
from torch import Tensor

from equiav.build import (
    LabelledSplits,
    build_classification,
    build_classifier,
    build_splits,
    encoder_size,
    finetuning_sections,
    resolve_finetuning,
    with_encoders,
)
from equiav.checkpoint import BEST, Checkpoint, load_checkpoint, save_checkpoint
from equiav.config import Config, ShardsConfig
from equiav.data import INDEX, META, PUBLISHED, ShardDataset, is_address, prepare, read_published
from equiav.distributed import broadcast_flag, first_rank, rank, world_size
from equiav.errors import CheckpointError, ConfigError, DataError
from equiav.evaluation import RESULTS, Classification, Results, metrics_line
from equiav.inference import LoadedClassifier, load_classifier
from equiav.io import cores
from equiav.media import to_float
from equiav.models import ClassifierModel, load_strict, modalities
from equiav.objectives import ClassificationObjective
from equiav.randomness import generator
from equiav.training.log import RunLog
from equiav.training.optim import layer_scales
from equiav.training.tokens import check_views
from equiav.training.trainer import Outcome, Report, Trainer, Weights, choose_device, log, run_lock
from equiav.types import Batch

UNDEFINED = -1.0  # stands for a score without a value: below all that have one, and JSON can hold it
METRICS = ("mAP", "accuracy", "d_prime")
PREPARED = "data"  # in the run's folder, where a published layout was given
BY_SPLITS = {"ucf101": ("classInd.txt", 3), "hmdb51": ("*_test_split1.txt", 3)}  # a file to know them by; splits


@dataclass(frozen=True)
class Mixing:
    """For every row of a batch the row it is mixed with, and the share of itself that stays (1: it is not mixed)."""

    partner: Int64[Tensor, " batch"]
    share: Float[Tensor, " batch"]

    def further_rows(self, start: int, stop: int) -> list[int]:
        """Rows outside `start` to `stop` that the rows inside are mixed with: a process must read them as well."""
        wanted = set(self.partner[start:stop][self.share[start:stop] < 1].tolist())
        return sorted(row for row in wanted if not start <= row < stop)

    def local(self, start: int, stop: int) -> Mixing:
        """The same for a process that holds rows `start` to `stop` and behind them its further rows."""
        place = {row: row - start for row in range(start, stop)}
        place |= {row: stop - start + k for k, row in enumerate(self.further_rows(start, stop))}
        # Rows that stay as they are may have a partner that was not read: their own row stands in, with no weight.
        here = [place.get(row, k) for k, row in enumerate(self.partner[start:stop].tolist())]
        return Mixing(torch.tensor(here, dtype=torch.int64), self.share[start:stop])

    def mix(self, x: Tensor) -> Tensor:
        """share * x[row] + (1 - share) * x[partner] for the rows of this mixing; rows behind them are further_rows."""
        own = x[: len(self.share)]
        if bool((self.share == 1).all()):
            return own
        share = self.share.to(x.device).view(-1, *[1] * (x.ndim - 1))
        return own * share + x[self.partner.to(x.device)] * (1 - share)


def draw_mixing(batch: int, p: float, beta: int, rng: torch.Generator) -> Mixing:
    """Each row is mixed with probability `p`, with a row of a random permutation, by a share from Beta(beta, beta).

    For whole numbers that is the middle one of 2 beta - 1 uniform numbers in their order, which any generator gives.
    """
    mixed = torch.rand(batch, generator=rng) < p
    partner = torch.randperm(batch, generator=rng)
    share = torch.rand(batch, 2 * beta - 1, generator=rng).median(dim=1).values
    return Mixing(partner, torch.where(mixed, share, 1.0))


def mix_batch(batch: Batch, mixing: Mixing) -> Batch:
    """Mixes inputs and targets of a clip with the same partner by the same share; audio lasts as long as the longer.

    Frames become floats in [0, 1]; waveforms are mixed before their spectrograms.
    """
    n = len(mixing.share)
    inputs = {m: mixing.mix(x if x.is_floating_point() else to_float(x)) for m, x in batch.inputs.items()}
    lengths = {}
    for m, own in batch.lengths.items():
        mixed = (mixing.share < 1).to(own.device)
        lengths[m] = torch.where(mixed, torch.maximum(own[:n], own[mixing.partner.to(own.device)]), own[:n])
    targets = None if batch.targets is None else mixing.mix(batch.targets)
    return Batch(batch.ids[:n], inputs, lengths, targets)


class Finetuner(Trainer):
    """Trains the classifier of a resolved recipe into one folder; `best` holds the weights that validation chose.

    Without validation there is no `best`: the newest checkpoint stands for the run.
    """

    kind = "finetuned"
    model: ClassifierModel
    objective: ClassificationObjective

    def __init__(self, config: Config, splits: LabelledSplits, out: Path, report: Report = log.info) -> None:
        _, self.tune = finetuning_sections(config)
        self.splits = splits
        self.best: dict[str, Any] | None = None
        if config.train.keep_spectrograms:
            raise ConfigError(
                "train.keep_spectrograms: fine-tuning mixes waveforms before their spectrograms; leave it out"
            )
        super().__init__(
            config, out, report,
            objective=build_classification(config), dataset=splits.train, validation=splits.validation,
        )  # fmt: skip
        self.every = config.train.evaluate_every or self.schedule.steps_per_epoch
        self._upcoming = self.schedule.requests(self.step, self.total)

    def _check_recipe(self) -> None:
        check_views(self.config)

    def _validation(self) -> None:
        """Where every clip trains there is none; the last weights are kept then."""

    def _lr_scales(self) -> dict[str, float]:
        scales = layer_scales(self.objective, self.model, decay=self.tune.layer_decay, head=self.tune.head_lr_scale)
        return {name: scale * scales[name] for name, scale in super()._lr_scales().items()}

    def _start_from(self, path: Path) -> None:
        load_encoders(self.model, self.config, self.splits.classes, path)

    def _mixing(self, step: int) -> Mixing:
        """Who is mixed with whom in the global batch of a step: the loader and the objective both ask."""
        rng = generator(self.config.seed, step, "mixup")
        return draw_mixing(self.config.train.batch, self.tune.mixup, self.tune.mixup_beta, rng)

    def _further_rows(self, step: int) -> list[int]:
        return self._mixing(step).further_rows(*self._rows())

    def _prepared(self, batch: Batch) -> Batch:
        """The batch with its targets, mixed."""
        start, stop = self._rows()
        requests = next(self._upcoming)
        present = [*range(start, stop), *self._further_rows(self.step)]
        targets = self.splits.train.targets([requests[row][0] for row in present]).to(self.device)
        return mix_batch(replace(batch, targets=targets), self._mixing(self.step).local(start, stop))

    def _evaluate(self, journal: RunLog | None) -> None:
        if self.splits.validation is None or (self.step % self.every and self.step != self.total):
            return
        values = self.validate()["metrics"]
        score = values[self.tune.metric]
        if journal:
            journal.write("validation", self.step, values)
            shown = "undefined" if score is None else f"{score:.1f} %"
            self.report(f"validation at step {self.step}: {self.tune.metric} {shown}")
        # Of equal scores the later counts: small validation sets tie, and the learning rate has fallen since.
        compared = UNDEFINED if score is None else score
        if self.best is None or compared >= self.best["score"]:
            self.best = {"step": self.step, "score": compared, "validation": values}
            self._first_process(self._write_best)

    def validate(self) -> Results:
        """The validation split under the weights as they would be used: the moving average where there is one."""
        model = self.model
        if self.average is not None:
            model = build_classifier(self.config).to(self.device)
            model.load_state_dict(self._merged(self.average))
        assert self.splits.validation is not None
        loaded = LoadedClassifier(model, self.config, self.splits.classes, {})
        evaluator = Classification(split="validation", all_frames=False, examples=0)
        return evaluator(loaded, self.splits.validation)

    def _write_best(self) -> None:
        weights = self.model.state_dict() if self.average is None else self.average
        self._store(self.out / BEST, self._merged(weights), None)
        for draft in self.out.glob(f".{BEST}.*"):  # what a kill left half-written
            shutil.rmtree(draft, ignore_errors=True)

    def _meta(self) -> dict[str, Any]:
        return {**super()._meta(), "classes": list(self.splits.classes), "best": self.best}

    def _restore_meta(self, meta: dict[str, Any]) -> None:
        self.best = meta["best"]

    def _store(self, path: Path, weights: Weights, state: Weights | None) -> None:
        save_checkpoint(path, self.config, weights, self._meta(), state=state)


def load_encoders(model: ClassifierModel, config: Config, classes: tuple[str, ...], path: Path) -> None:
    """Loads the encoders of a pre-trained checkpoint, its heads and predictor left behind, or a whole classifier.

    What does not fit is refused as a whole: encoders of another size or norm, a classifier for other classes.
    """
    checkpoint = load_checkpoint(path)
    cavmae = [c.objective.kind == "cavmae" for c in (checkpoint.config, config)]
    if cavmae[0] != cavmae[1]:
        kind = checkpoint.config.objective.kind
        raise CheckpointError(f"{path}: holds encoders of another method; set objective.kind={kind} to fine-tune them")
    _refuse_other_encoders(checkpoint.config, config, path)
    if checkpoint.config.classifier is not None:
        _refuse_other_classifier(checkpoint, config, classes, path)
        load_strict(model, checkpoint.weights, str(path))
        return
    for name, part in model.encoder_parts().items():
        own = {k.removeprefix(f"{name}."): v for k, v in checkpoint.weights.items() if k.startswith(f"{name}.")}
        # The augmented view's norm belongs to pre-training.
        own = {k: v for k, v in own.items() if not k.startswith("norm_augmented.")}
        if not own:
            raise CheckpointError(f"{path}: holds no {name.removesuffix('.f')} encoder; choose another classifier.mode")
        load_strict(part, own, f"{path} ({name.removesuffix('.f')})")


def _refuse_other_encoders(saved: Config, asked: Config, path: Path) -> None:
    for m in modalities(finetuning_sections(asked)[0].mode):
        own, wish = saved.model.encoder_for(m), asked.model.encoder_for(m)
        if (own.kind, own.architecture, own.options) != (wish.kind, wish.architecture, wish.options):
            raise CheckpointError(
                f"{path}: its {m} encoder is {own.name or own.kind}, the recipe asks for {wish.name or wish.kind} "
                f"or for another size of it; set model.{m}.encoder to match"
            )
    a, b = encoder_size(saved.model.encoder), encoder_size(asked.model.encoder)
    if a != b:
        raise CheckpointError(
            f"{path}: its encoders have width {a.width}, depth {a.depth}, {a.heads} heads; the recipe asks for "
            f"{b.width}, {b.depth}, {b.heads}; set model.encoder to match"
        )
    eps, wanted = saved.model.encoder.norm_eps, asked.model.encoder.norm_eps
    if eps != wanted:
        raise CheckpointError(f"{path}: its norms have eps {eps:g}, the recipe {wanted:g}; set model.encoder.norm_eps")


def _refuse_other_classifier(checkpoint: Checkpoint, config: Config, classes: tuple[str, ...], path: Path) -> None:
    saved, asked = checkpoint.config.classifier, config.classifier
    assert saved is not None
    assert asked is not None
    if saved.classes != asked.classes:
        raise CheckpointError(
            f"{path}: holds a classifier of {saved.classes} classes, the data have {asked.classes}; "
            "give the pre-trained checkpoint it came from"
        )
    names = checkpoint.meta.get("classes", list(classes))
    if saved.mode != asked.mode or saved.projection != asked.projection or names != list(classes):
        raise CheckpointError(f"{path}: holds a classifier of other classes or of another mode ({saved.mode})")


@dataclass(frozen=True)
class Finetuned:
    """How a fine-tuning run ended; `results` are those of the test split, None before its end or without one."""

    outcome: Outcome
    best: dict[str, Any] | None
    results: dict[str, Any] | None

    def lines(self) -> list[str]:
        """What was found, for a terminal."""
        found = []
        if self.best:
            line = metrics_line(self.best["validation"])
            found.append(f"validation, chosen at step {self.best['step']}: {line}")
        if self.results:
            metrics = self.results["metrics"]
            found.append(f"test, {metrics['clips']} clips: {metrics_line(metrics)}")
        return found


def finetune(config: Config, out: Path, report: Report = log.info) -> Finetuned:
    """Trains a recipe, or resumes it; what validation chose, else the last weights, is judged on test, once."""
    config = with_encoders(config)
    splits = build_splits(config)
    config, notices = resolve_finetuning(config, splits, world_size())
    if rank() == 0:
        for line in notices:
            report(f"note: {line}")
    with run_lock(out):
        run = Finetuner(config, splits, out, report)
        if run.step and rank() == 0:
            report(f"resuming {out} at step {run.step} of {run.total}")
        outcome = run.run()
        results = None if outcome.interrupted or splits.test is None else evaluate_test(splits, out, report)
    return Finetuned(outcome, run.best, results)


def evaluate_test(splits: LabelledSplits, out: Path, report: Report) -> dict[str, Any]:
    """The test split under the chosen weights: results.json and report.html, made once; read where they exist."""
    if broadcast_flag(not (out / RESULTS).is_file()):
        assert splits.test is not None
        if rank() == 0:
            chosen = "the last weights" if splits.validation is None else "the weights that validation chose"
            report(f"test: {len(splits.test)} clips under {chosen}")
        results = Classification(split="test")(load_classifier(out, str(choose_device())), splits.test)
        if rank() == 0:
            results.write(out)
        broadcast_flag(False)  # nobody reads before it is written
    record: dict[str, Any] = json.loads((out / RESULTS).read_text(encoding="utf-8"))
    return record


def finetune_folds(config: Config, out: Path, report: Report = log.info) -> Results | None:
    """Fine-tunes and evaluates once per fold, in `out`/fold1 and so on; None if told to stop before the last.

    `data.path` is a prepared folder whose clips have folds, or that of the first published split with those of the
    others in `data.splits`; or ESC-50, UCF101 or HMDB51 as it is published. Run again, it carries on.
    """
    _, tune = finetuning_sections(config)
    if not isinstance(config.data, ShardsConfig):
        raise ConfigError("--folds needs a prepared folder or a published set (data.kind: shards)")
    found = {}
    with run_lock(out):
        for fold, place in _folds(config.data, out, report).items():
            data = config.data.model_copy(update={**place, "splits": ()})
            own = config.model_copy(update={"data": data})
            done = finetune(own, out / f"fold{fold}", lambda line, fold=fold: report(f"fold {fold}: {line}"))  # type: ignore[misc]
            if done.outcome.interrupted:
                return None
            assert done.results is not None  # a fold always has test clips
            found[fold] = done.results["metrics"]
    record: dict[str, Any] = {"task": "folds", "metric": tune.metric, "weights": config.weights or "none: from scratch"}
    record |= {"folds": found, "mean": _mean(found), "seed": config.seed}
    lines = [f"fold {fold}: {metrics_line(metrics)}" for fold, metrics in found.items()]
    lines.append(f"mean: {metrics_line(record['mean'])}")
    results = Results(record, primary=f"mean/{tune.metric}", lines=tuple(lines), template="folds.html")
    if rank() == 0:
        results.write(out)
    return results


def _folds(data: ShardsConfig, out: Path, report: Report) -> dict[int, dict[str, Any]]:
    """By the number of a fold or published split, what it changes in `data`; a published layout is prepared first."""
    path = Path(data.path)
    place = data.path if is_address(data.path) else str(path)
    if data.splits:
        return {n: {"path": folder} for n, folder in enumerate((data.path, *data.splits), 1)}
    if not (is_address(place) or ((path / META).is_file() and (path / INDEX).is_dir())):
        name = next((name for name, (file, _) in BY_SPLITS.items() if any(path.rglob(file))), "esc50")
        if name in BY_SPLITS:
            numbers = range(1, BY_SPLITS[name][1] + 1)
            return {n: {"path": str(_prepare(name, n, path, out / f"{PREPARED}{n}", report))} for n in numbers}
        place = str(_prepare(name, 1, path, out / PREPARED, report))
    clips = ShardDataset(place, None)
    found = sorted({int(clips.clip(i).fold or 0) for i in range(len(clips))} - {0})
    if len(found) < 2:
        raise DataError(
            f"{place}: its clips have no folds; --folds is for sets published with some, as ESC-50 is, or with several "
            "splits: name the folders of the others in data.splits"
        )
    return {fold: {"path": place, "fold": fold} for fold in found}


def _prepare(name: str, split: int, path: Path, place: Path, report: Report) -> Path:
    """Prepares a split of a published layout in `place`, by the first process."""

    def work() -> None:
        found = read_published(name, path, split=split)
        report(found.line())
        need: tuple[Literal["audio", "video"]] = ("audio",) if PUBLISHED[name] == "audio" else ("video",)
        prepare(found.clips, place, workers=cores(), need=need, published=True, progress=report)

    first_rank(work, f"{path}: could not be prepared by the first process")
    return place


def _mean(results: dict[int, dict[str, float | None]]) -> dict[str, float | None]:
    """Mean over folds of each metric that is defined in all of them."""
    means: dict[str, float | None] = {}
    for name in METRICS:
        values = [of_fold[name] for of_fold in results.values()]
        known = [v for v in values if v is not None]
        means[name] = statistics.fmean(known) if len(known) == len(values) else None
    return means
