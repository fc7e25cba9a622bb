"""The page's API under load, under fire, and asked for what it must not give."""

import json
import socket
import time

import httpx
import pytest
from benchmarks.serve import FULL, ask, files_left, fire, press, send, started, upload

pytestmark = pytest.mark.process


@pytest.fixture
def client(served):
    with httpx.Client(base_url=served.address, timeout=120) as client:
        yield client


def test_load(served, media):
    seen = press(served, media, clients=24, seconds=5)
    assert "complete" in seen["outcomes"]
    assert set(seen["outcomes"]) <= {"complete", "refused"}, seen
    assert seen["memory_mb"]["last_third"] < seen["memory_mb"]["middle_third"] + 100  # it is still warming up


def test_a_full_queue_is_a_stated_refusal(client, media):
    """Questions asked faster than any machine answers them: nobody waits for an answer before the next one."""
    api = "locate_in_video"
    [path] = upload(client, *media[api]).json()
    data = {"data": [{"path": path, "meta": {"_type": "gradio.FileData"}}]}
    taken = []
    for _ in range(300):
        put = client.post(f"/gradio_api/call/{api}", json=data)
        if put.status_code == 503:
            break
        taken.append(put.json()["event_id"])
    assert put.status_code == 503
    assert FULL in put.text
    assert len(taken) >= 4  # as many may wait
    for event in taken:
        assert "event: complete" in client.get(f"/gradio_api/call/{api}/{event}").text
    assert ask(client, api, path).outcome == "complete"  # there is room again


def test_fire(served, media):
    seen = fire(served, media, count=25, seed=1)
    assert set(seen["outcomes"]) <= {"complete", "error", "not taken"}, seen
    assert seen["outcomes"]["error"] > 5
    assert seen["tracebacks"] == 0
    assert set(seen["good_uploads_afterwards"].values()) == {"complete"}


def test_uploads_go(run):
    with started(run, "--keep", "2") as server, httpx.Client(base_url=server.address, timeout=120) as client:
        before = server.files()
        assert [upload(client, name, b"nothing").status_code for name in ("a.wav", "b.png")] == [200, 200]
        assert files_left(server, before, patience=120) == 0


@pytest.mark.parametrize("path", ["/gradio_api/upload", "/v1/embeddings"])
def test_uploads_that_were_broken_off_go(run, path):
    """Clients that leave in the middle of a file."""
    parts = b'--b\r\nContent-Disposition: form-data; name="%s"; filename="a.wav"\r\n\r\n' % (
        b"files" if "gradio" in path else b"file"
    )
    head = f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: multipart/form-data; boundary=b\r\n"
    with started(run, "--keep", "2") as server:
        port = int(server.address.rpartition(":")[2])
        before = server.files()
        begun = set()
        for _ in range(3):
            with socket.create_connection(("127.0.0.1", port)) as connection:
                connection.sendall(f"{head}Content-Length: 9000000\r\n\r\n".encode() + parts + bytes(4_000_000))
                time.sleep(1)
                begun |= server.files() - before
        assert begun or path.startswith("/v1")  # the API keeps uploads in files without names
        assert files_left(server, before, patience=60) == 0


@pytest.mark.parametrize("path", ["/gradio_api/call/search_by_sound", "/gradio_api/queue/join", "/v1/search"])
def test_halves_of_characters(client, path):
    """In JSON, in any of its encodings."""
    for record in ({"\ud800": 1}, {"data": ["\ud800"]}, {"kind": "audio", "name": "\ud800", "data": "\udc00"}):
        for content in (json.dumps(record).encode(), json.dumps(record).encode("utf-16")):
            answer = client.post(path, content=content, headers={"content-type": "application/json"})
            assert answer.status_code != 500, answer.text


def test_requests_without_end(client):
    chunked = client.post("/gradio_api/queue/join", content=iter([b"{}"]), headers={"content-type": "application/json"})
    assert chunked.status_code == 411
    assert client.post("/gradio_api/queue/join", json={"data": ["x" * 200_000]}).status_code == 413


@pytest.mark.parametrize(
    "path",
    [
        "/gradio_api/file=/etc/passwd",
        "/gradio_api/file=%2Fetc%2Fpasswd",
        "/gradio_api/file=%2e%2e/%2e%2e/%2e%2e/%2e%2e/etc/passwd",
        "/gradio_api/file={uploads}/%2e%2e/%2e%2e/%2e%2e/%2e%2e/etc/passwd",
        "/gradio_api/file=file:///etc/passwd",
        "/gradio_api/file=https://example.org/",
        "/gradio_api/proxy=https://example.org/",
        "/static/%2e%2e/%2e%2e/%2e%2e/%2e%2e/etc/passwd",
        "/clip/film?id=/etc/passwd",
        "/clip/sound?id=../../../../etc/passwd",
    ],
)
def test_files_outside_are_never_served(client, served, path):
    uploads = next(served.temporary.glob("equiav-page-*")) / "uploads"
    answer = client.get(path.format(uploads=uploads))
    assert answer.status_code in (403, 404)
    assert "root:" not in answer.text


def test_clips_are_served_by_name(client, media):
    found = send(client, "search_by_sound", *media["search_by_sound"]).text
    name = found.partition("/clip/film?id=")[2].partition("#")[0]
    film = client.get(f"/clip/film?id={name}", headers={"range": "bytes=0-99"})
    assert film.status_code == 206
    assert film.headers["content-type"] == "video/mp4"
    assert client.get(f"/clip/picture?id={name}").content.startswith(b"\xff\xd8")
    assert client.get(f"/clip/sound?id={name}").content.startswith(b"RIFF")


def test_recordings_are_not_processed_here(client, served):
    before = served.files()
    for path in ("/gradio_api/process_recording", "/gradio_api/process_recording/"):
        assert client.post(path, files={"file": ("a.webm", bytes(1000))}).text == "Not found."
    assert served.files() == before


def test_private_files_are_not_copied(client, served, tmp_path, media):
    private = tmp_path / "private.mp4"
    private.write_bytes(media["search_by_video"][1])
    before = served.files()
    for api in ("search_by_video", "locate_in_video", "search_by_picture"):
        assert ask(client, api, str(private)).outcome == "error"
    assert not [p for p in served.files() - before if p.name == private.name]


def test_too_large(client):
    assert upload(client, "a.wav", bytes(1_300_000)).status_code == 413
    assert "at most 1 MB" in upload(client, "a.wav", bytes(1_300_000)).text
    within = upload(client, "a.wav", bytes(1_050_000))  # past the file's limit, not past the request's
    assert within.status_code == 413


def test_another_name_for_this_machine_is_refused(client):
    assert client.get("/", headers={"host": "rebound.example.org"}).status_code == 400


def test_browsers_are_told_to_stay_here(client):
    policy = client.get("/").headers["content-security-policy"]
    assert policy.startswith("default-src 'self'")
    assert "http" not in policy
