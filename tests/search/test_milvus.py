"""Milvus as a store, where it differs from a folder: what a cut leaves behind, and errors of the client."""

import json
from typing import ClassVar

import numpy as np
import pytest

from equiav.errors import DataError
from equiav.search import ABOUT, SIDES, Index, MilvusStore, milvus, parse_filters
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
        assert known[5 * file].clip.id not in there or windows <= there.keys()
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


def test_a_collection_that_is_not_in_memory_is_loaded(address):
    """As every other process finds a file of milvus-lite, and any after a restart of the server."""
    store = MilvusStore(address, WIDTH, "digest", create=SIDES)
    (entry,) = entries(1)
    store.add([entry])
    store.client.release_collection(store.name)
    store.close()
    again = MilvusStore(address, WIDTH, "digest")
    assert again.search(entry.vectors["audio"], "audio", 1, [])[0][0] == entry.clip
    again.close()


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


class Server:
    """Stands in for the client: remembers where it was sent and with which token, then says that nobody answers."""

    asked: ClassVar[list[tuple[str, str]]] = []

    def __init__(self, uri, token=""):
        Server.asked.append((uri, token))
        raise ValueError("refused")


@pytest.fixture
def connections(tmp_path, monkeypatch):
    """Connections that were tried, each as (address, token), by a user whose configuration is empty."""
    monkeypatch.setattr("pymilvus.MilvusClient", Server)
    monkeypatch.setattr(Server, "asked", [])
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setenv("MILVUS_TOKEN", "user:secret")
    return Server.asked


def foreign(folder, store):
    """An index folder that somebody else made."""
    folder.mkdir(exist_ok=True)
    about = {"format": 2, "digest": "d", "width": WIDTH, "store": store, "model": None}
    (folder / "index.json").write_text(json.dumps(about))
    return folder


def test_an_index_folder_does_not_choose_who_gets_the_token(tmp_path, connections):
    folder = foreign(tmp_path / "index", "milvus://host:19530/clips")
    for _ in range(2):
        with pytest.raises(DataError, match=r"https://host:19530, which you have not named yet.*--store milvus://host"):
            Index.open(folder)
    assert connections == []
    with pytest.raises(DataError, match=r"no Milvus answers there; one without TLS is milvus\+http://"):
        Index.open(folder, store="milvus://host/clips")
    with pytest.raises(DataError, match="no Milvus answers"):
        Index.open(folder)  # named before
    assert connections == 2 * [("https://host:19530", "user:secret")]
    assert [path.name for path in folder.iterdir()] == ["index.json"]  # remembered elsewhere
    for other in ("milvus://host:19531/clips", "milvus+http://host/clips", "milvus://localhost/clips"):
        with pytest.raises(DataError, match="have not named yet"):
            Index.open(foreign(tmp_path / "other", other))
    with pytest.raises(DataError, match="keeps its vectors in milvus://host:19530/clips, not in milvus://host/more"):
        Index.open(folder, store="milvus://host/more")
    assert len(connections) == 2


def test_plain_text_is_for_this_machine_and_servers_named_so(tmp_path, connections, monkeypatch):
    folder = foreign(tmp_path / "index", "milvus://host:19530/clips")
    for _ in range(2):
        with pytest.raises(DataError, match="no Milvus answers"):
            Index.open(folder, store="milvus+http://host:19530/clips")
    with pytest.raises(DataError, match="no Milvus answers"):
        Index.open(folder)
    monkeypatch.delenv("MILVUS_TOKEN")
    addresses = ("milvus://127.0.0.1/x", "milvus://localhost/x", "milvus://[::1]:7/x", "milvus://10.0.0.1/x")
    for address in addresses:
        with pytest.raises(DataError, match="no Milvus answers"):
            Index.open(foreign(tmp_path / "other", address))
    with pytest.raises(DataError, match="have not named yet"):
        Index.open(foreign(tmp_path / "other", "milvus+http://10.0.0.1/x"))
    plain = [f"http://{place}" for place in ("127.0.0.1:19530", "localhost:19530", "[::1]:7")]
    assert connections == 3 * [("http://host:19530", "user:secret")] + [
        (uri, "") for uri in (*plain, "https://10.0.0.1:19530")
    ]


def test_a_configuration_that_cannot_be_read_or_written(tmp_path, connections, caplog):
    (tmp_path / "config").write_text("a file")
    folder = foreign(tmp_path / "index", "milvus://host:19530/clips")
    with pytest.raises(DataError, match="no Milvus answers"):
        Index.open(folder, store="milvus://host:19530/clips")
    assert connections == [("https://host:19530", "user:secret")]
    assert "must be named again" in caplog.text
