"""Clips of the collection for the players: only what the index names, never by path."""

from __future__ import annotations

from fastapi import APIRouter, HTTPException
from fastapi.responses import FileResponse, Response

from equiav.errors import DataError
from equiav.report.html import wav
from equiav.search.records import Entry
from equiav.web.cards import FILMS
from equiav.web.examples import as_float, read_entry
from equiav.web.service import Service


def clip_routes(service: Service) -> APIRouter:
    """/clip/film is the file of an entry if browsers play it, /clip/sound its stretch as WAV, /clip/picture a look."""
    routes = APIRouter()

    def entry_of(name: str) -> Entry:
        try:
            return service.index.entry(name)
        except DataError as error:
            raise HTTPException(404, "no such clip") from error

    @routes.get("/clip/film")
    def film(id: str) -> Response:
        path = entry_of(id).path
        kind = FILMS.get(path.suffix.lower()) if path is not None else None
        if path is None or kind is None or not path.is_file():
            raise HTTPException(404, "no film of this clip")
        return FileResponse(path, media_type=kind)

    @routes.get("/clip/picture")
    def picture(id: str) -> Response:
        path = service.index.thumbnails.path(entry_of(id).id)
        if path is None:
            raise HTTPException(404, "no picture of this clip")
        return FileResponse(path, media_type="image/jpeg")

    @routes.get("/clip/sound")
    def sound(id: str) -> Response:
        piece = read_entry(entry_of(id), service.embedder)
        if piece is None or piece.sound is None:
            raise HTTPException(404, "no sound of this clip")
        content = wav(as_float(piece.sound), service.embedder.rate)
        return Response(content, media_type="audio/wav")

    return routes
