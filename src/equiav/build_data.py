"""From a recipe to its data: the clips of a split, which of them a step sees, and what only the data can tell."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path

from typing_extensions import assert_never

from equiav.config import CavMaeConfig, Config, PairedConfig, ShardsConfig, WorldConfig
from equiav.data import (
    MANIFEST,
    META,
    SHARDS,
    SPLITS,
    CavMaeDataset,
    Chosen,
    ClipDataset,
    Difficulty,
    LabelledClips,
    PairedDataset,
    PairedSet,
    Schedule,
    ShardDataset,
    Split,
    World,
    WorldDataset,
    balanced_weights,
    label_names,
    read_cavmae,
    read_meta,
    read_paired,
    read_retrieval_list,
    read_weights,
    select,
)
from equiav.errors import ConfigError, DataError
from equiav.media import HOP_SECONDS


def build_world(cfg: WorldConfig, size: int, sample_rate: int) -> World:
    """The generated world of the recipe."""
    difficulty = Difficulty(
        max_things=cfg.max_things, max_sounding=cfg.max_sounding, another=cfg.another, duet=cfg.duet
    )
    return World(cfg.seed, size, cfg.seconds, sample_rate, difficulty=difficulty)


@lru_cache(maxsize=2)
def _paired_set(path: str, size: int, seconds: float, sample_rate: int) -> PairedSet:
    """Read once, however many splits are asked for."""
    return read_paired(Path(path), size=size, seconds=seconds, sample_rate=sample_rate)


def build_clips(config: Config, split: Split) -> ClipDataset:
    """The clips of one split."""
    data = config.data
    match data.kind:
        case "world":
            starts = {"train": 0, "validation": data.count, "test": data.count + data.validation}
            used = min(data.used or data.count, data.count)
            counts = {"train": used, "validation": data.validation, "test": data.test}
            return WorldDataset(
                build_world(data, config.visual.size, config.audio.sample_rate), starts[split], counts[split]
            )
        case "paired":
            source = _paired_set(data.path, config.visual.size, data.seconds, config.audio.sample_rate)
            return PairedDataset(source, split, data.anchor, data.partners, config.seed)
        case "shards":
            folder = data.test if split == "test" and data.test else data.path
            return ShardDataset(Path(folder), split, size=config.visual.size)
        case "cavmae":
            listed = {"train": data.train, "validation": data.validation, "test": data.test}[split]
            if listed is None:
                raise DataError("data.test: this recipe names no test file; set it, or ask for the validation split")
            seconds = config.audio.frames * HOP_SECONDS
            entries = read_cavmae(Path(listed))
            return CavMaeDataset(
                entries,
                config.visual.size,
                seconds=seconds,
                sample_rate=config.audio.sample_rate,
                fallback=data.fallback,
            )
        case never:
            assert_never(never)


def present_splits(config: Config) -> frozenset[Split]:
    """Which splits the data have."""
    data = config.data
    if isinstance(data, CavMaeConfig) and data.test is None:
        return frozenset(SPLITS) - {"test"}
    if isinstance(data, ShardsConfig):
        counts = read_meta(Path(data.path))["splits"]
        return frozenset(name for name in SPLITS if counts.get(name) or (name == "test" and data.test))
    return frozenset(SPLITS)


def listed_clips(clips: ClipDataset, path: Path) -> tuple[ClipDataset, str]:
    """The clips of a set that a published retrieval list names, and a line on how many of them are there."""
    if not isinstance(clips, ShardDataset):
        raise ConfigError("a retrieval list selects from a prepared folder (data.kind shards)")
    found = select([clips.source(i) for i in range(len(clips))], read_retrieval_list(path))
    if not found.rows:
        raise DataError(f"{path}: none of its {len(found.missing)} clips is in {clips.folder}")
    return Chosen(clips, tuple(found.rows)), found.line()


def with_data(config: Config, path: Path | None) -> Config:
    """The recipe with its data elsewhere: a prepared folder, or a collection paired by class (tar or folder)."""
    if path is None:
        return config
    prepared = (path / META).exists() or (path / SHARDS).exists()
    kind = PairedConfig if path.is_file() or ((path / MANIFEST).exists() and not prepared) else ShardsConfig
    if isinstance(config.data, kind):
        moved = {"path": str(path)} | ({"test": None, "fold": None} if isinstance(config.data, ShardsConfig) else {})
        return config.model_copy(update={"data": config.data.model_copy(update=moved)})
    return config.model_copy(update={"data": kind(path=str(path))})


def build_schedule(config: Config, clips: ClipDataset) -> Schedule:
    """Which clips a step sees; balanced by class, or apart by source video, where the recipe says so."""
    weights, groups = None, None
    data = config.data
    if data.balanced:
        weights = balanced_weights(clips.targets.names() if isinstance(clips, LabelledClips) else label_names(clips))
        if not float(weights.sum()):
            raise ConfigError("data.balanced needs labels, and these clips have none")
    if isinstance(data, CavMaeConfig) and data.weights is not None:
        weights = read_weights(Path(data.weights), clips=len(clips))
    if isinstance(data, ShardsConfig) and isinstance(clips, ShardDataset) and data.one_per_source:
        groups = tuple(clips.group(i) for i in range(len(clips)))
    return Schedule(len(clips), clips.frames, config.train.batch, config.seed, weights, groups)


def with_statistics(config: Config) -> Config:
    """The recipe with the spectrogram's statistics of its data, where it asks for them."""
    data = config.data
    if not isinstance(data, ShardsConfig) or data.statistics != "data":
        return config
    found = read_meta(Path(data.path))["spectrogram"]
    if found["mean"] is None:
        raise ConfigError(f"{data.path}: was prepared without sound; set data.statistics=recipe")
    audio = config.audio.model_copy(update={"mean": found["mean"], "std": found["std"]})
    return config.model_copy(update={"audio": audio})


SMALL = 1000


def resolve(config: Config, processes: int) -> tuple[Config, list[str]]:
    """The recipe with what only the data can tell filled in, and what a person should know about it."""
    notices = []
    config = with_statistics(config)
    if config.train.shrink_batch:
        count = len(build_clips(config, "train"))
        if count < config.train.batch:
            batch = max(processes, count // processes * processes)
            config = config.model_copy(update={"train": config.train.model_copy(update={"batch": batch})})
            notices.append(f"{count} clips for training: the batch shrinks to {batch}")
        if count < SMALL:
            notices.append(
                f"{count} clips are few: expect the model to tell these clips apart, not to know the world; "
                "start from given weights (weights=...) or add videos"
            )
    return config, notices
