"""From a recipe to the things it names: the only place that reads config and calls constructors."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import cast

import numpy as np
from numpy.typing import NDArray
from pydantic import ValidationError
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
    CavMaeConfig,
    ClassifierConfig,
    Config,
    DecoderConfig,
    EncoderConfig,
    FinetuneConfig,
    HeadsConfig,
    MaskedConfig,
    ModelConfig,
    ObjectiveConfig,
    PairedConfig,
    PredictorConfig,
    ShardsConfig,
    VisualConfig,
    WorldConfig,
    refusal,
    resolve_name,
)
from equiav.data import (
    MANIFEST,
    META,
    SHARDS,
    CavMaeDataset,
    Dataset,
    Difficulty,
    LabelledDataset,
    Labels,
    PairedDataset,
    PairedSet,
    Schedule,
    ShardDataset,
    Subset,
    World,
    WorldDataset,
    balanced_weights,
    hold_out,
    labels_of,
    read_cavmae,
    read_classes,
    read_meta,
    read_paired,
    read_retrieval_list,
    read_weights,
    select,
    vocabulary,
)
from equiav.errors import ConfigError, DataError
from equiav.losses import IntraLoss, equimod, nt_xent
from equiav.media import HOP_SECONDS, FilterBank, ImageInput, InputTransform, SpectrogramInput
from equiav.models import (
    SIZES,
    AttentionPredictor,
    Branch,
    CavMae,
    CavMaeClassifier,
    CavMaeSizes,
    Classifier,
    ClassifierModel,
    Decoder,
    EmbeddingModel,
    Encoder,
    EquiAV,
    HypernetworkPredictor,
    LinearPredictor,
    MaskedAutoencoder,
    MaskedBranch,
    ProjectionHead,
    ReleasedSizes,
    Size,
    TransformersEncoder,
    ViT,
    describe,
    initialise,
    initialise_masked,
    modalities,
)
from equiav.objectives import (
    CavMaeObjective,
    ClassificationObjective,
    EquiAVObjective,
    MaskedObjective,
    Objective,
)
from equiav.randomness import generator
from equiav.text import PartialObjective, TextEncoder, TextInput, text_options, text_pipeline, with_text
from equiav.types import AUDIO, SPLITS, VISUAL, Modality, Split

SMALL = 1000  # clips: fewer are not enough to learn much from


# Modalities and models


@dataclass(frozen=True)
class ModalitySpec:
    """What a modality is: how raw input becomes encoder input, how it is augmented, and its encoder."""

    inputs: InputTransform
    augment: Pipeline
    encoder: Encoder


def modalities_of(config: Config) -> tuple[Modality, ...]:
    """The modalities of a recipe, in the order of its branches."""
    known = (AUDIO, VISUAL, *config.modalities)
    if config.objective.kind != "masked":
        return known
    if unknown := set(config.objective.masked.modalities) - set(known):
        raise ConfigError(f"objective.masked.modalities: {min(unknown)} is none of {', '.join(known)}")
    return tuple(m for m in known if m in config.objective.masked.modalities)


def encoder_size(cfg: EncoderConfig) -> Size:
    """Width, depth and heads, by name or by number."""
    if cfg.size is not None:
        return SIZES[cfg.size]
    return Size(cfg.width or 0, cfg.depth or 0, cfg.heads or 0)  # the recipe was checked: none is missing


def build_inputs(config: Config) -> dict[Modality, InputTransform]:
    """From raw inputs to what the encoders take, by modality."""
    audio = config.audio
    inputs: dict[Modality, InputTransform] = {
        AUDIO: SpectrogramInput(build_filter_bank(audio), audio.mean, audio.std),
        VISUAL: ImageInput(config.visual.mean, config.visual.std),
    }
    return inputs | {m: build_modality(config, m).inputs for m in config.modalities}


def build_filter_bank(cfg: AudioConfig) -> FilterBank:
    """The spectrogram of the recipe."""
    return FilterBank(cfg.sample_rate, cfg.frames, cfg.bins, cfg.padding)


def build_encoder(config: Config, modality: Modality) -> Encoder:
    """f of one modality. The audio encoder looks at frequency as rows and time as columns."""
    if modality in config.modalities:
        return build_modality(config, modality).encoder
    config = with_encoders(config)
    cfg, audio, visual = config.model.encoder_for(modality), config.audio, config.visual
    is_audio = modality == AUDIO
    input_size, channels = ((audio.bins, audio.frames), 1) if is_audio else ((visual.size, visual.size), 3)
    if cfg.architecture is not None:
        return TransformersEncoder(cfg.architecture, checkpoint_activations=config.train.checkpoint_activations)
    if cfg.kind != "vit":
        encoder: Encoder = resolve_name(cfg.kind, Encoder)(input_size=input_size, channels=channels, **cfg.options)
        return encoder
    return ViT(
        encoder_size(cfg),
        input_size=input_size,
        patch=audio.patch if is_audio else visual.patch,
        channels=channels,
        mlp_ratio=cfg.mlp_ratio,
        eps=cfg.norm_eps,
        time_first=is_audio,
        norm_augmented=cfg.norm_augmented,
        checkpoint_activations=config.train.checkpoint_activations,
    )


def with_encoders(config: Config) -> Config:
    """The recipe with what its encoders of kind transformers decide: architecture, sizes and statistics of inputs."""
    for modality in (AUDIO, VISUAL):
        cfg = config.model.encoder_for(modality)
        if cfg.name is None or cfg.architecture is not None:
            continue
        found = describe(cfg.name, cfg.revision)
        if found.modality != modality:
            raise ConfigError(f"model.{modality}.encoder: {cfg.name} encodes {found.modality} input")
        section, values = getattr(config, modality), dict(found.inputs)
        for key, value in found.inputs.items():
            given = getattr(section, key)
            if key not in section.model_fields_set or given == value:
                continue
            if key != "size":
                raise ConfigError(f"{modality}.{key} is {given}, but {cfg.name} wants {value}; leave it out")
            if given % values["patch"]:
                raise ConfigError(
                    f"visual.size is {given}, which the patch {values['patch']} of {cfg.name} does not divide; give a "
                    f"multiple, or leave it out ({value})"
                )
            values["size"] = given
        architecture = found.architecture
        if modality == VISUAL:
            architecture = {**architecture, "image_size": values["size"]}
        elif isinstance(config.data, ShardsConfig) and config.data.statistics == "data":
            raise ConfigError(f"data.statistics: {cfg.name} brings its own statistics; set data.statistics=recipe")
        else:  # its patches overlap: the recipe's patch only has to fit
            values["patch"] = math.gcd(values["frames"], values["bins"], section.patch)
        encoder = cfg.model_copy(update={"architecture": architecture})
        branch = getattr(config.model, modality).model_copy(update={"encoder": encoder})
        model = config.model.model_copy(update={modality: branch})
        config = config.model_copy(update={"model": model, modality: section.model_copy(update=values)})
        try:
            Config.model_validate(config.model_dump())
        except ValidationError as error:
            raise refusal(error, cfg.name) from error
    return config


def load_pretrained(config: Config, encoders: Mapping[Modality, Encoder]) -> None:
    """Gives encoders of kind transformers the weights that the recipe names."""
    for modality, encoder in encoders.items():
        cfg = config.model.encoder_for(modality)
        if cfg.name is not None:
            cast(TransformersEncoder, encoder).load_pretrained(cfg.name, cfg.revision)


def build_modality(config: Config, modality: Modality) -> ModalitySpec:
    """The specification of one modality: the two of the paper, or one of your own by `module:attribute`."""
    if modality in config.modalities:
        cfg = config.modalities[modality]
        if cfg.kind == "text":
            return build_text(config, modality)
        spec: ModalitySpec = resolve_name(cfg.kind, ModalitySpec)(config, **cfg.options)
        return spec
    return ModalitySpec(
        build_inputs(config)[modality], build_pipelines(config)[modality], build_encoder(config, modality)
    )


def build_text(config: Config, modality: Modality) -> ModalitySpec:
    """Text as a modality: words of bytes, their augmentations, and an encoder of the size of the others unless told."""
    o = text_options(config.modalities[modality].options)
    own, shared = (o.width, o.depth, o.heads), config.model.encoder
    if None in own and shared.kind != "vit":
        raise ConfigError("modalities.text.options: give width, depth and heads of the text encoder")
    size = encoder_size(shared) if None in own else Size(o.width or 0, o.depth or 0, o.heads or 0)
    return ModalitySpec(
        TextInput(o.words, o.letters),
        text_pipeline(crop=o.crop, drop=o.drop, swap=o.swap, spell=o.spell),
        TextEncoder(size, words=o.words, letters=o.letters, byte_width=o.byte_width, eps=shared.norm_eps),
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
        case foreign:
            predictor: nn.Module = resolve_name(foreign, nn.Module)(width, d_t, **cfg.options)
            return predictor


def build_branch(config: Config, modality: Modality) -> Branch:
    """Encoder, predictor and heads of one modality."""
    encoder = build_encoder(config, modality)
    eps, heads = config.model.encoder_for(modality).norm_eps, config.model.heads
    d_t = len(build_vector_source(config, modality).slots)
    return Branch(
        encoder,
        build_predictor(config.model.predictor, encoder.width, d_t, eps),
        ProjectionHead(encoder.width, heads.hidden, heads.intra, eps),
        ProjectionHead(encoder.width, heads.hidden, heads.inter, eps),
    )


def build_masked_branch(config: Config, modality: Modality) -> MaskedBranch:
    """Encoder and decoder of one modality, for masked autoencoding."""
    f, decoder = build_encoder(config, modality), config.objective.masked.decoder
    if not isinstance(f, ViT):
        raise ConfigError(f"objective.kind masked cuts inputs into patches: the {modality} encoder must be of kind vit")
    return MaskedBranch(
        f,
        Decoder(
            f.width, f.grid, patch=f.patch_embed.patch, channels=f.channels, width=decoder.width, depth=decoder.depth,
            heads=decoder.heads, mlp_ratio=4.0, eps=config.model.encoder_for(modality).norm_eps,
        ),
    )  # fmt: skip


def build_cavmae_sizes(config: Config, classes: int = 0) -> CavMaeSizes:
    """CAV-MAE's sizes: an encoder's depth counts its own blocks and the joint ones."""
    model, audio, visual = config.model, config.audio, config.visual
    if model.encoder.kind != "vit" or model.audio.encoder or model.visual.encoder or config.modalities:
        raise ConfigError(
            "CAV-MAE has audio and visual and one size of ViT for both: set model.encoder (kind vit) only"
        )
    if config.train.checkpoint_activations:
        raise ConfigError("train.checkpoint_activations: CAV-MAE has none; lower train.micro_batch to save memory")
    size, decoder = encoder_size(model.encoder), config.objective.masked.decoder
    if size.depth <= model.joint_depth:
        raise ConfigError(f"model.joint_depth: {model.joint_depth} of {size.depth} blocks leave none to each modality")
    return CavMaeSizes(
        width=size.width, depth=size.depth - model.joint_depth, joint_depth=model.joint_depth, heads=size.heads,
        mlp_ratio=model.encoder.mlp_ratio, decoder_width=decoder.width, decoder_depth=decoder.depth,
        decoder_heads=decoder.heads, patch=audio.patch, visual_patch=visual.patch, frames=audio.frames,
        bins=audio.bins, image=visual.size, classes=classes,
    )  # fmt: skip


def build_model(config: Config) -> EmbeddingModel:
    """The model that a recipe's objective trains, initialised from its seed."""
    model: EmbeddingModel
    match config.objective.kind:
        case "masked":
            model = MaskedAutoencoder({m: build_masked_branch(config, m) for m in modalities_of(config)})
        case "cavmae":
            model = CavMae(build_cavmae_sizes(config), eps=config.model.encoder.norm_eps)
        case _:  # a method of the user's own trains the paper's model, or its own
            branches = {m: build_branch(config, m) for m in modalities_of(config)}
            model = EquiAV(branches, config.objective.representation)
    if not next(model.parameters()).is_meta:
        start = initialise if config.objective.has_predictor else initialise_masked
        start(model, generator(config.seed, 0, "weights"))
    return model


