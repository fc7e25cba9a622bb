"""Indexes of the first format are converted on opening: all is found as before, also where nothing may be written."""

import logging
import os
import tempfile
import threading
import time
from pathlib import Path

import numpy as np
import pytest

import equiav
from equiav.errors import DataError
from equiav.io import locked
from equiav.search import Filter, LocalStore, Query, database
from tests.search.format1 import ODD, OLD_FILES, expected, unpack
from tests.search.making import WIDTH, entries, nearest, unit


@pytest.fixture
def folder(tmp_path):
    return unpack(tmp_path / "index")


def looked_through(index):
    """All that the fixture holds is there, with its vectors, and found by vectors and filters."""
    known = expected()
    assert len(index) == len(known)
    assert {clip.id: clip for clip in index.clips()} == {id: entry.clip for id, entry in known.items()}
    for id, entry in known.items():
        assert index.entry(id).vectors.keys() == entry.vectors.keys()
        for side, vector in entry.vectors.items():
            np.testing.assert_array_equal(index.entry(id).vectors[side], vector)
    for side in ("audio", "visual"):
        query = Query(unit(5, 1)[0], None, index.digest)
        found = [hit.clip.id for hit in index.search(query, k=20, among=side)]
        assert found == nearest(list(known.values()), query.vector, side, 20)
    wild = [("source", "=", ODD.replace("*", "[*]")), ("source", "=", "*\udcff?d*"), ("source", "!=", "folder/*")]
    more = [
        ("tags", "=", "true"),
        ("tags", ">=", "2.5"),
        ("city", "!=", "*"),
        ("gain", "<=", "3"),
        ("start", "=", "20"),
    ]
    for one in [
        Filter(*parts) for parts in (*wild, *more, ("path", "=", "/media/folder/1?.mp4"), ("id", "=", "clip-?"))
    ]:
        hits = index.search(Query(unit(5, 1)[0], None, index.digest), k=200, filters=[one])
        meeting = {id for id, entry in known.items() if one.accepts(entry.clip)}
        assert {hit.clip.id for hit in hits} == meeting, one
        assert 0 < len(meeting) < len(known)


def test_it_opens_with_everything(folder):
    said = []
    index = equiav.Index.open(folder, progress=said.append)
    assert said == [f"{folder}: converting its entries to this version's format"]
    looked_through(index)
    assert index.store.state.parts["visual"].file == "visual-000001.faiss"
    assert not [name for name in OLD_FILES if (folder / name).exists()]
    assert not list(folder.glob("removed-*"))
    index.add(entries(3, first=900), made_by=index.digest)
    assert index.remove([f"clip-{i}" for i in (900, 901, 902)]) == 3
    index.close()
    again = equiav.Index.open(folder, progress=said.append)
    assert len(said) == 1
    looked_through(again)


def test_compressed_vectors_stay_in_use(folder, monkeypatch):
    monkeypatch.setattr("equiav.search.store.FEW", 10)
    store = LocalStore(folder, WIDTH, probes=1, candidates=0)
    vector = unit(5, 1)[0]
    found = [clip.id for clip, _ in store.search(vector, "audio", 20, ())]
    assert found != nearest(list(expected().values()), vector, "audio", 20)  # one list was looked into


def test_who_comes_while_another_converts_waits(folder):
    began, held = time.monotonic(), threading.Event()

    def hold():
        with locked(folder):
            held.set()
            time.sleep(0.4)

    threading.Thread(target=hold).start()
    held.wait()
    assert len(LocalStore(folder, WIDTH)) == len(expected())
    assert time.monotonic() - began > 0.4


@pytest.mark.parametrize("name", ["state.json", "entries.jsonl", "entries.ends", "removed-000005.i64"])
def test_damage_is_named_and_nothing_is_removed(folder, name):
    path = folder / name
    path.write_bytes(path.read_bytes()[:-7])
    before = {file.name: file.read_bytes() for file in folder.iterdir() if file.is_file()}
    with pytest.raises(DataError, match=f"{name}.*make the index again"):
        LocalStore(folder, WIDTH)
    after = {file.name: file.read_bytes() for file in folder.iterdir() if file.is_file()}
    assert before.items() <= after.items()
    assert not (folder / "entries.db").exists()


def as_nobody(work):
    """Runs it in a child that may write nowhere here; what it returns, or the error it raised, as text."""
    read, write = os.pipe()
    child = os.fork()
    if not child:
        try:
            os.setgid(65534)
            os.setuid(65534)
            answer = str(work())
        except BaseException as error:
            answer = f"{type(error).__name__}: {error}"
        os.write(write, answer.encode())
        os._exit(0)
    os.close(write)
    with os.fdopen(read) as pipe:
        answer = pipe.read()
    os.waitpid(child, 0)
    return answer


@pytest.fixture
def readable():
    """The index where everybody may read it: pytest's own folders are closed to others."""
    with tempfile.TemporaryDirectory() as place:
        Path(place).chmod(0o755)
        yield unpack(Path(place) / "index")


def open_to_reading(folder):
    for file in (folder, *folder.rglob("*")):
        file.chmod(0o755 if file.is_dir() else 0o644)


@pytest.mark.process
@pytest.mark.skipif(os.getuid() != 0, reason="needs a user who may become another")
def test_a_folder_that_cannot_be_written(readable, caplog):
    """It is searched all the same, as it is and once it was converted; adding is refused in one line."""
    folder = readable
    open_to_reading(folder)
    before = {file.name: file.read_bytes() for file in folder.iterdir()}
    equiav.Index.open  # noqa: B018  imported here: the child cannot read everything

    def search():
        with caplog.at_level(logging.WARNING):
            looked_through(equiav.Index.open(folder))
        return [record.getMessage() for record in caplog.records]

    def add():
        index = equiav.Index.open(folder)
        index.add(entries(1, first=500), made_by=index.digest)

    told = f"{folder} is of an earlier format and read-only: it is converted for this process alone"
    assert as_nobody(search) == str([told])
    assert as_nobody(add).startswith(f"EquiAVError: {folder}: cannot be written")
    assert {file.name: file.read_bytes() for file in folder.iterdir()} == before
    index = equiav.Index.open(folder)
    index.remove([entries(1, first=500)[0].clip.id])
    index.add(entries(1, first=500), made_by=index.digest)
    index.remove(["clip-500"])
    index.close()
    open_to_reading(folder)
    before = {file.name: file.read_bytes() for file in folder.iterdir()}
    assert as_nobody(search) == "[]"
    assert as_nobody(add).startswith(f"EquiAVError: {folder}: cannot be written")
    assert {file.name: file.read_bytes() for file in folder.iterdir()} == before


@pytest.mark.process
@pytest.mark.skipif(os.getuid() != 0, reason="needs a user who may become another")
def test_a_change_cut_short_in_a_folder_that_cannot_be_written(readable):
    """The database cannot be brought back to the state before it there: one line says what to do."""
    folder = readable
    store = LocalStore(folder, WIDTH)
    journal = folder / "entries.db-journal"
    child = os.fork()
    if not child:
        sql = database.connect(folder)
        for line in ("PRAGMA cache_size = 1", "BEGIN", "UPDATE entries SET clip = clip || ' '"):
            sql.execute(line)
        os._exit(0)  # pages have been written, and the journal is hot
    os.waitpid(child, 0)
    store.close()
    assert journal.stat().st_size
    open_to_reading(folder)
    answer = as_nobody(lambda: len(LocalStore(folder, WIDTH)))
    assert answer == f"EquiAVError: {folder}: a change was cut short; open it once where it can be written"
    looked_through(equiav.Index.open(folder))
