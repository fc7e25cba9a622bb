"""The tab for queries in words, on pages whose model has learnt text or whose index has a bridge."""

from __future__ import annotations

from typing import Any

import gradio as gr

from equiav.errors import EquiAVError
from equiav.web.guard import guarded
from equiav.web.service import LONGEST, Service
from equiav.web.views import clips_html

HINT = '<p class="quiet">Write what you look for, and press Enter.</p>'
AMONG = {"Sound and picture": "both", "Sound": "audio", "Picture": "visual"}


def checked_words(value: object) -> str:
    """What a browser sent for a text box or a choice, if it is text of a sensible length."""
    if not isinstance(value, str) or len(value) > LONGEST:
        raise EquiAVError(f"A query is text of at most {LONGEST} characters.")
    return value


def words_tab(service: Service, shared: dict[str, Any]) -> None:
    """A text box, where to look, and what was found."""

    def search_by_words(text: str | None, among: str | None) -> str:
        if not text or not text.strip():
            return HINT
        return clips_html(service.search_in_words(text, AMONG.get(among or "", "both")))

    box = gr.Textbox(label="What do you look for?", max_lines=1, max_length=LONGEST, elem_id="words")
    among = gr.Radio(list(AMONG), value=next(iter(AMONG)), label="Look among")
    found = gr.HTML(HINT, elem_id="search_by_words")
    search = guarded(search_by_words, checked_words)
    # Whoever types on while an answer is under way gets the answer to what was typed last.
    box.submit(search, [box, among], found, api_name="search_by_words", trigger_mode="always_last", **shared)
