"""Files that take for ever or ask for too much memory: each is refused, and others are served meanwhile."""

import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from tools.corpus import film_of, huge_film, slow_jpeg

from equiav.errors import MediaError
from equiav.web import Service, UploadLimits

SIZE = (8000, 4800)


@pytest.fixture(scope="module")
def hurried(service):
    """The same collection with little patience."""
    limits = UploadLimits(at_once=2, wall=20.0, hurry=1.0, memory=1 << 28)
    hurried = Service(service.index, service.embedder, limits)
    yield hurried
    hurried.close()


def test_slow_pictures_do_not_stop_the_page(hurried, films, tmp_path):
    """Each of the two would take minutes; they hold both processes, until somebody else comes."""
    (tmp_path / "slow.jpg").write_bytes(slow_jpeg())
    assert (tmp_path / "slow.jpg").stat().st_size < 400_000
    hurried.search("audio", films[0])
    with ThreadPoolExecutor(3) as threads:
        slow = [threads.submit(hurried.search, "image", tmp_path / "slow.jpg") for _ in range(2)]
        time.sleep(0.5)
        began = time.monotonic()
        good = threads.submit(hurried.search, "audio", films[0])
        assert len(good.result()) == 6
        assert time.monotonic() - began < 10
        for one in slow:
            # Which limit stops it first, time or memory, depends on what else the machine does.
            with pytest.raises(MediaError, match=r"slow\.jpg: (took too long|cannot be (read as an image|decoded))"):
                one.result()


def test_slow_films(service, films, tmp_path):
    """Every frame takes a second, and there are thirty before the first that is wanted."""
    impatient = Service(service.index, service.embedder, UploadLimits(wall=1.0))
    film_of(tmp_path / "slow.mkv", slow_jpeg(20, SIZE), SIZE, codec="mjpeg", frames=30)
    assert (tmp_path / "slow.mkv").stat().st_size < 5_000_000
    with pytest.raises(MediaError, match=r"slow\.mkv: took too long"):
        impatient.search("video", tmp_path / "slow.mkv")
    assert len(impatient.search("video", films[0])) == 6
    impatient.close()


def test_films_that_claim_to_be_huge(hurried, films, tmp_path):
    """Frames of 320 MB each in a file of 4 KB."""
    huge_film(tmp_path / "huge.mov")
    assert (tmp_path / "huge.mov").stat().st_size < 10_000
    with pytest.raises(MediaError, match=r"huge\.mov: .*(memory|cannot be decoded)"):
        hurried.search("video", tmp_path / "huge.mov")
    assert len(hurried.search("video", films[0])) == 6


def test_processes_are_used_again(hurried, films):
    for film in films[:3]:
        hurried.search("video", film)
    known = {worker.process.pid for worker in hurried.workers._all}
    assert known
    for film in films[:3]:
        hurried.search("audio", film)
    assert {worker.process.pid for worker in hurried.workers._all} == known


def test_closing_ends_what_is_being_decoded(service, tmp_path):
    (tmp_path / "slow.jpg").write_bytes(slow_jpeg())
    closing = Service(service.index, service.embedder)
    with ThreadPoolExecutor(1) as thread:
        asked = thread.submit(closing.search, "image", tmp_path / "slow.jpg")
        while not closing.workers._all:
            time.sleep(0.05)
        time.sleep(0.5)
        (worker,) = closing.workers._all
        closing.close()
        with pytest.raises(MediaError, match="decoder crashed"):
            asked.result(timeout=30)
    assert not worker.process.is_alive()
