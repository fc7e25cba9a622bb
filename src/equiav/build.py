"""From a recipe to the things it names: the only place that reads config and calls constructors."""

from __future__ import annotations

from torch import Tensor, nn
from typing_extensions import assert_never

from equiav.augment import (
    Augmentation,
    HorizontalFlip,
    Pipeline,
    RandomResizedCrop,
    ReleasedVectors,
    SpecAugment,
    TimeShift,
    VectorSource,
    audio_pipeline,
    visual_pipeline,
)
from equiav.config import (
    AudioConfig,
    AugmentConfig,
    BankConfig,
    ClassifierConfig,
    Config,
    EncoderConfig,
    FinetuneConfig,
    HeadsConfig,
    ModelConfig,
    PredictorConfig,
    VisualConfig,
)
from equiav.errors import ConfigError
from equiav.media import FilterBank, Inputs
from equiav.models import (
    SIZES,
    AttentionPredictor,
    Branch,
    Classifier,
    EquiAV,
    HypernetworkPredictor,
    LinearPredictor,
    ProjectionHead,
    ReleasedSizes,
    Size,
    ViT,
    initialise,
    modalities,
)
from equiav.randomness import stream
from equiav.types import Modality

D_T = {Modality.AUDIO: 24, Modality.VISUAL: 18}


def encoder_size(cfg: EncoderConfig) -> Size:
    """Width, depth and heads, by name or by number."""
    if cfg.size is not None:
        return SIZES[cfg.size]
    return Size(cfg.width or 0, cfg.depth or 0, cfg.heads or 0)  # the recipe was checked: none is missing


def build_encoder(config: Config, modality: Modality) -> ViT:
    """f_a or f_v. The audio encoder looks at frequency as rows and time as columns."""
    cfg, audio, visual = config.model.encoder, config.audio, config.visual
    is_audio = modality is Modality.AUDIO
    return ViT(
        encoder_size(cfg),
        input_size=(audio.bins, audio.frames) if is_audio else (visual.size, visual.size),
        patch=audio.patch if is_audio else visual.patch,
        channels=1 if is_audio else 3,
        mlp_ratio=cfg.mlp_ratio,
        eps=cfg.norm_eps,
        norm_augmented=cfg.norm_augmented,
        checkpoint_activations=config.train.checkpoint_activations,
    )


def build_predictor(cfg: PredictorConfig, width: int, d_t: int, eps: float) -> nn.Module:
    """The transformation predictor u of the kind asked for."""
    match cfg.kind:
        case "attention":
            return AttentionPredictor(
                width, d_t, query_width=cfg.query_width, heads=cfg.heads, head_width=cfg.head_width, eps=eps
            )
        case "linear":
            return LinearPredictor(width, d_t)
        case "hypernetwork":
            return HypernetworkPredictor(width, d_t, hidden=cfg.query_width, bases=cfg.bases)
        case never:
            assert_never(never)


def build_branch(config: Config, modality: Modality) -> Branch:
    """Encoder, predictor and heads of one modality."""
    width, eps, heads = encoder_size(config.model.encoder).width, config.model.encoder.norm_eps, config.model.heads
    return Branch(
        modality,
        build_encoder(config, modality),
        build_predictor(config.model.predictor, width, D_T[modality], eps),
        ProjectionHead(width, heads.hidden, heads.intra, eps),
        ProjectionHead(width, heads.hidden, heads.inter, eps),
    )


def build_model(config: Config) -> EquiAV:
    """Both branches, initialised from the recipe's seed."""
    model = EquiAV(build_branch(config, Modality.AUDIO), build_branch(config, Modality.VISUAL))
    if not next(model.parameters()).is_meta:
        initialise(model, stream(config.seed, 0, "weights"))
    return model


def build_classifier(config: Config) -> Classifier:
    """Encoders and a linear classifier, initialised from the recipe's seed."""
    cfg = config.classifier
    if cfg is None or cfg.classes is None:
        raise ConfigError("this recipe has no classifier section, or does not say for how many classes")
    encoders = {m: build_encoder(config, m) for m in modalities(cfg.mode)}
    width, heads = encoder_size(config.model.encoder).width, config.model.heads
    eps = config.model.encoder.norm_eps
    projections: dict[Modality, nn.Module] = {}
    for m in encoders:
        match cfg.projection:
            case "linear":
                projections[m] = nn.Linear(width, heads.inter)
            case "mlp":
                projections[m] = ProjectionHead(width, heads.hidden, heads.inter, eps)
            case "none":
                pass
            case never:
                assert_never(never)
    classifier = Classifier(encoders, cfg.classes, projections=projections, projected_width=heads.inter)
    initialise(classifier, stream(config.seed, 0, "weights"))
    return classifier


