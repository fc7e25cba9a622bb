"""A model as the one module of a SentenceTransformer, with its `encode`, `similarity`, `save` and loading."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from sentence_transformers import SentenceTransformer
from sentence_transformers.base.modules import InputModule
from torch import Tensor

from equiav.checkpoint import save_checkpoint
from equiav.inference import Embedder, LoadedModel, load_model
from equiav.integrations.items import KINDS, vector_of

FOLDER = "equiav"  # of the checkpoint, inside what `save` writes


def sentence_transformer(model: str | Path | LoadedModel, device: str = "cpu") -> SentenceTransformer:
    """A SentenceTransformer whose `encode` takes audio, images and videos: paths, arrays, or {"audio": ...}.

    Opens a checkpoint, hf:owner/name, or what `save` wrote; SentenceTransformer itself opens the latter only with
    `trust_remote_code=True`, because the module's class is not one of its own.
    """
    if not isinstance(model, LoadedModel):
        saved = Path(model) / FOLDER
        model = load_model(saved if saved.is_dir() else model, device)
    return SentenceTransformer(modules=[EquiAVModule(model)], device=device, similarity_fn_name="cosine")


class EquiAVModule(InputModule):  # type: ignore[misc]
    """Reads media and embeds them."""

    def __init__(self, model: LoadedModel) -> None:
        super().__init__()
        self.loaded = model
        self.model = model.model  # so that it moves with the SentenceTransformer
        self.embedder = Embedder(model)

    @property
    def modalities(self) -> list[Any]:
        """What it takes."""
        return [*KINDS, ("audio", "image"), ("audio", "video"), ("image", "audio"), ("video", "audio")]

    def preprocess(self, inputs: Sequence[Any], prompt: str | None = None, **_: Any) -> dict[str, Tensor]:
        """The vectors (N, D) of the inputs; prompts are for text, which it does not take."""
        vectors = np.stack([vector_of(self.embedder, item) for item in inputs])
        return {"sentence_embedding": torch.from_numpy(vectors)}

    def forward(self, features: dict[str, Tensor], **_: Any) -> dict[str, Tensor]:
        """As they are: reading and embedding go together."""
        return features

    def get_embedding_dimension(self) -> int:
        """Length of a vector."""
        return self.loaded.width

    get_sentence_embedding_dimension = get_embedding_dimension

    def save(self, output_path: str, *_: Any, **__: Any) -> None:
        """Writes the checkpoint (safetensors and plain data) into a folder of `output_path`."""
        weights = dict(self.model.state_dict())
        config, meta = self.loaded.config, self.loaded.meta
        save_checkpoint(Path(output_path) / FOLDER, config, weights, meta, banks=dict(self.loaded.banks))

    @classmethod
    def load(cls, model_name_or_path: str, subfolder: str = "", **more: Any) -> EquiAVModule:
        """From what `save` wrote, on disk or on the Hub."""
        known = {k: more[k] for k in ("token", "cache_folder", "revision", "local_files_only") if k in more}
        place = cls.load_dir_path(model_name_or_path, subfolder=str(Path(subfolder) / FOLDER), **known)
        return cls(load_model(place))
