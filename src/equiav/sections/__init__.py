"""The sections of a recipe: groups of keys with their ranges and defaults, each checked on its own."""

from equiav.sections.augment import AudioAugmentConfig, AugmentConfig, VisualAugmentConfig
from equiav.sections.data import CavMaeConfig, DataConfig, PairedConfig, ShardsConfig, WorldConfig
from equiav.sections.finetune import FinetuneAudioConfig, FinetuneConfig, FinetuneVisualConfig
from equiav.sections.inputs import AudioConfig, VisualConfig
from equiav.sections.learning import BankConfig, ObjectiveConfig, OptimConfig, TrainConfig, WeightsConfig
from equiav.sections.model import ClassifierConfig, EncoderConfig, HeadsConfig, ModelConfig, PredictorConfig
from equiav.sections.section import Section

__all__ = [
    "AudioAugmentConfig",
    "AudioConfig",
    "AugmentConfig",
    "BankConfig",
    "CavMaeConfig",
    "ClassifierConfig",
    "DataConfig",
    "EncoderConfig",
    "FinetuneAudioConfig",
    "FinetuneConfig",
    "FinetuneVisualConfig",
    "HeadsConfig",
    "ModelConfig",
    "ObjectiveConfig",
    "OptimConfig",
    "PairedConfig",
    "PredictorConfig",
    "Section",
    "ShardsConfig",
    "TrainConfig",
    "VisualAugmentConfig",
    "VisualConfig",
    "WeightsConfig",
    "WorldConfig",
]
