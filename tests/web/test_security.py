"""Checks before the page: names, origins, token, sizes."""

import asyncio
from pathlib import Path

import pytest
from starlette.responses import PlainTextResponse

from equiav.errors import EquiAVError
from equiav.web import UploadLimits
from equiav.web.security import Access, Security, stored_bytes
from tests.web.loops import awaited


def scope(path, method="GET", **headers):
    path, _, query = path.partition("?")
    named = {"host": "localhost:7860", "content_type": "application/json", **headers}
    pairs = [(name.replace("_", "-").encode(), value.encode()) for name, value in named.items()]
    server = ("10.0.0.5", 7860)
    return {"type": "http", "path": path, "query_string": query.encode(), "method": method, "headers": pairs,
            "server": server}  # fmt: skip


def test_sizes_and_files(tmp_path):
    security = Security(PlainTextResponse("in"), UploadLimits(megabytes=1), tmp_path)
    upload = "/gradio_api/upload"
    assert security.refusal(scope("/")) is None
    (tmp_path / "here").write_text("")
    assert security.refusal(scope(f"/gradio_api/file={tmp_path}/here")) is None
    assert security.refusal(scope("/gradio_api/file=/tmp/x")).status_code == 404
    assert security.refusal(scope("/gradio_api/file=HTTP://x")).status_code == 404
    assert security.refusal(scope(upload, "POST")).status_code == 411
    assert security.refusal(scope(upload, "POST", content_length="5000000")).status_code == 413
    assert security.refusal(scope(upload, "POST", content_length="900000")) is None
    join = "/gradio_api/queue/join"
    assert security.refusal(scope(join, "POST", content_length="2000")) is None
    assert security.refusal(scope(join, "POST", content_length="200000")).status_code == 413
    assert security.refusal(scope(join, "POST")).status_code == 411
    for kind in ("", "text/plain", "multipart/form-data; boundary=x"):
        asked = scope(join, "POST", content_length="2000", content_type=kind)
        assert security.refusal(asked).status_code == 415
    assert security.refusal(scope(join, "POST", content_length="5", transfer_encoding="chunked")).status_code == 411
    assert security.refusal(scope("/", transfer_encoding="chunked")).status_code == 411
    assert security.refusal(scope("/", content_length="200000")).status_code == 413
    (tmp_path / "many").write_bytes(bytes(16_500_000))
    assert security.refusal(scope(upload, "POST", content_length="900000")).status_code == 503


def test_a_refused_body_is_read_to_its_end(tmp_path):
    """Or closing would reset the connection, and the client would never see why."""
    sent, coming = [], [{"body": b"x", "more_body": True}] * 3 + [{"body": b"x"}]

    async def send(message):
        sent.append((message, len(coming)))

    async def receive():
        return coming.pop(0)

    asked = scope("/gradio_api/upload", "POST", content_length="5000000")
    awaited(Security(PlainTextResponse("in"), UploadLimits(megabytes=1), tmp_path)(asked, receive, send))
    assert [(message["type"], left) for message, left in sent] == [
        ("http.response.start", 4),  # the answer goes out at once
        ("http.response.body", 4),
        ("http.response.body", 0),
    ]
    assert sent[1][0]["more_body"]
    assert not sent[2][0].get("more_body")


def test_a_refused_body_without_end_is_not_awaited_for_ever(tmp_path, monkeypatch):
    monkeypatch.setattr("equiav.web.security.DISCARD_SECONDS", 0.1)
    sent = []

    async def send(message):
        sent.append(message["type"])

    async def receive():
        await asyncio.sleep(60)

    asked = scope("/gradio_api/upload", "POST", content_length="5000000")
    awaited(Security(PlainTextResponse("in"), UploadLimits(megabytes=1), tmp_path)(asked, receive, send))
    assert sent == ["http.response.start", "http.response.body", "http.response.body"]


@pytest.mark.parametrize(
    "asked",
    [
        "POST /gradio_api/process_recording",
        "POST /gradio_api/stream/x",
        "POST /gradio_api/cancel",
        "POST /gradio_api/reset",
        "POST /gradio_api/vibe-edit",
        "POST /gradio_api/component_server",
        "POST /gradio_api/run/map",
        "POST /gradio_api/api/predict",
        "POST /gradio_api/call/v2/map",
        "POST /gradio_api/upload/",
        "POST /login",
        "POST /",
        "GET /gradio_api/upload",
        "GET /gradio_api/proxy=https://example.org/",
        "GET /gradio_api/file/etc/passwd",
        "GET /gradio_api/file=https://example.org/",
        "GET /gradio_api/info",
        "GET /gradio_api/openapi.json",
        "GET /gradio_api/deep_link",
        "GET /gradio_api/startup-events",
        "GET /gradio_api/heartbeat/x",
        "GET /gradio_api/queue/status",
        "GET /gradio_api/custom_component/x/client/component/index.js",
        "GET /monitoring",
        "GET /monitoring/x",
        "GET /assets/../../x",
        "GET /static/..",
        "GET //config",
        "GET /config\n",
        "PUT /",
        "DELETE /config",
        "TRACE /",
        "OPTIONS /gradio_api/queue/join",
    ],
)
def test_routes_that_the_page_does_not_use(asked, tmp_path):
    method, path = asked.split(" ", 1)
    answer = Security(PlainTextResponse("in"), UploadLimits(), tmp_path).refusal(
        scope(path, method, content_length="0")
    )
    assert (answer.status_code, answer.body) == (404, b"Not found.")


def test_uploads_that_go_while_they_are_counted(tmp_path, monkeypatch):
    for name in "abc":
        (tmp_path / name).write_bytes(bytes(10))
    found = list(tmp_path.iterdir())
    monkeypatch.setattr(type(tmp_path), "rglob", lambda self, pattern: iter(found))
    found[0].unlink()
    assert stored_bytes(tmp_path) == 20


