"""The HTTP API as a process of its own, asked over real HTTP; and the examples of its page, run by curl."""

import base64
import io
import json
import re
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import numpy as np
import pytest
from PIL import Image
from tools.corpus import slow_jpeg

from equiav.build import build_model
from equiav.checkpoint import save_model
from equiav.report import wav
from equiav.web import open_collection
from tests.browser.conftest import launched
from tests.media.making import write_media
from tests.text.small import text_config

pytestmark = pytest.mark.process

PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "api.md"
TOKEN = "a token of some length"


@pytest.fixture(scope="module")
def api(run, tmp_path_factory):
    limits = ["--megabytes", "1", "--seconds", "30", "--waiting", "2"]
    with launched(run, tmp_path_factory.mktemp("api"), "--api-only", *limits, EQUIAV_TOKEN="") as server:
        yield server


@pytest.fixture(scope="module")
def api_with_text(tmp_path_factory):
    """A server whose model has a text branch."""
    run, config = tmp_path_factory.mktemp("text") / "run", text_config("data.test=6")
    save_model(run, config, build_model(config).state_dict(), {"kind": "pretrained"})
    with launched(run, tmp_path_factory.mktemp("text_api"), "--api-only", EQUIAV_TOKEN="") as server:
        yield server


@pytest.fixture(scope="module")
def client(api):
    with httpx.Client(base_url=api.address, timeout=120) as client:
        yield client


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """What the page of the API speaks of."""
    folder = tmp_path_factory.mktemp("files")
    tone = 0.3 * np.sin(np.arange(16000) / 5) + 0.1 * np.sin(np.arange(16000) / 17)
    (folder / "dog.wav").write_bytes(wav(tone.astype(np.float32), 16000))
    Image.fromarray(np.random.default_rng(0).integers(0, 255, (48, 64, 3)).astype(np.uint8)).save(folder / "photo.png")
    write_media(folder / "video.mp4", seconds=4)
    return folder


@pytest.fixture(scope="module")
def collection(run, api):
    return open_collection(run, None)


def sent(client, route, path, **fields):
    return client.post(f"/v1/{route}", data=fields, files={"file": (path.name, path.read_bytes())})


def refused(answer, status, message):
    assert answer.status_code == status, answer.text
    error = answer.json()["error"]
    assert error["status"] == status
    assert message in error["message"]


def test_health(client, collection):
    index, embedder = collection
    told = client.get("/v1/health").json()
    assert (told["status"], told["entries"], told["model"]) == ("ok", len(index), embedder.digest)


@pytest.mark.parametrize(("kind", "name"), [("audio", "dog.wav"), ("image", "photo.png"), ("video", "video.mp4")])
def test_the_vectors_are_those_of_the_embedder(client, files, collection, kind, name):
    expected = getattr(collection[1], kind)(files / name)
    told = sent(client, "embeddings", files / name, kind=kind).json()
    assert (told["kind"], told["model"]) == (kind, collection[1].digest)
    np.testing.assert_allclose(told["embedding"], expected, atol=1e-5)
    data = base64.b64encode((files / name).read_bytes()).decode()
    again = client.post("/v1/embeddings", json={"kind": kind, "name": name, "data": data}).json()
    assert again["embedding"] == told["embedding"]


def test_search(client, files, collection):
    index, embedder = collection
    hits = sent(client, "search", files / "dog.wav", kind="audio", k=3).json()["hits"]
    assert len(hits) == 3
    assert {hit["side"] for hit in hits} == {"visual"}
    entry = index.entry(hits[0]["id"])
    assert hits[0]["score"] == pytest.approx(
        float(embedder.audio(files / "dog.wav") @ entry.vectors["visual"]), abs=1e-4
    )
    assert "path" not in hits[0]
    near = client.post("/v1/search", json={"like": hits[0]["id"], "k": 2, "among": "both"}).json()["hits"]
    assert len(near) == 2
    assert hits[0]["id"] not in {hit["id"] for hit in near}
    label = entry.clip.labels[0]
    only = sent(client, "search", files / "dog.wav", kind="audio", filters=f"label={label}").json()["hits"]
    assert only
    assert all(label in hit["labels"] for hit in only)


