"""Clips of the collection for the players: only what the index names, never by path."""

from __future__ import annotations

import asyncio

from fastapi import APIRouter, HTTPException
from fastapi.concurrency import run_in_threadpool
from fastapi.responses import FileResponse, Response

from equiav.errors import DataError
from equiav.media import Workers
from equiav.search import sound_of
from equiav.types import Clip
from equiav.web.cards import FILMS
from equiav.web.examples import as_wav
from equiav.web.service import Service


def clip_routes(service: Service) -> APIRouter:
    """/clip/film is the file of an entry if browsers play it, /clip/sound its stretch as WAV, /clip/picture a look."""
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
