"""Pre-training: what a step of Algorithm 1 needs, retrieval on validation, checkpoints with their banks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from torch import Tensor

from equiav.build import build_bank, build_inputs, build_model, build_pipelines
from equiav.build_data import build_clips, build_schedule
from equiav.checkpoint import load_checkpoint
from equiav.config import Config
from equiav.data import ClipDataset
from equiav.distributed import rank
from equiav.errors import DataError
from equiav.evaluation import Record, retrieval_record
from equiav.inference import BANK, save_model
from equiav.losses import LossWeights
from equiav.models import EquiAV, load_strict
from equiav.training.guards import health, refuse_impossible
from equiav.training.log import RunLog
from equiav.training.objectives import Objective, draw_step, strategy_weights
from equiav.training.run import Run, Say, Taken, choose_device, log, prepare_folder
from equiav.training.step import Step
from equiav.types import Batch, Modality


class Trainer(Run):
    """Pre-trains one recipe into one folder; `say` receives progress lines."""

    kind = "pretrained"
    model: EquiAV
    objective: Objective

    def __init__(self, config: Config, out: Path, say: Say = log.info) -> None:
        refuse_impossible(config)
        prepare_folder(out)
        clips = build_clips(config, "train")
        self.validation = _validation_clips(config, say)
        schedule = build_schedule(config, clips)
        model = build_model(config).to(choose_device())
        objective = _build_objective(config, model)
        super().__init__(config, out, say, clips=clips, schedule=schedule, model=model, objective=objective)

    def _start_from(self, path: Path) -> None:
        checkpoint = load_checkpoint(path)
        weights = {k: v for k, v in checkpoint.weights.items() if not k.startswith(BANK)}
        if checkpoint.meta.get("kind") == "mae":  # gives encoders; predictor and heads stay as the recipe draws them
            encoders = tuple(f"{m.value}.f." for m in Modality)
            given = {k: v for k, v in weights.items() if k.startswith(encoders)}
            weights = {k: v for k, v in self.model.state_dict().items() if not k.startswith(encoders)} | given
        load_strict(self.model, weights, str(path))

    def _gradient(self, batch: Batch) -> Taken:
        cfg = self.config
        draws = draw_step(
            self.objective.augment, cfg.train.batch, cfg.objective.representations, cfg.seed, self.step,
            tokens=self.objective.tokens, keep=cfg.objective.keep_tokens,
        ).rows(*self._rows())  # fmt: skip
        w = cfg.objective.weights
        weights = strategy_weights(
            LossWeights(w.inter, w.intra_audio, w.intra_visual), cfg.objective.strategy, self.step + 1, self.total
        )
        terms, z = Step(self.objective, self.module, cfg.train.micro_batch, self.autocast)(batch, draws, weights)

        def values() -> dict[str, float]:
            return {
                "loss": float(terms.total),
                "inter": float(terms.inter),
                "intra_audio": float(terms.intra_audio),
                "intra_visual": float(terms.intra_visual),
                **health(z),
            }

        return Taken(terms.total, z.tensors(), values)

    def _evaluate(self, journal: RunLog | None) -> None:
        every = self.config.train.evaluate_every
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

    def _store(
        self, path: Path, weights: dict[str, Tensor], meta: dict[str, Any], state: dict[str, Tensor] | None
    ) -> None:
        save_model(path, self.config, weights, meta, state=state)


def _build_objective(config: Config, model: EquiAV) -> Objective:
    cfg = config.objective
    return Objective(
        model,
        build_pipelines(config.augment),
        build_inputs(config.audio),
        intra=cfg.intra,
        inter=cfg.inter,
        loss=cfg.loss,
        tau=cfg.temperature,
    )


def _validation_clips(config: Config, say: Say) -> ClipDataset | None:
    """Read at the start: a run must not find out at its end that there is nothing to validate on."""
    if config.train.evaluate_every is None:
        return None
    try:
        return build_clips(config, "validation")
    except DataError as error:
        if rank() == 0:
            say(f"no validation in this run: {error}")
        return None


def _flat(result: Record) -> dict[str, float]:
    return {f"{way}/{k}": v for way, values in result.items() for k, v in values.items()}


def _headline(result: Record) -> str:
    """The figure to watch: R@10, or P@10 where only classes pair."""
    forth, back = result["audio_to_video"], result["video_to_audio"]
    key = "R@10" if "R@10" in forth else "P@10"
    return f"{key} {forth[key]:.1f} % (audio to video), {back[key]:.1f} %"
