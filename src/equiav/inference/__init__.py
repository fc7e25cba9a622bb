"""Trained models for use: load_model, Embedder; imports nothing of training."""

from equiav.inference.embedder import Embedded, Embedder, EmbeddingError, ItemError
from equiav.inference.model import BANK, LoadedModel, from_checkpoint, load_model, save_model
from equiav.inference.windows import Window

__all__ = [
    "BANK",
    "Embedded",
    "Embedder",
    "EmbeddingError",
    "ItemError",
    "LoadedModel",
    "Window",
    "from_checkpoint",
    "load_model",
    "save_model",
]
