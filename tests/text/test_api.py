"""Text in the HTTP API: vectors and search in words, by the model itself or through a bridge; refusals in one line."""

import numpy as np
import pytest
from fastapi.testclient import TestClient

from equiav.bridge import fit_bridge
from equiav.inference import Embedder, load_model
from equiav.search import Query
from equiav.web import Service, UploadLimits
from equiav.web.api import build_api
from equiav.web.service import LONGEST
from tests.text.small import text_config
from tests.text.test_bridge import COUNT, Colours, made
from tests.text.test_page import opened
from tests.training.small import small_config


@pytest.fixture(scope="module")
def service(tmp_path_factory):
    """Its model has text."""
    made = opened(tmp_path_factory.mktemp("words") / "run", text_config("data.test=6"))
    yield made
    made.close()


def client_of(service, uploads):
    return TestClient(build_api(service, uploads), raise_server_exceptions=False)


def refused(answer, message):
    assert answer.status_code == 422, answer.text
    said = answer.json()["error"]["message"]
    assert message in said
    assert "\n" not in said


def test_by_the_model(service, tmp_path):
    client, embedder = client_of(service, tmp_path), service.embedder
    vector = embedder.text("a red ring")
    for how in (
        {"json": {"kind": "text", "text": "a red ring"}},
        {"files": {"kind": (None, "text"), "text": (None, "a red ring")}},
    ):
        told = client.post("/embeddings", **how).json()
        assert (told["kind"], told["model"]) == ("text", embedder.digest)
        np.testing.assert_allclose(told["embedding"], vector, atol=1e-6)
    expected = service.index.search(Query(vector, "text", embedder.digest), k=3, among="visual")
    for asked in ({"text": "a red ring"}, {"text": "a red ring", "kind": "text"}):
        hits = client.post("/search", json={**asked, "k": 3, "among": "visual"}).json()["hits"]
        assert [hit["id"] for hit in hits] == [hit.clip.id for hit in expected]
        assert all("path" not in hit for hit in hits)
    assert list(tmp_path.iterdir()) == []


def test_refusals(service, tmp_path):
    client = client_of(service, tmp_path)
    together = "kind text and the field `text` belong together"
    refused(client.post("/embeddings", json={"kind": "text"}), together)
    refused(client.post("/embeddings", json={"kind": "audio", "text": "a ring"}), together)
    refused(client.post("/embeddings", json={"kind": "text", "text": "a ring", "data": "AAAA"}), together)
    refused(client.post("/embeddings", json={"kind": "text", "text": ""}), "no words to embed")
    refused(client.post("/embeddings", json={"kind": "text", "text": "x" * (LONGEST + 1)}), "text: ")
    refused(client.post("/embeddings", json={"kind": "text", "text": ["a"]}), "text: ")
    for more in ({"kind": "audio"}, {"like": "scene-0"}, {"data": "AAAA", "name": "a.wav"}):
        refused(client.post("/search", json={"text": "a ring", **more}), "or text, or the id of an entry")
    refused(client.post("/search", json={"kind": "text"}), "or text, or the id of an entry")
    refused(client.post("/search", json={"text": "\0"}), "no words to embed")
    refused(client.post("/search", json={"text": "a ring", "filters": ["path=/etc/*"]}), "not offered")


def test_through_a_bridge(silent_run, tmp_path, monkeypatch):
    model = load_model(silent_run)
    colours = np.random.default_rng(1).integers(0, 256, size=(COUNT, 3))
    index = made(tmp_path / "index", model, colours, np.arange(COUNT), silent_run)
    service = Service(index, Embedder(model), UploadLimits())
    client = client_of(service, tmp_path)
    for route in ("embeddings", "search"):
        refused(client.post(f"/{route}", json={"kind": "text", "text": "10 20 30"}), "text is not taken here")
    bridge = fit_bridge(index, Colours(), texts=[" ".join(map(str, c)) for c in colours])
    bridge.save(index.folder)
    monkeypatch.setattr("equiav.bridge.open_image_text", lambda name: Colours())
    told = client.post("/embeddings", json={"kind": "text", "text": "10 20 30"}).json()
    np.testing.assert_allclose(told["embedding"], bridge.text("10 20 30"), atol=1e-6)
    hits = client.post("/search", json={"text": "10 20 30", "k": 5}).json()["hits"]
    expected = index.search(bridge.query("10 20 30", model.digest), k=5)
    assert [hit["id"] for hit in hits] == [hit.clip.id for hit in expected]
    refused(client.post("/search", json={"text": " "}), "no words to embed")
    service.close()


def test_a_model_without_text(tmp_path):
    service = opened(tmp_path / "run", small_config("data.test=2"))
    client = client_of(service, tmp_path)
    refused(client.post("/search", json={"text": "a ring"}), "text is not taken here: the model has learnt none")
    service.close()
