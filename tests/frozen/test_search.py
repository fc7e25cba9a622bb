"""The nearest ten of fifty questions with filters: in a folder, in milvus-lite, and among compressed vectors."""

import hashlib
import json

import numpy as np
import pytest

from tests.frozen import api2

WIDTH = 16
LABELS = ("dog", "cat", "rain", "Glocke", "car horn")
CITIES = ("Bonn", "Köln", "Aachen")


def vector(*names):
    """A unit vector that depends on nothing but its name, on any machine."""
    raw = hashlib.shake_256("/".join(map(str, names)).encode()).digest(4 * WIDTH)
    return api2.unit(np.frombuffer(raw, "<i4").astype(np.float64))


def entry(number, version="first"):
    """Six windows per file; every fifth lacks sound, every seventh pictures; metadata of every type, some missing."""
    file, window = divmod(number, 6)
    vectors = {"audio": vector(version, "audio", number), "visual": vector(version, "visual", number)}
    if number % 5 == 4:
        del vectors["audio"]
    elif number % 7 == 6:
        del vectors["visual"]
    metadata = {"city": CITIES[file % 3], "year": 2000 + file % 20, "version": version}
    metadata |= {"gain": number / 8} if number % 2 else {}
    metadata |= {"indoor": file % 2 == 0, "tags": [f"t{number % 4}", f"t{number % 9}"]}
    return {
        "id": f"c{number}",
        "source": f"{'abc'[file % 3]}/film {file}.{'mp4' if file % 4 else 'mov'}",
        "path": f"/media/{'abc'[file % 3]}/film {file}.{'mp4' if file % 4 else 'mov'}" if file % 6 else None,
        "start": 2.5 * window,
        "end": 2.5 * window + (2.5 if window < 5 else 1.25),
        "labels": [LABELS[(number + i) % 5] for i in range(number % 3)],
        "metadata": metadata,
        "vectors": vectors,
    }


# kind, among, filters; the vector is that of the question's place in the list.
QUESTIONS = [
    ("audio", None, []),
    ("image", None, []),
    ("video", None, []),
    ("audio", "audio", []),
    ("image", "visual", []),
    ("video", "audio", []),
    ("audio", "both", []),
    ("audio", None, ["label=dog"]),
    ("image", None, ["labels=car horn"]),
    ("video", None, ["label!=dog"]),
    ("video", None, ["label=*a*"]),
    ("audio", None, ["label!=*"]),
    ("video", None, ["label=[dc]*"]),
    ("video", None, ["label=Dog"]),
    ("video", None, ["label=cat", "label=rain"]),
    ("audio", "audio", ["label=Glocke", "label!=car horn"]),
    ("audio", None, ["source=a/film 3.mp4"]),
    ("image", None, ["source=*.mov"]),
    ("video", None, ["source=?/film 1?.mp4"]),
    ("video", None, ["source!=*.mp4"]),
    ("video", None, ["path=/media/b/*"]),
    ("video", None, ["path!=/media/*"]),
    ("audio", None, ["path=/media/b/film 7.mp4"]),
    ("audio", None, ["start>=10"]),
    ("image", None, ["start<=2.5"]),
    ("video", None, ["start=5"]),
    ("video", None, ["start!=5.0"]),
    ("video", None, ["start>=5", "end<=10"]),
    ("video", "visual", ["end=13.75"]),
    ("audio", None, ["seconds=1.25"]),
    ("video", None, ["seconds>=2", "start>=10"]),
    ("image", None, ["seconds<=2"]),
    ("audio", None, ["city=Köln"]),
    ("video", None, ["city!=Köln", "city!=Bonn"]),
    ("video", "both", ["city=*n"]),
    ("audio", None, ["year=2007"]),
    ("image", None, ["year>=2010", "year<=2012"]),
    ("video", None, ["year=200*", "label=cat"]),
    ("video", None, ["gain>=20.5"]),
    ("video", None, ["gain!=*"]),
    ("audio", None, ["gain<=1e1", "indoor=true"]),
    ("video", None, ["indoor=false", "tags=t3"]),
    ("video", None, ["tags=t8"]),
    ("image", "both", ["tags!=t0", "tags!=t1", "label=dog"]),
    ("video", None, ["version=second"]),
    ("audio", None, ["version!=second", "source=c/*", "start>=2.5", "label=rain"]),
    ("video", None, ["id=c1?"]),
    ("video", None, ["nothing=here"]),
    ("video", None, ["nothing!=here", "city>=3"]),
    ("audio", "visual", ["city=Aachen", "year>=2001", "start<=7.5", "label!=cat", "source!=*.mov"]),
]
ALIKE = [
    ("c3", None, []),
    ("c4", None, []),
    ("c6", "audio", []),
    ("c20", None, ["label=dog"]),
    ("c250", "visual", ["city!=Bonn", "start>=5"]),
    ("c299", None, ["source=*.mp4", "year>=2005"]),
]


