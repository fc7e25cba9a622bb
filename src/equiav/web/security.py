"""Checks before the page: who asks, from where and for what; and headers that keep browsers on this machine."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import logging
import os
import re
import stat
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs

from starlette.requests import ClientDisconnect
from starlette.responses import JSONResponse, PlainTextResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from equiav.errors import EquiAVError
from equiav.web.service import BROKEN, UploadLimits

log = logging.getLogger(__name__)

UPLOAD, FILE = "/gradio_api/upload", "/gradio_api/file="
API = "/v1/"
SLACK = 100_000  # bytes of a request round its file, and of one without
JSON_BYTES = 2_000_000  # of a file and the request round it as JSON, which is held in memory
DISCARD_SECONDS = 10.0  # for what is still coming of a refused body
# All that the page and callers of its API ask for; gradio has more routes, which nothing here needs.
ROUTES = {
    "GET": re.compile(
        r"/|/config|/theme\.css|/favicon\.ico|/(assets|static)/[\w./-]+|/clip/(film|sound|picture)"
        r"|/gradio_api/(app_id|upload_progress|queue/data|call/[a-z_]+/\w+|file=.+)"
        r"|/v1/(health|docs|openapi\.json)"
    ),
    "POST": re.compile(r"/gradio_api/(upload|queue/join|run/predict|call/[a-z_]+)|/v1/(embeddings|search)"),
}
ROUTES["HEAD"] = ROUTES["GET"]
LOOPBACK = ("localhost", "127.0.0.1", "::1")
HOST = re.compile(r"(?:\[([0-9a-f:.]+)\]|([0-9a-z._-]+))(?::[0-9]+)?")
COOKIE = "equiav_token"
SHORTEST_TOKEN = 16
HEADERS = {
    "content-security-policy": "default-src 'self' data: blob: 'unsafe-inline' 'unsafe-eval'; frame-ancestors 'self'",
    "cross-origin-resource-policy": "same-origin",
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
}
Headers = list[tuple[bytes, bytes]]


@dataclass(frozen=True)
class Access:
    """Whom the page answers: those who call it by one of `hosts` and, if `token` is not None, show the token."""

    hosts: frozenset[str] = frozenset(LOOPBACK)
    token: str | None = None

    def __post_init__(self) -> None:
        if self.token is not None and len(self.token) < SHORTEST_TOKEN:
            raise EquiAVError(f"the token is too short: at least {SHORTEST_TOKEN} characters")
        for name in self.hosts:
            if host_name(f"[{name}]" if ":" in name else name) != name:
                raise EquiAVError(f"{name}: not a host name (give it without http:// and without port)")

    @classmethod
    def of(cls, names: Iterable[str], token: str | None) -> Access:
        """Access under these names beside those of loopback."""
        return cls(frozenset(LOOPBACK) | {name.lower().strip("[]").partition("%")[0] for name in names}, token)

    @property
    def digest(self) -> str:
        """What the cookie holds: the token's SHA-256, which any token can be written as."""
        return _digest((self.token or "").encode())

    def admits(self, headers: Headers) -> bool:
        """Does the request show the token, as cookie or as `Authorization: Bearer`?"""
        for name, value in headers:
            if name == b"authorization" and value[:7].lower() == b"bearer " and self.is_token(value[7:].strip()):
                return True
            pairs = value.split(b";") if name == b"cookie" else []
            for key, _, shown in (pair.strip().partition(b"=") for pair in pairs):
                if key == COOKIE.encode() and hmac.compare_digest(shown, self.digest.encode()):
                    return True
        return self.token is None

    def is_token(self, given: bytes) -> bool:
        """Is this the token? Takes equally long whatever is given."""
        return self.token is not None and hmac.compare_digest(_digest(given), self.digest)


