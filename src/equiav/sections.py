"""The sections of a recipe: groups of keys with their ranges and defaults, each checked on its own."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator

Positive = Annotated[int, Field(gt=0)]
PositiveFloat = Annotated[float, Field(gt=0)]
NonNegative = Annotated[float, Field(ge=0)]
Share = Annotated[float, Field(ge=0, le=1)]
Hue = Annotated[float, Field(ge=0, le=0.5)]
Momentum = Annotated[float, Field(ge=0, lt=1)]


class Section(BaseModel):
    """A frozen group of keys; unknown ones are refused."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class EncoderConfig(Section):
    """Size of both encoders: a name, or width, depth and heads."""

    size: Literal["base", "small", "tiny", "micro"] | None = "base"
    width: Positive | None = None
    depth: Positive | None = None
    heads: Positive | None = None
    mlp_ratio: PositiveFloat = 4.0
    norm_eps: PositiveFloat = 1e-6
    norm_augmented: bool = False

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

    kind: Literal["attention", "linear", "hypernetwork"] = "attention"
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


class ClassifierConfig(Section):
    """A classifier on the encoders; without `classes` the data say how many. Projections: released checkpoints only."""

    mode: Literal["audio", "visual", "audiovisual"]
    classes: Positive | None = None
    projection: Literal["none", "linear", "mlp"] = "none"


class AudioConfig(Section):
    """The spectrogram: rows, bands, patch, and the statistics it is standardised with."""

    sample_rate: Positive = 16000
    frames: Positive = 1024
    bins: Positive = 128
    patch: Positive = 16
    padding: Literal["floor", "zero"] = "floor"
    mean: float = -4.346
    std: PositiveFloat = 4.332

    @model_validator(mode="after")
    def _patches_fit(self) -> AudioConfig:
        if self.frames % self.patch or self.bins % self.patch:
            raise ValueError(f"{self.frames} x {self.bins} is not a multiple of the patch {self.patch}")
        return self


class VisualConfig(Section):
    """The picture: side and patch in pixels."""

    size: Positive = 224
    patch: Positive = 16

    @model_validator(mode="after")
    def _patches_fit(self) -> VisualConfig:
        if self.size % self.patch:
            raise ValueError(f"{self.size} is not a multiple of the patch {self.patch}")
        return self


def _ordered(value: tuple[float, float]) -> tuple[float, float]:
    if not 0 < value[0] <= value[1]:
        raise ValueError(f"{value[0]:g} to {value[1]:g} is no range of positive numbers")
    return value


def _at_most_all(value: tuple[float, float]) -> tuple[float, float]:
    if value[1] > 1:
        raise ValueError(f"an area cannot be more than the whole (1), got {value[1]:g}")
    return value


Range = Annotated[tuple[float, float], AfterValidator(_ordered)]
Area = Annotated[Range, AfterValidator(_at_most_all)]


class AudioAugmentConfig(Section):
    """Ranges of the spectrogram's augmentations."""

    crop_area: Area = (0.08, 1.0)
    crop_aspect: Range = (0.8, 1.5)
    jitter: tuple[Share, Share] = (0.4, 0.4)
    blur_sigma: Range = (0.1, 2.0)
    mask_time: Share = 192 / 1024
    mask_frequency: Share = 48 / 128


class VisualAugmentConfig(Section):
    """Ranges of the picture's augmentations."""

    crop_area: Area = (0.08, 1.0)
    crop_aspect: Range = (3 / 4, 4 / 3)
    jitter: tuple[Share, Share, Share, Hue] = (0.4, 0.4, 0.4, 0.1)
    blur_sigma: Range = (0.1, 2.0)


class AugmentConfig(Section):
    """Layout of the vectors, and the ranges they are drawn from. `released` is for imported checkpoints."""

    layout: Literal["paper", "released"] = "paper"
    audio: AudioAugmentConfig = AudioAugmentConfig()
    visual: VisualAugmentConfig = VisualAugmentConfig()


class FinetuneAudioConfig(Section):
    """Fine-tuning on sound: chance of a circular shift, chance and greatest sizes of SpecAugment's masks."""

    shift: Share = 0.0
    mask: Share = 1.0
    mask_time: Share = 192 / 1024
    mask_frequency: Share = 48 / 128


