"""Preparing on Ray: the same folder as by local processes, workers that are killed included."""

import os
import shutil
import signal
import sys

import pytest

from equiav.data import find_sources, prepare, read_skipped, verify_prepared
from equiav.data.cutting import Cutter
from equiav.errors import DataError
from tests.media.making import sine, write_media

pytestmark = pytest.mark.process

PREPARE = sys.modules["equiav.data.prepare"]
SMALL = {"workers": 1, "clip_seconds": 1.0, "short_side": 48, "frames": 2, "shard_bytes": 20_000}


class Dying(Cutter):
    """Its process is killed once by a file called once, and each time by one called always."""

    def __call__(self, job):
        number, source = job
        died = self.folder / f"died-{number}"
        if source.id == "always.mp4" or (source.id == "once.mp4" and not died.exists()):
            died.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return super().__call__(job)


@pytest.fixture
def cluster():
    ray = pytest.importorskip("ray", reason="ray is not installed: pip install 'equiav[ray]'")
    # One worker, and none of the services that the test does not need: most of its time is Ray starting.
    ray.init(num_cpus=1, include_dashboard=False, log_to_driver=False, configure_logging=False)
    yield
    ray.shutdown()


def test_ray_gives_the_same_folder_and_survives_killed_workers(cluster, tmp_path, monkeypatch):
    for number, name in enumerate(("always", "fine", "once", "plain")):
        write_media(tmp_path / "in" / f"{name}.mp4", seconds=2, fps=10, sound=sine(2, 16000, 300 + 50 * number))
    (tmp_path / "in/broken.mp4").write_bytes(b"no video")
    monkeypatch.setattr(PREPARE, "Cutter", Dying)
    sources = find_sources(tmp_path / "in")
    summaries = [prepare(sources, tmp_path / engine, engine=engine, **SMALL) for engine in ("local", "ray")]
    assert summaries[0] == summaries[1]
    assert (summaries[1].used, summaries[1].skipped) == (3, 2)
    reasons = {source: reason for source, _, reason in read_skipped(tmp_path / "ray")}
    assert reasons["always.mp4"] == "decoder crashed"
    assert reasons["broken.mp4"].startswith("cannot be opened as media")
    assert verify_prepared(tmp_path / "ray") == []
    sums = [(tmp_path / engine / "SHA256SUMS").read_text() for engine in ("local", "ray")]
    assert sums[0] == sums[1]
    assert sums[0].count("shards/") > 1


def test_ray_is_asked_for_when_it_is_not_there(tmp_path, monkeypatch):
    write_media(tmp_path / "in/a.mp4", seconds=1)
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(DataError, match="needs Ray"):
        prepare(find_sources(tmp_path / "in"), tmp_path / "out", engine="ray", **SMALL)
    shutil.rmtree(tmp_path / "out")  # nothing holds it any more
