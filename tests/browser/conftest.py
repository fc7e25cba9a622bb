"""A page of its own in a process of its own, on scenes of the generated world; small limits, so that they are met."""

import shutil

import pytest
from benchmarks.serve import media_of, started

from equiav.build import build_model
from equiav.checkpoint import save_model
from tests.training.small import small_config


@pytest.fixture(scope="session")
def run(tmp_path_factory):
    """A run of a small untrained model."""
    run = tmp_path_factory.mktemp("served") / "run"
    config = small_config("data.test=12")
    save_model(run, config, build_model(config).state_dict(), {"kind": "pretrained"})
    return run


@pytest.fixture(scope="session")
def served(run):
    limits = ["--megabytes", "1", "--seconds", "30", "--waiting", "4"]
    with started(run, *limits) as server:
        yield server


@pytest.fixture(scope="session")
def media(served):
    """Good uploads by API name."""
    return media_of(served)


@pytest.fixture(scope="session")
def chromium():
    program = shutil.which("chromium")
    if program is None:
        pytest.skip("chromium is not installed: nothing here was seen by a real browser")
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program, args=["--no-sandbox", "--disable-gpu"])
        yield browser
        browser.close()
