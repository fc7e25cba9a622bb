"""Deadlines and the cap of connections, the bounded log, the forced end; on a small application."""

import asyncio
import logging
import signal
import socket
import subprocess
import sys
import threading
import time
from contextlib import ExitStack

import httpx
import pytest
import uvicorn
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response, StreamingResponse

from equiav.web import connections
from equiav.web.connections import BoundedLog, TimedProtocol, most_connections

CAP = 8


async def app(scope, receive, send):
    """Says how much it was sent; /slow takes its time, /stream is sent bit by bit, /large is large."""
    if scope["type"] == "lifespan":
        return
    body = await Request(scope, receive).body()
    response = PlainTextResponse(str(len(body)))
    if scope["path"] == "/slow":
        await asyncio.sleep(1.5)
    if scope["path"] == "/large":
        response = Response(bytes(20_000_000))
    if scope["path"] == "/stream":

        async def bits():
            for _ in range(15):
                yield b"x"
                await asyncio.sleep(0.1)

        response = StreamingResponse(bits())
    await response(scope, receive, send)


@pytest.fixture
def port(monkeypatch):
    """A server with short deadlines and room for few."""
    for name in ("HEADER_SECONDS", "BODY_SECONDS", "UNREAD_SECONDS"):
        monkeypatch.setattr(connections, name, 0.5)
    config = uvicorn.Config(app, http=TimedProtocol, log_level="critical", lifespan="off", limit_concurrency=CAP)
    server = uvicorn.Server(config)
    door = socket.create_server(("127.0.0.1", 0))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [door]})
    thread.start()
    yield door.getsockname()[1]
    server.should_exit = True
    thread.join()


@pytest.fixture
def connect(port):
    with ExitStack() as stack:

        def opened(sent=b""):
            connection = stack.enter_context(socket.create_connection(("127.0.0.1", port), timeout=5))
            connection.sendall(sent)
            return connection

        yield opened


def head(path, *lines):
    return "\r\n".join([f"{path} HTTP/1.1", "Host: a", *lines, "", ""]).encode()


def ended_after(connection, *, drip=b""):
    """Seconds until the server ends the connection, which goes on sending a bit now and then."""
    began = time.monotonic()
    connection.settimeout(0.1)
    while time.monotonic() - began < 15:
        try:
            if drip:
                connection.sendall(drip)
            if not connection.recv(1000):
                break
        except TimeoutError:
            continue
        except OSError:
            break
    return time.monotonic() - began


@pytest.mark.parametrize(
    ("sent", "drip"),
    [
        (b"", b""),
        (b"GET / HTTP/1.1\r\nHost: a\r\nX: ", b""),
        (b"GET / HTTP/1.1\r\nHost: a\r\nX: ", b"x"),
        (head("POST /", "Content-Length: 1000") + b"x", b""),
        (head("POST /", "Content-Length: 1000") + b"x", b"x"),
        (head("GET /") + b"GET / HTTP", b"/"),  # a second one after a whole one
    ],
)
def test_half_sent_requests_end(connect, sent, drip):
    assert 0.3 < ended_after(connect(sent), drip=drip) < 14


def test_answers_that_nobody_reads_end(connect):
    connection = connect(head("GET /large"))
    time.sleep(2)
    received = 0
    try:
        while got := connection.recv(1 << 20):
            received += len(got)
    except OSError:
        pass
    assert received < 20_000_000


def test_whole_requests_have_time(port):
    with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=10) as client:
        assert client.get("/slow").text == "0"
        assert client.get("/stream").text == "x" * 15
        assert len(client.get("/large").content) == 20_000_000
        assert client.post("/", content=bytes(3_000_000)).text == "3000000"


def test_large_bodies_have_longer(connect):
    length = int(connections.BODY_RATE)  # a second more
    connection = connect(head("POST /", f"Content-Length: {length}", "Connection: close"))
    time.sleep(1)
    connection.sendall(bytes(length))
    assert connection.recv(1000).startswith(b"HTTP/1.1 200")


