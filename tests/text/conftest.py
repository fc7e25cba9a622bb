"""A small model with text, trained for a few steps, and one without."""

import pytest

from equiav.training import Trainer
from tests.text.small import text_config
from tests.training.small import small_config


@pytest.fixture(scope="session")
def run(tmp_path_factory):
    out = tmp_path_factory.mktemp("text") / "run"
    Trainer(text_config("train.steps=4"), out, str).run()
    return out


@pytest.fixture(scope="session")
def silent_run(tmp_path_factory):
    """Trained without text."""
    out = tmp_path_factory.mktemp("plain") / "run"
    Trainer(small_config("train.steps=2"), out, str).run()
    return out
