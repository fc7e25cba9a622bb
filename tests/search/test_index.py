"""Index: what goes in is found, filtered, removed, remembered; in a local folder and in Milvus alike."""

import json
import random
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import equiav
from equiav.errors import DataError
from equiav.search import Entry, Filter, Query, parse_filters
from equiav.types import Clip
from tests.inference.models import random_model
from tests.search.making import entries, nearest, unit

DIGEST = random_model().digest


@pytest.fixture(params=["local", "milvus-lite"])
def index(request, tmp_path):
    """An index of 100 entries."""
    store = None
    if request.param == "milvus-lite":
        pytest.importorskip("milvus_lite", reason="milvus-lite is not installed")
        store = str(tmp_path / "vectors.db")
    made = equiav.Index.create(tmp_path / "index", random_model(), store=store)
    assert made.add(entries(100), made_by=DIGEST) == 100
    yield made
    made.close()


def asked(seed=5, kind="audio"):
    return Query(unit(seed, 1)[0], {"image": "visual", "video": None}.get(kind, kind), DIGEST)


@pytest.mark.parametrize("side", ["audio", "visual"])
def test_the_nearest_are_found(index, side):
    hits = index.search(asked(), k=7, among=side)
    assert [hit.clip.id for hit in hits] == nearest(entries(100), asked().vector, side, 7)
    assert all(hit.side == side for hit in hits)
    known = {e.clip.id: e for e in entries(100)}
    for hit in hits:
        entry = known[hit.clip.id]
        assert hit.score == pytest.approx(float(entry.vectors[side] @ asked().vector), abs=1e-5)
        assert hit.clip == entry.clip


def test_sounds_find_pictures_and_pictures_sounds(index):
    assert {hit.side for hit in index.search(asked(kind="audio"))} == {"visual"}
    assert {hit.side for hit in index.search(asked(kind="image"))} == {"audio"}
    both = index.search(asked(kind="video"), k=40)
    assert {hit.side for hit in both} == {"audio", "visual"}
    assert len({hit.clip.id for hit in both}) == 40
    best = max(float(v @ asked().vector) for e in entries(100) for v in e.vectors.values())
    assert both[0].score == pytest.approx(best, abs=1e-5)


def test_like_an_entry_never_finds_itself(index):
    query = index.like("clip-3")
    entry = entries(100)[3]
    assert query.vector @ entry.vectors["audio"] == pytest.approx(query.vector @ entry.vectors["visual"], abs=1e-5)
    found = index.search(query, k=99)
    assert len(found) == 99
    assert "clip-3" not in {hit.clip.id for hit in found}
    with pytest.raises(DataError, match="holds no clip called 'clip-x'"):
        index.like("clip-x")


