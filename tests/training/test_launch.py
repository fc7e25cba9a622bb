"""A command in processes of its own: told to stop, it is told in turn, and saves."""

import os
import signal
import sys

import pytest

from equiav.errors import TrainingError
from equiav.training import launch

pytestmark = pytest.mark.process
CHILD = f"""\
#!{sys.executable}
import os, pathlib, signal, sys, time
def save(number, frame):
    pathlib.Path(sys.argv[-1]).write_text("saved")
    os._exit(CODE)
signal.signal(signal.SIGTERM, save)
print("step 1/2", file=sys.stderr, flush=True)
if ALONE:
    os._exit(CODE)
time.sleep(60)
"""


@pytest.fixture
def child(tmp_path, monkeypatch):
    """Puts a script in the place of the interpreter that runs the command."""

    def put(code, *, alone=False):
        path = tmp_path / "child"
        path.write_text(CHILD.replace("CODE", str(code)).replace("ALONE", str(alone)))
        path.chmod(0o755)
        monkeypatch.setattr(launch.sys, "executable", str(path))

    return put


@pytest.mark.parametrize("code", [143, 1])  # torchrun ends with a code of its own
def test_a_signal_is_passed_on(tmp_path, child, code):
    child(code)
    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(launch.Stopped):
        launch.run_on_cores([str(tmp_path / "file")], processes=1, say=lambda _: os.kill(os.getpid(), signal.SIGTERM))
    assert (tmp_path / "file").read_text() == "saved"
    assert signal.getsignal(signal.SIGTERM) == before


def test_stopped_by_another(tmp_path, child):
    child(143, alone=True)
    with pytest.raises(launch.Stopped):
        launch.run_on_cores([str(tmp_path / "file")], processes=1, say=lambda _: None)
    child(1, alone=True)
    with pytest.raises(TrainingError, match="exit code 1"):
        launch.run_on_cores([str(tmp_path / "file")], processes=1, say=lambda _: None)
