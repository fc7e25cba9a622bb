"""The page's text box: what it finds, what it refuses, and that pages without text have none."""

import pytest

from equiav.build import build_model
from equiav.checkpoint import save_model
from equiav.errors import EquiAVError
from equiav.search import Query
from equiav.web import Service, UploadLimits, open_collection
from equiav.web.page import build_page
from equiav.web.words import LONGEST, checked_words
from tests.text.small import text_config
from tests.training.small import small_config

NO_EXAMPLES = {"audio": [], "image": [], "video": []}


def opened(place, config):
    save_model(place, config, build_model(config).state_dict(), {"kind": "pretrained"})
    index, embedder = open_collection(place, None)
    return Service(index, embedder, UploadLimits(megabytes=1, seconds=30.0))


@pytest.fixture(scope="module")
def service(tmp_path_factory):
    made = opened(tmp_path_factory.mktemp("words") / "run", text_config("data.test=6"))
    yield made
    made.close()


def test_finds_what_a_query_finds(service):
    embedder = service.embedder
    for among in ("both", "audio", "visual"):
        hits = service.search_in_words("a red ring", among)
        expected = service.index.search(Query(embedder.text("a red ring"), "text", embedder.digest), k=12, among=among)
        assert [hit.clip.id for hit in hits] == [hit.clip.id for hit in expected]
        assert len(hits) == 6


@pytest.mark.parametrize("value", ["x" * (LONGEST + 1), None, 3, {"path": "/etc/passwd"}, ["a"]])
def test_what_is_no_query(value):
    with pytest.raises(EquiAVError, match="A query is text"):
        checked_words(value)
    assert checked_words("東京 🐕") == "東京 🐕"


def handlers(page):
    return {fn.api_name: fn for fn in page.fns.values()}


def test_the_tab(service, tmp_path):
    page = build_page(service, NO_EXAMPLES, tmp_path)
    search = handlers(page)["search_by_words"].fn
    assert search("a ring", "Sound").count("<article") == search("a ring", None).count("<article")
    assert "scene-" in search("a ring", "Picture")
    assert "press Enter" in search("  ", "Sound")
    with pytest.raises(Exception, match="no words to embed"):
        search("\0", "Sound")


def test_no_tab_without_text(tmp_path):
    service = opened(tmp_path / "run", small_config("data.test=2"))
    assert not service.takes_text
    assert "search_by_words" not in handlers(build_page(service, NO_EXAMPLES, tmp_path))
    service.close()
