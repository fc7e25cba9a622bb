"""A page of its own in a process of its own, on scenes of the generated world; small limits, so that they are met."""

import os
import shutil
import subprocess
import sys
import time
from contextlib import contextmanager
from types import SimpleNamespace

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


@contextmanager
def launched(run, tmp_path, *options, descriptors=None, folders=0, **environment):
    """`equiav serve` as a process, with what it printed and the log it writes; terminated in time.

    `folders` of pages may be there afterwards.
    """
    log = tmp_path / "log.txt"
    command = [sys.executable, "-m", "equiav.cli", "serve", str(run), "--port", "0", *options]
    if descriptors is not None:
        command = ["sh", "-c", f'ulimit -n {descriptors} && exec "$@"', "sh", *command]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "TMPDIR": str(tmp_path), **environment}
    with log.open("w") as file:
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=file, text=True, env=environment)
    try:
        line = process.stdout.readline()
        assert "http://" in line, log.read_text()
        yield SimpleNamespace(process=process, line=line, address=line.split()[-1].partition("/?")[0], log=log)
    finally:
        began = time.monotonic()
        process.terminate()
        try:
            process.wait(5)
        except subprocess.TimeoutExpired:
            process.kill()
            raise
    assert time.monotonic() - began < 5
    assert len([p for p in tmp_path.iterdir() if p.is_dir()]) == folders


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
        microphone = ["--use-fake-device-for-media-stream", "--use-fake-ui-for-media-stream"]
        options = ["--no-sandbox", "--disable-gpu", *microphone]
        browser = playwright.chromium.launch(executable_path=program, args=options)
        yield browser
        browser.close()
