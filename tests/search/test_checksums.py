"""Damage on the disk: never a wrong answer without a word, never a traceback; and what verify_index says of it."""

import json
import logging
import shutil
import sys
from pathlib import Path

import numpy as np
import pytest

import equiav
from equiav.errors import EquiAVError
from equiav.search import Entry, LocalStore, Query, store, verify_index
from equiav.types import Clip
from tests.inference.models import random_model
from tests.search.format1 import as_second_format, unpack
from tests.search.making import WIDTH, entries, unit

DIGEST = random_model().digest
FLIPS = 200


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A small index with all that one may hold: two modalities, removed entries, compressed vectors, thumbnails."""
    index = equiav.Index.create(tmp_path_factory.mktemp("whole") / "index", random_model())
    index.store.limit = 40
    picture = np.random.default_rng(0).integers(0, 255, (24, 32, 3), np.uint8)
    added = [Entry(e.clip, e.vectors, picture if i % 10 == 0 else None) for i, e in enumerate(entries(60))]
    index.add(added, made_by=DIGEST)
    index.remove(["clip-7", "clip-31"])
    index.add(entries(5, first=60, seed=3), made_by=DIGEST)
    index.close()
    return index.folder


def answers(folder):
    """All that an index can be asked, and what it says meanwhile."""
    index = equiav.Index.open(folder)
    query = Query(unit(5, 1)[0], None, DIGEST)
    found = [
        [(hit.clip, hit.score, hit.side, hit.thumbnail and hit.thumbnail.read_bytes()) for hit in hits]
        for filters in ((), ("label=dog",), ("year>=2030", "city!=Bonn"), ("source=folder/1*",), ("start=20",))
        for hits in [index.search(query, k=70, filters=filters)]
    ]
    shown = [vars(index.entry(clip.id)) for clip in index.clips()]
    ids = index.store.known([f"clip-{i}" for i in range(70)])
    vectors = [index.vectors(side) for side in ("audio", "visual")]
    index.close()
    return json.dumps([found, shown, sorted(ids), vectors, index.about], default=str)


def outcome(folder):
    """The answers, or the error that took their place; and what verify_index finds."""
    try:
        found, error = answers(folder), None
    except EquiAVError as refused:
        found, error = "", str(refused)
    return found, error, verify_index(folder)


def test_flipped_bits(whole, tmp_path, caplog, monkeypatch):
    """Over all files: an error of one line, a warning, or the right answer where the bit was of a removed entry."""
    monkeypatch.setattr(store, "FEW", 10)  # the compressed index is used
    folder, rng = tmp_path / "index", np.random.default_rng(1)
    shutil.copytree(whole, folder)
    truth = answers(folder)
    files = [path for path in sorted(folder.rglob("*")) if path.is_file() and path.name != ".lock"]
    files = [path for path in files if path.stat().st_size]
    kinds = {".db", ".sha256", ".vectors", ".owners", ".sums", ".faiss", ".jpg", ".json"}
    assert {path.suffix for path in files} == kinds
    refused = warned = harmless = 0
    for number in range(FLIPS):
        path = files[number % len(files)]
        content = path.read_bytes()
        place = int(rng.integers(8 * len(content)))
        flipped = bytearray(content)
        flipped[place // 8] ^= 1 << place % 8
        path.write_bytes(flipped)
        caplog.clear()
        with caplog.at_level(logging.WARNING):
            found, error, problems = outcome(folder)
        if error is not None:
            assert "damaged" in error or "cannot be read" in error
            refused += 1
        elif caplog.records:
            warned += 1
        else:
            assert found == truth, (path, place)
            harmless += 1
        assert bool(problems) == (error is not None or bool(caplog.records))
        assert not [line for line in (error or "", *problems) if "\n" in line]
        path.write_bytes(content)
    assert refused > FLIPS / 3
    assert warned > FLIPS / 4
    assert harmless < FLIPS / 50
    assert outcome(folder) == (truth, None, [])


@pytest.mark.parametrize("wrong", [b"TABL\x95", b"TAB\n\n"])
def test_what_the_database_quotes_is_one_line(whole, tmp_path, wrong):
    """It names what it could not parse, whatever bytes that are."""
    folder = tmp_path / "index"
    shutil.copytree(whole, folder)
    content = (folder / "entries.db").read_bytes()
    assert content.count(b"CREATE TABLE state") == 1
    (folder / "entries.db").write_bytes(content.replace(b"CREATE TABLE state", b"CREATE " + wrong + b" state"))
    with pytest.raises(EquiAVError, match=r"entries\.db cannot be read") as refused:
        equiav.Index.open(folder)
    assert "\n" not in str(refused.value)
    assert all("\n" not in line for line in verify_index(folder))


def test_what_is_whole_has_no_problems(whole, tmp_path):
    said = []
    assert verify_index(whole, said.append) == []
    assert sum("vectors compared with their checksums" in line for line in said) == 2
    (problem,) = verify_index(tmp_path / "nothing")
    assert "is no index" in problem


def test_a_damaged_vector_can_be_removed(whole, tmp_path):
    """Only what rests on it is refused; without its entry the index is whole again."""
    folder = tmp_path / "index"
    shutil.copytree(whole, folder)
    path = folder / "visual.vectors"
    content = bytearray(path.read_bytes())
    content[4 * WIDTH * 3 + 1] ^= 8
    path.write_bytes(content)
    index = equiav.Index.open(folder)
    with pytest.raises(EquiAVError, match=r"the visual vector of clip-3 is damaged; remove its file .*--remove-source"):
        index.search(Query(unit(5, 1)[0], "audio", DIGEST))
    assert index.search(Query(unit(5, 1)[0], "visual", DIGEST))
    assert index.entry("clip-4")
    assert verify_index(folder)[0].startswith("the visual vector of clip-3 is damaged; remove it")
    index.remove(["clip-3"])
    assert index.search(Query(unit(5, 1)[0], "audio", DIGEST))
    index.close()
    assert verify_index(folder) == []


@pytest.mark.parametrize("version", [1, 2])
def test_an_earlier_format_gets_checksums(whole, tmp_path, version):
    folder = tmp_path / "index"
    if version == 1:
        unpack(folder)
    else:
        shutil.copytree(whole, folder)
        as_second_format(folder)
    assert not (folder / "entries.sha256").exists()
    index = equiav.Index.open(folder)
    assert index.about["format"] == 3
    index.add(entries(3, first=900), made_by=index.digest)
    index.close()
    assert "checksum" in json.loads((folder / "index.json").read_text())
    assert verify_index(folder) == []
    if version == 2:
        index = equiav.Index.open(folder)
        index.remove([f"clip-{i}" for i in (900, 901, 902)])
        index.close()
        assert json.loads(answers(folder).replace(str(folder), str(whole)))[1:4] == json.loads(answers(whole))[1:4]
    content = bytearray((folder / "audio.owners").read_bytes())
    content[9] ^= 1
    (folder / "audio.owners").write_bytes(content)
    assert "audio.owners is damaged" in verify_index(folder)[0]


def test_a_thumbnail_is_compared_once(whole, tmp_path, monkeypatch, caplog):
    """And again once its file is another; also by whoever opens the index anew."""
    folder, read = tmp_path / "index", []
    shutil.copytree(whole, folder)
    intact = sys.modules["equiav.search.index"].intact
    monkeypatch.setattr("equiav.search.index.intact", lambda content: read.append(content) or intact(content))
    query = Query(unit(5, 1)[0], None, DIGEST)
    index = equiav.Index.open(folder)
    shown = [hit.thumbnail for hit in index.search(query, k=70) if hit.thumbnail]
    assert [hit.thumbnail for hit in index.search(query, k=70) if hit.thumbnail] == shown
    assert len(read) == len(shown) == 6
    content = shown[0].read_bytes()
    shown[0].write_bytes(content[:50] + bytes([content[50] ^ 1]) + content[51:])
    assert [hit.thumbnail for hit in index.search(query, k=70) if hit.thumbnail] == shown[1:]
    assert f"{shown[0]} is damaged and not shown" in caplog.text
    assert len(read) == 7
    equiav.Index.open(folder).search(query, k=70)
    assert len(read) == 13


def test_vectors_of_odd_length_have_checksums(tmp_path):
    LocalStore.create(tmp_path)
    kept = LocalStore(tmp_path, 5)
    vectors = unit(0, 3, 5)
    kept.add([Entry(Clip(f"c{i}"), {"depth": vector}) for i, vector in enumerate(vectors)])
    assert kept.verify(lambda line: None) == []
    content = bytearray((tmp_path / "depth.vectors").read_bytes())
    content[-1] ^= 128
    (tmp_path / "depth.vectors").write_bytes(content)
    assert LocalStore(tmp_path, 5).verify(lambda line: None)[0].startswith("the depth vector of c2 is damaged")


def test_adding_reads_no_old_vectors(tmp_path, monkeypatch):
    """An addition costs what it adds: checksums of vectors that are there are not made again."""
    LocalStore.create(tmp_path)
    kept = LocalStore(tmp_path, WIDTH)
    kept.add(entries(50))
    made = []
    original = store.files.row_sums
    monkeypatch.setattr(store.files, "row_sums", lambda vectors: made.append(len(vectors)) or original(vectors))
    kept.add(entries(2, first=50))
    assert sum(made) <= 4
    assert Path(tmp_path / "visual.sums").stat().st_size == 8 * kept.state.parts["visual"].owners.size
