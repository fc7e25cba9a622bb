"""Checks before the page: refuses what it must not do, and tells browsers to stay on this machine."""

from __future__ import annotations

import os
import stat
from contextlib import suppress
from pathlib import Path
from typing import Any

from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from equiav.errors import EquiAVError
from equiav.web.limits import UploadLimits

UPLOAD, FILE = "/gradio_api/upload", "/gradio_api/file="
SLACK = 100_000  # bytes of a request round its file, and of one without
WITH_BODY = ("POST", "PUT", "PATCH")
# Addresses that would make this server fetch something for the visitor.
FETCHING = ("file=http:", "file=https:", "proxy=")
HEADERS = {
    "content-security-policy": "default-src 'self' data: blob: 'unsafe-inline' 'unsafe-eval'; frame-ancestors 'self'",
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
}


class Security:
    """Middleware: bodies and uploads within limits, no fetching from elsewhere, headers on every answer."""

    def __init__(self, app: ASGIApp, limits: UploadLimits, folder: Path) -> None:
        self.app, self.limits, self.folder = app, limits, folder

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
        if path.startswith(FILE) and not is_uploaded(scope["path"][len(FILE) :], self.folder):
            return PlainTextResponse("Not found.", 404)
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
        if length > self.limits.bytes + SLACK:
            return PlainTextResponse(f"Too large: at most {self.limits.megabytes} MB are taken.", 413)
        if stored_bytes(self.folder) + length > self.limits.stored:
            return PlainTextResponse("Too many uploads at present; try again in a few minutes.", 503)
        return None


def uploaded(path: object, folder: Path) -> Path:
    """The uploaded file at `path`, links resolved; all else gets one refusal, whether or not something is there."""
    if not is_uploaded(path, folder):
        raise EquiAVError("This file was not uploaded here, or has been deleted since; upload it again.")
    return Path(str(path)).resolve()


def is_uploaded(path: object, folder: Path) -> bool:
    """Is this the path of a regular file in the folder, links resolved? Paths that lead elsewhere are not looked at."""
    if not isinstance(path, str) or not Path(os.path.normpath(path)).is_relative_to(folder):
        return False
    try:
        found = Path(path).resolve(strict=True)
        return found.is_relative_to(folder) and found.is_file()
    except (OSError, ValueError, RuntimeError):  # missing, too long, a NUL in it, links in a circle
        return False


def stored_bytes(folder: Path) -> int:
    """What the files in a folder take; those deleted while they are counted take nothing."""
    total = 0
    for path in folder.rglob("*"):
        with suppress(OSError):
            status = path.stat()
            total += status.st_size if stat.S_ISREG(status.st_mode) else 0
    return total
