"""Training methods, one file each: model, augmentations and losses together, and the protocol they share."""

from equiav.objectives.base import Draws, NoDraws, Objective, Outputs, effective_rank, uniformity
from equiav.objectives.cavmae import CavMaeObjective
from equiav.objectives.classification import ClassificationObjective, binary_cross_entropy, cross_entropy
from equiav.objectives.equiav import STORED_VIEW, EquiAVObjective, ModalityDraws, StepDraws, strategy_weights
from equiav.objectives.masked import MaskedDraws, MaskedObjective, ReconstructionObjective

__all__ = [
    "STORED_VIEW",
    "CavMaeObjective",
    "ClassificationObjective",
    "Draws",
    "EquiAVObjective",
    "MaskedDraws",
    "MaskedObjective",
    "ModalityDraws",
    "NoDraws",
    "Objective",
    "Outputs",
    "ReconstructionObjective",
    "StepDraws",
    "binary_cross_entropy",
    "cross_entropy",
    "effective_rank",
    "strategy_weights",
    "uniformity",
]