def fill(index):
    """Adds, removes and adds again: 300 entries in the end, some of them in a second version."""
    assert api2.add(index, [entry(i) for i in range(150)]) == 150
    assert index.remove([f"c{i}" for i in range(0, 60, 7)] + ["unknown"]) == 9
    assert api2.add(index, [entry(i) for i in range(140, 280)]) == 130
    assert index.remove(sources=["b/film 1?.*", "/media/c/film 2.mp4"]) == 4 * 6 + 5
    assert api2.add(index, [entry(i, "second") for i in range(310)]) == 30 + 9 + 29
    assert index.remove([f"c{i}" for i in range(300, 310)]) == 10


@pytest.fixture(scope="module", params=["local", "milvus-lite"])
def folder(request, tmp_path_factory):
    """The folder of an index that was filled and closed."""
    place = tmp_path_factory.mktemp("index")
    if request.param == "milvus-lite":
        pytest.importorskip("milvus_lite", reason="milvus-lite is not installed")
    index = api2.create_index(place / "index", str(place / "vectors.db") if request.param == "milvus-lite" else None)
    fill(index)
    index.close()
    return place / "index"


def answers(index):
    found = [
        {"kind": kind, "among": among, "filters": filters,
         "found": api2.search(index, kind, vector("question", i), among=among, filters=filters)}
        for i, (kind, among, filters) in enumerate(QUESTIONS)
    ]  # fmt: skip
    return found + [
        {"like": id, "among": among, "filters": filters, "found": api2.like(index, id, among=among, filters=filters)}
        for id, among, filters in ALIKE
    ]


def test_fifty_questions(folder):
    assert len(QUESTIONS) == 50
    index = api2.open_index(folder)
    assert len(index) == 300
    api2.frozen("search_answers.json", answers(index), absolute=1e-5)
    index.close()


def test_on_the_command_line(folder):
    found = []
    for id, among, filters in ALIKE:
        more = [*(["--among", among] if among else []), *(word for f in filters for word in ("--filter", f))]
        found.append(json.loads(api2.run("search", folder, "--like", id, "--json", "-k", "3", *more)))
    api2.frozen("search_command.json", found, absolute=1e-5)


def test_inverted_lists_and_product_codes(tmp_path, monkeypatch):
    """2,000 vectors in 50 groups, found through the compressed index: with filters, after removal, opened again."""
    sizes = {"limit": 1000, "few": 50, "tail": 150, "probes": 24, "candidates": 80}
    index = api2.create_index(tmp_path / "index", None)
    api2.compress(index, monkeypatch, **sizes)
    entries = []
    for i in range(2000):
        near = api2.unit(vector("centre", i % 50) + 0.4 * vector("around", i))
        entries.append({**entry(i), "vectors": {"visual": near}})
    api2.add(index, entries[:1200])
    api2.add(index, entries[1200:1900])
    api2.add(index, entries[1900:])  # these wait outside the lists
    assert index.remove([f"c{i}" for i in range(0, 2000, 9)]) == 223
    assert api2.compressed_rows(index) == {"visual": 1900}
    index.close()
    index = api2.open_index(tmp_path / "index")
    api2.compress(index, monkeypatch, **sizes)
    found = []
    for i, filters in enumerate([[], ["label=dog"], ["city!=Bonn"], ["start>=5", "source=*.mp4"], ["year<=2010"]] * 4):
        question = api2.unit(vector("centre", 7 * i % 50) + 0.3 * vector("asked", i))
        found.append({"filters": filters, "found": api2.search(index, "audio", question, filters=filters)})
    api2.frozen("search_compressed.json", found, absolute=1e-5)
