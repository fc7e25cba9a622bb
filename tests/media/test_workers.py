"""Processes that may be killed: streams, time that is short while others wait, and files decoded in them."""

import os
import subprocess
import sys
import threading
import time

import pytest
from PIL import Image
from typer.testing import CliRunner

from equiav.cli import app
from equiav.errors import MediaError
from equiav.media import Failure, Workers, decoded_in, excerpt, read_image, read_windows, streamed_in
from tests.inference.models import saved_model
from tests.media.making import write_media


@pytest.fixture(scope="module")
def workers():
    with Workers(1) as workers:
        yield workers


@pytest.fixture(scope="module")
def film(tmp_path_factory):
    return write_media(tmp_path_factory.mktemp("film") / "a.mp4", seconds=5)


def same(one, other):
    frames = zip(one.frames, other.frames, strict=True)
    return one.cut == other.cut and (one.waveform == other.waveform).all() and all((a == b).all() for a, b in frames)


def test_files_are_the_same_from_there(workers, film):
    here = excerpt(film, start=0.0, seconds=2.0)
    assert same(decoded_in(workers, excerpt, film, start=0.0, seconds=2.0), here)
    assert same(decoded_in(None, excerpt, film, start=0.0, seconds=2.0), here)


def test_windows_come_one_after_another(workers, film):
    how = {"seconds": 1.0, "rate": 16000}
    there, here = list(streamed_in(workers, read_windows, film, **how)), list(read_windows(film, **how))
    assert len(there) == len(here) == 5
    assert all(same(one, other) for one, other in zip(there, here, strict=True))


@pytest.mark.parametrize(("seconds", "frames"), [(1.0, 2), (1.44, 3), (5.0, 10), (10.0, 10)])
def test_two_frames_a_second_are_seen_and_ten_at_most(film, seconds, frames):
    assert {len(piece.frames) for piece in read_windows(film, seconds=seconds, rate=16000)} == {frames}
    assert len(excerpt(film, start=0.0, seconds=seconds).frames) == frames


def test_errors_are_those_of_the_file(workers, tmp_path):
    (tmp_path / "no.mp4").write_bytes(b"nothing")
    with pytest.raises(MediaError, match=r"no\.mp4: cannot be opened as media"):
        decoded_in(workers, excerpt, tmp_path / "no.mp4", start=0.0, seconds=1.0)
    with pytest.raises(MediaError, match=r"no\.mp4: cannot be opened as media"):
        list(streamed_in(workers, read_windows, tmp_path / "no.mp4", seconds=1.0, rate=16000))
    with pytest.raises(MediaError, match=r"no\.png: no such file"):
        decoded_in(workers, read_image, tmp_path / "no.png")


def counting(seconds, then):
    for number in range(3):
        time.sleep(seconds)
        yield number
    if then == "dies":
        sys.exit(1)
    time.sleep(then)


def test_a_stream_may_take_long_but_not_hang():
    with Workers(1, patience=2.0) as workers:
        assert list(workers.stream(counting, 1.0, 0)) == [0, 1, 2]
        for then, reason in ((60, "took too long"), ("dies", "decoder crashed")):
            seen = []
            with pytest.raises(Failure, match=reason):
                seen += iter_into(seen, workers.stream(counting, 0.0, then))
            assert seen == [0, 1, 2]


def iter_into(seen, stream):
    for item in stream:
        seen.append(item)
    return []


def test_who_does_not_want_the_rest_ends_the_process(workers):
    stream = workers.stream(counting, 0.0, 60)
    assert next(stream) == 0
    (busy,) = workers._all
    stream.close()
    assert not busy.process.is_alive()
    assert workers.call(len, "abc") == 3


def test_time_is_short_while_others_wait():
    with Workers(1, patience=120.0, hurry=0.5) as workers:
        workers.call(len, "")
        began, slow = time.monotonic(), []

        def sleep():
            with pytest.raises(Failure, match="took too long"):
                workers.call(time.sleep, 100)
            slow.append(time.monotonic() - began)

        thread = threading.Thread(target=sleep)
        thread.start()
        time.sleep(2.0)
        assert not slow  # nobody waits
        assert workers.call(len, "abc") == 3
        thread.join()
        assert 2.0 < slow[0] < 60


@pytest.mark.parametrize("command", ["localise MODEL FILM", "localise MODEL FILM --video OUT.mp4", "augment FILM"])
def test_commands_that_show_a_file_decode_it_elsewhere(film, tmp_path, monkeypatch, command):
    def stuck(self, function, *arguments):
        raise Failure("took too long")

    monkeypatch.setattr(Workers, "call", stuck)
    places = {"MODEL": saved_model(tmp_path / "model"), "FILM": film, "OUT.mp4": tmp_path / "out.mp4"}
    result = CliRunner().invoke(app, [str(places.get(word, word)) for word in command.split()])
    assert str(result.exception) == f"{film}: took too long"


def test_decoding_needs_no_torch():
    """Or every process would take two seconds to start, and 150 MB."""
    code = "import sys, equiav.media; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


IN_A_WORKER = """
import os, resource, sys
from pathlib import Path
from equiav.media import Limits, Workers, read_pieces

def work(film):
    for turn in range(6):
        before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
        count = len(list(read_pieces(film, size=48, limits=Limits(), rate=16000, seconds=1.0)))
    faults = resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before
    return count, "torch" in sys.modules, len(os.listdir("/proc/self/task")), faults

if __name__ == "__main__":
    with Workers(1) as workers:
        print(*workers.call(work, Path(sys.argv[1])), os.environ.get("OMP_NUM_THREADS"))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="counts threads and page faults")
def test_a_worker_of_an_index_is_cheap(tmp_path):
    """Torch would take it two seconds to start and 150 MB, threads the cores of others, memory each time anew."""
    (tmp_path / "use.py").write_text(IN_A_WORKER)
    environment = {name: value for name, value in os.environ.items() if not name.endswith("NUM_THREADS")}
    film = write_media(tmp_path / "a.mp4", seconds=5, size=(426, 240))
    command = [sys.executable, str(tmp_path / "use.py"), str(film)]
    said = subprocess.run(command, env=environment, check=True, capture_output=True, text=True).stdout.split()
    assert said[:3] == ["6", "False", "1"]
    assert int(said[3]) < 2000  # a window takes 500 and more where nothing is kept
    assert said[4] == "None"  # and the process that has workers computes as before


def test_a_name_with_a_pattern_is_one_file(tmp_path):
    """FFmpeg would read its neighbours as a film."""
    for number in range(1, 21):
        Image.new("RGB", (32, 32)).save(tmp_path / f"a.{number:03d}.jpg")
    (tmp_path / "a.%03d.jpg").write_bytes(b"nothing")
    with pytest.raises(MediaError):
        excerpt(tmp_path / "a.%03d.jpg", start=0.0, seconds=1.0, sound=False)
