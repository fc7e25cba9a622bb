"""Fine-tuning: a classifier on the encoders, chosen on validation, judged on test once."""

from __future__ import annotations

import json
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from equiav.build import build_classifier, build_finetuning_pipelines, build_inputs, encoder_size
from equiav.build_data import build_schedule
from equiav.build_labelled import LabelledSplits, build_splits, resolve_finetuning, sections
from equiav.checkpoint import BEST, save_checkpoint
from equiav.config import Config
from equiav.distributed import broadcast_flag, gather, rank, world_size
from equiav.evaluation import (
    RESULTS,
    Classified,
    classification_page,
    classification_record,
    classify_dataset,
    write_evaluation,
)
from equiav.inference.classifier import load_classifier
from equiav.models import Classifier
from equiav.training.classify import Classification, ClassifierDraws, draw_classifier_step, step_mixing
from equiav.training.log import RunLog
from equiav.training.mixing import MixedBatch, Mixing, mix_batch
from equiav.training.optim import layer_scales
from equiav.training.run import Outcome, Run, Say, Taken, Weights, choose_device, log, prepare_folder
from equiav.training.starting import load_encoders
from equiav.training.step import arithmetic, synchronised
from equiav.types import Batch

UNDEFINED = -1.0  # stands for a score without a value: below all that have one, and JSON can hold it


class Finetuner(Run):
    """Trains the classifier of a resolved recipe into one folder; `best` holds the weights that validation chose."""

    kind = "finetuned"
    model: Classifier
    objective: Classification

    def __init__(self, config: Config, splits: LabelledSplits, out: Path, say: Say = log.info) -> None:
        _, self.tune = sections(config)
        prepare_folder(out)
        self.splits = splits
        self.best: dict[str, Any] | None = None
        model = build_classifier(config).to(choose_device())
        objective = Classification(
            model,
            build_finetuning_pipelines(self.tune),
            build_inputs(config.audio),
            loss=self.tune.loss,
            label_smoothing=self.tune.label_smoothing,
        )
        depth = encoder_size(config.model.encoder).depth
        scales = layer_scales(objective, depth, decay=self.tune.layer_decay, head=self.tune.head_rate)
        schedule = build_schedule(config, splits.train)
        self.every = config.train.evaluate_every or schedule.steps_per_epoch
        super().__init__(
            config, out, say, clips=splits.train, schedule=schedule, model=model, objective=objective, scales=scales
        )
        self._upcoming = schedule.requests(self.step, self.total)

    def _start_from(self, path: Path) -> None:
        load_encoders(self.model, self.config, self.splits.classes, path)

    def _mixing(self, step: int) -> Mixing:
        return step_mixing(self.config.train.batch, self.tune.mixup, self.tune.mixup_beta, self.config.seed, step)

    def _visitors(self, step: int) -> list[int]:
        return self._mixing(step).visitors(*self._rows())

    def _gradient(self, batch: Batch) -> Taken:
        start, stop = self._rows()
        requests = next(self._upcoming)
        present = [*range(start, stop), *self._visitors(self.step)]
        targets = self.splits.train.targets.rows([requests[row][0] for row in present])
        mixed = mix_batch(batch, targets, self._mixing(self.step).local(start, stop))
        draws = draw_classifier_step(
            self.model, self.objective.augment, self.config.train.batch,
            drop_path=self.tune.drop_path, seed=self.config.seed, step=self.step,
        ).rows(start, stop)  # fmt: skip
        loss, logits = self._portions(mixed, draws)
        return Taken(loss, [logits], lambda: {"loss": float(gather(loss[None]).mean())})

    def _portions(self, batch: MixedBatch, draws: ClassifierDraws) -> tuple[Tensor, Tensor]:
        """Loss and logits of this process's clips, detached; gradients add up to those of the whole batch."""
        size = self.config.train.micro_batch or len(batch)
        total, logits = torch.zeros((), device=self.device), []
        for first in range(0, len(batch), size):
            part = batch.rows(first, first + size)
            with synchronised(self.module, first + size >= len(batch)):
                with arithmetic(self.autocast, self.device):
                    found = self.module(part, draws.rows(first, first + size))
                loss = self.objective.loss(found, part.targets) * (len(part) / len(batch))
                loss.backward()  # type: ignore[no-untyped-call]
            total += loss.detach()
            logits.append(found.detach().float())
        return total, torch.cat(logits)

    def _evaluate(self, journal: RunLog | None) -> None:
        if self.step % self.every and self.step != self.total:
            return
        values = self.validate().metrics().record()
        score = values[self.tune.metric]
        if journal:
            journal.write("validation", self.step, values)
            shown = "undefined" if score is None else f"{score:.1f} %"
            self.say(f"validation at step {self.step}: {self.tune.metric} {shown}")
        # Of equal scores the later counts: small validation sets tie, and the rate has fallen since.
        compared = UNDEFINED if score is None else score
        if self.best is None or compared >= self.best["score"]:
            self.best = {"step": self.step, "score": compared, "validation": values}
            self._first_process(self._write_best)

    def validate(self) -> Classified:
        """The validation split under the weights as they would be used: the moving average where there is one."""
        model = self.model
        if self.average is not None:
            model = build_classifier(self.config).to(self.device)
            model.load_state_dict(self.average)
        inputs = build_inputs(self.config.audio)
        return classify_dataset(model, self.splits.validation, inputs, single=self.tune.loss == "ce")

    def _write_best(self) -> None:
        weights = self.model.state_dict() if self.average is None else self.average
        self._store(self.out / BEST, weights, self._meta(), None)
        for draft in self.out.glob(f".{BEST}.*"):  # what a kill left half-written
            shutil.rmtree(draft, ignore_errors=True)

    def _facts(self) -> dict[str, Any]:
        return {"classes": list(self.splits.classes), "best": self.best}

    def _remember(self, meta: dict[str, Any]) -> None:
        self.best = meta["best"]

    def _store(self, path: Path, weights: Weights, meta: dict[str, Any], state: Weights | None) -> None:
        save_checkpoint(path, self.config, weights, meta, state=state)


