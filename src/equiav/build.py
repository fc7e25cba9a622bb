"""From a recipe to the things it names: the only place that reads config and calls constructors."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TypeVar, cast

import numpy as np
from numpy.typing import NDArray
from pydantic import ValidationError
from torch import Tensor, nn

from equiav import augment, data, losses, media, models, objectives
from equiav.augment import Pipeline
from equiav.config import (
    AudioConfig,
    CavMaeConfig,
    ClassifierConfig,
    Config,
    EncoderConfig,
    FinetuneConfig,
    PairedConfig,
    PredictorConfig,
    Section,
    ShardsConfig,
    WorldConfig,
    refusal,
    resolve_name,
)
from equiav.errors import ConfigError, DataError
from equiav.randomness import generator
from equiav.text import (
    PartialObjective,
    TextEncoder,
    TextInput,
    TextOptions,
    TransformersTextEncoder,
    describe_text,
    text_options,
    text_pipeline,
    with_text,
)
from equiav.types import AUDIO, SPLITS, VISUAL, Modality, Split

M = TypeVar("M", bound=nn.Module)
SMALL = 1000  # clips: fewer are not enough to learn much from


# Modalities and models


@dataclass(frozen=True)
class ModalitySpec:
    """What a modality is: how raw input becomes encoder input, how it is augmented, and its encoder."""

    inputs: media.InputTransform
    augment: Pipeline
    encoder: models.Encoder


def modalities_of(config: Config) -> tuple[Modality, ...]:
    """The modalities of a recipe, in the order of its branches."""
    known = (AUDIO, VISUAL, *config.modalities)
    if config.objective.kind != "masked":
        return known
    if unknown := set(config.objective.masked.modalities) - set(known):
        raise ConfigError(f"objective.masked.modalities: {min(unknown)} is none of {', '.join(known)}")
    return tuple(m for m in known if m in config.objective.masked.modalities)


def encoder_size(cfg: EncoderConfig) -> models.Size:
    """Width, depth and heads, by name or by number."""
    if cfg.size is not None:
        return models.SIZES[cfg.size]
    return models.Size(cfg.width or 0, cfg.depth or 0, cfg.heads or 0)  # the recipe was checked: none is missing


def build_inputs(config: Config) -> dict[Modality, media.InputTransform]:
    """From raw inputs to what the encoders take, by modality."""
    audio = config.audio
    inputs: dict[Modality, media.InputTransform] = {
        AUDIO: media.SpectrogramInput(build_filter_bank(audio), audio.mean, audio.std),
        VISUAL: media.ImageInput(config.visual.mean, config.visual.std),
    }
    return inputs | {
        m: build_text_input(text_options(cfg.options)) if cfg.kind == "text" else build_modality(config, m).inputs
        for m, cfg in config.modalities.items()
    }


def build_filter_bank(cfg: AudioConfig) -> media.FilterBank:
    """The spectrogram of the recipe."""
    return media.FilterBank(cfg.sample_rate, cfg.frames, cfg.bins, cfg.padding)


def build_encoder(config: Config, modality: Modality) -> models.Encoder:
    """f of one modality. The audio encoder looks at frequency as rows and time as columns."""
    if modality in config.modalities:
        return build_modality(config, modality).encoder
    config = with_encoders(config)
    cfg, audio, visual = config.model.encoder_for(modality), config.audio, config.visual
    is_audio = modality == AUDIO
    input_size, channels = ((audio.bins, audio.frames), 1) if is_audio else ((visual.size, visual.size), 3)
    if cfg.architecture is not None:
        return models.TransformersEncoder(cfg.architecture, checkpoint_activations=config.train.checkpoint_activations)
    if cfg.kind != "vit":
        return resolve_name(cfg.kind, models.Encoder)(input_size=input_size, channels=channels, **cfg.options)
    return models.ViT(
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
        found = models.describe(cfg.name, cfg.revision)
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
    for modality, further in config.modalities.items():
        o = text_options(further.options) if further.kind == "text" else TextOptions()
        if o.name is not None and o.architecture is None:
            options = {**further.options, "architecture": describe_text(o.name, o.revision)}
            known = {**config.modalities, modality: further.model_copy(update={"options": options})}
            config = config.model_copy(update={"modalities": known})
    return config


def load_pretrained(config: Config, encoders: Mapping[Modality, nn.Module]) -> None:
    """Gives encoders of kind transformers the weights that the recipe names."""
    for modality, encoder in encoders.items():
        if isinstance(encoder, TransformersTextEncoder):
            o = text_options(config.modalities[modality].options)
            encoder.load_pretrained(o.name or "", o.revision)
            continue
        cfg = config.model.encoder_for(modality)
        if cfg.name is not None:
            cast(models.TransformersEncoder, encoder).load_pretrained(cfg.name, cfg.revision)


def build_modality(config: Config, modality: Modality) -> ModalitySpec:
    """The specification of one modality: the two of the paper, or one of your own by `module:attribute`."""
    if modality in config.modalities:
        cfg = config.modalities[modality]
        if cfg.kind == "text":
            return build_text(config, modality)
        return resolve_name(cfg.kind, ModalitySpec)(config, **cfg.options)
    return ModalitySpec(
        build_inputs(config)[modality], build_pipelines(config)[modality], build_encoder(config, modality)
    )


def build_text(config: Config, modality: Modality) -> ModalitySpec:
    """Text as a modality: words of bytes, their augmentations, and an encoder of the size of the others unless told."""
    o = text_options(with_encoders(config).modalities[modality].options)
    if o.architecture is not None:
        encoder = TransformersTextEncoder(o.architecture, words=o.words, letters=o.letters, frozen=o.frozen)
        return ModalitySpec(build_text_input(o), build_text_pipeline(o), encoder)
    own, shared = (o.width, o.depth, o.heads), config.model.encoder
    if None in own and shared.kind != "vit":
        raise ConfigError("modalities.text.options: give width, depth and heads of the text encoder")
    size = encoder_size(shared) if None in own else models.Size(o.width or 0, o.depth or 0, o.heads or 0)
    return ModalitySpec(
        build_text_input(o),
        build_text_pipeline(o),
        TextEncoder(size, words=o.words, letters=o.letters, byte_width=o.byte_width, eps=shared.norm_eps),
    )


def build_text_input(o: TextOptions) -> TextInput:
    """From raw text to the text encoder's input."""
    return TextInput(o.words, o.letters)


