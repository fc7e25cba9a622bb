"""Milvus as a store, where it differs from a folder: what a cut leaves behind, and errors of the client."""

import numpy as np
import pytest

from equiav.errors import DataError
from equiav.search import ABOUT, SIDES, MilvusStore, milvus, parse_filters
from tests.search.making import WIDTH, entries

pytest.importorskip("milvus_lite", reason="milvus-lite is not installed")


@pytest.fixture
def address(tmp_path):
    return str(tmp_path / "vectors.db")


def test_a_cut_leaves_no_file_that_seems_complete(address, monkeypatch):
    """A file is known by its first window; that one must not be there before the others."""
    monkeypatch.setattr(milvus, "AT_ONCE", 4)
    store = MilvusStore(address, WIDTH, "digest", create=SIDES)
    upsert, calls = store.client._inner.upsert, []

    def cut(*given, **named):
        calls.append(given)
        if len(calls) == 3:
            raise ConnectionError("the line is dead\nand more")
        return upsert(*given, **named)

    monkeypatch.setattr(store.client._inner, "upsert", cut)
    known = entries(20)  # four files of five windows
    with pytest.raises(DataError, match=r"vectors.db: Milvus cannot upsert \(the line is dead\)$"):
        store.add(known)
    there = store.known([e.clip.id for e in known])
    assert len(there) == 8
    for file in range(4):
        windows = {e.clip.id for e in known[5 * file : 5 * file + 5]}
        assert known[5 * file].clip.id not in there or windows <= there
    store.add([e for e in known if e.clip.id not in there])
    assert len(store) == 20
    store.close()


def test_a_making_that_was_cut_short_is_made_again(address):
    store = MilvusStore(address, WIDTH, "digest", create=SIDES)
    store.client.delete(store.name, ids=[ABOUT])
    store.close()
    with pytest.raises(DataError, match="another checkpoint"):
        MilvusStore(address, WIDTH, "digest")
    again = MilvusStore(address, WIDTH, "digest", create=SIDES)
    assert len(again) == 0
    again.add(entries(3))
    again.client.delete(again.name, ids=[ABOUT])
    again.close()
    with pytest.raises(DataError, match="another checkpoint"):  # not empty: never dropped
        MilvusStore(address, WIDTH, "digest", create=SIDES)


def test_rows_of_the_first_format_are_read(address):
    """They said where a clip ends in place of how long it is."""
    store = MilvusStore(address, WIDTH, "digest", create=SIDES)
    (entry,) = entries(1, first=3)
    row = store._row(entry)
    path = "/media/folder/0.mp4"
    about = {"id": "clip-3", "source": "folder/0.mp4", "path": path, "start": 30.0, "end": 40.0, "labels": ["cat"]}
    store.client.upsert(store.name, [{**row, "entry": {**about, "metadata": {"city": "Bonn", "year": 2000}}}])
    assert store.get("clip-3").clip == entry.clip
    filters = parse_filters(["seconds=10", "end<=40", "city=Bonn", "label=c*"])
    assert store.search(entry.vectors["audio"], "audio", 1, filters)[0][0] == entry.clip
    store.close()


def test_errors_of_the_client_are_one_line(address):
    store = MilvusStore(address, WIDTH, "digest", create=SIDES)
    store.add(entries(3))
    store.client.drop_collection(store.name)
    for ask in (
        lambda: len(store),
        lambda: store.known(["clip-0"]),
        lambda: store.get("clip-0"),
        lambda: list(store.clips()),
        lambda: store.search(np.zeros(WIDTH, np.float32), "audio", 1, ()),
    ):
        with pytest.raises(DataError, match=r"vectors\.db: Milvus cannot") as caught:
            ask()
        assert "\n" not in str(caught.value)
    store.close()
