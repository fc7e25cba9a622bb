"""The recipe: a frozen tree of plain values, read from YAML, stored with every checkpoint."""

from __future__ import annotations

import logging
import math
import re
import sys
from collections.abc import Callable
from copy import deepcopy
from difflib import get_close_matches
from functools import lru_cache
from itertools import combinations
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar, cast

import yaml
from pydantic import AfterValidator, BaseModel, ConfigDict, Discriminator, Field, Tag, ValidationError, model_validator

from equiav.errors import ConfigError

log = logging.getLogger(__name__)
T = TypeVar("T")

# Old names of keys: still read in recipes, overrides and stored checkpoints, never written.
RENAMED = {
    "optim.rate": "optim.lr",
    "optim.start_rate": "optim.start_lr",
    "optim.final_rate": "optim.final_lr",
    "finetune.head_rate": "finetune.head_lr_scale",
    "data.max_things": "data.max_objects",
}
RENAMED_VALUES = {"data.anchor": {"sound": "audio", "image": "visual"}}
# Keys that came after the first format of recipes; `canonical_dump` leaves them out while they are at their defaults.
ADDED = (
    "objective.kind", "objective.options", "objective.masked", "objective.contrast", "model.encoder.kind",
    "model.encoder.options", "model.encoder.name", "model.encoder.revision", "model.encoder.architecture",
    "model.predictor.options", "model.audio", "model.visual", "model.joint_depth", "modalities", "data.mismatched",
    "visual.mean", "visual.std", "optim.freeze", "optim.lr_scales", "optim.lora", "train.views", "train.report_to",
    "data.splits", "train.timeout", "train.compile", "train.keep_spectrograms",
    "augment.audio.off", "augment.visual.off",
)  # fmt: skip
# Defaults that are others now, with what a recipe without the key meant before: hashes keep to that.
CHANGED: dict[str, Any] = {"augment.audio.crop_aspect": [0.8, 1.5]}
KINDS = ("pretrain", "finetune", "ablation")  # of recipes that come with the package
LONGEST = 1 << 16  # characters of a recipe; PyYAML needs seconds for more
MOST_TOKENS = 65_536  # of one input
UNWRITABLE = re.compile("[\\0\\ud800-\\udfff]")  # no path and no file can hold them
FOREIGN = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*")  # module:attribute
MODALITY = re.compile(r"[a-z][a-z0-9_]*")  # weights are stored as modality.part

# Upper bounds keep a hostile recipe from asking for all memory or all time; no honest one comes near them.
Positive = Annotated[int, Field(gt=0, le=10**9)]
PositiveFloat = Annotated[float, Field(gt=0, le=1e9)]
NonNegative = Annotated[float, Field(ge=0, le=1e9)]
Share = Annotated[float, Field(ge=0, le=1)]
Hue = Annotated[float, Field(ge=0, le=0.5)]
BelowOne = Annotated[float, Field(ge=0, lt=1)]
Many = Annotated[int, Field(gt=0, le=65_536)]
Width = Annotated[int, Field(gt=0, le=8192)]
Few = Annotated[int, Field(gt=0, le=1024)]
Seed = Annotated[int, Field(ge=-(2**63), lt=2**63)]


def _ordered(value: tuple[float, float]) -> tuple[float, float]:
    if not 0 < value[0] <= value[1]:
        raise ValueError(f"{value[0]:g} to {value[1]:g} is no range of positive numbers")
    return value


def _at_most_all(value: tuple[float, float]) -> tuple[float, float]:
    if value[1] > 1:
        raise ValueError(f"an area cannot be more than the whole (1), got {value[1]:g}")
    return value


