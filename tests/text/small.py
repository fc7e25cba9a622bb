"""A recipe with text, small enough for many runs."""

from equiav.config import Config
from tests.training.small import small_config

TEXT_OPTIONS = "modalities={text: {kind: text, options: {words: 24, letters: 8, share: %s}}}"


def text_config(*overrides: str, share: float = 1.0) -> Config:
    return small_config(TEXT_OPTIONS % share, *overrides)
