"""Beyond the limit a compressed index proposes and the vectors decide: recall, growth, filters, removal."""

from pathlib import Path

import faiss
import numpy as np
import pytest

from equiav.errors import EquiAVError
from equiav.search import Entry, LocalStore, parse_filters
from equiav.search import vectors as files
from equiav.types import Clip

WIDTH, COUNT, LIMIT = 32, 3000, 2000


def clustered(seed, count):
    """Draws from 100 clusters that are the same for every seed."""
    centres = np.random.default_rng(0).standard_normal((100, WIDTH))
    rng = np.random.default_rng(seed)
    rows = centres[rng.integers(100, size=count)] + 0.5 * rng.standard_normal((count, WIDTH))
    return (rows / np.linalg.norm(rows, axis=1, keepdims=True)).astype(np.float32)


def made(vectors, first=0):
    return [
        Entry(Clip(f"c{first + i}", f"{(first + i) % 10}.mp4", labels=(f"l{(first + i) % 3}",)), {"visual": v})
        for i, v in enumerate(vectors)
    ]


@pytest.fixture
def store(tmp_path, monkeypatch):
    monkeypatch.setattr("equiav.search.store.FEW", 100)
    monkeypatch.setattr("equiav.search.store.TAIL", 200)
    LocalStore.create(tmp_path)
    filled = LocalStore(tmp_path, WIDTH, limit=LIMIT, probes=16, candidates=100)
    vectors = clustered(1, COUNT)
    for start in range(0, COUNT, 1000):
        filled.add(made(vectors[start : start + 1000], start))
    return filled, vectors


def recall(store, vectors, rows, filters=()):
    """Share of the true ten nearest among `rows` that are found, over 50 fresh queries."""
    shares = []
    for query in clustered(2, 50):
        scores = vectors[rows] @ query
        truth = {f"c{rows[i]}" for i in np.argsort(-scores)[:10]}
        found = store.search(query, "visual", 10, parse_filters(filters))
        assert len(found) <= 10
        assert [score for _, score in found] == sorted((score for _, score in found), reverse=True)
        for clip, score in found:
            assert score == pytest.approx(float(vectors[int(clip.id[1:])] @ query), abs=1e-5)
        shares.append(len(truth & {clip.id for clip, _ in found}) / 10)
    return np.mean(shares)


def test_indexes_of_fewer_and_longer_lists_are_searched_further(monkeypatch):
    """Those that were made with whole vectors as centres of their lists."""
    vectors = clustered(1, COUNT)
    former = faiss.index_factory(WIDTH, "IVF32,PQ8x4fs", faiss.METRIC_INNER_PRODUCT)
    former.train(vectors)
    former.add(vectors)
    today = files.train(vectors)
    found = {}
    for name, index in (("former", former), ("today", today)):
        for probes in (1, index.nlist):
            monkeypatch.setattr(files, "FORMER_PROBES", probes)
            monkeypatch.setattr(files, "PROBES", index.nlist + 1 - probes)
            found[name, probes] = len(files.candidates(index, vectors[0], count=COUNT))
    assert found["former", 1] < found["former", 32] == COUNT
    assert found["today", today.nlist] < found["today", 1] == COUNT


def test_below_the_limit_all_are_compared(tmp_path):
    LocalStore.create(tmp_path)
    store, vectors = LocalStore(tmp_path, WIDTH, limit=LIMIT), clustered(1, LIMIT - 1)
    store.add(made(vectors))
    assert store.state.parts["visual"].file is None
    assert recall(store, vectors, np.arange(LIMIT - 1)) == 1


def test_beyond_it_nearly_all_nearest_are_found(store):
    filled, vectors = store
    state = filled.state.parts["visual"]
    assert (state.trained, state.covered) == (LIMIT, COUNT)
    assert recall(filled, vectors, np.arange(COUNT)) >= 0.95
    again = LocalStore(filled.folder, WIDTH, probes=16, candidates=100)
    assert recall(again, vectors, np.arange(COUNT)) >= 0.95


def test_few_candidates_find_less(store):
    """The compressed index is at work: what it does not propose is not found."""
    filled, vectors = store
    filled.probes, filled.candidates = 1, 0
    assert recall(filled, vectors, np.arange(COUNT)) < 0.95


