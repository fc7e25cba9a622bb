"""A recipe small enough for many runs."""

from pathlib import Path

from equiav.config import Config, load_config

SMOKE = Path(__file__).parents[2] / "configs" / "pretrain" / "smoke.yaml"


def small_config(*overrides: str) -> Config:
    return load_config(SMOKE, ("data.count=24", "train.batch=8", *overrides))
