"""Pre-training: objectives, schedule, optimiser, trainer, logs."""

from equiav.training.ahead import on_device
from equiav.training.classify import binary_cross_entropy, cross_entropy
from equiav.training.finetune import Finetuner, finetune
from equiav.training.folds import finetune_folds
from equiav.training.launch import STOPPED, Stopped, run_on_cores, train_on_cores
from equiav.training.log import LOG, cut_log, effective_rank, uniformity
from equiav.training.mixing import draw_mixing, mix_batch
from equiav.training.objectives import VIEWS, Objective, StepDraws, draw_step, strategy_weights
from equiav.training.optim import adamw, layer_scales, set_rate
from equiav.training.run import autocast_type, choose_device
from equiav.training.schedule import WarmupCosine
from equiav.training.step import Step
from equiav.training.trainer import Trainer

__all__ = [
    "LOG",
    "STOPPED",
    "VIEWS",
    "Finetuner",
    "Objective",
    "Step",
    "StepDraws",
    "Stopped",
    "Trainer",
    "WarmupCosine",
    "adamw",
    "autocast_type",
    "binary_cross_entropy",
    "choose_device",
    "cross_entropy",
    "cut_log",
    "draw_mixing",
    "draw_step",
    "effective_rank",
    "finetune",
    "finetune_folds",
    "layer_scales",
    "mix_batch",
    "on_device",
    "run_on_cores",
    "set_rate",
    "strategy_weights",
    "train_on_cores",
    "uniformity",
]
