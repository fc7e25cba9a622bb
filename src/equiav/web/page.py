"""The page itself: tabs with something to drop, examples to click, and what was found."""

from __future__ import annotations

import logging
import sys
import traceback
from functools import partial
from pathlib import Path
from typing import Any

import gradio as gr
from gradio.data_classes import ImageData

from equiav.errors import EquiAVError
from equiav.web.guard import QUIET, Guard, guarded
from equiav.web.security import one_line, uploaded
from equiav.web.service import Kind, Service, spoken
from equiav.web.views import Map, clips_html, film_html, looks_html
from equiav.web.words import checked_words, words_tab

log = logging.getLogger(__name__)

HINT = '<p class="quiet">Drop a file, or click one of the examples.</p>'
META = {"_type": "gradio.FileData"}


class OneLine:
    """In place of the module `traceback` in modules of gradio: a line for the log, whose length is bounded."""

    format_exc = staticmethod(traceback.format_exc)

    @staticmethod
    def print_exc(*_: Any, **__: Any) -> None:
        """The error that is being handled."""
        error = sys.exc_info()[1]
        log.error("a request failed in gradio (%s)", one_line(error) if error else "")


class Page(gr.Blocks):
    """Blocks that hand uploaded files to gradio and nothing else, in the one form that gradio itself checks."""

    uploads: Path

    async def preprocess_data(self, block_fn: Any, inputs: list[Any], *args: Any, **more: Any) -> list[Any]:
        """Called for every request, whatever its form; gradio would take a file record without `meta` unchecked."""
        try:
            blocks = block_fn.inputs
            records = [self._checked(block, value) for block, value in zip(blocks, inputs, strict=True)]
            processed: list[Any] = await super().preprocess_data(block_fn, records, *args, **more)
            return processed
        except EquiAVError as error:
            raise gr.Error(str(error), **QUIET) from None
        except gr.Error:
            raise
        except Exception:
            raise gr.Error("This request cannot be read.", **QUIET) from None

    def _checked(self, block: Any, value: Any) -> Any:
        if value is None or (isinstance(block, gr.Dataset) and isinstance(value, int)):  # which example was clicked
            return value
        if isinstance(block, gr.Textbox | gr.Radio):
            return checked_words(value)
        path = value.get("path") if isinstance(value, dict) else None
        return {"path": str(uploaded(path, self.uploads)), "meta": META}


def build_page(service: Service, examples: dict[Kind, list[Path]], uploads: Path) -> Page:
    """The blocks of the page, its queue bounded; handlers read files of the folder `uploads` only."""
    limits = service.limits
    # As many again wait for a process to decode in: only while somebody waits are slow files cut short.
    most = 2 * limits.at_once
    shared: dict[str, Any] = {"concurrency_limit": most, "concurrency_id": "work", "show_progress": "minimal"}
    guard = partial(guarded, checked=partial(uploaded, folder=uploads))
    page = Page(title="equiav", analytics_enabled=False)
    page.uploads = uploads
    with page:
        gr.HTML(
            f"<h1>What goes with it?</h1><p>Drop a sound, a picture or a video: the nearest of {len(service.index)} "
            f'clips come back. <span class="quiet">The first {service.embedder.seconds:.3g} s count; files up to '
            f"{limits.megabytes} MB and {spoken(limits.seconds)}. Nothing leaves this machine; uploads are deleted "
            f"after {spoken(limits.keep)}.</span></p>"
        )
        with gr.Tabs():
            with gr.Tab("Sound"):
                _search_tab(service, guard, "audio", _sound("A sound"), examples["audio"], shared)
            with gr.Tab("Picture"):
                _search_tab(service, guard, "image", _picture("A picture"), examples["image"], shared)
            with gr.Tab("Video"):
                _search_tab(service, guard, "video", _video("A video"), examples["video"], shared)
            if service.takes_text:
                with gr.Tab("Words"):
                    words_tab(service, shared)
            with gr.Tab("Where is it?"):
                _locate_tab(service, guard, examples["video"], shared)
            with gr.Tab("Map"):
                button = gr.Button("Draw the map of the collection")
                hint = "Every clip by its sound and by its picture, flattened to two directions."
                drawn = gr.HTML(f'<p class="quiet">{hint}</p>')
                button.click(guard(Map(service.index).html), None, drawn, api_name="map", **shared)
    page.queue(max_size=limits.waiting, api_open=False, default_concurrency_limit=most)
    return page


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


def _examples(files: list[Path], component: Any) -> None:
    if files:
        shown = [[str(file)] for file in files]
        gr.Examples(shown, [component], label="Or try one of these", cache_examples=False)


def _search_tab(
    service: Service, guard: Guard, kind: Kind, component: Any, files: list[Path], shared: dict[str, Any]
) -> None:
    names = {"audio": "search_by_sound", "image": "search_by_picture", "video": "search_by_video"}

    @guard
    def search(file: Path | None) -> str:
        return HINT if file is None else clips_html(service.search(kind, file))

    _examples(files, component)
    found = gr.HTML(HINT, elem_id=names[kind])
    component.change(search, component, found, api_name=names[kind], **shared)


def _locate_tab(service: Service, guard: Guard, films: list[Path], shared: dict[str, Any]) -> None:
    @guard
    def in_video(file: Path | None) -> str:
        return HINT if file is None else looks_html(service.locate_in_video(file))

    @guard
    def as_video(file: Path | None) -> str:
        return HINT if file is None else film_html(service.video_with_map(file))

    @guard
    def in_picture(sound: Path | None, picture: Path | None) -> str:
        if sound is None or picture is None:
            raise EquiAVError("give both a sound and a picture")
        return looks_html(service.locate(sound, picture))

    video = _video("A video with sound")
    _examples(films, video)
    play = gr.Button("Play it with the map over it")
    with gr.Accordion("Or a sound and a picture of your own", open=False):
        with gr.Row():
            sound, picture = _sound("The sound"), _picture("The picture")
        button = gr.Button("Show where it would come from")
    seen = gr.HTML(HINT, elem_id="locate")
    video.change(in_video, video, seen, api_name="locate_in_video", **shared)
    play.click(as_video, video, seen, api_name="locate_as_video", **shared)
    button.click(in_picture, [sound, picture], seen, api_name="locate", **shared)