def build_classifier(config: Config) -> ClassifierModel:
    """Encoders and a linear classifier, initialised from the recipe's seed."""
    cfg = config.classifier
    if cfg is None or cfg.classes is None:
        raise ConfigError("this recipe has no classifier section, or does not say for how many classes")
    rng = generator(config.seed, 0, "weights")
    if config.objective.kind == "cavmae":
        if cfg.projection != "none":
            raise ConfigError("classifier.projection: CAV-MAE has none")
        eps = config.model.encoder.norm_eps
        found = CavMaeClassifier(build_cavmae_sizes(config, cfg.classes), eps=eps, mode=cfg.mode)
        if not next(found.parameters()).is_meta:
            initialise_masked(found, rng)
        return found
    encoders = {m: build_encoder(config, m) for m in modalities(cfg.mode)}
    heads = config.model.heads
    projections: dict[Modality, nn.Module] = {}
    for m, encoder in encoders.items():
        eps = config.model.encoder_for(m).norm_eps
        match cfg.projection:
            case "linear":
                projections[m] = nn.Linear(encoder.width, heads.inter)
            case "mlp":
                projections[m] = ProjectionHead(encoder.width, heads.hidden, heads.inter, eps)
            case "none":
                pass
            case never:
                assert_never(never)
    classifier = Classifier(encoders, cfg.classes, projections=projections, projected_width=heads.inter)
    if not next(classifier.parameters()).is_meta:
        initialise(classifier, rng)
    return classifier


