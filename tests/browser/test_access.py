"""Who may ask: host names, origins and the token, of the running page and in a real browser."""

import re
import socket

import httpx
import pytest

from tests.browser.conftest import launched

pytestmark = pytest.mark.process
JOIN = "/gradio_api/queue/join"


@pytest.fixture(scope="module")
def page(run, tmp_path_factory):
    """A page that other machines can reach."""
    with launched(run, tmp_path_factory.mktemp("open"), "--host", "0.0.0.0", "--allow-host", "page.example") as page:
        page.port = int(page.address.rpartition(":")[2])
        page.address = f"http://127.0.0.1:{page.port}"
        page.token = page.line.strip().partition("/?token=")[2]
        yield page


@pytest.fixture
def stranger(page):
    with httpx.Client(base_url=page.address, timeout=60) as client:
        yield client


@pytest.fixture
def visitor(page):
    with httpx.Client(base_url=page.address, timeout=60, headers={"authorization": f"Bearer {page.token}"}) as client:
        yield client


def test_a_token_is_made_up_and_a_warning_printed(page):
    assert len(page.token) >= 32
    warnings = [line for line in page.log.read_text().splitlines() if not line.startswith("scenes made")]
    assert len(warnings) == 1
    assert warnings[0].startswith("warning: other machines can reach this page.")
    assert page.token not in warnings[0]


@pytest.mark.parametrize("path", ["/", "/config", "/clip/film?id=x", "/gradio_api/file=/etc/passwd", "/nothing"])
def test_nothing_without_the_token(stranger, path):
    answer = stranger.get(path)
    assert answer.status_code == 401
    assert answer.text.count("\n") == 0
    assert stranger.post(JOIN, json={}).status_code == 401


def test_with_the_token(visitor, stranger, page):
    assert visitor.get("/config").status_code == 200
    answer = stranger.get("/", params={"token": page.token})
    assert answer.status_code == 303
    assert "httponly" in answer.headers["set-cookie"].lower()
    assert "samesite=strict" in answer.headers["set-cookie"].lower()
    assert stranger.get("/config").status_code == 200  # by the cookie


def test_names(visitor, page):
    own = socket.gethostbyname(socket.gethostname())
    for name in ("page.example", "page.example:99", "0.0.0.0", "localhost"):
        assert visitor.get("/config", headers={"host": name}).status_code == 200
    assert visitor.get(f"http://{own}:{page.port}/config").status_code == 200
    assert visitor.get("/config", headers={"host": "rebound.example"}).status_code == 400


def test_origins(visitor, page, served):
    with httpx.Client(base_url=served.address) as local:  # a page on loopback, without a token
        for client, address in ((visitor, page.address), (local, served.address)):
            for foreign in ("http://evil.example", "null", address.rpartition(":")[0], f"{address}0"):
                for method in ("POST", "PUT", "PATCH", "DELETE", "OPTIONS"):
                    asked = {"origin": foreign, "access-control-request-method": "POST"}
                    answer = client.request(method, JOIN, headers=asked)
                    assert answer.status_code == 403
                    assert not [name for name in answer.headers if name.startswith("access-control")]
            for origin in ({}, {"origin": address}):
                answer = client.post(JOIN, json={}, headers=origin)
                assert answer.status_code == 422  # let through, and not understood
                assert not [name for name in answer.headers if name.startswith("access-control")]


def test_no_origin_may_read_the_answers(visitor):
    named = {"host": "page.example", "origin": "http://page.example"}
    answer = visitor.get("/config", headers=named)
    assert answer.status_code == 200
    assert not [name for name in answer.headers if name.startswith("access-control")]


def test_websockets(visitor):
    upgrade = {"connection": "upgrade", "upgrade": "websocket", "sec-websocket-version": "13", "sec-websocket-key": "x"}
    assert visitor.get(JOIN, headers=upgrade).status_code in (403, 404, 405)
    assert visitor.get(JOIN, headers={**upgrade, "origin": "http://evil.example"}).status_code == 403


def test_in_a_browser(page, chromium):
    context = chromium.new_context()
    tab = context.new_page()
    tab.set_default_timeout(120_000)
    assert tab.goto(page.address).status == 401
    tab.goto(f"{page.address}/?token={page.token}")
    tab.wait_for_selector("text=What goes with it?")
    assert page.token not in tab.url
    assert page.token not in tab.evaluate("document.cookie")
    tab.get_by_text(re.compile(r"scene-\d+-.*\.wav")).first.click()
    tab.wait_for_selector("#search_by_sound figure")
    context.close()


def test_a_given_token_is_not_printed(run, tmp_path):
    token = "given by the environment"
    with launched(run, tmp_path, "--host", "0.0.0.0", EQUIAV_TOKEN=token) as page:
        assert "token" not in page.line
        port = page.address.rpartition(":")[2]
        address = f"http://127.0.0.1:{port}/config"
        assert httpx.get(address, timeout=60).status_code == 401
        assert httpx.get(address, headers={"authorization": f"Bearer {token}"}, timeout=60).status_code == 200