@dataclass(frozen=True)
class Finetuned:
    """How a fine-tuning run ended; `results` are those of the test split, None before its end or without one."""

    outcome: Outcome
    best: dict[str, Any] | None
    results: dict[str, Any] | None


def finetune(config: Config, out: Path, say: Say = log.info) -> Finetuned:
    """Trains a recipe, or resumes it, and judges what validation chose on the test split, once."""
    splits = build_splits(config)
    config, notices = resolve_finetuning(config, splits, world_size())
    if rank() == 0:
        for line in notices:
            say(f"note: {line}")
    run = Finetuner(config, splits, out, say)
    if run.step and rank() == 0:
        say(f"resuming {out} at step {run.step} of {run.total}")
    outcome = run.run()
    results = None if outcome.interrupted or splits.test is None else judge(config, splits, out, say)
    return Finetuned(outcome, run.best, results)


def judge(config: Config, splits: LabelledSplits, out: Path, say: Say) -> dict[str, Any]:
    """The test split under the chosen weights: results.json and report.html, made once; read where they exist."""
    if broadcast_flag(not (out / RESULTS).is_file()):
        assert splits.test is not None
        if rank() == 0:
            say(f"test: {len(splits.test)} clips under the weights that validation chose")
        loaded = load_classifier(out, str(choose_device()))
        _, tune = sections(config)
        inputs = build_inputs(config.audio)
        found = classify_dataset(loaded.model, splits.test, inputs, single=loaded.single, all_frames=tune.all_frames)
        if rank() == 0:
            record = classification_record(loaded, found, split="test", all_frames=tune.all_frames)
            write_evaluation(out, record, classification_page(loaded, splits.test, found, record))
        broadcast_flag(False)  # nobody reads before it is written
    results: dict[str, Any] = json.loads((out / RESULTS).read_text(encoding="utf-8"))
    return results