def build_text_pipeline(o: TextOptions) -> Pipeline:
    """The augmentations of text."""
    return text_pipeline(crop=o.crop, drop=o.drop, swap=o.swap, spell=o.spell)


def build_predictor(cfg: PredictorConfig, width: int, d_t: int, eps: float) -> nn.Module:
    """The transformation predictor u of the kind asked for."""
    match cfg.kind:
        case "attention":
            return models.AttentionPredictor(
                width, d_t, query_width=cfg.query_width, heads=cfg.heads, head_width=cfg.head_width, eps=eps
            )
        case "linear":
            return models.LinearPredictor(width, d_t)
        case "hypernetwork":
            return models.HypernetworkPredictor(width, d_t, hidden=cfg.query_width, bases=cfg.bases)
        case foreign:
            return resolve_name(foreign, nn.Module)(width, d_t, **cfg.options)


def build_branch(config: Config, modality: Modality) -> models.Branch:
    """Encoder, predictor and heads of one modality."""
    encoder = build_encoder(config, modality)
    eps, heads = config.model.encoder_for(modality).norm_eps, config.model.heads
    d_t = len(build_vector_source(config, modality).slots)
    return models.Branch(
        encoder,
        build_predictor(config.model.predictor, encoder.width, d_t, eps),
        models.ProjectionHead(encoder.width, heads.hidden, heads.intra, eps),
        models.ProjectionHead(encoder.width, heads.hidden, heads.inter, eps),
    )


