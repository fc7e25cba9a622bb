"""Routes beside the page: the HTTP API, whose refusals are JSON records, and clips of the collection for players."""

from __future__ import annotations

import asyncio
import base64
import binascii
import re
import shutil
import tempfile
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Literal, TypeVar

from fastapi import APIRouter, FastAPI, Request
from fastapi.concurrency import run_in_threadpool
from fastapi.responses import FileResponse, HTMLResponse, JSONResponse, Response
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from starlette.datastructures import UploadFile
from starlette.exceptions import HTTPException

from equiav import __version__
from equiav.errors import DataError, EquiAVError, MediaError
from equiav.media import Workers
from equiav.report import render
from equiav.search import PREPARED, sound_of
from equiav.types import Clip
from equiav.web.examples import as_wav
from equiav.web.service import BROKEN, FOUND, LONGEST, Service
from equiav.web.views import FILMS

R = TypeVar("R")
T = TypeVar("T", bound="EmbeddingRequest")
Asked = Literal["audio", "image", "video", "text"]  # a Kind of file, or text
FULL = "Queue is full; try again in a moment."


class EmbeddingRequest(BaseModel):
    """What is to be embedded: `text`, or a file, in a form the field `file`, in JSON `data` with a `name`."""

    model_config = ConfigDict(extra="forbid")
    kind: Asked = Field(
        description="What of the file counts: its sound, its picture, or both as video; or text, without a file."
    )
    text: str | None = Field(None, max_length=LONGEST, description="What to embed, in words; in place of a file.")
    start: float = Field(0.0, ge=0, allow_inf_nan=False, description="Where in the file to begin, in seconds.")
    name: str = Field("", max_length=255, description="The file's name; its ending tells pictures from films.")
    data: str = Field("", description="The file in base64; forms have the field `file` instead.")


class SearchRequest(EmbeddingRequest):
    """A file or text as for embeddings, or the id of an entry, and what to look for."""

    kind: Asked | None = Field(  # type: ignore[assignment]
        None, description="What of the file counts; not with `like`, not needed with `text`."
    )
    like: str | None = Field(None, description="The id of an entry, in place of a file.")
    k: int = Field(FOUND, ge=1, le=1000, description="How many results.")
    among: str | None = Field(None, description="audio, visual or both; without it sounds find pictures and so on.")
    filters: list[str] = Field([], max_length=20, description="label=dog, source=*.mp4, start>=60, or a column.")


class Line:
    """The queue: `at_once` requests are worked on, `waiting` others wait, more are refused."""

    def __init__(self, at_once: int, waiting: int) -> None:
        self.room, self.free = at_once + waiting, asyncio.Semaphore(at_once)

    async def run(self, work: Callable[[], R]) -> R:
        """What `work` gives, in a thread, once it is its turn."""
        if not self.room:
            raise HTTPException(503, FULL, {"retry-after": "1"})
        self.room -= 1
        try:
            async with self.free:  # who waits holds no thread: those are for everybody
                return await run_in_threadpool(work)
        finally:
            self.room += 1


def build_api(service: Service, uploads: Path) -> FastAPI:
    """The API as an application of its own; files lie in the folder `uploads` while they are worked on."""
    about = "Vectors of sounds, pictures, videos and text, and the clips of the collection that are nearest to them."
    api = FastAPI(title="equiav", version=__version__, description=about, docs_url=None, redoc_url=None)
    line = Line(2 * service.limits.at_once, service.limits.waiting)
    for kind in (EquiAVError, ValidationError, HTTPException, binascii.Error, Exception):
        api.add_exception_handler(kind, _refused)

    @api.get("/health", summary="Whether it is up, and what it serves")
    def health() -> dict[str, Any]:
        return {"status": "ok", "entries": len(service.index), "model": service.embedder.digest, "version": __version__}

    @api.post(
        "/embeddings",
        summary="The unit vector of a sound, a picture, a video or a text",
        openapi_extra=_described(EmbeddingRequest),
    )
    async def embeddings(request: Request) -> dict[str, Any]:
        async with _asked(request, EmbeddingRequest, uploads) as (asked, path):
            kind, text = asked.kind, asked.text
            if (kind == "text") != (text is not None) or (text is not None and path is not None):
                raise EquiAVError("kind text and the field `text` belong together, without a file")
            if text is not None:
                vector = await line.run(lambda: service.ask_in_words(text).vector)
            elif path is None or kind == "text":
                raise EquiAVError("no file: send the field `file` in a form, or `data` (base64) and `name` in JSON")
            else:
                vector = await line.run(lambda: service.embed(kind, path, start=asked.start))
        return {"model": service.embedder.digest, "kind": asked.kind, "embedding": vector.tolist()}

    @api.post("/search", summary="The nearest clips of the collection", openapi_extra=_described(SearchRequest))
    async def search(request: Request) -> dict[str, Any]:
        async with _asked(request, SearchRequest, uploads) as (asked, path):
            how: dict[str, Any] = {"k": asked.k, "among": asked.among, "filters": asked.filters}
            if any(text.strip().startswith("path") for text in asked.filters):
                raise EquiAVError("filters by path are not offered here")
            kind, text, like = asked.kind, asked.text, asked.like
            if text is not None and kind in (None, "text") and path is None and like is None:
                hits = await line.run(lambda: service.index.search(service.ask_in_words(text), **how))
            elif like is not None and path is None and text is None:
                hits = await line.run(lambda: service.index.search(service.index.like(like), **how))
            elif kind is not None and kind != "text" and path is not None and like is None and text is None:
                hits = await line.run(lambda: service.search(kind, path, start=asked.start, **how))
            else:
                raise EquiAVError(
                    "give either a file and its kind (audio, image or video), or text, or the id of an entry (like)"
                )
        found = [hit.record() for hit in hits]
        for record in found:  # without where its files lie on the server
            record["metadata"].pop(PREPARED, None)
            del record["path"], record["thumbnail"]
        return {"model": service.embedder.digest, "hits": found}

    @api.get("/docs", include_in_schema=False)
    def docs() -> HTMLResponse:
        return HTMLResponse(render("web_api.html", document=api.openapi()))

    return api


