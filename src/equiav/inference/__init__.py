"""Trained models for use: load_model, Embedder; imports nothing of training."""

from equiav.inference.classifier import LoadedClassifier, load_classifier
from equiav.inference.embedder import Embedded, Embedder, EmbeddingError, ItemError
from equiav.inference.model import Banks, LoadedModel, from_checkpoint, load_model, with_banks
from equiav.inference.windows import Window

__all__ = [
    "Banks",
    "Embedded",
    "Embedder",
    "EmbeddingError",
    "ItemError",
    "LoadedClassifier",
    "LoadedModel",
    "Window",
    "from_checkpoint",
    "load_classifier",
    "load_model",
    "with_banks",
]