def test_refusals(client, files, tmp_path):
    (tmp_path / "no.wav").write_bytes(b"nothing")
    refused(sent(client, "embeddings", tmp_path / "no.wav", kind="audio"), 422, "no.wav: cannot be opened as media")
    refused(sent(client, "embeddings", files / "dog.wav", kind="smell"), 422, "kind: ")
    refused(sent(client, "embeddings", files / "dog.wav"), 422, "kind: ")
    refused(sent(client, "embeddings", files / "dog.wav", kind="audio", start="-1"), 422, "start: ")
    refused(sent(client, "embeddings", files / "dog.wav", kind="audio", odd="1"), 422, "odd: ")
    refused(sent(client, "search", files / "dog.wav", kind="audio", k=0), 422, "k: ")
    refused(sent(client, "search", files / "dog.wav", kind="audio", filters="nonsense"), 422, "is no filter")
    refused(sent(client, "search", files / "dog.wav", kind="audio", filters="path=/etc/*"), 422, "not offered")
    refused(sent(client, "search", files / "dog.wav", kind="audio", like="x"), 422, "or the id of an entry")
    refused(client.post("/v1/search", json={"like": "unknown"}), 422, "unknown")
    refused(client.post("/v1/search", json={"kind": "audio"}), 422, "a file and its kind")
    refused(client.post("/v1/embeddings", json={"kind": "audio"}), 422, "no file")
    refused(client.post("/v1/embeddings", json={"kind": "text", "text": "a ring"}), 422, "text is not taken here")
    refused(client.post("/v1/search", json={"text": "a ring"}), 422, "text is not taken here")
    refused(client.post("/v1/embeddings", json={"kind": "audio", "data": "?"}), 422, "not base64")
    refused(client.post("/v1/embeddings", content=b"{", headers={"content-type": "application/json"}), 422, "JSON")
    refused(client.post("/v1/embeddings", content=b"x", headers={"content-type": "text/plain"}), 415, "send a form")
    odd = {"content-type": "multipart/form-data"}
    refused(client.post("/v1/embeddings", content=b"x", headers=odd), 400, "boundary")
    refused(client.post("/v1/embeddings", json={"kind": "audio", "data": "A" * 3_000_000}), 413, "2000 kB")
    large = {"file": ("a.wav", bytes(3_000_000))}
    refused(client.post("/v1/embeddings", data={"kind": "audio"}, files=large), 413, "at most 1 MB")
    refused(client.get("/v1/health", headers={"host": "evil.example.org"}), 400, "Unknown host name")
    refused(client.get("/v1/health", headers={"origin": "http://evil.example.org"}), 403, "other pages")
    refused(client.get("/v1/secrets"), 404, "Not found")
    assert client.get("/").status_code == 404


def test_names_lead_nowhere(client, files, api):
    content = (files / "dog.wav").read_bytes()
    for name in ("../../../x.wav", "/etc/x.wav", "..\\x.wav", "..", "a\nb.wav", "x" * 300 + ".wav", "-", "%03d.wav"):
        files_ = {"file": (name, io.BytesIO(content))}
        assert client.post("/v1/embeddings", data={"kind": "audio"}, files=files_).status_code == 200, name


def test_files_do_not_stay(client, files, api, tmp_path):
    sent(client, "embeddings", files / "dog.wav", kind="audio")
    (folder,) = api.log.parent.glob("equiav-page-*")
    assert [p for p in (folder / "uploads").rglob("*") if p.is_file()] == []


def test_the_document_describes_what_there_is(client):
    document = client.get("/v1/openapi.json").json()
    assert set(document["paths"]) == {"/health", "/embeddings", "/search"}
    body = document["paths"]["/search"]["post"]["requestBody"]["content"]
    assert "file" in body["multipart/form-data"]["schema"]["properties"]
    assert "data" in body["application/json"]["schema"]["properties"]
    page = client.get("/v1/docs")
    assert "POST /v1/search" in page.text
    assert "<script" not in page.text


def test_too_many_are_refused_and_hostile_files_cost_themselves(client, files, api):
    """Slow pictures hold all processes; the queue fills, refuses, and good requests are answered afterwards."""
    slow = {"file": ("slow.jpg", slow_jpeg())}
    with ThreadPoolExecutor(16) as threads:
        asked = [threads.submit(client.post, "/v1/embeddings", data={"kind": "image"}, files=slow) for _ in range(16)]
        time.sleep(2)
        good = sent(client, "search", files / "dog.wav", kind="audio")
        answers = [one.result() for one in asked]
    assert good.status_code in (200, 503)
    assert {answer.status_code for answer in answers} == {422, 503}
    assert all("took too long" in a.text or "Queue is full" in a.text for a in answers)
    assert sent(client, "search", files / "dog.wav", kind="audio").status_code == 200


def test_the_api_alone_needs_no_gradio(run, tmp_path):
    code = (
        "import sys; sys.modules['gradio'] = None; from equiav.cli import main; "
        f"sys.argv = ['equiav', 'serve', {str(run)!r}, '--api-only', '--port', '0']; main()"
    )
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        line = process.stdout.readline()
        assert "The API is at http://" in line, process.stderr.read()
        assert httpx.get(f"{line.split()[-1]}/v1/health", timeout=60).json()["status"] == "ok"
    finally:
        process.terminate()
        process.wait(30)


def test_other_machines_need_the_token(run, tmp_path, files):
    options = ["--api-only", "--host", "0.0.0.0"]
    with launched(run, tmp_path, *options, EQUIAV_TOKEN=TOKEN) as server:
        address = server.address.replace("0.0.0.0", "127.0.0.1")
        with httpx.Client(base_url=address, timeout=60) as stranger:
            refused(stranger.get("/v1/health"), 401, "token")
            refused(sent(stranger, "embeddings", files / "dog.wav", kind="audio"), 401, "token")
            stranger.headers["authorization"] = f"Bearer {TOKEN}"
            assert stranger.get("/v1/health").status_code == 200
            assert sent(stranger, "embeddings", files / "dog.wav", kind="audio").status_code == 200


def test_examples_of_the_documentation(api, api_with_text, files):
    blocks = re.findall(r"```console\n(.*?)```", PAGE.read_text(), re.DOTALL)
    commands = [line[2:] for block in blocks for line in block.splitlines() if line.startswith("$ curl")]
    assert len(commands) == 9
    assert sum("text=" in command for command in commands) == 2
    for command in commands:
        server = api_with_text if "text=" in command else api
        command = command.replace("http://127.0.0.1:7860", server.address)
        done = subprocess.run(["sh", "-c", command], cwd=files, capture_output=True, text=True, check=True)
        answer = json.loads(done.stdout)
        assert {"model"} <= set(answer), command
        assert answer.get("embedding") or answer.get("hits") or answer["status"] == "ok", command