def build_pipelines(cfg: AugmentConfig) -> dict[Modality, Pipeline]:
    """The augmentations of both modalities in the paper's layout."""
    return {
        Modality.AUDIO: audio_pipeline(**cfg.audio.model_dump()),
        Modality.VISUAL: visual_pipeline(**cfg.visual.model_dump()),
    }


def build_finetuning_pipelines(cfg: FinetuneConfig) -> dict[Modality, Pipeline]:
    """What inputs go through while a classifier is trained: shift and masks on sound, crop and flip on pictures."""
    audio, visual = cfg.audio, cfg.visual
    sound: dict[str, Augmentation] = {
        "shift": TimeShift(p=audio.shift),
        "specaugment": SpecAugment(audio.mask_time, audio.mask_frequency, p=audio.mask),
    }
    picture: dict[str, Augmentation] = {"flip": HorizontalFlip(p=visual.flip)}
    if visual.crop_area is not None:
        picture = {"crop": RandomResizedCrop(visual.crop_area, visual.crop_aspect), **picture}
    return {Modality.AUDIO: Pipeline(sound, tuple(sound)), Modality.VISUAL: Pipeline(picture, tuple(picture))}


def build_vector_source(config: Config, modality: Modality) -> VectorSource:
    """Where the vectors of one modality come from, in the layout the model was trained with."""
    match config.augment.layout:
        case "paper":
            return build_pipelines(config.augment)[modality]
        case "released":
            return ReleasedVectors(modality, config.audio.frames, config.audio.bins, config.visual.size)
        case never:
            assert_never(never)


def build_bank(config: Config, modality: Modality) -> Tensor:
    """The fixed bank of vectors (S, d_t) that evaluation uses for the centroid."""
    rng = stream(config.bank.seed, 0, f"bank/{modality.value}")
    return build_vector_source(config, modality).vectors(1, config.bank.size, rng)[0]


def build_filter_bank(cfg: AudioConfig) -> FilterBank:
    """The spectrogram of the recipe."""
    return FilterBank(cfg.sample_rate, cfg.frames, cfg.bins, cfg.padding)


def build_inputs(cfg: AudioConfig) -> Inputs:
    """From waveforms and frames to what the encoders want."""
    return Inputs(build_filter_bank(cfg), cfg.mean, cfg.std)


def released_config(sizes: ReleasedSizes, mode: str | None = None) -> Config:
    """The recipe of a model imported from the authors' released code: its vectors, padding, norms and eps."""
    size = sizes.encoder
    if size.heads < 1 or size.width % size.heads:
        raise ConfigError(f"{size.heads} heads do not divide the width {size.width}; give another --heads")
    encoder = EncoderConfig(
        size=None, width=size.width, depth=size.depth, heads=size.heads,
        mlp_ratio=sizes.mlp_ratio, norm_eps=1e-5, norm_augmented=sizes.classes == 0,
    )  # fmt: skip
    heads = HeadsConfig(hidden=sizes.head_hidden, inter=sizes.inter_out, intra=sizes.intra_out)
    predictor = PredictorConfig(query_width=sizes.query_width)
    classifier = None
    if sizes.classes:
        if mode is None:
            raise ConfigError("a fine-tuned checkpoint does not say its modality: give audio, visual or audiovisual")
        projection = "none" if mode == "visual" else sizes.projection
        classifier = ClassifierConfig.model_validate({"mode": mode, "classes": sizes.classes, "projection": projection})
    return Config(
        model=ModelConfig(encoder=encoder, predictor=predictor, heads=heads),
        classifier=classifier,
        audio=AudioConfig(frames=sizes.frames, padding="zero"),
        visual=VisualConfig(size=sizes.image),
        augment=AugmentConfig(layout="released"),
        bank=BankConfig(),
    )
