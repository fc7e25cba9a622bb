"""The page in a real browser: search, localise, refusals; and no request leaves the machine."""

import re
import wave
from urllib.parse import urlparse

import pytest

pytestmark = pytest.mark.process
WAIT = 120_000


@pytest.fixture
def visit(chromium, served):
    """Opens the page at a width; afterwards all that it asked for was of this machine, and on the list of routes."""
    pages, hosts, refused = [], set(), []

    def note(response):
        if response.status in (400, 401, 403, 404, 405):
            refused.append(response.url)

    def open_page(width=1000):
        page = chromium.new_page(viewport={"width": width, "height": 844})
        page.set_default_timeout(WAIT)
        page.on("request", lambda request: hosts.add(urlparse(request.url).hostname))
        page.on("response", note)
        page.goto(served.address)
        page.wait_for_selector("text=What goes with it?")
        pages.append(page)
        return page

    yield open_page
    for page in pages:
        page.close()
    assert hosts - {None} == {"127.0.0.1"}  # None: data: and blob:, which lie in the page
    assert not refused


def open_tab(page, name):
    page.get_by_role("tab", name=name, exact=True).click()
    return page.get_by_role("tabpanel").filter(visible=True)


def drop(panel, name, content):
    mime = {"wav": "audio/wav", "png": "image/png", "mp4": "video/mp4"}[name[-3:]]
    panel.locator("input[type=file]").first.set_input_files({"name": name, "mimeType": mime, "buffer": content})


def scores(page, place):
    page.wait_for_selector(f"{place} figure")
    found = [float(text) for text in page.locator(f"{place} figcaption b").all_inner_texts()]
    assert found == sorted(found, reverse=True)
    return found


def test_search_by_sound(visit, media):
    page = visit()
    drop(open_tab(page, "Sound"), *media["search_by_sound"])
    assert len(scores(page, "#search_by_sound")) == 12
    film = page.locator("#search_by_sound video").first
    film.hover()
    film.evaluate("film => film.play()")
    page.wait_for_function("film => film.currentTime > 0.1", arg=film.element_handle())


def test_search_by_a_recording(visit):
    page = visit()
    panel = open_tab(page, "Sound")
    panel.get_by_label("Record audio").first.click()
    panel.get_by_role("button", name=re.compile("Record")).first.click()
    page.wait_for_timeout(2000)
    panel.get_by_role("button", name=re.compile("Stop")).first.click()
    assert len(scores(page, "#search_by_sound")) == 12


def test_examples_can_be_clicked(visit):
    page = visit()
    page.get_by_text(re.compile(r"scene-\d+-.*\.wav")).first.click()
    assert len(scores(page, "#search_by_sound")) == 12


def test_search_by_picture(visit, media):
    page = visit()
    drop(open_tab(page, "Picture"), *media["search_by_picture"])
    assert len(scores(page, "#search_by_picture")) == 12


def test_search_by_video(visit, media):
    page = visit()
    drop(open_tab(page, "Video"), *media["search_by_video"])
    assert len(scores(page, "#search_by_video")) == 12


def test_localise(visit):
    page = visit()
    panel = open_tab(page, "Where is it?")
    panel.locator("button.gallery-item").first.click()
    page.wait_for_selector("#locate figure")
    assert page.locator("#locate img").count() == 8
    plain, heat = (page.locator("#locate img").nth(i).get_attribute("src") for i in (0, 1))
    assert plain != heat
    panel.get_by_role("button", name="Play it with the map over it").click()
    film = page.locator("#locate video")
    film.evaluate("film => film.play()")
    page.wait_for_function("film => film.currentTime > 0.1 && film.videoWidth > 0", arg=film.element_handle())


def test_map(visit):
    page = visit()
    open_tab(page, "Map").get_by_role("button").click()
    page.wait_for_selector("svg.map circle")
    assert page.locator("svg.map circle").count() == 24  # a sound and a picture of every clip


def test_unreadable_file(visit):
    page = visit()
    drop(open_tab(page, "Sound"), "broken.wav", b"this is no sound at all")
    page.get_by_text("broken.wav: cannot be opened as media").first.wait_for()


def test_too_large_a_file(visit):
    page = visit()
    drop(open_tab(page, "Sound"), "large.wav", bytes(2_000_000))
    page.get_by_text(re.compile("exceed the maximum allowed size of 1.0 Mb")).first.wait_for()


def test_too_long_a_file(visit, tmp_path):
    with wave.open(str(tmp_path / "long.wav"), "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(1)
        file.setframerate(8000)
        file.writeframes(bytes([128]) * 8000 * 40)
    page = visit()
    drop(open_tab(page, "Sound"), "long.wav", (tmp_path / "long.wav").read_bytes())
    page.get_by_text("long.wav: lasts 40 s; at most 30 s are taken").first.wait_for()


def test_on_a_phone(visit):
    page = visit(390)
    page.get_by_text(re.compile(r"scene-\d+-.*\.wav")).first.click()
    scores(page, "#search_by_sound")
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    lefts = {round(box["x"]) for box in (f.bounding_box() for f in page.locator("#search_by_sound figure").all())}
    assert len(lefts) == 2  # columns
