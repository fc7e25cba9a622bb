"""Connections of the page: how many, how long each may take to say what it wants, and what the log says of them."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from itertools import count
from types import FrameType
from typing import Any

import h11
import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

MOST = 256  # connections; a browser holds up to six
SPARE = 128  # file descriptors for everything else
BACKLOG = 64  # asyncio accepts as many at a stretch before it looks at any of them
HEADER_SECONDS = 10.0  # for the head of a request
BODY_SECONDS, BODY_RATE = 20.0, 100_000.0  # for its body: seconds, and bytes per second beyond them
UNREAD_SECONDS = 60.0  # for a client that has stopped reading its answer
ENDING_SECONDS = 3.0  # from the signal to the end, whatever is still running
LOG_LINES, LOG_SECONDS = 20, 60.0  # so many messages in so many seconds
ORDER = count()


class TimedProtocol(H11Protocol):
    """uvicorn's HTTP/1.1, with a deadline whenever the client is the one to act.

    Connections that miss it are dropped. Where there are too many, the one whose deadline is nearest makes room for
    the new one: half-sent requests cannot keep others out.
    """

    deadline: tuple[float, int] | None = None  # when, and in which order it was set: clocks of event loops are coarse
    _timer: asyncio.TimerHandle | None = None
    _phase: tuple[Any, ...] = ()

    def connection_made(self, transport: Any) -> None:  # uvloop has transports of its own
        """Makes room if there is none."""
        super().connection_made(transport)
        self._watch()
        if self.limit_concurrency is not None and len(self.connections) >= self.limit_concurrency:
            others = [each for each in self.connections if isinstance(each, TimedProtocol) and each is not self]
            waiting = [(each.deadline, each) for each in others if each.deadline is not None]
            min(waiting, key=lambda pair: pair[0], default=(None, self))[1].drop()

    def data_received(self, data: bytes) -> None:
        """The head or the body may be whole now."""
        super().data_received(data)
        self._watch()

    def on_response_complete(self) -> None:
        """The next request may come."""
        super().on_response_complete()
        self._watch()

    def pause_writing(self) -> None:
        """The client reads more slowly than it is sent to."""
        super().pause_writing()
        self._watch()

    def resume_writing(self) -> None:
        """The client reads again."""
        super().resume_writing()
        self._watch()

    def connection_lost(self, exc: Exception | None) -> None:
        """Nothing is awaited any more."""
        if self._timer is not None:
            self._timer.cancel()
        super().connection_lost(exc)

    def drop(self) -> None:
        """Ends the connection at once."""
        self.connections.discard(self)
        self.transport.abort()

    def _watch(self) -> None:
        """A new phase of the connection has a new deadline; further bytes of the same phase do not move it."""
        closing = self.transport.is_closing()
        phase = (self.cycle, self.conn.their_state, self.flow.write_paused, closing)
        if phase == self._phase or self not in self.connections:
            return
        self._phase, self.deadline = phase, None
        if self._timer is not None:
            self._timer.cancel()
        if self.flow.write_paused:
            seconds = UNREAD_SECONDS
        elif closing or self.conn.their_state is h11.IDLE:
            seconds = HEADER_SECONDS
        elif self.conn.their_state is h11.SEND_BODY:
            length = dict(self.headers).get(b"content-length", b"0")
            seconds = BODY_SECONDS + int(length) / BODY_RATE
        else:  # the page is the one to act
            return
        self.deadline = self.loop.time() + seconds, next(ORDER)
        self._timer = self.loop.call_later(seconds, self.drop)


class EndingServer(uvicorn.Server):
    """uvicorn's server, which ends in time: work that cannot be interrupted does not keep the process alive."""

    def __init__(self, config: uvicorn.Config, clean_up: Callable[[], None]) -> None:
        super().__init__(config)
        self.clean_up = clean_up

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Told to end: politely, then after some seconds not."""
        super().handle_exit(sig, frame)
        timer = threading.Timer(ENDING_SECONDS, self._leave, [sig])
        timer.daemon = True
        timer.start()

    def _leave(self, sig: int) -> None:
        with suppress(Exception):
            self.clean_up()
        os._exit(128 + sig)


class BoundedLog(logging.Filter):
    """Lets a number of messages pass in a stretch of time; the first one of the next says how many were left out."""

    def __init__(self, lines: int = LOG_LINES, seconds: float = LOG_SECONDS) -> None:
        super().__init__()
        self.lines, self.seconds = lines, seconds
        self.began, self.seen = time.monotonic(), 0

    def filter(self, record: logging.LogRecord) -> bool:
        """Counts the message."""
        now = time.monotonic()
        if now - self.began >= self.seconds:
            if self.seen > self.lines:
                record.msg = f"({self.seen - self.lines} messages were left out) {record.msg}"
            self.began, self.seen = now, 0
        self.seen += 1
        return self.seen <= self.lines


def build_server(app: Any, clean_up: Callable[[], None]) -> EndingServer:
    """A server for the application; `clean_up` is what must be done even if it has to be ended by force."""
    config = uvicorn.Config(
        app, loop="asyncio", http=TimedProtocol, ws="none", log_level="error", timeout_graceful_shutdown=1,
        backlog=BACKLOG, limit_concurrency=most_connections(),
    )  # fmt: skip
    bounded = BoundedLog()
    ours = [name for name in logging.root.manager.loggerDict if name.startswith("equiav.")]
    for name in ("asyncio", "uvicorn.error", *ours):  # a filter holds for its own logger only, not for those below it
        logging.getLogger(name).addFilter(bounded)
    # uvicorn hands a signal on once it is done; without a handler the process would end before it cleans up.
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    return EndingServer(config, clean_up)


def most_connections() -> int:
    """What file descriptors allow: each connection may need a second one, for the file it reads or writes."""
    try:
        import resource
    except ImportError:  # Windows
        return MOST
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return MOST if soft == resource.RLIM_INFINITY else max(8, min(MOST, (soft - SPARE) // 2))
