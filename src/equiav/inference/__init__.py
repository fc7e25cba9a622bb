"""Trained models for use: load_model, Embedder; imports nothing of training."""

from equiav.inference.embedder import Embedded, Embedder, EmbeddingError, ItemError, Window, joint
from equiav.inference.items import Picture, Sound, Video, frames_of, resampled, waveform_of
from equiav.inference.model import (
    Banks,
    LoadedClassifier,
    LoadedModel,
    from_checkpoint,
    load_classifier,
    load_model,
    with_banks,
)
from equiav.media import PICTURES, audible, excerpt

__all__ = [
    "PICTURES",
    "Banks",
    "Embedded",
    "Embedder",
    "EmbeddingError",
    "ItemError",
    "LoadedClassifier",
    "LoadedModel",
    "Picture",
    "Sound",
    "Video",
    "Window",
    "audible",
    "excerpt",
    "frames_of",
    "from_checkpoint",
    "joint",
    "load_classifier",
    "load_model",
    "resampled",
    "waveform_of",
    "with_banks",
]