# Augmentations and objectives


def build_pipelines(config: Config) -> dict[Modality, Pipeline]:
    """The augmentations of every modality; the paper's two in the paper's layout."""
    cfg = config.augment
    pipelines = {
        AUDIO: audio_pipeline(**cfg.audio.model_dump()),
        VISUAL: visual_pipeline(**cfg.visual.model_dump()),
    }
    return pipelines | {m: build_modality(config, m).augment for m in config.modalities}


def build_finetuning_pipelines(cfg: FinetuneConfig) -> dict[Modality, Pipeline]:
    """What inputs go through while a classifier is trained: shift and masks on audio, crop and flip on frames."""
    audio, visual = cfg.audio, cfg.visual
    heard: dict[str, Augmentation] = {
        "shift": TimeShift(p=audio.shift),
        "specaugment": SpecAugment(audio.mask_time, audio.mask_frequency, p=audio.mask),
    }
    seen: dict[str, Augmentation] = {"flip": HorizontalFlip(p=visual.flip)}
    if visual.crop_area is not None:
        seen = {"crop": RandomResizedCrop(visual.crop_area, visual.crop_aspect), **seen}
    return {AUDIO: Pipeline(heard, tuple(heard)), VISUAL: Pipeline(seen, tuple(seen))}


def build_masked_pipelines(config: Config) -> dict[Modality, Pipeline]:
    """What inputs go through before patches are removed: crop and flip on frames, where the recipe has them."""
    cfg = config.objective.masked
    parts: dict[str, Augmentation] = {}
    if cfg.crop_area is not None:
        parts["crop"] = RandomResizedCrop(cfg.crop_area, config.augment.visual.crop_aspect)
    if cfg.flip:
        parts["flip"] = HorizontalFlip(p=cfg.flip)
    return {VISUAL: Pipeline(parts, tuple(parts))} if parts and VISUAL in modalities_of(config) else {}