def test_half_sent_requests_make_room(connect, port, monkeypatch):
    for name in ("HEADER_SECONDS", "BODY_SECONDS"):
        monkeypatch.setattr(connections, name, 60.0)
    halves = [connect(b"GET / HTTP/1.1\r\n") for _ in range(4 * CAP)]
    assert httpx.get(f"http://127.0.0.1:{port}/", timeout=5).status_code == 200
    time.sleep(0.2)
    gone = [half for half in halves if ended_at_once(half)]
    assert len(halves) - len(gone) < CAP
    assert not set(gone) & set(halves[-CAP // 2 :])  # the oldest go, the newest stay


def ended_at_once(connection):
    connection.settimeout(0.01)
    try:
        return not connection.recv(100)
    except TimeoutError:
        return False
    except OSError:
        return True


def test_requests_at_work_do_not_make_room(connect):
    working = [connect(head("GET /slow", "Connection: close")) for _ in range(CAP - 1)]
    time.sleep(0.3)
    assert ended_after(connect(head("GET /"))) < 14
    assert all(connection.recv(1000).startswith(b"HTTP/1.1 200") for connection in working)


def test_whatever_the_page_logs_is_bounded():
    """Every logger of the package, also those of modules that came later than the page."""
    import equiav.search
    import equiav.web.page  # noqa: F401

    names = ("equiav.web.page", "equiav.web.security", "equiav.web.guard", "equiav.search.index", "uvicorn.error")
    before, handler = {name: list(logging.getLogger(name).filters) for name in names}, signal.getsignal(signal.SIGTERM)
    try:
        connections.build_server(app, lambda: None)
        for name in names:
            assert any(isinstance(each, BoundedLog) for each in logging.getLogger(name).filters), name
    finally:
        signal.signal(signal.SIGTERM, handler)
        for each in [name for name in logging.root.manager.loggerDict if name.startswith("equiav.")]:
            kept = [f for f in logging.getLogger(each).filters if not isinstance(f, BoundedLog)]
            logging.getLogger(each).filters[:] = before.get(each, kept)
        for name in ("asyncio", "uvicorn.error"):
            logging.getLogger(name).filters[:] = before.get(name, [])


def test_the_log_is_bounded(caplog):
    logger = logging.getLogger("bounded")
    bounded = BoundedLog(lines=3, seconds=0.3)
    logger.addFilter(bounded)
    for i in range(1000):
        logger.error("number %d", i)
    assert [record.getMessage() for record in caplog.records] == ["number 0", "number 1", "number 2"]
    time.sleep(0.35)
    logger.error("number %d", 1000)
    assert caplog.records[-1].getMessage() == "(997 messages were left out) number 1000"


@pytest.mark.parametrize(("soft", "most"), [(256, 64), (1024, 256), (100_000, 256), (64, 8), (-1, 256)])
def test_connections_respect_file_descriptors(monkeypatch, soft, most):
    import resource

    monkeypatch.setattr(resource, "getrlimit", lambda kind: (soft, soft))
    assert most_connections() == most


STUCK = """
import asyncio, sys, time
from pathlib import Path
from equiav.web.connections import build_server

async def app(scope, receive, send):
    if scope["type"] == "http":
        Path(sys.argv[1]).touch()
        await asyncio.get_running_loop().run_in_executor(None, time.sleep, 60)

import socket
door = socket.create_server(("127.0.0.1", 0))
print(door.getsockname()[1], flush=True)
build_server(app, lambda: Path(sys.argv[1]).unlink()).run(sockets=[door])
"""


@pytest.mark.process
def test_work_that_cannot_be_interrupted_does_not_keep_the_page_alive(tmp_path):
    mark = tmp_path / "mark"
    process = subprocess.Popen([sys.executable, "-c", STUCK, mark], stdout=subprocess.PIPE, text=True)
    with socket.create_connection(("127.0.0.1", int(process.stdout.readline()))) as connection:
        connection.sendall(head("GET /"))
        for _ in range(300):
            if mark.exists():
                break
            time.sleep(0.1)
        process.send_signal(signal.SIGTERM)
        assert process.wait(5) == 143
    assert not mark.exists()
