"""The recipe: a frozen tree of plain values, read from YAML, stored with every checkpoint."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml
from pydantic import ValidationError

from equiav.errors import ConfigError
from equiav.sections.augment import AudioAugmentConfig, AugmentConfig, VisualAugmentConfig
from equiav.sections.data import CavMaeConfig, DataConfig, PairedConfig, ShardsConfig, WorldConfig
from equiav.sections.finetune import FinetuneAudioConfig, FinetuneConfig, FinetuneVisualConfig
from equiav.sections.inputs import AudioConfig, VisualConfig
from equiav.sections.learning import BankConfig, ObjectiveConfig, OptimConfig, TrainConfig, WeightsConfig
from equiav.sections.model import ClassifierConfig, EncoderConfig, HeadsConfig, ModelConfig, PredictorConfig
from equiav.sections.section import Section

__all__ = [
    "AudioAugmentConfig",
    "AudioConfig",
    "AugmentConfig",
    "BankConfig",
    "CavMaeConfig",
    "ClassifierConfig",
    "Config",
    "EncoderConfig",
    "FinetuneAudioConfig",
    "FinetuneConfig",
    "FinetuneVisualConfig",
    "HeadsConfig",
    "ModelConfig",
    "ObjectiveConfig",
    "OptimConfig",
    "PairedConfig",
    "PredictorConfig",
    "ShardsConfig",
    "TrainConfig",
    "VisualAugmentConfig",
    "VisualConfig",
    "WeightsConfig",
    "WorldConfig",
    "dump_config",
    "load_config",
    "parse_config",
    "refusal",
    "shipped_recipe",
]


class Config(Section):
    """A whole recipe."""

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
    seed: int = 0
    weights: str | None = None
    modalities: dict[str, Any] = {}


def parse_config(tree: Any, where: str) -> Config:
    """A checked recipe from plain data; `where` names it in messages."""
    if not isinstance(tree, dict):
        raise ConfigError(f"{where}: a recipe is a mapping of sections, got {type(tree).__name__}")
    try:
        return Config.model_validate(tree)
    except ValidationError as error:
        raise refusal(error, where) from error


def refusal(error: ValidationError, where: str) -> ConfigError:
    """The first thing that is wrong with a file, in one line."""
    first = error.errors()[0]
    key = ".".join(str(part) for part in first["loc"]) or "recipe"
    reason = "unknown key" if first["type"] == "extra_forbidden" else first["msg"].removeprefix("Value error, ")
    more = f" (and {error.error_count() - 1} more)" if error.error_count() > 1 else ""
    return ConfigError(f"{where}: {key}: {reason}{more}")


def load_config(path: Path, overrides: tuple[str, ...] = ()) -> Config:
    """Reads a recipe and applies `key.sub=value` overrides, values read as YAML."""
    try:
        tree = yaml.safe_load(path.read_text(encoding="utf-8")) or {}
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read ({error.strerror})") from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: not YAML ({' '.join(str(error).split())})") from error
    if not isinstance(tree, dict):
        raise ConfigError(f"{path}: a recipe is a mapping of sections, got {type(tree).__name__}")
    for override in overrides:
        _override(tree, override)
    return parse_config(tree, str(path))


def _override(tree: dict[str, Any], override: str) -> None:
    key, equals, value = override.partition("=")
    if not equals or not key:
        raise ConfigError(f"{override!r}: an override is key=value, for instance train.steps=100")
    *sections, last = key.split(".")
    for section in sections:
        tree = tree.setdefault(section, {})
        if not isinstance(tree, dict):
            raise ConfigError(f"{override!r}: {section} is a value, not a section")
    try:
        tree[last] = yaml.safe_load(value)
    except yaml.YAMLError as error:
        raise ConfigError(f"{override!r}: {value!r} is not a YAML value") from error


def shipped_recipe(name: str) -> Path:
    """A recipe that comes with the package, by its path under configs/."""
    here = Path(__file__).parent
    for folder in (here / "configs", here.parents[1] / "configs"):  # installed; in the source tree
        if (folder / name).is_file():
            return folder / name
    raise ConfigError(f"configs/{name}: not part of this installation")


def dump_config(config: Config) -> str:
    """The whole recipe as YAML, defaults written out."""
    return yaml.safe_dump(config.model_dump(mode="json"), sort_keys=False)