def build_vector_source(config: Config, modality: Modality) -> VectorSource:
    """Where the augmentation vectors of one modality come from, in the layout the model was trained with."""
    match config.augment.layout:
        case "paper":
            return build_pipelines(config)[modality]
        case "released":
            return ReleasedVectors(modality, config.audio.frames, config.audio.bins, config.visual.size)
        case never:
            assert_never(never)


def build_bank(config: Config, modality: Modality) -> Tensor:
    """The fixed bank of vectors (S, d_t) that evaluation uses for the centroid."""
    rng = generator(config.bank.seed, 0, f"bank/{modality}")
    return build_vector_source(config, modality).vectors(1, config.bank.size, rng)[0]


def build_intra_loss(name: str) -> IntraLoss:
    """The intra-modal loss of a recipe, a function of (z_hat, z', tau)."""
    match name:
        case "nt_xent":
            return nt_xent
        case "equimod":
            return equimod
        case foreign:
            loss: IntraLoss = resolve_name(foreign)
            return loss


def build_objective(config: Config, model: EmbeddingModel) -> Objective:
    """The training method of a recipe around its model."""
    cfg, inputs = config.objective, build_inputs(config)
    match cfg.kind:
        case "equiav":
            method = PartialObjective if config.modalities else EquiAVObjective
            return method(
                cast(EquiAV, model),
                build_pipelines(config),
                inputs,
                intra=cfg.intra,
                inter=cfg.inter,
                loss=build_intra_loss(cfg.loss),
                tau=cfg.temperature,
                weights=cfg.weights.model_dump(),
                strategy=cfg.strategy,
                representations=cfg.representations,
                keep_tokens=cfg.keep_tokens,
            )
        case "masked":
            return MaskedObjective(
                cast(MaskedAutoencoder, model),
                inputs,
                build_masked_pipelines(config),
                mask_ratio=cfg.masked.ratio,
                norm_pix=cfg.masked.norm_pix,
            )
        case "cavmae":
            return CavMaeObjective(
                cast(CavMae, model),
                inputs,
                build_masked_pipelines(config),
                mask_ratio=cfg.masked.ratio,
                norm_pix=cfg.masked.norm_pix,
                contrast_weight=cfg.contrast.weight,
                tau=cfg.contrast.temperature,
                both=cfg.contrast.both,
            )
        case foreign:
            objective: Objective = resolve_name(foreign, Objective)(config, model, **cfg.options)
            return objective


