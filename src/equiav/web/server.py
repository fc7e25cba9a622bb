"""The server round the page: what it answers, what it refuses, and what it cleans up."""

from __future__ import annotations

import ctypes
import importlib.util
import os
import secrets
import shutil
import socket
import stat
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from ipaddress import ip_address
from multiprocessing.util import get_temp_dir
from pathlib import Path
from typing import TYPE_CHECKING, Any

from equiav.errors import EquiAVError
from equiav.io import LOCK, locked
from equiav.web.service import Service

if TYPE_CHECKING:  # it needs the packages of the page
    from equiav.web.security import Access

LONGEST = 70  # characters of a folder: sockets in it have names of at most 107
PREFIX, UPLOADS = "equiav-page-", "uploads"
SESSIONS = 64  # gradio keeps the last answer to each of them, and a caller of the API is a new one every time
MALLOC_ARENA_MAX, HEAPS = -8, 2  # from malloc.h
FETCH = "async_ssrf_protected_get"  # of gradio.processing_utils
WARNING = (
    "warning: other machines can reach this page. Who has the token can search the collection and play its clips; "
    "token and uploads cross the network unencrypted unless a proxy with TLS stands before the page."
)


def require_packages(*, page: bool = True) -> None:
    """Refuses, in one line, where the packages of the page, or of the API alone, are not installed."""
    wanted = ("fastapi", "uvicorn", "h11", "python_multipart", *(("gradio",) if page else ()))
    for package in reversed(wanted):
        if importlib.util.find_spec(package) is None:
            what, extra = ("page", "web") if page else ("API", "api")
            raise EquiAVError(f"the {what} needs {package}: pip install 'equiav[{extra}]'")


def serve(
    service: Service,
    *,
    host: str,
    port: int,
    token: str | None = None,
    allow_hosts: Sequence[str] = (),
    page: bool = True,
    say: Callable[[str], None],
    warn: Callable[[str], None],
) -> None:
    """Serves the page and the API, or the API alone, until it is told to stop; port 0 takes any that is free.

    It answers to loopback names, to the address it is bound to and to `allow_hosts`. A page that other machines can
    reach always has a token: one is made up, and said with the address, where none is given.
    """
    require_packages(page=page)
    # glibc gives every thread a heap of its own, and large answers leave holes in each: memory would creep up.
    with suppress(AttributeError, OSError, TypeError):  # another C library
        ctypes.CDLL(None).mallopt(MALLOC_ARENA_MAX, HEAPS)
    with listening(host, port) as door, own_folder() as folder:
        from equiav.web.connections import build_server
        from equiav.web.security import Access

        bound, port = door.getsockname()[:2]
        address = f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
        if not ip_address(bound).is_loopback:
            warn(WARNING)
            if not token:
                token = secrets.token_urlsafe(24)
                address += f"/?token={token}"
        app = build_app(service, folder, Access.of([host, bound, *allow_hosts], token or None), page=page)

        def clean_up() -> None:
            service.close()
            for place in (get_temp_dir(), folder):  # that of the processes may lie elsewhere
                shutil.rmtree(place, ignore_errors=True)

        with swept(folder / UPLOADS, service.limits.keep), ExitStack() as stack:
            stack.callback(clean_up)
            server = build_server(app, clean_up)
            say(f"The page is at {address}" if page else f"The API is at {address}")
            server.run(sockets=[door])


@contextmanager
def listening(host: str, port: int) -> Iterator[socket.socket]:
    """A socket bound to the address, or one line that says why not."""
    try:
        family, kind, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        # asyncio switches Nagle's delay off only where a socket names its protocol; with it an answer takes 40 ms more.
        door = socket.socket(family, kind, socket.IPPROTO_TCP)
        door.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        door.bind(address)
    except (OSError, OverflowError) as error:
        raise EquiAVError(f"{host}:{port}: cannot be listened on ({error}); choose another --port") from error
    with door:
        yield door


@contextmanager
def own_folder() -> Iterator[Path]:
    """A folder for examples and uploads that goes when the page does; those of pages that were killed go first."""
    _sweep_folders(Path(tempfile.gettempdir()))
    folder = Path(tempfile.mkdtemp(prefix=PREFIX)).resolve()  # uploads are known by paths without links
    before = tempfile.tempdir
    if len(str(folder)) <= LONGEST:
        tempfile.tempdir = str(folder)  # what libraries leave goes with it
    try:
        with locked(folder):
            (folder / UPLOADS).mkdir()
            yield folder
    finally:
        tempfile.tempdir = before
        shutil.rmtree(folder, ignore_errors=True)


