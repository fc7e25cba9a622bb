"""What the encoders, the predictor and the heads are made of."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import model_validator

from equiav.sections.section import Positive, PositiveFloat, Section


class EncoderConfig(Section):
    """Size of both encoders: a name, or width, depth and heads."""

    size: Literal["base", "small", "tiny", "micro"] | None = "base"
    width: Positive | None = None
    depth: Positive | None = None
    heads: Positive | None = None
    mlp_ratio: PositiveFloat = 4.0
    norm_eps: PositiveFloat = 1e-6
    norm_augmented: bool = False
    kind: str = "vit"
    options: dict[str, Any] = {}

    @model_validator(mode="after")
    def _named_or_explicit(self) -> EncoderConfig:
        explicit = [self.width, self.depth, self.heads]
        if self.size is None and None in explicit:
            raise ValueError("give a size, or all of width, depth and heads")
        if self.size is not None and any(value is not None for value in explicit):
            raise ValueError("width, depth and heads need size: null")
        if self.width is not None and self.heads is not None and (self.width % self.heads or self.width % 4):
            raise ValueError(f"width {self.width} must be a multiple of 4 and of heads {self.heads}")
        return self


class PredictorConfig(Section):
    """The transformation predictor u."""

    kind: str = "attention"
    query_width: Positive = 256
    heads: Positive = 8
    head_width: Positive = 64
    bases: Positive = 16


class HeadsConfig(Section):
    """The projection heads g."""

    hidden: Positive = 2048
    inter: Positive = 512
    intra: Positive = 512


class ModelConfig(Section):
    """Encoders, predictor, heads."""

    encoder: EncoderConfig = EncoderConfig()
    predictor: PredictorConfig = PredictorConfig()
    heads: HeadsConfig = HeadsConfig()

    def encoder_of(self, modality: str) -> EncoderConfig:
        """The encoder of one modality."""
        return self.encoder


class ClassifierConfig(Section):
    """A classifier on the encoders; without `classes` the data say how many. Projections: released checkpoints only."""

    mode: Literal["audio", "visual", "audiovisual"]
    classes: Positive | None = None
    projection: Literal["none", "linear", "mlp"] = "none"