def build_classification(config: Config) -> ClassificationObjective:
    """The fine-tuning method of a recipe."""
    _, tune = finetuning_sections(config)
    if config.objective.kind == "cavmae" and tune.drop_path:
        raise ConfigError("finetune.drop_path: CAV-MAE has none; set it to 0")
    return ClassificationObjective(
        build_classifier(config),
        build_finetuning_pipelines(tune),
        build_inputs(config),
        loss=tune.loss,
        label_smoothing=tune.label_smoothing,
        drop_path=tune.drop_path,
    )


def cavmae_config(sizes: CavMaeSizes, mode: str | None = None) -> Config:
    """The recipe of a model imported from CAV-MAE's authors: their statistics, padding and eps."""
    encoder = EncoderConfig(
        size=None, width=sizes.width, depth=sizes.depth + sizes.joint_depth, heads=sizes.heads,
        mlp_ratio=sizes.mlp_ratio, norm_eps=1e-5,
    )  # fmt: skip
    decoder = DecoderConfig(width=sizes.decoder_width, depth=sizes.decoder_depth or 8, heads=sizes.decoder_heads)
    classifier = None
    if sizes.classes:
        classifier = ClassifierConfig.model_validate({"mode": mode or "audiovisual", "classes": sizes.classes})
    return Config(
        objective=ObjectiveConfig(kind="cavmae", masked=MaskedConfig(decoder=decoder)),
        model=ModelConfig(encoder=encoder, joint_depth=sizes.joint_depth),
        classifier=classifier,
        audio=AudioConfig(
            frames=sizes.frames, bins=sizes.bins, patch=sizes.patch, padding="zero", mean=-5.081, std=4.4849
        ),
        visual=VisualConfig(size=sizes.image, patch=sizes.patch),
    )


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


# Data


@lru_cache(maxsize=2)
def _paired_set(path: str, size: int, seconds: float, sample_rate: int) -> PairedSet:
    """Read once, however many splits are asked for."""
    return read_paired(Path(path), size=size, seconds=seconds, sample_rate=sample_rate)


def build_dataset(config: Config, split: Split) -> Dataset:
    """The clips of one split, with their text where the recipe has that modality."""
    clips = _clips(config, split)
    text = [m for m in config.modalities.values() if m.kind == "text"]
    return with_text(clips, text_options(text[0].options), split) if text else clips


