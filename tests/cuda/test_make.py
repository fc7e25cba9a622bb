"""`make test-cuda` where torch does not see the GPU that is there, where it does, and where there is none."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

pytestmark = pytest.mark.skipif(shutil.which("make") is None, reason="no make here")


def program(path, code):
    path.write_text(f"#!/bin/sh\n{code}\n")
    path.chmod(0o755)


@pytest.mark.parametrize(("driver", "torch", "runs"), [(True, False, False), (True, True, True), (False, False, True)])
def test_a_gpu_that_torch_does_not_see_is_an_error(tmp_path, driver, torch, runs):
    program(tmp_path / "nvidia-smi", f"exit {int(not driver)}")
    program(tmp_path / "python", f'echo "$@" >> {tmp_path}/calls; [ "$1" != -c ] || exit {int(not torch)}')
    (tmp_path / "installed").touch()
    command = ["make", "test-cuda", f"BIN={tmp_path}", f"BASE={tmp_path / 'installed'}"]
    environment = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"}
    done = subprocess.run(command, cwd=Path(__file__).parents[2], env=environment, capture_output=True, text=True)
    assert (done.returncode == 0) == runs
    said = [line for line in done.stdout.splitlines() if line.startswith("nvidia-smi works, but torch")]
    assert len(said) == (not runs)
    calls = (tmp_path / "calls").read_text()
    assert ("-m pytest -rs -m cuda tests/cuda" in calls) == runs
    assert "dev" not in calls
