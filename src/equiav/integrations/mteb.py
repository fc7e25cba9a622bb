"""A model for mteb's audio, image and video tasks: `mteb.evaluate(MtebEncoder("runs/mine"), tasks)`.

Media are decoded by PyAV from paths and bytes, so none of mteb's own collators (torchaudio, torchcodec) is needed.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from mteb.models import ModelMeta
from mteb.models.abs_encoder import AbsEncoder
from mteb.models.model_meta import ScoringFunction
from numpy.typing import NDArray

from equiav.inference import Embedder, LoadedModel, load_model
from equiav.integrations.items import KINDS, vector_of


class MtebEncoder(AbsEncoder):  # type: ignore[misc]
    """The encoder protocol of mteb over an Embedder.

    Args:
        model: a run's folder, a checkpoint, hf:owner/name@revision, or a model already loaded.
        revision: of a model on the Hub; what results are filed under.
        device: cpu, cuda or mps.
        name: what results call the model; owner/name, as mteb wants it.
    """

    def __init__(
        self,
        model: str | Path | LoadedModel,
        revision: str | None = None,
        *,
        device: str | None = None,
        name: str | None = None,
        **_: Any,
    ) -> None:
        if not isinstance(model, LoadedModel):
            place = f"{model}@{revision}" if revision and str(model).startswith("hf:") else model
            name = name or (str(model)[3:] if str(model).startswith("hf:") else f"equiav/{Path(model).name}")
            model = load_model(place, device or "cpu")
        self.model = model
        self.embedder = Embedder(model)
        size = sum(p.numel() for p in model.model.parameters())
        self.mteb_model_meta = ModelMeta.create_empty(
            {
                "name": name or "equiav/model",
                "revision": revision or str(model.digest)[:12],
                "n_parameters": size,
                "memory_usage_mb": 4 * size / 2**20,
                "embed_dim": model.width,
                "open_weights": True,
                "framework": ["PyTorch"],
                "similarity_fn_name": ScoringFunction.COSINE,
                "use_instructions": False,
                "modalities": list(KINDS),
            }
        )

    def encode(self, inputs: Any, **_: Any) -> NDArray[np.float32]:
        """Unit vectors (N, D) of the media in a loader's dataset; what a row has is joined."""
        rows = _undecoded(inputs.dataset)
        kinds = [kind for kind in KINDS if kind in rows.column_names]
        return np.stack([vector_of(self.embedder, {kind: row[kind] for kind in kinds}) for row in rows])


def _undecoded(rows: Any) -> Any:
    """The dataset with its media as paths or bytes, where it would decode them itself."""
    import datasets

    for kind, feature in (("audio", datasets.Audio), ("video", datasets.Video)):
        if isinstance(rows.features.get(kind), feature):
            rows = rows.cast_column(kind, feature(decode=False))
    return rows