def _clips(config: Config, split: Split) -> Dataset:
    data, size, rate = config.data, config.visual.size, config.audio.sample_rate
    match data:
        case WorldConfig():
            difficulty = Difficulty(
                max_objects=data.max_objects, max_sounding=data.max_sounding, another=data.another, duet=data.duet
            )
            world = World(data.seed, size, data.seconds, rate, difficulty=difficulty)
            starts = {"train": 0, "validation": data.count, "test": data.count + data.validation}
            used = min(data.used or data.count, data.count)
            counts = {"train": used, "validation": data.validation, "test": data.test}
            mismatched = data.mismatched if split == "train" else 0.0
            return WorldDataset(world, starts[split], counts[split], mismatched=mismatched)
        case PairedConfig():
            source = _paired_set(data.path, size, data.seconds, rate)
            return PairedDataset(source, split, data.anchor, data.partners, config.seed)
        case ShardsConfig():
            if isinstance(data.validation, float) and split != "test":
                whole = _shards(config, Path(data.path), "train")
                held = hold_out([whole.group(i) for i in range(len(whole))], data.validation)
                return Subset(whole, np.flatnonzero(held if split == "validation" else ~held))
            if isinstance(data.validation, str) and split == "validation":
                # A folder prepared for this may hold another split only, such as a publisher's test clips.
                folder = Path(data.validation)
                return _shards(config, folder, split if read_meta(folder)["splits"].get(split) else None)
            return _shards(config, Path(data.test if split == "test" and data.test else data.path), split)
        case CavMaeConfig():
            listed = {"train": data.train, "validation": data.validation, "test": data.test}[split]
            if listed is None:
                raise DataError(f"data.{split}: this recipe names no {split} file; set it, or ask for another split")
            seconds = config.audio.frames * HOP_SECONDS
            entries = read_cavmae(Path(listed))
            return CavMaeDataset(entries, size, seconds=seconds, sample_rate=rate, fallback=data.fallback)
        case foreign:
            dataset: Dataset = resolve_name(foreign.kind, Dataset)(config, split, **foreign.options)
            return dataset


def _shards(config: Config, folder: Path, split: Split | None) -> ShardDataset:
    """Prepared clips; of a folder that keeps clips without audio or video too, those that the method can use."""
    wanted = modalities(config.classifier.mode) if config.classifier else modalities_of(config)
    wanted = tuple(m for m in wanted if m in (AUDIO, VISUAL))  # text is read beside the shards
    several = config.objective.kind == "masked" and len(wanted) > 1  # each clip serves with what it has
    needed = None if several or not read_meta(folder).get("partial") else wanted
    return ShardDataset(folder, split, size=config.visual.size, modalities=needed)


def present_splits(config: Config) -> frozenset[Split]:
    """Which splits the data have."""
    data = config.data
    if isinstance(data, CavMaeConfig):
        return frozenset(name for name in SPLITS if getattr(data, name) is not None)
    if isinstance(data, ShardsConfig):
        counts, given = read_meta(Path(data.path))["splits"], {"validation": data.validation, "test": data.test}
        return frozenset(name for name in SPLITS if counts.get(name) or given.get(name))
    return frozenset(SPLITS)


def listed_clips(clips: Dataset, path: Path) -> tuple[Dataset, str]:
    """The clips of a dataset that a published retrieval list names, and a line on how many of them are there."""
    ids = read_retrieval_list(path)
    rows, missing = select([clips.clip(i).source for i in range(len(clips))], ids)
    if not rows:
        raise DataError(f"{path}: none of its {len(ids)} clips is among the {len(clips)} given")
    return Subset(clips, rows), f"{len(ids):,} listed, {len(rows):,} found, {len(missing):,} missing"


def with_data(config: Config, path: Path | None, *, test: Path | None = None) -> Config:
    """The recipe with its data elsewhere: a prepared folder, a collection paired by class, or a list of CAV-MAE (JSON).

    A list stands for every split; `test` is another one, or another folder, for the test split alone.
    """
    if path is None:
        if test is not None:
            raise ConfigError(f"{test}: test clips go with other data; name those too (--data)")
        return config
    before, other = config.data, None if test is None else str(test)
    data: PairedConfig | ShardsConfig | CavMaeConfig
    if path.suffix == ".json" and path.is_file():
        # As CAV-MAE's own loader does, an earlier frame stands in for a missing one; the first is reported.
        whole = None if other else str(path)
        data = CavMaeConfig(train=str(path), validation=whole, test=other or str(path), fallback=True)
    elif path.is_file() or ((path / MANIFEST).exists() and not ((path / META).exists() or (path / SHARDS).exists())):
        if other:
            raise ConfigError(f"{path}: a collection paired by class has its own test split; leave out {other}")
        data = PairedConfig(path=str(path))
        data = before.model_copy(update={"path": data.path}) if isinstance(before, PairedConfig) else data
    else:
        data = ShardsConfig(path=str(path), test=other)
        if isinstance(before, ShardsConfig):
            kept = {"path": data.path, "test": other, "validation": None, "fold": None, "splits": ()}
            data = before.model_copy(update=kept)
    return config.model_copy(update={"data": data})


