"""Shapes in signatures are checked while the tests run; shared fixtures."""

import os
from pathlib import Path

from jaxtyping import install_import_hook

hook = install_import_hook("equiav", "beartype.beartype")

import pytest  # noqa: E402
import torch  # noqa: E402


@pytest.fixture
def rng() -> torch.Generator:
    return torch.Generator().manual_seed(7)


@pytest.fixture(scope="session")
def shared() -> Path:
    """The folder of real media; tests that need it are skipped, by name, where it is not given."""
    folder = os.environ.get("EQUIAV_SHARED")
    if not folder:
        pytest.skip("EQUIAV_SHARED is not set: no real media here")
    return Path(folder)