FILTERS = [
    (["label=dog"], lambda i: i % 2 == 1),
    (["label!=dog"], lambda i: i % 2 == 0),
    (["labels=loud", "city=Bonn"], lambda i: False),
    (["label=cat", "city=Köln"], lambda i: i % 4 == 2),
    (["source=folder/3.mp4"], lambda i: i // 5 == 3),
    (["path=*/1?.mp4"], lambda i: 10 <= i // 5 < 20),
    (["start>=40"], lambda i: i % 5 == 4),
    (["start>=10", "end<=30"], lambda i: i % 5 in (1, 2)),
    (["year>=2090"], lambda i: i >= 90),
    (["year=2042"], lambda i: i == 42),
    (["seconds<=5"], lambda i: False),
    (["start=20"], lambda i: i % 5 == 2),
    (["start!=20"], lambda i: i % 5 != 2),
    (["end=50.0"], lambda i: i % 5 == 4),
    (["seconds=10"], lambda i: True),
    (["nothing=here"], lambda i: False),
]


def test_filters(index):
    for filters, accepts in FILTERS:
        hits = index.search(asked(kind="video"), k=100, filters=filters)
        assert {hit.clip.id for hit in hits} == {f"clip-{i}" for i in range(100) if accepts(i)}, filters


def test_names_with_brackets_are_found_by_their_names(index):
    odd, other = (replace(e, clip=replace(e.clip, path=None)) for e in entries(2, first=100))
    odd = replace(odd, clip=replace(odd.clip, source="[2019] what?.mp4"))
    other = replace(other, clip=replace(other.clip, source="2 what?.mp4"))
    index.add([odd, other], made_by=DIGEST)
    hits = index.search(asked(kind="video"), filters=["source=[2019] what?.mp4"])
    assert {hit.clip.id for hit in hits} == {"clip-100", "clip-101"}, "by its name, and by the pattern"
    assert index.remove(sources=["[2019] what?.mp4"]) == 1
    assert "clip-101" in index, "what is called so is removed, not what a pattern stands for as well"


def test_entries_of_a_file(index):
    assert {clip.id for clip in index.store.of_file("/media/folder/3.mp4")} == {f"clip-{i}" for i in range(15, 20)}
    index.remove(["clip-15", "clip-17"])
    assert {clip.id for clip in index.store.of_file("/media/folder/3.mp4")} == {"clip-16", "clip-18", "clip-19"}
    assert index.store.of_file("/media/folder/none.mp4") == []


def odd_clip(rng, number):
    """A clip with values that are easily taken for something else."""
    texts = [
        "dog",
        "Dog",
        "d*g",
        "a[b]c",
        "",
        " 7",
        "7",
        "07",
        "7.0",
        "1e1",
        "nan",
        "inf",
        "ä\udcff",
        "a\x00b",
        "'; --",
        "%",
    ]
    values = [*texts, 7, 7.0, -2, True, False, None, ["7", 8, None], [], float("nan"), float("inf"), {"a": 1}]
    return Clip(
        f"{rng.choice(texts)}{number}",
        source=rng.choice(texts),
        path=None if rng.random() < 0.3 else Path(f"/a/{rng.choice(texts[:6])}"),
        start=rng.randrange(4) + rng.choice([0.0, 0.0004, 0.0006]),
        seconds=rng.choice([None, 0.0, 1.0, 2.5]),
        labels=tuple(rng.choices(texts, k=rng.randrange(3))),
        split=rng.choice([None, "train"]),
        fold=rng.choice([None, 0, 7]),
        metadata={rng.choice(["x", "y", "split", "start"]): rng.choice(values) for _ in range(2)},
    )


def test_filters_are_what_they_say_of_each_clip(tmp_path):
    """The database finds the clips that `Filter.accepts`, and no others."""
    rng = random.Random(0)
    clips = [odd_clip(rng, number) for number in range(80)]
    index = equiav.Index.create(tmp_path / "index", random_model())
    vectors = unit(0, 80)
    index.add([Entry(c, {"visual": v}) for c, v in zip(clips[:50], vectors, strict=False)], made_by=DIGEST)
    index.add([Entry(c, {"visual": v}) for c, v in zip(clips[50:], vectors, strict=False)], made_by=DIGEST)
    read = {clip.id: clip for clip in index.clips()}
    some = [clip.id for clip in clips]
    keys = ["label", "source", "path", "id", "split", "fold", "x", "y", "start", "end", "seconds", "none", "x' OR 1"]
    wild = ["*", "?", "7*", "d*g", "[dD]og", "[!d]*", "a[[]b]c", "*\udcff", "a?b"]
    texts = ["dog", "", "7", "7.0", "8", "true", "train", "'; --", "%", "None", "nan", *wild, *some[:5]]
    numbers = ["7", "1", "1.0005", "2.5", "-inf", "inf", "nan", "1e1"]
    asked, met = [], 0
    for key in keys:
        for operator in ("=", "!=", ">=", "<="):
            wanted = numbers if operator in (">=", "<=") or key in ("start", "end", "seconds") else texts
            asked += [Filter(key, operator, value) for value in wanted]
    for one in rng.sample(asked, 300):
        found = index.search(asked_all(), k=80, filters=[one])
        accepted = {id for id, clip in read.items() if one.accepts(clip)}
        assert {hit.clip.id for hit in found} == accepted, one
        met += 0 < len(accepted) < len(read)
    assert met > 50


def asked_all():
    return Query(unit(5, 1)[0], None, DIGEST)


@pytest.mark.parametrize("text", ["label", "=dog", "start>=soon", "start=soon", "label~dog"])
def test_filters_that_are_none(text):
    with pytest.raises(DataError, match=r"is no filter|not a number"):
        parse_filters([text])


def test_adding_leaves_known_ids_alone(index):
    assert index.add(entries(10, seed=3, first=95), made_by=DIGEST) == 5
    assert len(index) == 105
    np.testing.assert_allclose(index.entry("clip-96").vectors["audio"], entries(100)[96].vectors["audio"], atol=1e-6)
    assert index.add(entries(10, seed=3, first=95), made_by=DIGEST) == 0


def test_removing(index):
    gone = [hit.clip.id for hit in index.search(asked(), k=3)]
    assert index.remove(gone) == 3
    assert index.remove(gone) == 0
    assert len(index) == 97
    assert gone[0] not in index
    left = [e for e in entries(100) if e.clip.id not in gone]
    assert [hit.clip.id for hit in index.search(asked(), k=5)] == nearest(left, asked().vector, "visual", 5)
    assert index.remove(sources=["folder/1?.mp4", "/media/folder/2.mp4"]) == 55 - sum(
        10 <= int(id[5:]) // 5 < 20 or int(id[5:]) // 5 == 2 for id in gone
    )
    assert not index.search(asked(), filters=["source=folder/12.mp4"])
    # What was removed may come back, as something new.
    again = [e for e in entries(100, seed=9) if e.clip.id in gone]
    assert index.add(again, made_by=DIGEST) == 3
    for entry in again:
        np.testing.assert_allclose(index.entry(entry.clip.id).vectors["visual"], entry.vectors["visual"], atol=1e-6)


def test_opened_again_it_is_the_same(index):
    index.remove(["clip-7"])
    index.close()
    again = equiav.Index.open(index.folder)
    assert len(again) == 99
    left = [e for e in entries(100) if e.clip.id != "clip-7"]
    assert [hit.clip.id for hit in again.search(asked(), k=9)] == nearest(left, asked().vector, "visual", 9)
    assert {e.id for e in again.clips()} == {f"clip-{i}" for i in range(100)} - {"clip-7"}
    ids, vectors = again.vectors("audio")
    known = {e.clip.id: e.vectors["audio"] for e in entries(100) if "audio" in e.vectors and e.clip.id != "clip-7"}
    assert set(ids) == set(known)
    np.testing.assert_allclose(vectors, [known[id] for id in ids], atol=1e-6)
    again.close()


def test_vectors_of_another_checkpoint_are_refused(index):
    other = random_model(seed=1).digest
    with pytest.raises(DataError, match=f"made by checkpoint {DIGEST[:12]}, these vectors by {other[:12]}"):
        index.add(entries(1, first=500), made_by=other)
    with pytest.raises(DataError, match="use that checkpoint"):
        index.search(Query(unit(0, 1)[0], "audio", other))
    if index.about["store"] is not None:
        with pytest.raises(DataError, match="holds vectors of another checkpoint"):
            equiav.Index.create(index.folder.parent / "second", random_model(seed=1), store=index.about["store"])


def test_entries_that_make_no_sense(index):
    good = unit(0, 1)[0]
    for vectors in ({}, {"audio": good * 2}, {"audio": good[:5]}, {"visual": np.full(16, np.nan, np.float32)}):
        with pytest.raises(DataError, match="bad"):
            index.add([Entry(Clip("bad"), vectors)], made_by=DIGEST)
    for k in (0, 10_001):
        with pytest.raises(DataError, match="results: ask for 1 to"):
            index.search(asked(), k=k)


@pytest.mark.process
def test_other_processes_can_be_started_beside_it(index):
    """A connection to Milvus must not kill what its process forks."""
    for _ in range(5):
        child = subprocess.run([sys.executable, "-c", "print(7)"], preexec_fn=lambda: None, capture_output=True)
        assert (child.returncode, child.stdout) == (0, b"7\n")


@pytest.mark.parametrize("store", ["local", "milvus-lite"])
def test_a_third_modality(tmp_path, store):
    """Any name is a modality: a query of one is looked for among all the others."""
    if store == "milvus-lite":
        pytest.importorskip("milvus_lite", reason="milvus-lite is not installed")
    sides = ("audio", "text", "visual")
    place = None if store == "local" else str(tmp_path / "vectors.db")
    index = equiav.Index.create(tmp_path / "index", random_model(), store=place, sides=sides)
    vectors = {side: unit(seed, 30) for seed, side in enumerate(sides)}
    added = [
        Entry(Clip(f"c{i}", text=f"caption {i}"), {s: v[i] for s, v in vectors.items() if (i + len(s)) % 4})
        for i in range(30)
    ]
    index.add(added, made_by=DIGEST)
    index.close()
    index = equiav.Index.open(index.folder)
    query = asked()
    assert [hit.clip.id for hit in index.search(query, among="text", k=5)] == nearest(added, query.vector, "text", 5)
    others = {"audio": {"text", "visual"}, "text": {"audio", "visual"}, None: set(sides)}
    for modality, among in others.items():
        hits = index.search(Query(query.vector, modality, DIGEST), k=30)
        assert {hit.side for hit in hits} == among
        for hit in hits:
            entry = next(e for e in added if e.clip == hit.clip)
            scores = {s: float(v @ query.vector) for s, v in entry.vectors.items() if s in among}
            assert hit.side == max(scores, key=scores.get)
            assert hit.score == pytest.approx(scores[hit.side], abs=1e-5)
    assert index.search(query, among="all") == index.search(query, among="both")
    entry = index.entry("c1")
    assert entry.vectors.keys() == added[1].vectors.keys()
    assert set(index.vectors("text")[0]) == {e.clip.id for e in added if "text" in e.vectors}
    (hit,) = index.search(query, filters=["text=caption 7"], among="all")
    assert (hit.clip.id, hit.record()["metadata"]) == ("c7", {"text": "caption 7"})
    with pytest.raises(DataError, match="--among smell: choose audio, text, visual or both"):
        index.search(query, among="smell")
    for name in ("both", "Text", "../up", "a b", ""):
        with pytest.raises(DataError, match="names no modality"):
            index.add([Entry(Clip("new"), {name: unit(0, 1)[0]})], made_by=DIGEST)
    other = [Entry(Clip("new"), {"depth": unit(0, 1)[0]})]
    if store == "local":  # a folder takes any modality later
        assert index.add(other, made_by=DIGEST) == 1
        assert index.search(query, among="depth")[0].clip.id == "new"
    else:
        with pytest.raises(DataError, match="has no field for depth"):
            index.add(other, made_by=DIGEST)
    index.close()


def test_threads_share_an_index(index):
    """Searches with filters in several threads at once, while another adds."""
    known = {e.clip.id: e for e in entries(100)}

    def search(number):
        for i in range(20):
            wanted = f"year={2000 + (7 * number + i) % 100}"
            (hit,) = index.search(asked(kind="video"), filters=[wanted, "source=folder/1?.mp4"], k=3) or [None]
            assert hit is None or hit.clip == known[hit.clip.id].clip

    with ThreadPoolExecutor(5) as pool:
        work = [pool.submit(search, number) for number in range(4)]
        work.append(pool.submit(index.add, entries(20, first=700), made_by=DIGEST))
        for one in work:
            one.result()
    assert len(index) == 120


def test_an_empty_index_finds_nothing(tmp_path):
    index = equiav.Index.create(tmp_path / "index", random_model())
    assert len(index) == 0
    assert index.search(asked(kind="video")) == []
    assert index.search(asked(), filters=["label=dog"]) == []


def test_thumbnails_come_and_go(tmp_path):
    index = equiav.Index.create(tmp_path / "index", random_model())
    picture = np.full((600, 900, 3), 77, np.uint8)
    index.add([Entry(Clip("../a b/ö", "a"), {"visual": unit(0, 1)[0]}, picture)], made_by=DIGEST)
    (hit,) = index.search(asked())
    assert hit.thumbnail.is_file()
    assert index.folder in hit.thumbnail.parents
    index.remove(["../a b/ö"])
    assert not hit.thumbnail.exists()


def test_thumbnails_are_on_the_disk_before_their_entries(tmp_path, monkeypatch):
    """And so are the names of their folders, each asked for once."""
    index = equiav.Index.create(tmp_path / "index", random_model())
    done = []
    monkeypatch.setattr(sys.modules["equiav.search.index"], "sync_paths", done.extend)
    monkeypatch.setattr(index.store, "add", lambda entries: done.append("entries"))
    picture = np.zeros((4, 6, 3), np.uint8)
    index.add([replace(entry, picture=picture) for entry in entries(40)], made_by=DIGEST)
    thumbnails = sorted((index.folder / "thumbnails").rglob("*.jpg"))
    folders = [index.folder, index.folder / "thumbnails", *{place.parent for place in thumbnails}]
    assert len(thumbnails) == 40
    assert sorted(done[:-1]) == sorted([*thumbnails, *folders])
    assert done[-1] == "entries"


def test_entries_are_read_many_at_a_time(tmp_path, monkeypatch):
    """In the order asked for, whatever fits into one statement."""
    index = equiav.Index.create(tmp_path / "index", random_model())
    index.add(entries(100), made_by=DIGEST)
    statements = []
    index.store._sql.set_trace_callback(statements.append)
    index.search(asked(), k=10)
    assert sum("FROM entries" in line for line in statements) == 1
    monkeypatch.setattr(sys.modules["equiav.search.store"], "ASKED", 3)
    assert [hit.clip.id for hit in index.search(asked(), k=10)] == nearest(entries(100), asked().vector, "visual", 10)
    assert list(index.store._column("id", [70, 5, 10**6, 99, 5, 0])) == [70, 5, 99, 0]


def test_places_that_hold_no_index(tmp_path):
    with pytest.raises(DataError, match="is no index; make one with `equiav index"):
        equiav.Index.open(tmp_path / "nowhere")
    made = equiav.Index.create(tmp_path / "index", random_model())
    with pytest.raises(DataError, match="holds an index already"):
        equiav.Index.create(tmp_path / "index", random_model())
    about = json.loads((made.folder / "index.json").read_text())
    del about["checksum"]
    (made.folder / "index.json").write_text(json.dumps({**about, "format": 99}))
    with pytest.raises(DataError, match="another format"):
        equiav.Index.open(made.folder)


@pytest.mark.parametrize("name", ["visual.vectors", "visual.owners", "entries.db"])
def test_damage_is_named(tmp_path, name):
    index = equiav.Index.create(tmp_path / "index", random_model())
    index.add(entries(20), made_by=DIGEST)
    path = index.folder / name
    path.write_bytes(path.read_bytes()[:-7])
    with pytest.raises(DataError, match=f"{name}.*make the index again"):
        equiav.Index.open(index.folder).search(asked())


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("milvus://", "give milvus://host:port/collection"),
        ("http://host/x", "give milvus://host:port/collection"),
        ("milvus://me:secret@host/x", "MILVUS_TOKEN"),
        ("milvus://host/no-dash", "letters, digits and _"),
        ("milvus://host:port/x", "give milvus://host:port/collection"),
        ("milvus://host:99999/x", "give milvus://host:port/collection"),
        ("milvus://host:19530/x.db", "letters, digits and _, not 'x.db'"),
    ],
)
def test_addresses_that_are_none(tmp_path, text, message):
    with pytest.raises(DataError, match=message) as caught:
        equiav.Index.create(tmp_path / "index", random_model(), store=text)
    assert "secret" not in str(caught.value)
