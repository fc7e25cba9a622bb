"""Half-sent requests, unread answers, and the end of the page while connections are open."""

import socket
import time
from contextlib import ExitStack
from pathlib import Path

import httpx
import pytest

from tests.browser.conftest import launched

pytestmark = pytest.mark.process
UPLOAD = b"POST /gradio_api/upload HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: multipart/form-data; boundary=b\r\n"
HALVES = {
    "nothing": b"",
    "head": b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\nX-Slow: ",
    "body": UPLOAD + b"Content-Length: 1000\r\n\r\n--b\r\nContent-Disposition: form-data",
    "call": b"POST /gradio_api/queue/join HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 500\r\n\r\n{",
}


def opened(stack, address, sent):
    """A connection that has sent this much."""
    host, _, port = address.removeprefix("http://").rpartition(":")
    connection = stack.enter_context(socket.create_connection((host, int(port)), timeout=5))
    connection.sendall(sent)
    return connection


def is_gone(connection):
    """Has the page ended the connection? Answers that come first are read."""
    connection.settimeout(0)
    try:
        while connection.recv(65536):
            pass
    except BlockingIOError:
        return False
    except OSError:
        return True
    return True


def until_gone(connections, patience):
    """Seconds until the page has ended all these connections."""
    began = time.monotonic()
    left = list(connections)
    while left and time.monotonic() - began < patience:
        time.sleep(0.5)
        left = [each for each in left if not is_gone(each)]
    assert not left, f"{len(left)} connections are still there"
    return time.monotonic() - began


def drip(connections):
    """A byte on each, as if the rest were to come."""
    for connection in connections:
        try:
            connection.send(b"x")
        except OSError:  # ended already
            continue


def sockets_of(process):
    """How many sockets the page holds."""
    links = []
    for entry in Path(f"/proc/{process.pid}/fd").iterdir():
        try:
            links.append(str(entry.readlink()))
        except OSError:
            continue
    return sum(link.startswith("socket:") for link in links)


@pytest.mark.parametrize(("descriptors", "count"), [(256, 300), (1024, 1100)])
def test_half_sent_requests(run, tmp_path, descriptors, count):
    with launched(run, tmp_path, descriptors=descriptors) as page, ExitStack() as stack:
        assert httpx.get(f"{page.address}/config", timeout=60).status_code == 200
        time.sleep(6)  # that connection is kept a moment for the next request
        held, before, kinds = sockets_of(page.process), page.log.stat().st_size, list(HALVES.values())
        connections = [opened(stack, page.address, kinds[i % len(kinds)]) for i in range(count)]
        for _ in range(5):
            began = time.monotonic()
            assert httpx.get(f"{page.address}/config", timeout=10).status_code == 200
            assert time.monotonic() - began < 5
            drip(connections)
            time.sleep(0.5)
        assert until_gone(connections, 40) < 30
        assert page.log.stat().st_size - before < 50_000
        assert httpx.get(f"{page.address}/config", timeout=10).status_code == 200
        until = time.monotonic() + 20
        while sockets_of(page.process) > held and time.monotonic() < until:
            time.sleep(0.5)
        assert sockets_of(page.process) <= held


def test_the_page_ends_with_connections_open(run, tmp_path):
    with ExitStack() as stack:
        with launched(run, tmp_path) as page:
            assert httpx.get(f"{page.address}/config", timeout=60).status_code == 200
            for sent in HALVES.values():
                for _ in range(20):
                    opened(stack, page.address, sent)
            for _ in range(20):
                asked = b"GET /gradio_api/queue/data?session_hash=x HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"
                opened(stack, page.address, asked)
            time.sleep(1)
        assert page.process.returncode == 143
        assert page.log.stat().st_size < 200_000
