"""Text as unit vectors of the shared space, for models that have learnt some."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from equiav.errors import DataError, ShapeError
from equiav.inference.items import Vector
from equiav.inference.model import LoadedModel
from equiav.text import TEXT, TextInput

NO_TEXT = (
    "this model has learnt no text; train one with modalities.text (see docs/how-to/text.md), "
    "or fit a bridge to an image-text model (equiav bridge)"
)


def embed_text(model: LoadedModel, items: Any, batch: int = 32) -> Vector:
    """One text as a vector (D,), a list of texts as (N, D), of unit length.

    Of a long text the first words count, as many as the model reads. A text without any word is refused.
    """
    transform = model.inputs.get(TEXT)
    if not isinstance(transform, TextInput):
        raise DataError(NO_TEXT)
    texts = items if isinstance(items, list) else [items]
    if unknown := [type(text).__name__ for text in texts if not isinstance(text, str)]:
        raise ShapeError(f"text is given as str or a list of str, not {unknown[0]}")
    found: list[Tensor] = []
    for start in range(0, len(texts), batch):
        raw = torch.stack([transform.read(text) for text in texts[start : start + batch]]).to(model.device)
        found.append(F.normalize(model.embed(TEXT, transform.finish(transform.prepare(raw))).float(), dim=1).cpu())
    vectors: Vector = torch.cat(found).numpy() if found else np.zeros((0, model.width), np.float32)
    return vectors if isinstance(items, list) else vectors[0]
