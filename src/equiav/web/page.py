"""The page itself: tabs with something to drop, examples to click, and what was found."""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import Any

import gradio as gr
from gradio.data_classes import ImageData

from equiav.errors import EquiAVError, MediaError
from equiav.web.bounds import spoken
from equiav.web.cards import clips_html, looks_html
from equiav.web.examples import Examples
from equiav.web.map import Map
from equiav.web.service import Kind, Service

log = logging.getLogger(__name__)

HINT = '<p class="quiet">Drop a file, or click one of the examples.</p>'
QUIET: dict[str, Any] = {"print_exception": False}  # what a visitor did wrong is not for the log
Handler = Callable[..., str]


def guarded(work: Handler) -> Handler:
    """Errors as people should see them: bad files by their name and reason, bugs in the log and not on the page."""

    @wraps(work)
    def handler(*files: str | None) -> str:
        try:
            return work(*files)
        except MediaError as error:
            raise gr.Error(f"{error.path.name}: {error.reason}", **QUIET, title="This file cannot be used") from None
        except EquiAVError as error:
            raise gr.Error(str(error), **QUIET, title="This cannot be done") from None
        except Exception:
            log.exception("%s failed", getattr(work, "__name__", "a request"))
            raise gr.Error("Something went wrong on the server; its log says what.", **QUIET) from None

    return handler


def build_page(service: Service, examples: Examples) -> gr.Blocks:
    """The blocks of the page, its queue bounded."""
    bounds = service.bounds
    shared: dict[str, Any] = {"concurrency_limit": bounds.at_once, "concurrency_id": "work", "show_progress": "minimal"}
    page = gr.Blocks(title="equiav", analytics_enabled=False)
    with page:
        gr.HTML(_heading(service))
        with gr.Tabs():
            with gr.Tab("Sound"):
                _search_tab(service, "audio", _sound("A sound"), examples.sounds, shared)
            with gr.Tab("Picture"):
                _search_tab(service, "image", _picture("A picture"), examples.pictures, shared)
            with gr.Tab("Video"):
                _search_tab(service, "video", _video("A video"), examples.films, shared)
            with gr.Tab("Where is it?"):
                _locate_tab(service, examples, shared)
            with gr.Tab("Map"):
                _map_tab(service, shared)
    page.queue(max_size=bounds.waiting, api_open=False, default_concurrency_limit=bounds.at_once)
    return page


def _heading(service: Service) -> str:
    bounds = service.bounds
    return (
        f"<h1>What goes with it?</h1><p>Drop a sound, a picture or a video: the nearest of {len(service.index)} clips "
        f'come back. <span class="quiet">The first {service.embedder.seconds:.3g} s count; files up to '
        f"{bounds.megabytes} MB and {spoken(bounds.seconds)}. Nothing leaves this machine; uploads are deleted "
        f"after {spoken(bounds.keep)}.</span></p>"
    )


def _sound(label: str) -> gr.Audio:
    return gr.Audio(sources=["upload", "microphone"], type="filepath", label=label, editable=False, buttons=[])


def _picture(label: str) -> gr.Image:
    """A picture handed on as the file it is: what cannot be read is for the service to say."""

    def path_of(payload: ImageData | None) -> str | None:
        return None if payload is None else payload.path

    component = gr.Image(sources=["upload", "clipboard"], type="filepath", label=label, height=260, buttons=[])
    # Not a subclass: gradio would take it for a foreign component with a front end of its own.
    component.preprocess = path_of  # type: ignore[method-assign]
    return component


def _video(label: str) -> gr.Video:
    return gr.Video(sources=["upload"], label=label, height=260, buttons=[])


def _examples(files: list[Path], component: Any, label: str = "Or try one of these") -> None:
    if files:
        gr.Examples([[str(file)] for file in files], [component], label=label, cache_examples=False)


def _search_tab(service: Service, kind: Kind, component: Any, files: list[Path], shared: dict[str, Any]) -> None:
    names = {"audio": "search_by_sound", "image": "search_by_picture", "video": "search_by_video"}

    @guarded
    def search(file: str | None) -> str:
        return HINT if file is None else clips_html(service.search(kind, Path(file)))

    _examples(files, component)
    found = gr.HTML(HINT, elem_id=names[kind])
    component.change(search, component, found, api_name=names[kind], **shared)


def _locate_tab(service: Service, examples: Examples, shared: dict[str, Any]) -> None:
    @guarded
    def in_video(file: str | None) -> str:
        return HINT if file is None else looks_html(service.locate_in_video(Path(file)))

    @guarded
    def in_picture(sound: str | None, picture: str | None) -> str:
        if sound is None or picture is None:
            raise EquiAVError("give both a sound and a picture")
        return looks_html(service.locate(Path(sound), Path(picture)))

    video = _video("A video with sound")
    _examples(examples.films, video)
    with gr.Accordion("Or a sound and a picture of your own", open=False):
        with gr.Row():
            sound, picture = _sound("The sound"), _picture("The picture")
        button = gr.Button("Show where it would come from")
    seen = gr.HTML(HINT, elem_id="locate")
    video.change(in_video, video, seen, api_name="locate_in_video", **shared)
    button.click(in_picture, [sound, picture], seen, api_name="locate", **shared)


def _map_tab(service: Service, shared: dict[str, Any]) -> None:
    button = gr.Button("Draw the map of the collection")
    drawn = gr.HTML('<p class="quiet">Every clip by its sound and by its picture, flattened to two directions.</p>')
    button.click(guarded(Map(service.index).html), None, drawn, api_name="map", **shared)