def build_schedule(config: Config, clips: Dataset) -> Schedule:
    """Which clips a step sees; balanced by class, or apart by source video, where the recipe says so."""
    weights, groups = None, None
    data = config.data
    if data.balanced:
        weights = balanced_weights(labels_of(clips))
        if not float(weights.sum()):
            raise ConfigError("data.balanced needs labels, and these clips have none")
    if isinstance(data, CavMaeConfig) and data.weights is not None:
        weights = read_weights(Path(data.weights), clips=len(clips))
    if isinstance(data, ShardsConfig) and data.one_per_source:
        groups = tuple(clips.group(i) for i in range(len(clips)))
    return Schedule(len(clips), clips.frames, config.train.batch, config.seed, weights, groups)


def with_statistics(config: Config) -> Config:
    """The recipe with the spectrogram's statistics of its data, where it asks for them."""
    data = config.data
    if not isinstance(data, ShardsConfig) or data.statistics != "data" or AUDIO not in modalities_of(config):
        return config
    found = read_meta(Path(data.path))["spectrogram"]
    if found["mean"] is None:
        raise ConfigError(f"{data.path}: was prepared without sound; set data.statistics=recipe")
    audio = config.audio.model_copy(update={"mean": found["mean"], "std": found["std"]})
    return config.model_copy(update={"audio": audio})


