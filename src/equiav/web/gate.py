"""The gate before the page: refuses what it must not do, and tells browsers to stay on this machine."""

from __future__ import annotations

import stat
from contextlib import suppress
from pathlib import Path
from typing import Any

from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from equiav.web.bounds import Bounds

UPLOAD = "/gradio_api/upload"
SLACK = 100_000  # bytes of a request round its file, and of one without
WITH_BODY = ("POST", "PUT", "PATCH")
# Addresses that would make this server fetch something for the visitor.
FETCHING = ("file=http:", "file=https:", "proxy=")
HEADERS = {
    "content-security-policy": "default-src 'self' data: blob: 'unsafe-inline' 'unsafe-eval'; frame-ancestors 'self'",
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
}


class Gate:
    """Middleware: bodies and uploads within bounds, no fetching from elsewhere, headers on every answer."""

    def __init__(self, app: ASGIApp, bounds: Bounds, folder: Path) -> None:
        self.app, self.bounds, self.folder = app, bounds, folder

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answers by itself where the request is refused."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return

        async def answer(message: Message) -> None:
            if message["type"] == "http.response.start":
                extra = [(name.encode(), value.encode()) for name, value in HEADERS.items()]
                message = {**message, "headers": [*message["headers"], *extra]}
            await send(message)

        refusal = self.refusal(scope)
        await (refusal or self.app)(scope, receive, answer)

    def refusal(self, scope: Scope) -> PlainTextResponse | None:
        """The answer to a request that goes no further."""
        path = scope["path"].lower().replace("\\\\", "/")
        if any(mark in path for mark in FETCHING):
            return PlainTextResponse("This page fetches nothing from elsewhere.", 403)
        headers = dict(scope["headers"])
        length: Any = headers.get(b"content-length", b"" if scope["method"] in WITH_BODY else b"0")
        if b"transfer-encoding" in headers or not length.isdigit():
            return PlainTextResponse("A request must say how long it is.", 411)
        if path.rstrip("/") == UPLOAD and scope["method"] == "POST":
            return self._upload(int(length))
        if int(length) > SLACK:
            return PlainTextResponse(f"Too large: at most {SLACK // 1000} kB are taken here.", 413)
        return None

    def _upload(self, length: int) -> PlainTextResponse | None:
        if length > self.bounds.bytes + SLACK:
            return PlainTextResponse(f"Too large: at most {self.bounds.megabytes} MB are taken.", 413)
        if stored_bytes(self.folder) + length > self.bounds.stored:
            return PlainTextResponse("Too many uploads at present; try again in a few minutes.", 503)
        return None


def stored_bytes(folder: Path) -> int:
    """What the files in a folder take; those deleted while they are counted take nothing."""
    total = 0
    for path in folder.rglob("*"):
        with suppress(OSError):
            status = path.stat()
            total += status.st_size if stat.S_ISREG(status.st_mode) else 0
    return total