def build_masked_branch(config: Config, modality: Modality) -> models.MaskedBranch:
    """Encoder and decoder of one modality, for masked autoencoding."""
    f, decoder = cast(models.ViT, build_encoder(config, modality)), config.objective.masked.decoder
    if not hasattr(f, "patch_embed"):
        raise ConfigError(f"objective.kind masked cuts inputs into patches: the {modality} encoder must be of kind vit")
    return models.MaskedBranch(
        f,
        models.Decoder(
            f.width, f.grid, patch=f.patch_embed.patch, channels=f.channels, width=decoder.width, depth=decoder.depth,
            heads=decoder.heads, mlp_ratio=4.0, eps=config.model.encoder_for(modality).norm_eps,
        ),
    )  # fmt: skip


def build_cavmae_sizes(config: Config, classes: int = 0) -> models.CavMaeSizes:
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
    return models.CavMaeSizes(
        width=size.width, depth=size.depth - model.joint_depth, joint_depth=model.joint_depth, heads=size.heads,
        mlp_ratio=model.encoder.mlp_ratio, decoder_width=decoder.width, decoder_depth=decoder.depth,
        decoder_heads=decoder.heads, patch=audio.patch, visual_patch=visual.patch, frames=audio.frames,
        bins=audio.bins, image=visual.size, classes=classes,
    )  # fmt: skip


def build_model(config: Config) -> models.EmbeddingModel:
    """The model that a recipe's objective trains, initialised from its seed."""
    model: models.EmbeddingModel
    match config.objective.kind:
        case "masked":
            model = models.MaskedAutoencoder({m: build_masked_branch(config, m) for m in modalities_of(config)})
        case "cavmae":
            model = models.CavMae(build_cavmae_sizes(config), eps=config.model.encoder.norm_eps)
        case _:  # a method of the user's own trains the paper's model, or its own
            branches = {m: build_branch(config, m) for m in modalities_of(config)}
            model = models.EquiAV(branches, config.objective.representation)
    return _initialised(model, config.seed, masked=not config.objective.has_predictor)


def _initialised(model: M, seed: int, *, masked: bool) -> M:
    """Weights drawn from a seed; on the meta device there is nothing to draw."""
    if not next(model.parameters()).is_meta:
        (models.initialise_masked if masked else models.initialise)(model, generator(seed, 0, "weights"))
    return model


def build_classifier(config: Config) -> models.ClassifierModel:
    """Encoders and a linear classifier, initialised from the recipe's seed."""
    cfg = config.classifier
    if cfg is None or cfg.classes is None:
        raise ConfigError("this recipe has no classifier section, or does not say for how many classes")
    if config.objective.kind == "cavmae":
        if cfg.projection != "none":
            raise ConfigError("classifier.projection: CAV-MAE has none")
        eps = config.model.encoder.norm_eps
        found = models.CavMaeClassifier(build_cavmae_sizes(config, cfg.classes), eps=eps, mode=cfg.mode)
        return _initialised(found, config.seed, masked=True)
    encoders = {m: build_encoder(config, m) for m in models.modalities(cfg.mode)}
    heads = config.model.heads
    projections: dict[Modality, nn.Module] = {}
    for m, encoder in encoders.items():
        if cfg.projection == "linear":
            projections[m] = nn.Linear(encoder.width, heads.inter)
        elif cfg.projection == "mlp":
            eps = config.model.encoder_for(m).norm_eps
            projections[m] = models.ProjectionHead(encoder.width, heads.hidden, heads.inter, eps)
    classifier = models.Classifier(encoders, cfg.classes, projections=projections, projected_width=heads.inter)
    return _initialised(classifier, config.seed, masked=False)


# Augmentations and objectives