def _shrunk(config: Config, clips: int, processes: int) -> tuple[Config, list[str]]:
    """The recipe with a batch that so many clips can fill, where it allows that."""
    if not config.train.shrink_batch or clips >= config.train.batch:
        return config, []
    batch = max(processes, clips // processes * processes)
    config = config.model_copy(update={"train": config.train.model_copy(update={"batch": batch})})
    return config, [f"{clips} clips for training: the batch shrinks to {batch}"]


def resolve(config: Config, processes: int) -> tuple[Config, list[str]]:
    """The recipe with what only the data can tell filled in, and what a person should know about it."""
    config = with_statistics(with_encoders(config))
    if not config.train.shrink_batch:
        return config, []
    count = len(build_dataset(config, "train"))
    config, notices = _shrunk(config, count, processes)
    if count < SMALL:
        notices.append(
            f"{count} clips are few: expect the model to tell these clips apart, not to know the world; "
            "start from given weights (weights=...) or add videos"
        )
    return config, notices


# Labelled data


@dataclass(frozen=True)
class LabelledSplits:
    """What a classifier is trained on, chosen on, and evaluated on once; None: there is no such split."""

    classes: Labels
    train: LabelledDataset
    validation: LabelledDataset | None
    test: LabelledDataset | None


def finetuning_sections(config: Config) -> tuple[ClassifierConfig, FinetuneConfig]:
    """The two sections that only fine-tuning has, or a refusal."""
    if config.classifier is None or config.finetune is None:
        missing = "classifier" if config.classifier is None else "finetune"
        raise ConfigError(f"{missing}: a fine-tuning recipe has this section; see configs/finetune/")
    return config.classifier, config.finetune


def build_splits(config: Config) -> LabelledSplits:
    """All splits of a fine-tuning recipe; a label that is no class is refused before anything is trained."""
    _, finetune = finetuning_sections(config)
    clips, rows = _part(config, "train")
    published = _published(config, "validation")
    if finetune.classes_file:
        classes = read_classes(Path(finetune.classes_file))
    else:
        held_out = not published and finetune.validation_share
        known = np.concatenate([rows, _part(config, "validation")[1]]) if held_out else rows
        classes = vocabulary(clips if len(known) == len(clips) else Subset(clips, known))
    splits = LabelledSplits(
        classes,
        build_labelled(config, "train", classes),
        build_labelled(config, "validation", classes) if published or finetune.validation_share else None,
        build_labelled(config, "test", classes) if _published(config, "test") else None,
    )
    if finetune.loss == "ce":
        for part in filter(None, (splits.train, splits.validation)):
            empty = (part.targets().sum(dim=1) == 0).nonzero()
            if len(empty):
                name = part.clip(int(empty[0])).id
                raise DataError(f"clip {name} has no label, and finetune.loss=ce needs one a clip")
    return splits


def build_labelled(config: Config, split: Split, classes: Labels) -> LabelledDataset:
    """One split with the classes of a classifier."""
    if config.finetune is None:  # an imported classifier: its recipe says nothing about how it was trained
        config = config.model_copy(update={"finetune": FinetuneConfig(loss="bce", metric="mAP")})
    classifier, _ = finetuning_sections(config)
    clips, rows = _part(config, split)
    wanted = modalities(classifier.mode)
    if VISUAL in wanted and clips.frames == 0:
        raise DataError(f"these clips hold no frames, which classifier.mode={classifier.mode} needs")
    return LabelledDataset(clips, rows, classes, wanted)


def resolve_finetuning(config: Config, splits: LabelledSplits, processes: int) -> tuple[Config, list[str]]:
    """The recipe with what only the data can tell filled in, and what a person should know about it."""
    classifier, _ = finetuning_sections(config)
    count = len(splits.classes)
    if classifier.classes not in (None, count):
        raise ConfigError(f"classifier.classes is {classifier.classes}, but the data have {count} classes")
    config = with_statistics(with_encoders(config))
    config = config.model_copy(update={"classifier": classifier.model_copy(update={"classes": count})})
    clips = len(splits.train)
    config, notices = _shrunk(config, clips, processes)
    if splits.validation is None:
        notices.append(f"finetune.validation_share=0: all {clips} training clips train, and the last weights are kept")
    elif not _published(config, "validation"):
        notices.append(
            f"no validation split: {len(splits.validation)} of {clips + len(splits.validation)} training clips "
            "are held out for it, by source"
        )
    if splits.test is None:
        notices.append("no test split: the weights are judged on validation only")
    return config, notices


def _published(config: Config, split: Split) -> bool:
    """Whether the data themselves have this split, as fine-tuning uses it."""
    data = config.data
    instead = finetuning_sections(config)[1].test_split == "validation"
    if not isinstance(data, ShardsConfig):
        if instead:
            raise ConfigError("finetune.test_split=validation is for prepared folders (data.kind: shards)")
        return split in present_splits(config)
    if instead and data.validation is not None:
        raise ConfigError("finetune.test_split=validation tests on the folder's own split; leave out data.validation")
    if data.validation is not None and split == "validation":
        return True
    if data.fold is not None or (instead and split == "validation"):
        return split != "validation"
    if instead and split == "test":
        split = "validation"
    folder = Path(data.test if split == "test" and data.test else data.path)
    return bool(read_meta(folder)["splits"].get(split))


def _part(config: Config, split: Split) -> tuple[Dataset, NDArray[np.int64]]:
    """A dataset, and which of its clips are a split: a share of training where the publishers have no validation."""
    data = config.data
    classifier, finetune = finetuning_sections(config)
    if isinstance(data, PairedConfig) and classifier.mode != "audiovisual":
        config = config.model_copy(update={"data": data.model_copy(update={"anchor": classifier.mode})})
    if not isinstance(data, ShardsConfig) or (data.fold is None and _published(config, "validation")):
        clips = build_dataset(config, split)
        return clips, np.arange(len(clips))
    if data.fold is None and split == "test":
        clips = build_dataset(config, finetune.test_split)
        return clips, np.arange(len(clips))
    whole = _shards(config, Path(data.path), None if data.fold else "train")
    rows = np.arange(len(whole))
    if data.fold is not None:
        folds = np.array([whole.clip(i).fold or 0 for i in range(len(whole))])
        if data.fold not in folds:
            known = ", ".join(map(str, sorted(set(folds.tolist()) - {0}))) or "none"
            raise DataError(f"{data.path}: no fold {data.fold}; its folds are {known}")
        if split == "test":
            return whole, rows[folds == data.fold]
        rows = rows[folds != data.fold]
    if not finetune.validation_share:
        if split == "validation":
            raise DataError("finetune.validation_share=0 holds no clips out for validation")
        return whole, rows
    held = hold_out([whole.group(int(i)) for i in rows], finetune.validation_share)
    return whole, rows[held] if split == "validation" else rows[~held]