TOKEN = "a token of some length"


def refused(access, *args, **headers):
    """The status of a refusal; None where the request goes on."""
    answer = Security(PlainTextResponse("in"), UploadLimits(), Path("/nowhere"), access).refusal(
        scope(*args, **headers)
    )
    return None if answer is None else answer.status_code


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("localhost", None),
        ("LOCALHOST:7860", None),
        ("127.0.0.1:1", None),
        ("[::1]:7860", None),
        ("page.example.org", None),
        ("10.0.0.5:7860", None),  # the address that the connection came to
        ("10.0.0.6", 400),
        ("", 400),
        ("evil.example.org", 400),
        ("localhost.evil.example.org", 400),
        ("localhost@evil.example.org", 400),
        ("localhost:7860@evil.example.org", 400),
        ("localhost:x", 400),
        ("[::1", 400),
        ("::1", 400),
        ("localhost, evil", 400),
    ],
)
def test_host_names(host, status):
    assert refused(Access.of(["Page.example.org"], None), "/", host=host) == status


@pytest.mark.parametrize(
    ("origin", "status"),
    [
        ("http://localhost:7860", None),
        ("https://localhost:7860", None),
        ("http://LOCALHOST:7860", None),
        ("null", 403),
        ("", 403),
        ("http://localhost", 403),
        ("http://localhost:7861", 403),
        ("http://127.0.0.1:7860", 403),  # known, but not what this request calls the page
        ("http://evil.example.org", 403),
        ("http://localhost:7860.evil.example.org", 403),
        ("file://localhost:7860", 403),
    ],
)
@pytest.mark.parametrize("method", ["GET", "POST", "PUT", "DELETE", "OPTIONS"])
def test_origins(origin, status, method):
    path = "/gradio_api/queue/join" if method == "POST" else "/"
    expected = status if method in ("GET", "POST") else status or 404
    assert refused(Access(), path, method, origin=origin, content_length="0") == expected


def test_two_origins():
    asked = scope("/", origin="http://localhost:7860")
    asked["headers"].insert(0, (b"origin", b"http://evil.example.org"))
    assert Security(PlainTextResponse("in"), UploadLimits(), Path("/nowhere")).refusal(asked).status_code == 403


def test_token():
    access = Access.of([], TOKEN)
    assert refused(access, "/") == 401
    assert refused(access, "/", authorization=f"Bearer {TOKEN}") is None
    assert refused(access, "/", authorization=f"bearer  {TOKEN}") is None
    assert refused(access, "/", cookie=f"other=1; equiav_token={access.digest}") is None
    for wrong in ("", "Bearer", "Bearer ", f"Bearer {TOKEN}x", f"Basic {TOKEN}", f"Bearer {access.digest}", TOKEN):
        assert refused(access, "/", authorization=wrong) == 401
    for wrong in ("", "equiav_token", "equiav_token=", f"equiav_token={TOKEN}", f"xequiav_token={access.digest}"):
        assert refused(access, "/", cookie=wrong) == 401
    for wrong in ("/?token=", "/?token=x", f"/?token={access.digest}", f"/config?token={TOKEN}"):
        assert refused(access, wrong.replace(" ", "+")) == 401
    assert refused(access, f"/?token={TOKEN}", "POST", content_length="0") == 401
    assert refused(Access(), "/", authorization="Bearer x") is None  # none is asked for


def test_the_token_becomes_a_cookie():
    security = Security(PlainTextResponse("in"), UploadLimits(), Path("/nowhere"), Access.of([], TOKEN))
    answer = security.refusal(scope(f"/?token={TOKEN.replace(' ', '+')}"))
    assert (answer.status_code, answer.headers["location"]) == (303, "./")
    cookie, _, rest = answer.headers["set-cookie"].partition(";")
    assert {part.strip().lower() for part in rest.split(";")} == {"httponly", "samesite=strict", "path=/"}
    assert security.refusal(scope("/", cookie=cookie)) is None
    assert TOKEN not in str(answer.headers)
    # Who wants the token looked at from another page, or by another name, is refused first.
    assert security.refusal(scope(f"/?token={TOKEN}", host="evil.example.org")).status_code == 400


def test_tokens_and_names_that_are_none():
    with pytest.raises(EquiAVError, match="the token is too short: at least 16 characters"):
        Access.of([], "short")
    for name in ("http://page", "page:80", "*", "a b", ""):
        with pytest.raises(EquiAVError, match="not a host name"):
            Access.of([name], None)


def answered(app, asked):
    """What a middleware sends for a request, as it is."""
    sent = []

    async def send(message):
        sent.append(message)

    async def receive():
        return {"type": "http.request"}

    awaited(app(asked, receive, send))
    return sent


def test_no_answer_is_for_other_origins():
    cors = {"Access-Control-Allow-Origin": "http://evil.example.org", "access-control-allow-credentials": "true"}
    app = Security(PlainTextResponse("in", headers=cors), UploadLimits(), Path("/nowhere"))
    names = {name.decode().lower() for name, _ in answered(app, scope("/"))[0]["headers"]}
    assert not {name for name in names if name.startswith("access-control")}
    assert {"content-security-policy", "cross-origin-resource-policy"} <= names


def test_refusals_close_the_connection():
    app = Security(PlainTextResponse("in"), UploadLimits(), Path("/nowhere"))
    assert (b"connection", b"close") in answered(app, scope("/", host="evil"))[0]["headers"]


def test_websockets_are_refused():
    app = Security(PlainTextResponse("in"), UploadLimits(), Path("/nowhere"))
    assert answered(app, {**scope("/"), "type": "websocket"}) == [{"type": "websocket.close"}]