def test_what_came_last_is_found_before_it_is_compressed(store):
    filled, _ = store
    late = clustered(3, 100)
    filled.add(made(late, COUNT))
    assert filled.state.parts["visual"].covered == COUNT
    for i in (0, 99):
        assert filled.search(late[i], "visual", 1, ())[0][0].id == f"c{COUNT + i}"
    filled.add(made(clustered(4, 1000), COUNT + 100))
    assert filled.state.parts["visual"].covered == COUNT + 1100
    assert len(list(filled.folder.glob("*.faiss"))) == 1
    assert filled.search(late[5], "visual", 1, ())[0][0].id == f"c{COUNT + 5}"


def test_a_reader_survives_a_writer(store):
    """What others change is there for whoever opened the index before, whether it has searched already or not."""
    filled, vectors = store
    early, late = (LocalStore(filled.folder, WIDTH, probes=16, candidates=100) for _ in range(2))
    assert recall(early, vectors, np.arange(COUNT)) >= 0.95
    assert early.search(vectors[0], "visual", 1, parse_filters(["label=l0"]))[0][0].id == "c0"
    more = clustered(3, 300)
    filled.add(made(more, COUNT))
    filled.remove(["c0"])
    for reader in (early, late):
        every = np.concatenate([vectors, more])
        assert recall(reader, every, np.arange(1, COUNT + 300)) >= 0.95
        assert reader.search(vectors[0], "visual", 1, parse_filters(["label=l0"]))[0][0].id != "c0"
    assert late.search(more[7], "visual", 1, ())[0][0].id == f"c{COUNT + 7}"
    assert len(late) == COUNT + 299


def test_much_growth_learns_new_lists(store):
    filled, _ = store
    filled.add(made(clustered(5, 4 * LIMIT), COUNT))
    assert filled.state.parts["visual"].trained == COUNT + 4 * LIMIT


@pytest.mark.parametrize(("filters", "accepts"), [(["label=l1"], lambda i: i % 3 == 1), (["source=[1-4].mp4"], None)])
def test_filters_beyond_the_limit(store, filters, accepts):
    filled, vectors = store
    rows = np.array([i for i in range(COUNT) if (accepts(i) if accepts else 1 <= i % 10 <= 4)])
    assert recall(filled, vectors, rows, filters) >= 0.95
    late = clustered(6, 100)
    filled.add(made(late, COUNT))
    assert filled.state.parts["visual"].covered == COUNT  # these wait outside the compressed index
    for i, vector in enumerate(late, COUNT):
        ((found, _),) = filled.search(vector, "visual", 1, parse_filters(filters))
        assert (found.id == f"c{i}") == bool(accepts(i) if accepts else 1 <= i % 10 <= 4)


def test_removal_beyond_the_limit(store):
    filled, vectors = store
    assert filled.remove([f"c{i}" for i in range(0, COUNT, 2)]) == COUNT // 2
    assert len(filled) == COUNT // 2
    assert len(LocalStore(filled.folder, WIDTH)) == COUNT // 2
    assert recall(filled, vectors, np.arange(1, COUNT, 2)) >= 0.95


@pytest.mark.parametrize("damage", [lambda content: content[: len(content) // 2], lambda content: b"", None])
def test_without_its_compressed_index_all_are_compared(store, caplog, damage):
    filled, vectors = store
    path = filled.folder / filled.state.parts["visual"].file
    if damage is None:
        path.unlink()
    else:
        path.write_bytes(damage(path.read_bytes()))
    again = LocalStore(filled.folder, WIDTH, limit=LIMIT, probes=1, candidates=1)
    assert recall(again, vectors, np.arange(COUNT)) == 1
    assert len(caplog.records) == 1
    assert path.name in caplog.text
    assert "every vector is compared" in caplog.text
    again.add(made(clustered(4, 300), COUNT))
    assert again.state.parts["visual"].trained == COUNT + 300


def test_a_compressed_index_is_there_whole_or_not_at_all(store, monkeypatch):
    filled, _ = store
    before = filled.state

    def full(index, path):
        Path(path).write_bytes(b"half of")
        raise RuntimeError("Error in write_index at io.cpp:1\nNo space left on device")

    monkeypatch.setattr("faiss.write_index", full)
    with pytest.raises(EquiAVError, match=r"visual-\d+.faiss: cannot be written \(No space left on device\)"):
        filled.add(made(clustered(4, 300), COUNT))
    assert len(filled) == COUNT
    assert LocalStore(filled.folder, WIDTH).generation() == before.generation
    assert [path.name for path in filled.folder.glob("*faiss*")] == [before.parts["visual"].file]