def build_pipelines(config: Config) -> dict[Modality, Pipeline]:
    """The augmentations of every modality; the paper's two in the paper's layout."""
    cfg = config.augment
    pipelines = {
        AUDIO: augment.audio_pipeline(**cfg.audio.model_dump()),
        VISUAL: augment.visual_pipeline(**cfg.visual.model_dump()),
    }
    return pipelines | {
        m: build_text_pipeline(text_options(cfg.options)) if cfg.kind == "text" else build_modality(config, m).augment
        for m, cfg in config.modalities.items()
    }


def build_finetuning_pipelines(cfg: FinetuneConfig) -> dict[Modality, Pipeline]:
    """What inputs go through while a classifier is trained: shift and masks on audio, crop and flip on frames."""
    audio, visual = cfg.audio, cfg.visual
    heard: dict[str, augment.Augmentation] = {
        "shift": augment.TimeShift(p=audio.shift),
        "specaugment": augment.SpecAugment(audio.mask_time, audio.mask_frequency, p=audio.mask),
    }
    seen: dict[str, augment.Augmentation] = {"flip": augment.HorizontalFlip(p=visual.flip)}
    if visual.crop_area is not None:
        seen = {"crop": augment.RandomResizedCrop(visual.crop_area, visual.crop_aspect), **seen}
    return {AUDIO: Pipeline(heard, tuple(heard)), VISUAL: Pipeline(seen, tuple(seen))}


def build_masked_pipelines(config: Config) -> dict[Modality, Pipeline]:
    """What inputs go through before patches are removed: crop and flip on frames, where the recipe has them."""
    cfg = config.objective.masked
    parts: dict[str, augment.Augmentation] = {}
    if cfg.crop_area is not None:
        parts["crop"] = augment.RandomResizedCrop(cfg.crop_area, config.augment.visual.crop_aspect)
    if cfg.flip:
        parts["flip"] = augment.HorizontalFlip(p=cfg.flip)
    return {VISUAL: Pipeline(parts, tuple(parts))} if parts and VISUAL in modalities_of(config) else {}


def build_vector_source(config: Config, modality: Modality) -> augment.VectorSource:
    """Where the augmentation vectors of one modality come from, in the layout the model was trained with."""
    if config.augment.layout == "released":
        return augment.ReleasedVectors(modality, config.audio.frames, config.audio.bins, config.visual.size)
    return build_pipelines(config)[modality]


def build_bank(config: Config, modality: Modality) -> Tensor:
    """The fixed bank of vectors (S, d_t) that evaluation uses for the centroid."""
    rng = generator(config.bank.seed, 0, f"bank/{modality}")
    return build_vector_source(config, modality).vectors(1, config.bank.size, rng)[0]


def build_intra_loss(name: str) -> losses.IntraLoss:
    """The intra-modal loss of a recipe, a function of (z_hat, z', tau)."""
    match name:
        case "nt_xent":
            return losses.nt_xent
        case "equimod":
            return losses.equimod
        case foreign:
            return cast(losses.IntraLoss, resolve_name(foreign))


