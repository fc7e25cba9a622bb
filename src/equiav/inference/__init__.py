"""Trained models for use: load_model, Embedder; imports nothing of training."""

from equiav.inference.embedder import Embedded, Embedder, EmbeddingError, ItemError
from equiav.inference.model import LoadedModel, from_checkpoint, load_model
from equiav.inference.windows import Window

__all__ = [
    "Embedded",
    "Embedder",
    "EmbeddingError",
    "ItemError",
    "LoadedModel",
    "Window",
    "from_checkpoint",
    "load_model",
]
