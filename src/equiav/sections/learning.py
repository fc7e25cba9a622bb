"""What is learnt, how fast and how long."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from equiav.sections.section import Momentum, NonNegative, Positive, PositiveFloat, Section


class BankConfig(Section):
    """The fixed vectors that evaluation uses for the centroid."""

    size: Positive = 64
    seed: int = 0


class WeightsConfig(Section):
    """The lambdas of Eq. (16)."""

    inter: NonNegative = 1.0
    intra_audio: NonNegative = 1.0
    intra_visual: NonNegative = 1.0


class ObjectiveConfig(Section):
    """What is learnt: the paper's method by default, its ablations by choice.

    With `keep_tokens` below 1, encoders see only that share of the patches in training, drawn anew for every clip, view
    and step: faster steps, not the paper's. Evaluation sees all.
    """

    intra: Literal["equivariant", "invariant", "none"] = "equivariant"
    inter: Literal["centroid", "original", "augmented", "equivariant"] = "centroid"
    representations: Positive = 16
    temperature: PositiveFloat = 0.07
    keep_tokens: Annotated[float, Field(gt=0, le=1)] = 1.0
    loss: str = "nt_xent"
    kind: str = "equiav"
    options: dict[str, Any] = {}
    weights: WeightsConfig = WeightsConfig()
    strategy: Literal["joint", "alternating", "two_stage"] = "joint"

    @model_validator(mode="after")
    def _possible(self) -> ObjectiveConfig:
        if self.intra == "none" and self.strategy != "joint":
            raise ValueError(f"strategy {self.strategy} needs an intra-modal term")
        if self.intra != "equivariant" and self.inter in ("centroid", "equivariant"):
            raise ValueError(f"inter {self.inter} needs the predictor that only intra equivariant trains")
        return self

    @property
    def representation(self) -> Literal["centroid", "pooled"]:
        """What evaluation must use: the kind of embedding that was contrasted."""
        return "centroid" if self.inter in ("centroid", "equivariant") else "pooled"


class OptimConfig(Section):
    """AdamW under warm-up and half a cosine; warm-up in epochs or in steps."""

    rate: PositiveFloat = 1e-4
    start_rate: NonNegative = 1e-6
    final_rate: NonNegative = 1e-6
    warmup_epochs: NonNegative | None = None
    warmup_steps: Annotated[int, Field(ge=0)] | None = None
    weight_decay: NonNegative = 1e-5
    betas: tuple[Momentum, Momentum] = (0.9, 0.95)
    clip: PositiveFloat | None = None

    @model_validator(mode="after")
    def _one_warmup(self) -> OptimConfig:
        if self.warmup_epochs is not None and self.warmup_steps is not None:
            raise ValueError("give warmup_epochs or warmup_steps, not both")
        return self


class TrainConfig(Section):
    """How long and in what portions: `batch` counts the clips of one step over all processes.

    With `shrink_batch` a set too small for one batch gets a smaller one, with a notice, instead of a refusal.
    With `micro_batch` a step is taken in portions of that many clips per process through a gradient cache, so that
    all clips of the batch stay negatives of each other. `checkpoint_activations` keeps only the input of every encoder
    block and computes the rest again for the gradient: the same numbers, less memory, more time.
    """

    batch: Positive = 256
    shrink_batch: bool = False
    micro_batch: Positive | None = None
    checkpoint_activations: bool = False
    epochs: PositiveFloat | None = None
    steps: Positive | None = None
    precision: Literal["auto", "float32", "bfloat16"] = "auto"
    ema: Annotated[float, Field(gt=0, lt=1)] | None = None
    workers: Annotated[int, Field(ge=0)] = 2
    log_every: Positive = 10
    evaluate_every: Positive | None = None
    checkpoint_every: Positive = 500
    keep: Positive = 2

    @model_validator(mode="after")
    def _length(self) -> TrainConfig:
        if (self.epochs is None) == (self.steps is None):
            raise ValueError("give epochs or steps, one of them")
        return self