def build_objective(config: Config, model: models.EmbeddingModel) -> objectives.Objective:
    """The training method of a recipe around its model."""
    cfg, inputs = config.objective, build_inputs(config)
    match cfg.kind:
        case "equiav":
            method = PartialObjective if config.modalities else objectives.EquiAVObjective
            return method(
                cast(models.EquiAV, model),
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
            return objectives.MaskedObjective(
                cast(models.MaskedAutoencoder, model),
                inputs,
                build_masked_pipelines(config),
                mask_ratio=cfg.masked.ratio,
                norm_pix=cfg.masked.norm_pix,
            )
        case "cavmae":
            return objectives.CavMaeObjective(
                cast(models.CavMae, model),
                inputs,
                build_masked_pipelines(config),
                mask_ratio=cfg.masked.ratio,
                norm_pix=cfg.masked.norm_pix,
                contrast_weight=cfg.contrast.weight,
                tau=cfg.contrast.temperature,
                both=cfg.contrast.both,
            )
        case foreign:
            return resolve_name(foreign, objectives.Objective)(config, model, **cfg.options)


def build_classification(config: Config) -> objectives.ClassificationObjective:
    """The fine-tuning method of a recipe."""
    _, tune = finetuning_sections(config)
    if config.objective.kind == "cavmae" and tune.drop_path:
        raise ConfigError("finetune.drop_path: CAV-MAE has none; set it to 0")
    return objectives.ClassificationObjective(
        build_classifier(config),
        build_finetuning_pipelines(tune),
        build_inputs(config),
        loss=tune.loss,
        label_smoothing=tune.label_smoothing,
        drop_path=tune.drop_path,
    )


# Data


@lru_cache(maxsize=2)
def _paired_set(path: str, size: int, seconds: float, sample_rate: int, share: float) -> data.PairedSet:
    """Read once, however many splits are asked for."""
    return data.read_paired(Path(path), size=size, seconds=seconds, sample_rate=sample_rate, share=share)


def build_dataset(config: Config, split: Split) -> data.Dataset:
    """The clips of one split, with their text where the recipe has that modality."""
    clips = _clips(config, split)
    text = [m for m in config.modalities.values() if m.kind == "text"]
    return with_text(clips, text_options(text[0].options), split) if text else clips


def _clips(config: Config, split: Split) -> data.Dataset:
    cfg, size, rate = config.data, config.visual.size, config.audio.sample_rate
    match cfg:
        case WorldConfig():
            difficulty = data.Difficulty(
                max_objects=cfg.max_objects, max_sounding=cfg.max_sounding, another=cfg.another, duet=cfg.duet
            )
            world = data.World(cfg.seed, size, cfg.seconds, rate, difficulty=difficulty)
            starts = {"train": 0, "validation": cfg.count, "test": cfg.count + cfg.validation}
            used = min(cfg.used or cfg.count, cfg.count)
            counts = {"train": used, "validation": cfg.validation, "test": cfg.test}
            mismatched = cfg.mismatched if split == "train" else 0.0
            return data.WorldDataset(world, starts[split], counts[split], mismatched=mismatched)
        case PairedConfig():
            source = _paired_set(cfg.path, size, cfg.seconds, rate, cfg.share)
            return data.PairedDataset(source, split, cfg.anchor, cfg.partners, config.seed)
        case ShardsConfig():
            if isinstance(cfg.validation, float) and split != "test":
                whole = _shards(config, cfg.path, "train")
                held = data.hold_out([whole.group(i) for i in range(len(whole))], cfg.validation)
                return data.Subset(whole, np.flatnonzero(held if split == "validation" else ~held))
            if isinstance(cfg.validation, str) and split == "validation":
                # A folder prepared for this may hold another split only, such as a publisher's test clips.
                own = data.read_meta(cfg.validation)["splits"].get(split)
                return _shards(config, cfg.validation, split if own else None)
            return _shards(config, cfg.test if split == "test" and cfg.test else cfg.path, split)
        case CavMaeConfig():
            listed = {"train": cfg.train, "validation": cfg.validation, "test": cfg.test}[split]
            if listed is None:
                raise DataError(f"data.{split}: this recipe names no {split} file; set it, or ask for another split")
            seconds = config.audio.frames * media.HOP_SECONDS
            entries = data.read_cavmae(Path(listed))
            return data.CavMaeDataset(entries, size, seconds=seconds, sample_rate=rate, fallback=cfg.fallback)
        case foreign:
            return resolve_name(foreign.kind, data.Dataset)(config, split, **foreign.options)


def _shards(config: Config, folder: str, split: Split | None) -> data.ShardDataset:
    """Prepared clips; of a folder that keeps clips without audio or video too, those that the method can use."""
    wanted = models.modalities(config.classifier.mode) if config.classifier else modalities_of(config)
    wanted = tuple(m for m in wanted if m in (AUDIO, VISUAL))  # text is read beside the shards
    several = config.objective.kind == "masked" and len(wanted) > 1  # each clip serves with what it has
    needed = None if several or not data.read_meta(folder).get("partial") else wanted
    return data.ShardDataset(folder, split, size=config.visual.size, modalities=needed)


def present_splits(config: Config) -> frozenset[Split]:
    """Which splits the data have."""
    cfg = config.data
    if isinstance(cfg, CavMaeConfig):
        return frozenset(name for name in SPLITS if getattr(cfg, name) is not None)
    if isinstance(cfg, ShardsConfig):
        counts, given = data.read_meta(cfg.path)["splits"], {"validation": cfg.validation, "test": cfg.test}
        return frozenset(name for name in SPLITS if counts.get(name) or given.get(name))
    return frozenset(SPLITS)


def listed_clips(clips: data.Dataset, path: Path) -> tuple[data.Dataset, str]:
    """The clips of a dataset that a published retrieval list names, and a line on how many of them are there."""
    ids = data.read_retrieval_list(path)
    rows, missing = data.select([clips.clip(i).source for i in range(len(clips))], ids)
    if not rows:
        raise DataError(f"{path}: none of its {len(ids)} clips is among the {len(clips)} given")
    return data.Subset(clips, rows), f"{len(ids):,} listed, {len(rows):,} found, {len(missing):,} missing"


def with_data(config: Config, path: Path | None, *, test: Path | None = None) -> Config:
    """The recipe with its data elsewhere: a prepared folder, a collection paired by class, or a list of CAV-MAE (JSON).

    A list stands for every split; `test` is another one, or another folder, for the test split alone.
    """
    if path is None:
        if test is not None:
            raise ConfigError(f"{test}: test clips go with other data; name those too (--data)")
        return config
    before, other = config.data, None if test is None else str(test)
    if path.suffix == ".json" and path.is_file():
        # As CAV-MAE's own loader does, an earlier frame stands in for a missing one; the first is reported.
        whole = None if other else str(path)
        cfg: Section = CavMaeConfig(train=str(path), validation=whole, test=other or str(path), fallback=True)
    elif path.is_file() or (
        (path / data.MANIFEST).exists() and not ((path / data.META).exists() or (path / data.SHARDS).exists())
    ):
        if other:
            raise ConfigError(f"{path}: a collection paired by class has its own test split; leave out {other}")
        same = before if isinstance(before, PairedConfig) else PairedConfig(path="")
        cfg = same.model_copy(update={"path": str(path)})
    else:
        of = before if isinstance(before, ShardsConfig) else ShardsConfig(path="")
        places = {"path": str(path), "test": other, "validation": None, "fold": None, "splits": ()}
        cfg = of.model_copy(update=places)
    return config.model_copy(update={"data": cfg})


def build_schedule(config: Config, clips: data.Dataset) -> data.Schedule:
    """Which clips a step sees; balanced by class, or apart by source video, where the recipe says so."""
    weights, groups = None, None
    cfg = config.data
    if cfg.balanced:
        weights = data.balanced_weights(data.labels_of(clips))
        if not float(weights.sum()):
            raise ConfigError("data.balanced needs labels, and these clips have none")
    if isinstance(cfg, CavMaeConfig) and cfg.weights is not None:
        weights = data.read_weights(Path(cfg.weights), clips=len(clips))
    if isinstance(cfg, ShardsConfig) and cfg.one_per_source:
        groups = tuple(clips.group(i) for i in range(len(clips)))
    return data.Schedule(len(clips), clips.frames, config.train.batch, config.seed, weights, groups)


def with_statistics(config: Config) -> Config:
    """The recipe with the spectrogram's statistics of its data, where it asks for them."""
    cfg = config.data
    if not isinstance(cfg, ShardsConfig) or cfg.statistics != "data" or AUDIO not in modalities_of(config):
        return config
    found = data.read_meta(cfg.path)["spectrogram"]
    if found["mean"] is None:
        raise ConfigError(f"{cfg.path}: was prepared without sound; set data.statistics=recipe")
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

    classes: data.Labels
    train: data.LabelledDataset
    validation: data.LabelledDataset | None
    test: data.LabelledDataset | None


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
        classes = data.read_classes(Path(finetune.classes_file))
    else:
        held_out = not published and finetune.validation_share
        known = np.concatenate([rows, _part(config, "validation")[1]]) if held_out else rows
        classes = data.vocabulary(clips if len(known) == len(clips) else data.Subset(clips, known))
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


def build_labelled(config: Config, split: Split, classes: data.Labels) -> data.LabelledDataset:
    """One split with the classes of a classifier."""
    if config.finetune is None:  # an imported classifier: its recipe says nothing about how it was trained
        config = config.model_copy(update={"finetune": FinetuneConfig(loss="bce", metric="mAP")})
    classifier, _ = finetuning_sections(config)
    clips, rows = _part(config, split)
    wanted = models.modalities(classifier.mode)
    if VISUAL in wanted and clips.frames == 0:
        raise DataError(f"these clips hold no frames, which classifier.mode={classifier.mode} needs")
    return data.LabelledDataset(clips, rows, classes, wanted)


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
    cfg = config.data
    instead = finetuning_sections(config)[1].test_split == "validation"
    if not isinstance(cfg, ShardsConfig):
        if instead:
            raise ConfigError("finetune.test_split=validation is for prepared folders (data.kind: shards)")
        return split in present_splits(config)
    if instead and cfg.validation is not None:
        raise ConfigError("finetune.test_split=validation tests on the folder's own split; leave out data.validation")
    if cfg.validation is not None and split == "validation":
        return True
    if cfg.fold is not None or (instead and split == "validation"):
        return split != "validation"
    if instead and split == "test":
        split = "validation"
    folder = cfg.test if split == "test" and cfg.test else cfg.path
    return bool(data.read_meta(folder)["splits"].get(split))


def _part(config: Config, split: Split) -> tuple[data.Dataset, NDArray[np.int64]]:
    """A dataset, and which of its clips are a split: a share of training where the publishers have no validation."""
    cfg = config.data
    classifier, finetune = finetuning_sections(config)
    if isinstance(cfg, PairedConfig) and classifier.mode != "audiovisual":
        config = config.model_copy(update={"data": cfg.model_copy(update={"anchor": classifier.mode})})
    if not isinstance(cfg, ShardsConfig) or (cfg.fold is None and _published(config, "validation")):
        clips = build_dataset(config, split)
        return clips, np.arange(len(clips))
    if cfg.fold is None and split == "test":
        clips = build_dataset(config, finetune.test_split)
        return clips, np.arange(len(clips))
    whole = _shards(config, cfg.path, None if cfg.fold else "train")
    rows = np.arange(len(whole))
    if cfg.fold is not None:
        folds = np.array([whole.clip(i).fold or 0 for i in range(len(whole))])
        if cfg.fold not in folds:
            known = ", ".join(map(str, sorted(set(folds.tolist()) - {0}))) or "none"
            raise DataError(f"{cfg.path}: no fold {cfg.fold}; its folds are {known}")
        if split == "test":
            return whole, rows[folds == cfg.fold]
        rows = rows[folds != cfg.fold]
    if not finetune.validation_share:
        if split == "validation":
            raise DataError("finetune.validation_share=0 holds no clips out for validation")
        return whole, rows
    held = data.hold_out([whole.group(int(i)) for i in rows], finetune.validation_share)
    return whole, rows[held] if split == "validation" else rows[~held]
