"""The page in a real browser, asked in words: type, find, play; what is too long is one line."""

import os

import pytest
from benchmarks.serve import started

from equiav.build import build_model
from equiav.checkpoint import save_model
from equiav.web.words import LONGEST
from tests.browser.test_page import WAIT, open_tab, scores
from tests.text.small import text_config

pytestmark = pytest.mark.process


@pytest.fixture(scope="module")
def worded(tmp_path_factory):
    """A page whose model has learnt text; EQUIAV_TEXT_RUN names a trained one, for looking at."""
    run = os.environ.get("EQUIAV_TEXT_RUN")
    if run is None:
        run, config = tmp_path_factory.mktemp("worded") / "run", text_config("data.test=12")
        save_model(run, config, build_model(config).state_dict(), {"kind": "pretrained"})
    with started(run) as server:
        yield server


def test_search_by_words(worded, chromium, tmp_path):
    page = chromium.new_page(viewport={"width": 1000, "height": 844})
    page.set_default_timeout(WAIT)
    page.goto(worded.address)
    panel = open_tab(page, "Words")
    box = panel.get_by_label("What do you look for?")
    box.fill("a large red ring; the ring sounds")
    box.press("Enter")
    assert len(scores(page, "#search_by_words")) == 12
    film = page.locator("#search_by_words video").first
    film.hover()
    film.evaluate("film => film.play()")
    page.wait_for_function("film => film.currentTime > 0.1", arg=film.element_handle())
    page.screenshot(path=tmp_path / "words.png")
    both = page.locator("#search_by_words").inner_html()
    panel.get_by_label("Sound", exact=True).check()
    box.press("Enter")
    page.wait_for_function("([place, before]) => document.querySelector(place).innerHTML != before",
                           arg=["#search_by_words", both])  # fmt: skip
    assert len(scores(page, "#search_by_words")) == 12
    box.fill("\u200b x" * 3)
    box.press("Enter")
    box.fill(" ")
    box.press("Enter")
    page.wait_for_selector("#search_by_words >> text=Write what you look for")
    assert box.get_attribute("maxlength") == str(LONGEST)
    page.close()