def _check_patches(patch: int, *sides: int) -> None:
    if any(side % patch for side in sides):
        raise ValueError(f"{' x '.join(map(str, sides))} is not a multiple of the patch {patch}")
    if (count := math.prod(side // patch for side in sides)) > MOST_TOKENS:
        raise ValueError(f"{count} patches are too many (at most {MOST_TOKENS})")


def _check_width(width: int, heads: int) -> None:
    if width % heads or width % 4:
        raise ValueError(f"width {width} must be a multiple of 4 and of heads {heads}")


def _part(value: str) -> str:
    modality, _, part = value.rpartition(".")
    if part not in ("encoder", "predictor", "heads") or (modality and not MODALITY.fullmatch(modality)):
        raise ValueError(f"{value[:80]!r} is no part: encoder, predictor or heads, or one modality's: audio.encoder")
    return value


def _term(value: str) -> str:
    if not re.fullmatch(rf"(intra|inter_{MODALITY.pattern})_{MODALITY.pattern}", value):
        raise ValueError("unknown key")
    return value


def _name(*known: str) -> AfterValidator:
    """Accepts the built-in names, and `module:attribute` for what a user brings along."""

    def check(value: str) -> str:
        if value not in known and not FOREIGN.fullmatch(value):
            raise ValueError(f"unknown name {value[:80]!r}; known are {', '.join((*known, 'module:attribute'))}")
        return value

    return AfterValidator(check)


Range = Annotated[tuple[float, float], AfterValidator(_ordered)]
Area = Annotated[Range, AfterValidator(_at_most_all)]
Options = dict[str, Any]  # arguments of what `module:attribute` names
Part = Annotated[str, AfterValidator(_part)]
Channels = tuple[float, float, float]
Dimension = Annotated[int, Field(ge=0, le=65_536)]
Architecture = dict[str, bool | Dimension | Annotated[float, Field(ge=0, le=65_536)] | str]


class Section(BaseModel):
    """A frozen group of keys; unknown ones are refused."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class _Chosen(Section):
    """A section whose `kind` may name something of the user's; only that takes `options`."""

    kind: str
    options: Options = Field(default_factory=dict)

    @model_validator(mode="after")
    def _options_of_ones_own(self) -> _Chosen:
        if self.options and ":" not in self.kind:
            raise ValueError(f"options are for a kind of your own (module:attribute), not for {self.kind}")
        return self


class WorldConfig(Section):
    """The generated world, drawn at `visual.size`: first `count` clips for training, then validation, then test.

    `used` trains on the first so many of them only: sets of different size with the same held-out scenes. `mismatched`
    is the share of training clips with the audio of another scene, as videos with a voice-over have; held-out clips are
    never among them. Here and below, `balanced` draws training clips by the paper's class weights.
    """

    kind: Literal["world"] = "world"
    seed: Seed = 0
    max_objects: Few = 3
    max_sounding: Few = 2
    another: Share = 0.5
    duet: Share = 0.3
    seconds: PositiveFloat = 2.0
    count: Positive = 5000
    used: Positive | None = None
    validation: Positive = 500
    test: Positive = 500
    mismatched: Share = 0.0
    balanced: bool = False


class ShardsConfig(Section):
    """Prepared videos: a folder written by `equiav prepare`.

    Folders may be addresses (https://, s3://, gs://, hf://). `statistics: data` takes the spectrogram's mean and std
    from that folder instead of the recipe; `one_per_source` keeps clips of one video out of each other's batch. `test`
    is a folder of its own where the publishers' test clips were prepared apart; `fold` makes one of the publishers'
    folds the test split, the others train. `splits` are the folders of the further splits of a dataset published with
    several, `path` the first: `finetune --folds` takes all. `validation` is a folder too, or a share of the training
    sources to hold out; without it the folder's own validation split counts.
    """

    kind: Literal["shards"] = "shards"
    path: str
    splits: tuple[str, ...] = ()
    validation: Annotated[float, Field(gt=0, lt=1)] | str | None = None
    test: str | None = None
    fold: Positive | None = None
    statistics: Literal["recipe", "data"] = "recipe"
    balanced: bool = False
    one_per_source: bool = False

    @model_validator(mode="after")
    def _one_validation(self) -> ShardsConfig:
        if self.fold is not None and self.validation is not None:
            raise ValueError("with a fold, finetune.validation_share says what is held out; leave out data.validation")
        return self


class PairedConfig(Section):
    """Audio files and images paired only by class: a tar or folder with manifest.csv. This uses labels.

    A clip is one item of the `anchor` modality, with `partners` of the other to choose from. `share` is how much of
    the training split is used, of each class and kind; held-out items stay the same.
    """

    kind: Literal["paired"] = "paired"
    path: str
    share: Annotated[float, Field(gt=0, le=1)] = 1.0
    seconds: PositiveFloat = 5.0
    anchor: Literal["audio", "visual"] = "visual"
    partners: Positive = 10
    balanced: bool = False


class CavMaeConfig(Section):
    """Data files as CAV-MAE and EquiAV write them: JSON lists of wav files and extracted frames.

    `weights` is a published weight file for balanced drawing; `balanced` computes the same weights. `fallback` takes
    the nearest earlier frame where one is missing, and counts it; without it that is an error.
    """

    kind: Literal["cavmae"] = "cavmae"
    train: str
    validation: str | None = None
    test: str | None = None
    balanced: bool = False
    weights: str | None = None
    fallback: bool = False


class ModalityConfig(Section):
    """A modality beside audio and visual: `text`, or `kind` names its specification as `module:attribute`."""

    kind: Annotated[str, _name("text")]
    options: Options = Field(default_factory=dict)


class ForeignDataConfig(ModalityConfig):
    """A dataset of the user's own: `kind` names it as `module:attribute`, `options` are its arguments."""

    kind: Annotated[str, _name()]
    balanced: bool = False


def _data_tag(value: Any) -> str | None:
    kind = value.get("kind") if isinstance(value, dict) else getattr(value, "kind", None)
    if kind in ("world", "shards", "paired", "cavmae"):
        return str(kind)
    return "foreign" if isinstance(kind, str) and FOREIGN.fullmatch(kind) else None


DataConfig = Annotated[
    Annotated[WorldConfig, Tag("world")]
    | Annotated[ShardsConfig, Tag("shards")]
    | Annotated[PairedConfig, Tag("paired")]
    | Annotated[CavMaeConfig, Tag("cavmae")]
    | Annotated[ForeignDataConfig, Tag("foreign")],
    Discriminator(
        _data_tag,
        custom_error_type="data_kind",
        custom_error_message="kind is one of world, shards, paired, cavmae, or module:attribute",
    ),
]


class AudioConfig(Section):
    """The spectrogram: frames, mel bins, patch, and the statistics it is standardised with."""

    sample_rate: Annotated[int, Field(gt=0, le=1_000_000)] = 16000
    frames: Many = 1024
    bins: Few = 128
    patch: Few = 16
    padding: Literal["floor", "zero"] = "floor"
    mean: Annotated[float, Field(ge=-1e6, le=1e6)] = -4.346
    std: PositiveFloat = 4.332

    @model_validator(mode="after")
    def _patches_fit(self) -> AudioConfig:
        _check_patches(self.patch, self.frames, self.bins)
        return self


class VisualConfig(Section):
    """The frame: side and patch in pixels, and the statistics it is normalised with (ImageNet's)."""

    size: Annotated[int, Field(gt=0, le=4096)] = 224
    patch: Few = 16
    mean: Channels = (0.485, 0.456, 0.406)
    std: tuple[PositiveFloat, PositiveFloat, PositiveFloat] = (0.229, 0.224, 0.225)

    @model_validator(mode="after")
    def _patches_fit(self) -> VisualConfig:
        _check_patches(self.patch, self.size, self.size)
        return self


class EncoderConfig(_Chosen):
    """An encoder: a ViT by the name of its size or by width, depth and heads; or one of other people's; or your own.

    `kind: transformers` takes `name`, a repository on the Hub or a local folder, and where wanted its `revision`: a
    ViT, ViT-MAE, DINOv2, CLIP or SigLIP for `model.visual.encoder`, an AST for `model.audio.encoder`. It decides the
    sizes and statistics of its modality; what the recipe gives of them must agree, but frames may have any side that
    its patch divides. `architecture` is filled in, so that a checkpoint needs nothing but itself.
    """

    kind: Annotated[str, _name("vit", "transformers")] = "vit"
    name: Annotated[str, Field(min_length=1, max_length=4096)] | None = None
    revision: Annotated[str, Field(min_length=1, max_length=255)] | None = None
    architecture: Architecture | None = None
    size: Literal["base", "small", "tiny", "micro"] | None = "base"
    width: Width | None = None
    depth: Annotated[int, Field(gt=0, le=256)] | None = None
    heads: Few | None = None
    mlp_ratio: Annotated[float, Field(gt=0, le=64)] = 4.0
    norm_eps: PositiveFloat = 1e-6
    norm_augmented: bool = False

    @model_validator(mode="after")
    def _consistent(self) -> EncoderConfig:
        if (self.kind == "transformers") != (self.name is not None):
            raise ValueError("kind transformers and a name belong together")
        if self.kind != "transformers" and (self.revision or self.architecture):
            raise ValueError("revision and architecture are for kind transformers")
        explicit = [self.width, self.depth, self.heads]
        if self.size is None and None in explicit:
            raise ValueError("give a size, or all of width, depth and heads")
        if self.size is not None and any(value is not None for value in explicit):
            raise ValueError("width, depth and heads need size: null")
        if self.width is not None and self.heads is not None:
            _check_width(self.width, self.heads)
        return self


class PredictorConfig(_Chosen):
    """The transformation predictor u."""

    kind: Annotated[str, _name("attention", "linear", "hypernetwork")] = "attention"
    query_width: Width = 256
    heads: Few = 8
    head_width: Few = 64
    bases: Few = 16


class HeadsConfig(Section):
    """The projection heads g."""

    hidden: Many = 2048
    inter: Many = 512
    intra: Many = 512


class BranchConfig(Section):
    """What one modality has of its own; without an encoder here it takes the shared `model.encoder`."""

    encoder: EncoderConfig | None = None


class ModelConfig(Section):
    """Encoders, predictor, heads. Of CAV-MAE's encoders the last `joint_depth` blocks are over both modalities."""

    encoder: EncoderConfig = EncoderConfig()
    predictor: PredictorConfig = PredictorConfig()
    heads: HeadsConfig = HeadsConfig()
    audio: BranchConfig = BranchConfig()
    visual: BranchConfig = BranchConfig()
    joint_depth: Few = 1

    @model_validator(mode="after")
    def _of_one_modality(self) -> ModelConfig:
        if self.encoder.kind == "transformers":
            raise ValueError("encoder: one of transformers is for one modality: model.visual.encoder or model.audio...")
        return self

    def encoder_for(self, modality: str) -> EncoderConfig:
        """The encoder of a modality: its own, else the shared one."""
        own = {"audio": self.audio.encoder, "visual": self.visual.encoder}.get(modality)
        return own or self.encoder


class ClassifierConfig(Section):
    """A classifier on the encoders; without `classes` the data say how many. Projections: released checkpoints only."""

    mode: Literal["audio", "visual", "audiovisual"]
    classes: Annotated[int, Field(gt=0, le=1_000_000)] | None = None
    projection: Literal["none", "linear", "mlp"] = "none"


class AudioAugmentConfig(Section):
    """Ranges of the spectrogram's augmentations; `crop_aspect` is time over frequency. Those in `off` stay out."""

    crop_area: Area = (0.08, 1.0)
    crop_aspect: Range = (0.667, 1.25)
    jitter: tuple[Share, Share] = (0.4, 0.4)
    blur_sigma: Range = (0.1, 2.0)
    mask_time: Share = 192 / 1024
    mask_frequency: Share = 48 / 128
    off: tuple[Literal["shift", "specaugment", "crop", "jitter", "blur", "flip"], ...] = ()


class VisualAugmentConfig(Section):
    """Ranges of the frame's augmentations. Those named in `off` stay out: a mirrored digit is no digit."""

    crop_area: Area = (0.08, 1.0)
    crop_aspect: Range = (3 / 4, 4 / 3)
    jitter: tuple[Share, Share, Share, Hue] = (0.4, 0.4, 0.4, 0.1)
    blur_sigma: Range = (0.1, 2.0)
    off: tuple[Literal["crop", "jitter", "blur", "flip", "grey"], ...] = ()


class AugmentConfig(Section):
    """Layout of the vectors, and the ranges they are drawn from. `released` is for imported checkpoints."""

    layout: Literal["paper", "released"] = "paper"
    audio: AudioAugmentConfig = AudioAugmentConfig()
    visual: VisualAugmentConfig = VisualAugmentConfig()


class BankConfig(Section):
    """The fixed vectors that evaluation uses for the centroid."""

    size: Many = 64
    seed: Seed = 0


class WeightsConfig(Section):
    """The lambdas of Eq. (16); of further modalities by the name of the term: `inter_audio_text`, `intra_text`.

    A term that is not named weighs as `inter` does, or 1.
    """

    model_config = ConfigDict(extra="allow")
    __pydantic_extra__: dict[Annotated[str, AfterValidator(_term)], NonNegative] = Field(init=False)

    inter: NonNegative = 1.0
    intra_audio: NonNegative = 1.0
    intra_visual: NonNegative = 1.0


class DecoderConfig(Section):
    """The decoder that reconstructs removed patches; the defaults are MAE's."""

    width: Width = 512
    depth: Annotated[int, Field(gt=0, le=256)] = 8
    heads: Few = 16

    @model_validator(mode="after")
    def _divisible(self) -> DecoderConfig:
        _check_width(self.width, self.heads)
        return self


class MaskedConfig(Section):
    """Masked reconstruction: `ratio` of the patches is removed and predicted.

    `norm_pix` standardises every target patch by itself. `modalities` are those that are learnt (masked only; CAV-MAE
    has both). Frames are cropped and flipped where that is asked for; spectrograms are taken as they are.
    """

    ratio: Annotated[float, Field(gt=0, lt=1)] = 0.75
    norm_pix: bool = True
    modalities: tuple[str, ...] = ("audio", "visual")
    decoder: DecoderConfig = DecoderConfig()
    crop_area: Area | None = None
    flip: Share = 0.0

    @model_validator(mode="after")
    def _some_modality(self) -> MaskedConfig:
        if not self.modalities or len(set(self.modalities)) < len(self.modalities):
            raise ValueError("modalities: name at least one, and each once")
        return self


class ContrastConfig(Section):
    """CAV-MAE's contrast: its weight beside the reconstruction, its temperature, and whether it has both directions."""

    weight: NonNegative = 0.01
    temperature: PositiveFloat = 0.05
    both: bool = False


class ObjectiveConfig(_Chosen):
    """What is learnt: the paper's method by default, its ablations by choice, or an objective of the user's own.

    `kind: masked` is masked autoencoding, `kind: cavmae` CAV-MAE; these read `masked` (and `contrast`) only.
    With `keep_tokens` below 1, encoders see only that share of the patches in training, drawn for every clip, view and
    step: faster steps, not the paper's. Evaluation sees all.
    """

    kind: Annotated[str, _name("equiav", "masked", "cavmae")] = "equiav"
    intra: Literal["equivariant", "invariant", "none"] = "equivariant"
    inter: Literal["centroid", "original", "augmented", "equivariant"] = "centroid"
    representations: Many = 16
    temperature: PositiveFloat = 0.07
    keep_tokens: Annotated[float, Field(gt=0, le=1)] = 1.0
    loss: Annotated[str, _name("nt_xent", "equimod")] = "nt_xent"
    weights: WeightsConfig = WeightsConfig()
    strategy: Literal["joint", "alternating", "two_stage"] = "joint"
    masked: MaskedConfig = MaskedConfig()
    contrast: ContrastConfig = ContrastConfig()

    @model_validator(mode="after")
    def _possible(self) -> ObjectiveConfig:
        if self.intra == "none" and self.strategy != "joint":
            raise ValueError(f"strategy {self.strategy} needs an intra-modal term")
        if self.intra != "equivariant" and self.inter in ("centroid", "equivariant"):
            raise ValueError(f"inter {self.inter} needs the predictor that only intra equivariant trains")
        return self

    @model_validator(mode="after")
    def _of_its_kind(self) -> ObjectiveConfig:
        """A key that the chosen method never reads was set by mistake."""
        read = {
            "equiav": set(ObjectiveConfig.model_fields) - {"masked", "contrast"},
            "masked": {"kind", "options", "masked"},
            "cavmae": {"kind", "options", "masked", "contrast"},
        }.get(self.kind)
        for name, field in ObjectiveConfig.model_fields.items():
            default = field.get_default(call_default_factory=True)
            if read is not None and name not in read and getattr(self, name) != default:
                raise ValueError(f"{name} is not an option of kind {self.kind}")
        if self.kind == "cavmae" and set(self.masked.modalities) != {"audio", "visual"}:
            raise ValueError("masked.modalities: CAV-MAE has audio and visual")
        return self

    @property
    def has_predictor(self) -> bool:
        """Whether models of this kind have a predictor, and so banks of augmentation vectors; the user's own may."""
        return self.kind not in ("masked", "cavmae")

    @property
    def representation(self) -> Literal["centroid", "pooled"]:
        """What evaluation must use: the kind of embedding that was contrasted."""
        return "centroid" if self.has_predictor and self.inter in ("centroid", "equivariant") else "pooled"


class LoraConfig(Section):
    """Low-rank adapters in the linear layers of encoder blocks that are not frozen; checkpoints hold them merged."""

    rank: Few = 8
    alpha: Few = 16


class OptimConfig(Section):
    """AdamW; its learning rate warms up from `start_lr` to `lr`, then falls to `final_lr` on half a cosine.

    The warm-up is given in epochs or in steps; `clip` bounds the norm of the gradient. Parts of the model are
    `encoder`, `predictor` and `heads`, of every modality or of one (`audio.encoder`): `freeze` leaves a part as it is
    (`all`), or the first so many blocks of an encoder (a number; `visual.encoder: 6`); `lr_scales` multiply the
    learning rate of a part. With `lora` encoders learn through low-rank adapters only.
    """

    lr: PositiveFloat = 1e-4
    start_lr: NonNegative = 1e-6
    final_lr: NonNegative = 1e-6
    warmup_epochs: NonNegative | None = None
    warmup_steps: Annotated[int, Field(ge=0, le=10**9)] | None = None
    weight_decay: NonNegative = 1e-5
    betas: tuple[BelowOne, BelowOne] = (0.9, 0.95)
    clip: PositiveFloat | None = None
    freeze: dict[Part, Literal["all"] | Annotated[int, Field(ge=0, le=256)]] = Field(default_factory=dict)
    lr_scales: dict[Part, PositiveFloat] = Field(default_factory=dict)
    lora: LoraConfig | None = None

    @model_validator(mode="after")
    def _one_warmup(self) -> OptimConfig:
        if self.warmup_epochs is not None and self.warmup_steps is not None:
            raise ValueError("give warmup_epochs or warmup_steps, not both")
        return self


class ViewsConfig(Section):
    """Clips seen in a fixed number of ways: `count` augmentations each, drawn once with `seed`, on `frames` frames.

    With frozen encoders `store` names a folder for their outputs, which are computed once and shared by all runs whose
    encoders, data and views are the same; without it they are computed in every step, to the same losses.
    """

    count: Few = 8
    frames: Few = 4
    seed: Seed = 0
    store: str | None = None
    precision: Literal["float16", "float32"] = "float16"


class TrainConfig(Section):
    """How long, and in batches of which size: `batch` counts the clips of one step over all processes.

    With `shrink_batch` a set too small for one batch gets a smaller one, with a notice, instead of a refusal.
    With `micro_batch` a step is taken in portions of that many clips per process through a gradient cache, so that
    all clips of the batch stay negatives of each other. `checkpoint_activations` keeps only the input of every encoder
    block and computes the rest again for the gradient: the same numbers, less memory, more time. `compile` gives the
    blocks of encoders to torch.compile: the same losses to rounding. It needs a C++ compiler, on a GPU Triton as well,
    and is refused without. `views` limits what is drawn for a clip, and can store what frozen encoders make of it.
    `keep_spectrograms` computes the spectrogram of every training clip once and keeps it in memory (in each worker):
    the same numbers, for collections that fit. `report_to` are the trackers that get every number of log.jsonl.

    A loader that gives no batch for `timeout` seconds ends the run, and so does a rank that the others wait for twice
    as long; the newest checkpoint stays. A run may be resumed with another `timeout`, and reporting elsewhere.
    """

    batch: Positive = 256
    shrink_batch: bool = False
    micro_batch: Positive | None = None
    checkpoint_activations: bool = False
    compile: bool = False
    keep_spectrograms: bool = False
    epochs: PositiveFloat | None = None
    steps: Positive | None = None
    precision: Literal["auto", "float32", "bfloat16"] = "auto"
    ema: Annotated[float, Field(gt=0, lt=1)] | None = None
    workers: Annotated[int, Field(ge=0, le=1024)] = 2
    log_every: Positive = 10
    evaluate_every: Positive | None = None
    checkpoint_every: Positive = 500
    keep: Positive = 2
    report_to: tuple[Literal["tensorboard", "wandb", "mlflow", "trackio"], ...] = ("tensorboard",)
    timeout: PositiveFloat = 1800.0
    views: ViewsConfig | None = None

    @model_validator(mode="after")
    def _length(self) -> TrainConfig:
        if (self.epochs is None) == (self.steps is None):
            raise ValueError("give epochs or steps, one of them")
        return self


class FinetuneAudioConfig(Section):
    """Fine-tuning on audio: chance of a circular shift, chance and greatest sizes of SpecAugment's masks."""

    shift: Share = 0.0
    mask: Share = 1.0
    mask_time: Share = 192 / 1024
    mask_frequency: Share = 48 / 128


class FinetuneVisualConfig(Section):
    """Fine-tuning on frames: a random resized crop (none without an area) and the chance of a flip."""

    crop_area: Area | None = (0.5, 1.0)
    crop_aspect: Range = (3 / 4, 4 / 3)
    flip: Share = 0.5


class FinetuneConfig(Section):
    """How a classifier is trained, and on what it is chosen.

    `mixup` is the chance of a clip to be mixed with another of its batch, by a share drawn from Beta(b, b), b =
    `mixup_beta`. `layer_decay` multiplies the learning rate once per layer below the classifier, `head_lr_scale` that
    of the classifier itself. `metric`, on validation, chooses the weights that are kept; where the data have no
    validation split, `validation_share` of the training part is held out for it, by source; with 0 all of it trains
    and the last weights are kept. `test_split: validation` tests on the publishers' validation split, where the labels
    of their test split are not public. `all_frames` averages the test scores over every frame of a clip.
    `classes_file` fixes the classes.
    """

    loss: Literal["ce", "bce"]
    metric: Literal["mAP", "accuracy"]
    mixup: Share = 0.0
    mixup_beta: Positive = 10
    label_smoothing: BelowOne = 0.0
    drop_path: BelowOne = 0.0
    layer_decay: Annotated[float, Field(gt=0, le=1)] = 1.0
    head_lr_scale: PositiveFloat = 1.0
    validation_share: BelowOne = 0.1
    test_split: Literal["test", "validation"] = "test"
    all_frames: bool = False
    classes_file: str | None = None
    audio: FinetuneAudioConfig = FinetuneAudioConfig()
    visual: FinetuneVisualConfig = FinetuneVisualConfig()


class Config(Section):
    """A whole recipe. `modalities` are further ones beside audio and visual, by name."""

    data: DataConfig = WorldConfig()
    objective: ObjectiveConfig = ObjectiveConfig()
    optim: OptimConfig = OptimConfig()
    train: TrainConfig = TrainConfig(epochs=20)
    model: ModelConfig = ModelConfig()
    classifier: ClassifierConfig | None = None
    finetune: FinetuneConfig | None = None
    audio: AudioConfig = AudioConfig()
    visual: VisualConfig = VisualConfig()
    augment: AugmentConfig = AugmentConfig()
    bank: BankConfig = BankConfig()
    seed: Seed = 0
    weights: str | None = None
    modalities: dict[str, ModalityConfig] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _modality_names(self) -> Config:
        for name in self.modalities:
            if name in ("audio", "visual", "bank") or not MODALITY.fullmatch(name):
                raise ValueError(f"modalities: {name[:80]!r} is taken or no name (small letters, digits, _)")
        known = ("audio", "visual", *self.modalities)
        terms = {f"inter_{a}_{b}" for a, b in combinations(known, 2) if len(known) > 2} | {f"intra_{m}" for m in known}
        for name in self.objective.weights.__pydantic_extra__ or {}:
            if name not in terms:
                raise ValueError(
                    f"objective.weights.{name[:80]}: unknown key; terms are inter, {', '.join(sorted(terms))}"
                )
        return self


def load_config(path: Path, overrides: tuple[str, ...] = ()) -> Config:
    """Reads a recipe and applies `key.sub=value` overrides, values read as YAML."""
    tree = _current_names(read_yaml(path) or {}, str(path))
    given = {override.partition("=")[0] for override in overrides}
    if both := sorted(old for old, new in RENAMED.items() if {old, new} <= given):
        raise ConfigError(f"{both[0]} is the old name of {RENAMED[both[0]]}; give one of them, not both")
    for override in overrides:
        _override(tree, override)
    return parse_config(tree, str(path))


def parse_config(tree: Any, where: str) -> Config:
    """A checked recipe from plain data; `where` names it in messages."""
    try:
        return Config.model_validate(_current_names(tree, where))
    except ValidationError as error:
        raise refusal(error, where) from error


def read_yaml(path: Path) -> Any:
    """The plain data of a YAML file, or a ConfigError in one line."""
    try:
        with path.open(encoding="utf-8") as file:
            text = file.read(LONGEST + 1)
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read ({error.strerror})") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path}: not YAML ({error})") from error
    if len(text) > LONGEST:
        raise ConfigError(f"{path}: too long for a recipe (more than {LONGEST} characters)")
    return _parse_yaml(text, str(path))


class _PlainLoader(yaml.SafeLoader):
    """YAML without anchors, aliases and merge keys: a few lines of those expand to gigabytes. Keys are words."""

    def compose_node(self, parent: Any, index: Any) -> Any:
        event = self.peek_event()  # type: ignore[no-untyped-call]
        if UNWRITABLE.search(getattr(event, "value", None) or ""):
            raise yaml.MarkedYAMLError(problem="NUL or surrogate characters", problem_mark=event.start_mark)
        if isinstance(event, yaml.AliasEvent) or getattr(event, "anchor", None) is not None:
            raise yaml.MarkedYAMLError(problem="anchors and aliases are not allowed", problem_mark=event.start_mark)
        return super().compose_node(parent, index)

    def flatten_mapping(self, node: yaml.MappingNode) -> None:
        for key, _ in node.value:
            if key.tag == "tag:yaml.org,2002:merge":
                raise yaml.MarkedYAMLError(problem="merge keys (<<) are not allowed", problem_mark=key.start_mark)
            if key.tag == "tag:yaml.org,2002:bool":  # `off: [flip]`, which YAML 1.1 reads as `false: [flip]`
                key.tag = "tag:yaml.org,2002:str"
        super().flatten_mapping(node)


@lru_cache(maxsize=256)
def _plain(text: str) -> Any:
    return yaml.load(text, _PlainLoader)  # a SafeLoader


def _parse_yaml(text: str, where: str) -> Any:
    try:
        return deepcopy(_plain(text))  # tables of runs read the same recipes and overrides over and over
    except RecursionError:
        raise ConfigError(f"{where}: not YAML (nested too deeply)") from None
    except (yaml.YAMLError, ValueError, ArithmeticError, LookupError, TypeError, AttributeError) as error:
        # Beside its own errors PyYAML lets through what goes wrong with absurd numbers, dates and explicit tags.
        raise ConfigError(f"{where}: not YAML ({' '.join(str(error).split())})") from error


def _override(tree: dict[Any, Any], override: str) -> None:
    key, equals, value = override.partition("=")
    if not equals or not key:
        raise ConfigError(f"{override!r}: an override is key=value, for instance train.steps=100")
    if key in RENAMED:
        _say_renamed(f"{key} (now {RENAMED[key]})")
    *sections, last = RENAMED.get(key, key).split(".")
    for section in sections:
        tree = tree.setdefault(section, {})
        if not isinstance(tree, dict):
            raise ConfigError(f"{override!r}: {section} is a value, not a section")
    try:
        tree[last] = _parse_yaml(value, repr(override))
    except ConfigError as error:
        raise ConfigError(f"{override!r}: {value!r} is not a YAML value") from error


_said: set[str] = set()


def _say_renamed(*texts: str) -> None:
    """Logs the new names in one line, each once per process."""
    if new := [text for text in texts if text not in _said]:
        _said.update(new)
        log.warning("old names in recipes, which still work: %s", ", ".join(new))


def _part_of(tree: Any, path: str) -> tuple[dict[Any, Any], str]:
    """The part of a tree that holds a dotted key, an empty one where there is none, and the last name of the key."""
    *sections, key = path.split(".")
    for section in sections:
        tree = tree.get(section) if isinstance(tree, dict) else None
    return (tree if isinstance(tree, dict) else {}), key


def _current_names(tree: Any, where: str) -> dict[Any, Any]:
    """The same tree with old names of keys and values replaced by their new ones."""
    if not isinstance(tree, dict):
        raise ConfigError(f"{where}: a recipe is a mapping of sections, got {type(tree).__name__}")
    tree, found = {name: dict(part) if isinstance(part, dict) else part for name, part in tree.items()}, []
    for old, new in RENAMED.items():
        (part, before), (_, after) = _part_of(tree, old), _part_of(tree, new)
        if before not in part:
            continue
        if after in part:
            raise ConfigError(f"{where}: {old} is the old name of {new}; give one of them, not both")
        found.append(f"{old} (now {new})")
        part[after] = part.pop(before)
    for path, names in RENAMED_VALUES.items():
        part, key = _part_of(tree, path)
        if isinstance(value := part.get(key), str) and value in names:
            found.append(f"{path}: {value} (now {names[value]})")
            part[key] = names[value]
    _say_renamed(*found)
    return dict(tree)


def refusal(error: ValidationError, where: str) -> ConfigError:
    """The first thing that is wrong with a file, in one line."""
    first = error.errors()[0]
    key = ".".join(str(part) for part in first["loc"]) or "recipe"
    reason = "unknown key" if first["type"] == "extra_forbidden" else first["msg"].removeprefix("Value error, ")
    more = f" (and {error.error_count() - 1} more)" if error.error_count() > 1 else ""
    return ConfigError(" ".join(f"{where}: {key}: {reason}{more}".split()))


def shipped_recipes() -> dict[str, Path]:
    """The recipes and tables that come with the package, by names such as `pretrain/world`."""
    here = Path(__file__).parent
    for folder in (here / "configs", here.parents[1] / "configs"):  # installed; in the source tree
        if folder.is_dir():
            found = sorted(folder.glob("*/*.yaml"), key=lambda path: (KINDS.index(path.parent.name), path.stem))
            return {f"{path.parent.name}/{path.stem}": path for path in found}
    raise ConfigError("configs: not part of this installation")


def find_recipe(given: str | Path, kind: str | None = None) -> Path:
    """The file itself where there is one; else the recipe that the package carries under that name.

    `kind` is pretrain, finetune or ablation: with it `world` is enough, without it two recipes may have that name.
    """
    path, carried = Path(given), shipped_recipes()
    if path.exists() and not path.is_dir():
        return path
    name = path.with_suffix("").as_posix().removeprefix("configs/")
    known = [n for n in carried if kind is None or n.startswith(f"{kind}/")]
    fitting = [n for n in known if n.split("/")[1] == name] or [n for n in carried if n == name]
    if len(fitting) == 1:
        return carried[fitting[0]]
    if fitting:
        raise ConfigError(f"{given}: there are {' and '.join(fitting)}; name one of them")
    near = get_close_matches(name, [*known, *(n.split("/")[1] for n in known)], n=3, cutoff=0.5)
    hint = f"near names: {', '.join(near)}" if near else "`equiav recipes` lists those there are"
    raise ConfigError(f"{given}: no such file, and no recipe of this name; {hint}")


def dump_config(config: Config) -> str:
    """The whole recipe as YAML, defaults written out."""
    return yaml.safe_dump(config.model_dump(mode="json"), sort_keys=False)


def canonical_dump(config: Config, *, exclude_defaults: bool = False) -> dict[str, Any]:
    """The recipe as the first format spelled it: for hashes, which must outlive renamed and added keys.

    Renamed keys have their old names; keys added since are left out while they are at their defaults. Without defaults,
    those of the first format are left out: a changed default makes another recipe.
    """
    tree: dict[str, Any] = config.model_dump(mode="json", exclude_defaults=exclude_defaults)
    whole, defaults = config.model_dump(mode="json"), Config().model_dump(mode="json")
    for path, before in CHANGED.items() if exclude_defaults else ():
        _put_changed(tree, whole, path.split("."), before)
    for path in ADDED:
        (part, key), (default, _) = _part_of(tree, path), _part_of(defaults, path)
        if key in part and part[key] == default.get(key, []):  # that of a kind of data is not the default's
            del part[key]
    for old, new in RENAMED.items():
        (part, after), before = _part_of(tree, new), old.split(".")[-1]
        renamed = {before if key == after else key: value for key, value in part.items()}  # in its place: order counts
        part.clear()
        part.update(renamed)
    for path, names in RENAMED_VALUES.items():
        part, key = _part_of(tree, path)
        if first := [old for old, now in names.items() if now == part.get(key)]:
            part[key] = first[0]
    return tree


def _put_changed(tree: dict[str, Any], whole: dict[str, Any], path: list[str], before: Any) -> None:
    """Writes a key into the tree unless it is what it was before; leaves no empty sections."""
    name, *rest = path
    if rest:
        part = tree.setdefault(name, {})
        _put_changed(part, whole[name], rest, before)
        if not part:
            del tree[name]
    elif whole[name] != before:
        tree[name] = whole[name]
    else:
        tree.pop(name, None)


def with_earlier_defaults(config: Config) -> Config:
    """The recipe as it was meant before some defaults changed; one that sets those keys otherwise stays as it is."""
    tree, defaults = config.model_dump(mode="json"), Config().model_dump(mode="json")
    for path, before in CHANGED.items():
        (part, key), (default, _) = _part_of(tree, path), _part_of(defaults, path)
        if part[key] == default[key]:
            part[key] = before
    return Config.model_validate(tree)


def resolve_name(name: str, base: type[T] | None = None) -> Callable[..., T]:
    """What `module:attribute` names, if that module is imported already; with `base` a class derived from it.

    A recipe may come with a stranger's checkpoint: it never makes anything be imported, it cannot reach into the
    standard library, and what gets `options` as arguments should be a class (`object` for any), not a function.
    """
    module, _, attribute = name.partition(":")
    if module.split(".")[0] in sys.stdlib_module_names and module != "__main__":
        raise ConfigError(f"{name}: a recipe cannot name parts of Python's standard library")
    if module not in sys.modules:
        raise ConfigError(f"{name}: import it first (`import {module}`, or `equiav --import {module} ...`)")
    found = getattr(sys.modules[module], attribute, None)
    if not callable(found):
        raise ConfigError(f"{name}: module {module} has no such class or function")
    if base is not None and not (isinstance(found, type) and issubclass(found, base)):
        what = "" if base is object else f" derived from {base.__module__}.{base.__qualname__}"
        raise ConfigError(f"{name}: must be a class{what}")
    return cast(Callable[..., T], found)