async def _refused(request: Request, error: Exception) -> JSONResponse:
    """Every error as one record, in the words of the page."""
    status, message, headers = 500, BROKEN, None
    match error:
        case MediaError():
            status, message = 422, f"{error.path.name}: {error.reason}"
        case ValidationError():
            first = error.errors()[0]
            status, message = 422, f"{'.'.join(map(str, first['loc'])) or 'the body'}: {first['msg']}"
        case EquiAVError():
            status, message = 422, str(error)
        case binascii.Error():
            status, message = 422, f"data: not base64 ({error})"
        case HTTPException():
            status, message, headers = error.status_code, str(error.detail), error.headers
    return JSONResponse({"error": {"status": status, "message": message}}, status, headers)


def _described(model: type[BaseModel]) -> dict[str, Any]:
    """How the OpenAPI document describes a body that may be a form or JSON."""
    schema = model.model_json_schema()
    fields = {name: field for name, field in schema["properties"].items() if name not in ("data", "name")}
    form = {**schema, "properties": {"file": {"type": "string", "format": "binary"}, **fields}}
    content = {"multipart/form-data": {"schema": form}, "application/json": {"schema": schema}}
    return {"requestBody": {"required": True, "content": content}}


@asynccontextmanager
async def _asked(request: Request, model: type[T], uploads: Path) -> AsyncIterator[tuple[T, Path | None]]:
    """The request, checked, and its file under the name it came with; deleted afterwards."""
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    folder = Path(tempfile.mkdtemp(dir=uploads))
    try:
        if kind == "multipart/form-data":
            asked, path = await _form(request, model, folder)
        elif kind == "application/json":
            asked = model.model_validate_json(await request.body())
            path = _place(folder, asked.name) if asked.data else None
            if path is not None:
                path.write_bytes(base64.b64decode(asked.data, validate=True))
        else:
            raise HTTPException(415, "send a form (multipart/form-data) or JSON (application/json)")
        yield asked, path
    finally:
        shutil.rmtree(folder, ignore_errors=True)


async def _form(request: Request, model: type[T], folder: Path) -> tuple[T, Path | None]:
    async with request.form(max_files=1, max_fields=40) as form:
        file = form.get("file")
        fields: dict[str, Any] = {name: value for name, value in form.items() if isinstance(value, str)}
        if filters := form.getlist("filters"):
            fields["filters"] = filters
        if not isinstance(file, UploadFile):
            return model.model_validate(fields), None
        path = _place(folder, file.filename or "")
        with path.open("wb") as out:
            await run_in_threadpool(shutil.copyfileobj, file.file, out)
        return model.model_validate(fields), path


def _place(folder: Path, name: str) -> Path:
    """Where a file lies: under its own name, which errors speak of and whose ending says whether it is a picture."""
    plain = re.sub(r"[^\w .()-]", "_", name.replace("\\", "/").rpartition("/")[2])[-100:].strip(" .")
    return folder / (plain or "file")


def clip_routes(service: Service) -> APIRouter:
    """Only what the index names, never by path: /clip/film is the file of an entry if browsers play it, /clip/sound its
    stretch as WAV, /clip/picture its thumbnail.
    """
    routes = APIRouter()
    decoding = asyncio.Semaphore(service.limits.at_once)

    def clip_of(name: str) -> Clip:
        try:
            return service.index.entry(name).clip
        except DataError as error:
            raise HTTPException(404, "no such clip") from error

    @routes.get("/clip/film")
    def film(id: str) -> Response:
        path = clip_of(id).path
        kind = FILMS.get(path.suffix.lower()) if path is not None else None
        if path is None or kind is None or not path.is_file():
            raise HTTPException(404, "no film of this clip")
        return FileResponse(path, media_type=kind)

    @routes.get("/clip/picture")
    def picture(id: str) -> Response:
        path = service.index.thumbnail(clip_of(id).id)
        if path is None:
            raise HTTPException(404, "no picture of this clip")
        return FileResponse(path, media_type="image/jpeg")

    @routes.get("/clip/sound")
    async def sound(id: str) -> Response:
        async with decoding:  # who waits holds no thread: those are for everybody
            content = await run_in_threadpool(lambda: sound_as_wav(clip_of(id), service.workers))
        if content is None:
            raise HTTPException(404, "no sound of this clip")
        return Response(content, media_type="audio/wav")

    return routes


def sound_as_wav(clip: Clip, workers: Workers | None = None) -> bytes | None:
    """The audio of a clip, from its file or the prepared folder; None where nothing is to be heard."""
    heard = sound_of(clip, workers) if clip.end > clip.start else None
    return None if heard is None else as_wav(heard)