class FinetuneVisualConfig(Section):
    """Fine-tuning on pictures: a random resized crop (none without an area) and the chance of a flip."""

    crop_area: Area | None = (0.5, 1.0)
    crop_aspect: Range = (3 / 4, 4 / 3)
    flip: Share = 0.5


class FinetuneConfig(Section):
    """How a classifier is trained, and on what it is chosen.

    `mixup` is the chance of a clip to be mixed with another of its batch, by a share drawn from Beta(b, b), b =
    `mixup_beta`. `layer_decay` multiplies the rate once per layer below the classifier, `head_rate` the classifier's
    own. `metric`, on validation, chooses the weights that are kept; where the data have no validation split,
    `validation_share` of the training part is held out for it, by source. `test_split: validation` judges on the
    publishers' validation split, where the labels of their test split are not public. `all_frames` averages the test
    scores over every frame of a clip. `classes_file` fixes the classes.
    """

    loss: Literal["ce", "bce"]
    metric: Literal["mAP", "accuracy"]
    mixup: Share = 0.0
    mixup_beta: Positive = 10
    label_smoothing: Annotated[float, Field(ge=0, lt=1)] = 0.0
    drop_path: Annotated[float, Field(ge=0, lt=1)] = 0.0
    layer_decay: Annotated[float, Field(gt=0, le=1)] = 1.0
    head_rate: PositiveFloat = 1.0
    validation_share: Annotated[float, Field(gt=0, lt=1)] = 0.1
    test_split: Literal["test", "validation"] = "test"
    all_frames: bool = False
    classes_file: str | None = None
    audio: FinetuneAudioConfig = FinetuneAudioConfig()
    visual: FinetuneVisualConfig = FinetuneVisualConfig()


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
    loss: Literal["nt_xent", "equimod"] = "nt_xent"
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


class WorldConfig(Section):
    """The generated world, drawn at `visual.size`: first `count` clips for training, then validation, then test.

    `used` trains on the first so many of them only: sets of different size with the same held-out scenes.
    Here and below, `balanced` draws training clips by the paper's class weights.
    """

    kind: Literal["world"] = "world"
    seed: int = 0
    max_things: Positive = 3
    max_sounding: Positive = 2
    another: Share = 0.5
    duet: Share = 0.3
    seconds: PositiveFloat = 2.0
    count: Positive = 5000
    used: Positive | None = None
    validation: Positive = 500
    test: Positive = 500
    balanced: bool = False


class ShardsConfig(Section):
    """Prepared videos: a folder written by `equiav prepare`.

    `statistics: data` takes the spectrogram's mean and std from that folder instead of the recipe; `one_per_source`
    keeps clips of one video out of each other's batch. `test` is a folder of its own where the publishers' test clips
    were prepared apart; `fold` makes one of the publishers' folds the test split, the others train.
    """

    kind: Literal["shards"] = "shards"
    path: str
    test: str | None = None
    fold: Positive | None = None
    statistics: Literal["recipe", "data"] = "recipe"
    balanced: bool = False
    one_per_source: bool = False


class PairedConfig(Section):
    """Sounds and images paired only by class: a tar or folder with manifest.csv. This uses labels."""

    kind: Literal["paired"] = "paired"
    path: str
    seconds: PositiveFloat = 5.0
    anchor: Literal["sound", "image"] = "image"
    partners: Positive = 10
    balanced: bool = False


class CavMaeConfig(Section):
    """Data files as CAV-MAE and EquiAV write them: JSON lists of wav files and extracted frames.

    `weights` is a published weight file for balanced drawing; `balanced` works the same weights out. `fallback` takes
    the nearest earlier frame where one is missing, and counts it; without it that is an error.
    """

    kind: Literal["cavmae"] = "cavmae"
    train: str
    validation: str
    test: str | None = None
    balanced: bool = False
    weights: str | None = None
    fallback: bool = False


DataConfig = Annotated[WorldConfig | ShardsConfig | PairedConfig | CavMaeConfig, Field(discriminator="kind")]


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
