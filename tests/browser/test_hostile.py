"""Uploads that would take minutes: the page serves others meanwhile, ends in time, and leaves no process behind."""

import signal
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import numpy as np
import pytest
from benchmarks.serve import send
from tools.corpus import slow_jpeg

from equiav.report import wav
from tests.browser.conftest import launched

pytestmark = pytest.mark.process


def processes(folder):
    """Those whose temporary files would lie in the folder."""
    found = set()
    for place in Path("/proc").glob("[0-9]*"):
        try:
            if f"TMPDIR={folder}".encode() in (place / "environ").read_bytes().split(b"\0"):
                found.add(int(place.name))
        except OSError:
            continue
    return found


def test_slow_uploads_stop_neither_the_page_nor_its_end(run, tmp_path):
    """The page ends within five seconds while two files are being decoded."""
    tone = (0.3 * np.sin(np.arange(16000) / 5)).astype(np.float32)
    with launched(run, tmp_path) as page, ThreadPoolExecutor(2) as threads:
        client = httpx.Client(base_url=page.address, timeout=120)
        slow = [threads.submit(send, client, "search_by_picture", "a.jpg", slow_jpeg()) for _ in range(2)]
        time.sleep(1)
        assert send(client, "search_by_sound", "a.wav", wav(tone, 16000)).outcome == "complete"
        assert [one.result().outcome for one in slow] == ["error", "error"]
        assert "Traceback" not in page.log.read_text()

        slow = [threads.submit(send, client, "search_by_picture", "a.jpg", slow_jpeg()) for _ in range(2)]
        time.sleep(3)
        assert len(processes(tmp_path)) > 2  # the page, decoders and what starts them
        began = time.monotonic()
        page.process.send_signal(signal.SIGTERM)
        page.process.wait(5)
        assert time.monotonic() - began < 5
        for one in slow:
            one.exception()
    until = time.monotonic() + 10
    while processes(tmp_path) and time.monotonic() < until:
        time.sleep(0.1)
    assert not processes(tmp_path)


def test_what_a_killed_page_left_goes_with_the_next(run, tmp_path):
    with launched(run, tmp_path, "--api-only") as page:
        page.process.kill()
        page.process.wait()
        (left,) = tmp_path.glob("equiav-page-*")
        (left / "uploads" / "a.wav").write_bytes(b"left")
        (tmp_path / "equiav-page-foreign").mkdir()  # no lock in it: not one of a page
        with launched(run, tmp_path, "--api-only", folders=1) as second:
            assert not left.exists()
            (own,) = (p for p in tmp_path.glob("equiav-page-*") if p.name != "equiav-page-foreign")
            with launched(run, tmp_path, "--api-only", folders=2):
                assert own.exists()
            assert httpx.get(f"{second.address}/v1/health", timeout=60).status_code == 200
        (tmp_path / "equiav-page-foreign").rmdir()
