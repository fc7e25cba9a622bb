"""Training: the run, its steps, fine-tuning, optimiser and logs."""

from equiav.training.finetune import Finetuner, draw_mixing, finetune, finetune_folds, mix_batch
from equiav.training.launch import STOPPED, Stopped, run_on_cores, train_on_cores
from equiav.training.log import LOG, cut_log
from equiav.training.optim import WarmupCosine, adamw, compile_blocks, layer_scales, set_lr
from equiav.training.step import Step, StepOutput, prefetch
from equiav.training.trainer import Outcome, Trainer, autocast_type, choose_device, run_lock

__all__ = [
    "LOG",
    "STOPPED",
    "Finetuner",
    "Outcome",
    "Step",
    "StepOutput",
    "Stopped",
    "Trainer",
    "WarmupCosine",
    "adamw",
    "autocast_type",
    "choose_device",
    "compile_blocks",
    "cut_log",
    "draw_mixing",
    "finetune",
    "finetune_folds",
    "layer_scales",
    "mix_batch",
    "prefetch",
    "run_lock",
    "run_on_cores",
    "set_lr",
    "train_on_cores",
]
