"""Killed while adding, removing or converting: the index opens with the state before or after, nothing in between."""

import ctypes
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from equiav.search import LocalStore, parse_filters
from tests.search.format1 import OLD_FILES, as_second_format, expected, unpack
from tests.search.making import WIDTH, entries

pytestmark = pytest.mark.process

ROOT = Path(__file__).parents[2]
KILLS = int(os.environ.get("EQUIAV_KILLS", "3"))
LIMIT = 100  # vectors from which on the compressed index is written too

# Kills itself at the n-th time something reaches the disk: before and after every write, fsync, rename and unlink,
# those inside a commit of the database too.
EVERY_PLACE = """
import ctypes, json, os, shutil, sys
from pathlib import Path
from equiav.search import LocalStore
from tests.search.making import WIDTH, entries

base, what, limit = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])


def change(folder):
    store = LocalStore(folder, WIDTH, limit=limit)
    if what == "add":
        store.add(entries(30, first=120, seed=7))
    elif what == "remove":
        store.remove([f"clip-{i}" for i in range(0, 120, 2)])


killed, place, sizes = True, 0, []
while killed:
    place += 1
    folder = base.with_name(f"killed-{place}")
    shutil.copytree(base, folder)
    child = os.fork()
    if not child:
        ctypes.CDLL(None).arm(place)
        change(folder)
        ctypes.CDLL(None).arm(0)
        os._exit(0)
    killed = os.WIFSIGNALED(os.waitpid(child, 0)[1])
    if what == "convert":  # what the killed one left is looked at below
        sizes.append(place)
    else:
        sizes.append(len(LocalStore(folder, WIDTH)))
print(json.dumps(sizes))
"""


@pytest.fixture(scope="module")
def preload(tmp_path_factory):
    """The library that counts what reaches the disk."""
    compiler = shutil.which("cc")
    if compiler is None or not sys.platform.startswith("linux"):
        pytest.skip("needs Linux and a C compiler")
    library = tmp_path_factory.mktemp("preload") / "interposed.so"
    source = ROOT / "tools" / "interposed.c"
    subprocess.run([compiler, "-shared", "-fPIC", "-o", library, source, "-ldl"], check=True)
    assert ctypes.CDLL(str(library)).arm
    return library


def run(code, *arguments, **environment):
    return subprocess.Popen(
        [sys.executable, "-c", code, *map(str, arguments)],
        cwd=ROOT, stdout=subprocess.PIPE, text=True, env={**os.environ, **environment},
    )  # fmt: skip