def _sweep_folders(place: Path) -> None:
    """Deletes folders of pages that no longer run: nobody holds their lock."""
    if importlib.util.find_spec("fcntl") is None:  # no locks to tell by
        return
    for folder in place.glob(f"{PREFIX}*"):
        with suppress(OSError, EquiAVError):  # that of a page that runs
            status = folder.lstat()
            if stat.S_ISDIR(status.st_mode) and status.st_uid == os.getuid() and (folder / LOCK).is_file():
                with locked(folder):
                    shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def swept(folder: Path, keep: float) -> Iterator[None]:
    """Deletes uploads once they are `keep` seconds old; what was there before (copies of examples) stays."""
    spared = frozenset(folder.rglob("*"))
    done = threading.Event()

    def keep_clean() -> None:
        while not done.wait(min(60.0, keep / 2)):
            sweep(folder, keep, spared)

    threading.Thread(target=keep_clean, daemon=True).start()
    try:
        yield
    finally:
        done.set()


def sweep(folder: Path, keep: float, spared: frozenset[Path] = frozenset()) -> int:
    """Deletes files older than `keep` seconds, and folders that are empty by then; says how many files."""
    gone = 0
    before = time.time() - keep
    for path in sorted(folder.rglob("*"), reverse=True):  # what is inside a folder comes before it
        with suppress(OSError):  # gone by now, or a folder with something in it
            if path in spared or path.stat().st_mtime >= before:
                continue
            if path.is_dir():
                path.rmdir()
            else:
                path.unlink()
                gone += 1
    return gone


def build_app(service: Service, folder: Path, access: Access, *, page: bool = True) -> Any:
    """The page, the API, the clips it plays and the checks before all, as one application; uploads go to `folder`."""
    import fastapi

    from equiav.web.api import build_api, clip_routes
    from equiav.web.security import Security

    app = fastapi.FastAPI(docs_url=None, redoc_url=None, openapi_url=None)
    app.include_router(clip_routes(service))
    app.mount("/v1", build_api(service, folder / UPLOADS))
    return Security(_with_page(app, service, folder) if page else app, service.limits, folder / UPLOADS, access)


def _with_page(app: Any, service: Service, folder: Path) -> Any:
    """The application with the page of gradio behind its own routes."""
    # What gradio must know before it is imported: where its files go, and that it stays at home.
    os.environ |= {
        "GRADIO_TEMP_DIR": str(folder / UPLOADS),
        "GRADIO_EXAMPLES_CACHE": str(folder / "cache"),
        "GRADIO_ANALYTICS_ENABLED": "False",
        "GRADIO_RUN_HISTORY": "False",
        "GRADIO_MCP_SERVER": "False",
        "HF_HUB_DISABLE_TELEMETRY": "1",
        "HF_HUB_OFFLINE": "1",
    }
    import gradio as gr
    from fastapi.exceptions import RequestValidationError
    from gradio import processing_utils, queueing, route_utils, routes

    from equiav.report import render
    from equiav.web.examples import write_examples
    from equiav.web.page import OneLine, build_page

    stay_at_home(processing_utils)
    for module in (queueing, route_utils, routes):
        module.traceback = OneLine  # type: ignore[attr-defined] # it prints tracebacks of whatever strangers send
    limits = service.limits
    examples = write_examples(service.index, folder / "examples", largest=limits.bytes, workers=service.workers)
    fonts = ["system-ui", "sans-serif"]
    theme = gr.themes.Base(font=fonts, font_mono=["ui-monospace", "monospace"], primary_hue="blue")
    page = build_page(service, examples, folder / UPLOADS)
    page.has_launched = True  # gradio checks paths only of a page it takes for launched
    page.state_session_capacity = SESSIONS
    whole = gr.mount_gradio_app(
        app, page, path="/", max_file_size=limits.bytes, allowed_paths=[],
        show_error=False, ssr_mode=False, mcp_server=False, theme=theme, css=render("web.css"), footer_links=[],
    )  # fmt: skip
    for mounted in (getattr(route, "app", None) for route in whole.routes):
        if isinstance(mounted, routes.App):
            # FastAPI's own answer quotes the request, and breaks on the halves of characters that JSON may hold.
            mounted.add_exception_handler(RequestValidationError, _misshapen)
    return whole


async def _misshapen(request: Any, error: Exception) -> Any:
    from fastapi.responses import PlainTextResponse

    return PlainTextResponse("the request is not of the form that the page sends", 422)


def stay_at_home(module: Any) -> None:
    """An upload may be an address: gradio's function that would fetch it is replaced by a refusal."""
    import gradio as gr

    if not hasattr(module, FETCH):  # renamed: the page would fetch after all
        raise EquiAVError("this version of gradio is not known to stay at home: pip install -U 'equiav[web]'")

    async def refuse(url: str) -> Any:
        raise gr.Error("addresses are not fetched; upload the file", print_exception=False)

    setattr(module, FETCH, refuse)
