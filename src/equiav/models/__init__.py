"""The networks of the paper: encoders f, predictor u, heads g; and the way in and out for foreign weights."""

from equiav.models.classifier import Classifier, Mode, modalities
from equiav.models.encoder import SIZES, Encoder, Size, ViT, sincos_positions
from equiav.models.equiav import Branch, EmbeddingModel, EquiAV, Representation, centroid, mean_pool
from equiav.models.foreign import (
    HEAD_WIDTH,
    PREDICTOR_HEADS,
    ReleasedSizes,
    State,
    finetuned_from_released,
    from_mae,
    from_released,
    is_mae,
    kind_of_released,
    load_strict,
    read_state,
    released_sizes,
    to_released,
)
from equiav.models.heads import ProjectionHead
from equiav.models.layers import Block, Chosen, Tokens, draw_path, draw_tokens, initialise
from equiav.models.predictor import AttentionPredictor, HypernetworkPredictor, LinearPredictor, in_residual_form

__all__ = [
    "HEAD_WIDTH",
    "PREDICTOR_HEADS",
    "SIZES",
    "AttentionPredictor",
    "Block",
    "Branch",
    "Chosen",
    "Classifier",
    "EmbeddingModel",
    "Encoder",
    "EquiAV",
    "HypernetworkPredictor",
    "LinearPredictor",
    "Mode",
    "ProjectionHead",
    "ReleasedSizes",
    "Representation",
    "Size",
    "State",
    "Tokens",
    "ViT",
    "centroid",
    "draw_path",
    "draw_tokens",
    "finetuned_from_released",
    "from_mae",
    "from_released",
    "in_residual_form",
    "initialise",
    "is_mae",
    "kind_of_released",
    "load_strict",
    "mean_pool",
    "modalities",
    "read_state",
    "released_sizes",
    "sincos_positions",
    "to_released",
]