def check(folder, known):
    """Holds exactly these, whole, and finds each by its own vector and by what is known of it."""
    store = LocalStore(folder, WIDTH, limit=LIMIT, probes=10**6)
    assert {clip.id: clip for clip in store.clips()} == {id: entry.clip for id, entry in known.items()}
    for id in list(known)[:: max(7, len(known) // 40)]:
        found, entry = store.get(id), known[id]
        assert found.vectors.keys() == entry.vectors.keys()
        for side, vector in entry.vectors.items():
            np.testing.assert_array_equal(found.vectors[side], vector)
            assert store.search(vector, side, 1, ())[0][0].id == id
            same = store.search(vector, side, 1000, parse_filters([f"start={entry.clip.start}", f"id={id}"]))
            assert [clip.id for clip, _ in same] == [id]
    for side in ("audio", "visual"):
        cats = store.search(np.eye(WIDTH, dtype=np.float32)[0], side, 100_000, parse_filters(["label=cat"]))
        held = {id for id, e in known.items() if "cat" in e.clip.labels and side in e.vectors}
        assert {clip.id for clip, _ in cats} == held
    return store


@pytest.mark.parametrize("what", ["add", "remove"])
def test_killed_at_every_place(tmp_path, what, preload):
    base = tmp_path / "base"
    LocalStore.create(base)
    store = LocalStore(base, WIDTH, limit=LIMIT)
    store.add(entries(120))
    store.close()
    child = run(EVERY_PLACE, base, what, LIMIT, LD_PRELOAD=str(preload))
    sizes = json.loads(child.communicate(timeout=300)[0])
    old = {e.clip.id: e for e in entries(120)}
    if what == "add":
        new = old | {e.clip.id: e for e in entries(30, first=120, seed=7)}
    else:
        new = {id: e for id, e in old.items() if int(id[5:]) % 2}
    assert len(sizes) > (60 if what == "add" else 20)
    assert sizes[0] == len(old)
    assert sizes[-1] == len(new)
    assert set(sizes) == {len(old), len(new)}
    assert sizes == sorted(sizes, key=lambda size: size == len(new))  # once it is there, it stays
    later = entries(10, first=1000, seed=4)
    for place in range(1, len(sizes) + 1, 7):
        held = new if sizes[place - 1] == len(new) else old
        store = check(tmp_path / f"killed-{place}", held)
        # What the killed process left lying about does not get in the way of the next one.
        store.add(later)
        check(store.folder, held | {e.clip.id: e for e in later}).close()


def test_killed_while_converting(tmp_path, preload):
    """At every place the old files are all there, or the new database is; opened again, everything is."""
    base = unpack(tmp_path / "base")
    old = {name: (base / name).read_bytes() for name in OLD_FILES}
    places = json.loads(run(EVERY_PLACE, base, "convert", LIMIT, LD_PRELOAD=str(preload)).communicate(timeout=300)[0])
    assert len(places) > 30
    known, before, after = expected(), 0, 0
    for place in places:
        folder = tmp_path / f"killed-{place}"
        if (folder / "entries.db").exists():
            after += 1
        else:
            assert {name: (folder / name).read_bytes() for name in OLD_FILES} == old
            before += 1
        store = check(folder, known) if place % 4 == 0 else LocalStore(folder, WIDTH)
        assert len(store) == len(known)
        assert not [name for name in OLD_FILES if (folder / name).exists()]
        assert not list(folder.glob(".*.tmp"))
        store.close()
    assert before > 10
    assert after > 10


ON_AND_ON = """
import sys
from pathlib import Path
from equiav.search import LocalStore
from tests.search.making import WIDTH, entries

what, folder, limit = sys.argv[1], Path(sys.argv[2]), int(sys.argv[3])
store = LocalStore(folder, WIDTH, limit=limit)
begun = len(store)
print("begins", flush=True)
while True:
    if what == "add":
        first = store.state.entries
        store.add(entries(20, first=first, seed=first))
    else:
        last = len(store)
        store.remove([f"clip-{i}" for i in range(last - 20, last)])
    if abs(len(store) - begun) == 20:
        print("changed", flush=True)
"""


def kill_after(delay, *arguments):
    """Lets it change something, and kills it that many seconds later."""
    child = run(ON_AND_ON, *arguments)
    assert child.stdout.readline() == "begins\n"
    assert child.stdout.readline() == "changed\n"
    time.sleep(delay)
    os.kill(child.pid, signal.SIGKILL)
    child.communicate()


@pytest.mark.parametrize("what", ["add", "remove"])
def test_killed_at_any_moment(tmp_path, what):
    """And read meanwhile: a reader sees whole changes, by itself."""
    LocalStore.create(tmp_path)
    if what == "remove":
        store = LocalStore(tmp_path, WIDTH, limit=LIMIT)
        for first in range(0, 600 * KILLS, 600):
            store.add([e for start in range(first, first + 600, 20) for e in entries(20, first=start, seed=start)])
        store.close()
    reader = LocalStore(tmp_path, WIDTH, limit=LIMIT)
    before, seen, rng = len(reader), set(), np.random.default_rng(KILLS)
    for _ in range(KILLS):
        with ThreadPoolExecutor(1) as pool:
            killed = pool.submit(kill_after, float(rng.uniform(0, 0.3)), what, tmp_path, LIMIT)
            while not killed.done():
                cats = reader.search(np.eye(WIDTH, dtype=np.float32)[0], "visual", 10_000, parse_filters(["label=cat"]))
                seen.add(len(cats))
        killed.result()
        count = len(LocalStore(tmp_path, WIDTH))
        assert count % 20 == 0
        assert count != before
        assert len(reader) == count
        before = count
    assert len(seen) > 1
    assert {count % 9 for count in seen} == {0}  # nine cats with pictures in every change
    known = {e.clip.id: e for first in range(0, before, 20) for e in entries(20, first=first, seed=first)}
    check(tmp_path, known)
    assert LocalStore(tmp_path, WIDTH).verify(lambda line: None) == []


MIGRATE = """
import sys
from pathlib import Path
import equiav.search as search
from tests.search.making import WIDTH
print("begins", flush=True)
search.LocalStore(Path(sys.argv[1]), WIDTH)
print("migrated", flush=True)
"""


def test_killed_while_checksums_are_added(tmp_path):
    """From the second format: at any moment all is there, and the next to open it finishes."""
    LocalStore.create(tmp_path / "base")
    store = LocalStore(tmp_path / "base", WIDTH, limit=LIMIT)
    known = entries(3000)
    store.add(known)
    store.remove([e.clip.id for e in known[::3]])
    store.close()
    as_second_format(tmp_path / "base")
    left = {e.clip.id: e for i, e in enumerate(known) if i % 3}
    unfinished = 0
    for number, delay in enumerate(np.linspace(0, 0.1, KILLS)):
        folder = tmp_path / f"killed-{number}"
        shutil.copytree(tmp_path / "base", folder)
        child = run(MIGRATE, folder)
        assert child.stdout.readline() == "begins\n"
        time.sleep(delay)
        os.kill(child.pid, signal.SIGKILL)
        unfinished += "migrated" not in child.communicate()[0]
        again = LocalStore(folder, WIDTH)
        assert {clip.id for clip in again.clips()} == left.keys()
        assert again.verify(lambda line: None) == []
        again.close()
    check(folder, left)
    assert unfinished