class Security:
    """Middleware: known names, own origin, the token; known routes, bodies within limits; headers on every answer."""

    def __init__(self, app: ASGIApp, limits: UploadLimits, folder: Path, access: Access | None = None) -> None:
        self.app, self.limits, self.folder, self.access = app, limits, folder, access or Access()
        self.coming = 0  # bytes of the bodies being received

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answers by itself where the request is refused."""
        if scope["type"] == "lifespan":
            await self.app(scope, receive, send)
            return
        if scope["type"] != "http":  # the page uses no websockets
            await send({"type": "websocket.close"})
            return

        started = False

        async def answer(message: Message) -> None:
            nonlocal started
            if message["type"] == "http.response.start":
                started = True
                # gradio lets any origin read its answers once the page is called by another name than localhost.
                kept = [pair for pair in message["headers"] if not pair[0].lower().startswith(b"access-control-")]
                extra = [(name.encode(), value.encode()) for name, value in HEADERS.items()]
                message = {**message, "headers": [*kept, *extra]}
            await send(message)

        refusal = self.refusal(scope)
        if refusal is not None:
            await self._refuse(refusal, scope, receive, answer)
            return
        length = int(dict(scope["headers"]).get(b"content-length", 0))
        self.coming += length
        try:
            await self.app(scope, receive, answer)
        except ClientDisconnect:  # who goes while sending is no news
            pass
        except Exception as error:  # a bug, here or in gradio: one line, whatever the request was
            log.error("%s %s failed (%s)", scope["method"], scope["path"][:100], one_line(error))
            if not started:
                await self._told(PlainTextResponse(BROKEN, 500), scope)(scope, receive, answer)
        finally:
            self.coming -= length

    async def _refuse(self, refusal: Response, scope: Scope, receive: Receive, answer: Send) -> None:
        """Answers at once, then discards what is still coming before the connection ends.

        Closing on a body that is still being sent would reset the connection, and many clients read only once they
        have sent: they would see a broken connection in place of the reason.
        """

        async def first(message: Message) -> None:
            await answer({**message, "more_body": True} if message["type"] == "http.response.body" else message)

        async def discard() -> None:
            while (await receive()).get("more_body"):
                pass

        refusal.headers["connection"] = "close"
        await refusal(scope, receive, first)
        with suppress(asyncio.TimeoutError):
            await asyncio.wait_for(discard(), DISCARD_SECONDS)
        await answer({"type": "http.response.body"})

    def refusal(self, scope: Scope) -> Response | None:
        """The answer to a request that goes no further."""
        found = self._stranger(scope) or self._forbidden(scope)
        return None if found is None else self._told(found, scope)

    def _told(self, refusal: Response, scope: Scope) -> Response:
        """Callers of the API get all errors in one form."""
        if not scope["path"].startswith(API):
            return refusal
        record = {"error": {"status": refusal.status_code, "message": bytes(refusal.body).decode()}}
        again = JSONResponse(record, refusal.status_code)
        if "www-authenticate" in refusal.headers:
            again.headers["www-authenticate"] = refusal.headers["www-authenticate"]
        return again

    def _stranger(self, scope: Scope) -> Response | None:
        """Refuses who calls the page by a foreign name, comes from a foreign page, or has no token."""
        headers: Headers = scope["headers"]
        host = dict(headers).get(b"host", b"").decode("latin-1").lower()
        # The address of this very connection is a name that no foreign page can give to another machine.
        own = {*self.access.hosts, str((scope.get("server") or ("",))[0])}
        if host_name(host) not in own:
            return PlainTextResponse("Unknown host name; `equiav serve --allow-host NAME` makes it known.", 400)
        origins = {value.decode("latin-1").lower() for name, value in headers if name == b"origin"}
        if origins - {f"http://{host}", f"https://{host}"}:
            return PlainTextResponse("Requests from other pages are refused.", 403)
        given = parse_qs(scope["query_string"]).get(b"token") if scope["path"] == "/" else None
        if given and scope["method"] == "GET" and self.access.is_token(given[0]):
            redirect = RedirectResponse("./", 303)  # without the token, which would stay in sight
            secure = scope.get("scheme") == "https"
            redirect.set_cookie(COOKIE, self.access.digest, httponly=True, samesite="strict", secure=secure)
            return redirect
        if not self.access.admits(headers):
            line = "The token is missing or wrong; open the address that `equiav serve` printed, or send it as Bearer."
            return PlainTextResponse(line, 401, {"www-authenticate": "Bearer"})
        return None

    def _forbidden(self, scope: Scope) -> Response | None:
        """Refuses what the page does not do, and bodies that are too large."""
        path, method, headers = scope["path"], scope["method"], dict(scope["headers"])
        route = ROUTES.get(method)
        if route is None or not route.fullmatch(path) or ".." in path.split("/"):
            return PlainTextResponse("Not found.", 404)
        if path.startswith(FILE) and not is_uploaded(path.removeprefix(FILE), self.folder):
            return PlainTextResponse("Not found.", 404)
        length: Any = headers.get(b"content-length", b"" if method == "POST" else b"0")
        if b"transfer-encoding" in headers or not length.isdigit():
            return PlainTextResponse("A request must say how long it is.", 411)
        kind = headers.get(b"content-type", b"").lower()
        if path == UPLOAD or (path.startswith(API) and kind.startswith(b"multipart/form-data")):
            return self._upload(int(length))
        if method == "POST" and not path.startswith(API) and not kind.startswith(b"application/json"):
            return PlainTextResponse("Only JSON is taken here.", 415)  # gradio fails on the bytes of anything else
        most = JSON_BYTES if path.startswith(API) else SLACK
        if int(length) > most:
            return PlainTextResponse(f"Too large: at most {most // 1000} kB are taken here.", 413)
        return None

    def _upload(self, length: int) -> Response | None:
        if length > self.limits.bytes + SLACK:
            return PlainTextResponse(f"Too large: at most {self.limits.megabytes} MB are taken.", 413)
        if stored_bytes(self.folder) + self.coming + length > self.limits.stored:
            return PlainTextResponse("Too many uploads at present; try again in a few minutes.", 503)
        return None


def one_line(error: BaseException) -> str:
    """An error for the log: what it says, without where in which program."""
    return f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"


def host_name(host: str) -> str | None:
    """The name in a Host header, without port and brackets; None where it is none."""
    found = HOST.fullmatch(host)
    return None if found is None else found[1] or found[2]


def _digest(token: bytes) -> str:
    return hashlib.sha256(token).hexdigest()


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
