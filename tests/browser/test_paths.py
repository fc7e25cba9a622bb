"""Files that nobody uploaded: not read, and not told from missing ones, whatever the form of the call."""

import json
import os
import uuid

import httpx
import pytest

pytestmark = pytest.mark.process
META = {"_type": "gradio.FileData"}
REFUSAL = "This file was not uploaded here, or has been deleted since; upload it again."


@pytest.fixture
def client(served):
    with httpx.Client(base_url=served.address, timeout=120) as client:
        yield client


def event(text):
    """The last event of a stream, as its data."""
    return json.loads([line for line in text.splitlines() if line.startswith("data: ")][-1].removeprefix("data: "))


def by_call(client, api, records):
    put = client.post(f"/gradio_api/call/{api}", json={"data": records})
    assert put.status_code == 200, put.text
    return event(client.get(f"/gradio_api/call/{api}/{put.json()['event_id']}").text)


def by_queue(client, api, records):
    numbers = {item["api_name"]: item["id"] for item in client.get("/config").json()["dependencies"]}
    session = uuid.uuid4().hex
    body = {"data": records, "fn_index": numbers[api], "session_hash": session}
    assert client.post("/gradio_api/queue/join", json=body).status_code == 200
    with client.stream("GET", "/gradio_api/queue/data", params={"session_hash": session}) as answer:
        for line in answer.iter_lines():
            if "process_completed" in line:
                return json.loads(line.removeprefix("data: "))["output"]
    raise AssertionError("no answer")


CALLS = {"call": by_call, "queue": by_queue}


@pytest.fixture
def uploads(served):
    return next(served.temporary.glob("equiav-page-*")) / "uploads"


@pytest.fixture
def private(tmp_path, media):
    """Files of every kind outside the upload folder, by suffix."""
    files = {}
    for api in ("search_by_sound", "search_by_picture", "search_by_video"):
        name, content = media[api]
        file = tmp_path / f"private{name[-4:]}"
        file.write_bytes(content)
        files[file.suffix] = file
    return files


def records_of(path, form):
    """A file record in one of the forms that a caller may give it."""
    match form:
        case "with meta":
            return {"path": path, "meta": META}
        case "without meta":
            return {"path": path}
        case "other meta":
            return {"path": path, "meta": {"_type": "other"}}
        case "stream":
            return {"path": path, "meta": META, "is_stream": True}
        case "url":
            return {"path": path, "url": f"/gradio_api/file={path}", "orig_name": "a.png"}


def spellings(file, uploads, link):
    """Ways to write the path of a file."""
    inside = uploads / f"link-{uuid.uuid4().hex}{file.suffix}"
    inside.symlink_to(file)
    folder = uploads / f"folder-{uuid.uuid4().hex}"
    folder.symlink_to(file.parent)
    link.unlink(missing_ok=True)
    link.symlink_to(file)
    return {
        "absolute": str(file),
        "relative": os.path.relpath(file),
        "dots": f"{uploads}/../../../../../../../../..{file}",
        "file address": file.as_uri(),
        "link outside": str(link),
        "link inside": str(inside),
        "folder linked inside": str(folder / file.name),
    }


QUESTIONS = {
    "search_by_sound": [".wav"],
    "search_by_picture": [".png"],
    "search_by_video": [".mp4"],
    "locate_in_video": [".mp4"],
    "locate_as_video": [".mp4"],
    "locate": [".wav", ".png"],
}


@pytest.mark.parametrize("form", ["with meta", "without meta", "other meta", "stream", "url"])
@pytest.mark.parametrize("how", CALLS)
def test_files_that_nobody_uploaded(client, private, uploads, tmp_path, how, form):
    for api, suffixes in QUESTIONS.items():
        names = [spellings(private[suffix], uploads, tmp_path / f"link{suffix}") for suffix in suffixes]
        for spelling in names[0]:
            answer = CALLS[how](client, api, [records_of(each[spelling], form) for each in names])
            assert answer["error"] == REFUSAL, (api, spelling)


@pytest.mark.parametrize("how", CALLS)
def test_missing_files_get_the_same_answer(client, private, uploads, how):
    api = "search_by_picture"
    paths = [private[".png"], private[".png"].with_name("missing.png"), uploads / "missing.png", "/etc/passwd", "/", ""]
    answers = [CALLS[how](client, api, [records_of(str(path), "without meta")]) for path in paths]
    assert answers[0]["error"] == REFUSAL
    assert all(answer == answers[0] for answer in answers)


def test_one_private_file_of_two_is_enough(client, private, media):
    sound = client.post("/gradio_api/upload", files={"files": media["search_by_sound"]}).json()[0]
    answer = by_call(
        client, "locate", [records_of(sound, "with meta"), records_of(str(private[".png"]), "without meta")]
    )
    assert answer["error"] == REFUSAL


ODD = ["/etc/passwd", 7, ["/etc/passwd"], {}, {"path": None}, {"path": 7}, {"path": "\0"}, {"path": "a" * 9000},
       {"url": "data:image/png;base64,AAAA"}, {"path": {"path": "x"}}, {"path": "https://example.org/a"}]  # fmt: skip


@pytest.mark.parametrize("how", CALLS)
@pytest.mark.parametrize("odd", ODD)
def test_what_is_no_file_record(client, how, odd):
    for api in ("search_by_sound", "search_by_picture"):
        assert CALLS[how](client, api, [odd])["error"] == REFUSAL


def test_direct_calls_are_closed(client, private):
    record = records_of(str(private[".png"]), "without meta")
    data = {"data": [record]}
    for form in ("run/search_by_picture", "api/search_by_picture", "call/v2/search_by_picture"):
        for body in (data, {"file": record}):
            assert client.post(f"/gradio_api/{form}", json=body).status_code == 404
    for item in client.get("/config").json()["dependencies"]:  # the page itself asks this way for its examples
        answer = client.post("/gradio_api/run/predict", json={**data, "fn_index": item["id"], "session_hash": "x"})
        assert answer.status_code != 200, item["api_name"]
        if item["queue"]:
            assert answer.status_code == 404


@pytest.mark.parametrize("how", CALLS)
def test_uploads_are_read(client, media, how):
    for api in ("search_by_sound", "search_by_picture", "search_by_video"):
        path = client.post("/gradio_api/upload", files={"files": media[api]}).json()[0]
        for form in ("with meta", "without meta"):
            answer = CALLS[how](client, api, [records_of(path, form)])
            assert "found" in (answer[0] if how == "call" else answer["data"][0])


def test_linked_files_are_not_served(client, private, uploads, tmp_path):
    for spelling in spellings(private[".png"], uploads, tmp_path / "link").values():
        assert client.get(f"/gradio_api/file={spelling}").status_code in (403, 404)
