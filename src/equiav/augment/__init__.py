"""Augmentations as objects that draw, encode and apply; batched, on any device, randomness as an argument."""

from equiav.augment.base import Augmentation, Draw
from equiav.augment.geometry import HorizontalFlip, RandomResizedCrop, TimeShift, resized_crop
from equiav.augment.pipeline import Pipeline, PipelineDraw, VectorSource, audio_pipeline, neutral, visual_pipeline
from equiav.augment.released import ReleasedVectors
from equiav.augment.spectral import SpecAugment

__all__ = [
    "Augmentation",
    "Draw",
    "HorizontalFlip",
    "Pipeline",
    "PipelineDraw",
    "RandomResizedCrop",
    "ReleasedVectors",
    "SpecAugment",
    "TimeShift",
    "VectorSource",
    "audio_pipeline",
    "neutral",
    "resized_crop",
    "visual_pipeline",
]
