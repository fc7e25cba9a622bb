"""Killed while adding or removing: the index opens and holds the old state or the new one, nothing in between."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from equiav.search import LocalStore
from tests.search.making import WIDTH, entries

pytestmark = pytest.mark.process

ROOT = Path(__file__).parents[2]
LIMIT = 100  # vectors from which on the compressed index is written too

# Kills itself at the n-th time something reaches the disk: before every fsync, after every one, around each replace.
EVERY_PLACE = """
import json, os, shutil, signal, sys
from pathlib import Path
from equiav.search import LocalStore
from tests.search.making import WIDTH, entries

base, what, limit = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])
fsync, replace = os.fsync, Path.replace


def countdown(left):
    def tick():
        left[0] -= 1
        if not left[0]:
            os.kill(os.getpid(), signal.SIGKILL)

    def sync(handle):
        tick()
        fsync(handle)
        tick()

    def move(path, target):
        tick()
        moved = replace(path, target)
        tick()
        return moved

    os.fsync, Path.replace = sync, move


def change(store):
    if what == "add":
        store.add(entries(30, first=120, seed=7))
    else:
        store.remove([f"clip-{i}" for i in range(0, 120, 2)])


killed, place, sizes = True, 0, []
while killed:
    place += 1
    folder = base.with_name(f"killed-{place}")
    shutil.copytree(base, folder)
    child = os.fork()
    if not child:
        countdown([place])
        change(LocalStore(folder, WIDTH, limit=limit))
        os._exit(0)
    killed = os.WIFSIGNALED(os.waitpid(child, 0)[1])
    sizes.append(len(LocalStore(folder, WIDTH)))
print(json.dumps(sizes))
"""


def run(code, *arguments):
    return subprocess.Popen(
        [sys.executable, "-c", code, *map(str, arguments)], cwd=ROOT, stdout=subprocess.PIPE, text=True
    )


def check(folder, known):
    """Holds exactly these, whole, and finds each by its own vector."""
    store = LocalStore(folder, WIDTH, limit=LIMIT, probes=10**6)
    assert {entry.id for entry in store.entries()} == set(known)
    for id in list(known)[::7]:
        found = store.get(id)
        for side in ("audio", "visual"):
            vector = known[id].vector(side)
            if vector is None:
                assert found.vector(side) is None
            else:
                np.testing.assert_array_equal(found.vector(side), vector)
                assert store.search(vector, side, 1, ())[0].entry.id == id
    return store


@pytest.mark.parametrize("what", ["add", "remove"])
def test_killed_at_every_place(tmp_path, what):
    base = tmp_path / "base"
    LocalStore.create(base)
    LocalStore(base, WIDTH, limit=LIMIT).add(entries(120))
    child = run(EVERY_PLACE, base, what, LIMIT)
    sizes = json.loads(child.communicate(timeout=300)[0])
    old = {e.id: e for e in entries(120)}
    if what == "add":
        new = old | {e.id: e for e in entries(30, first=120, seed=7)}
    else:
        new = {id: e for id, e in old.items() if int(id[5:]) % 2}
    assert len(sizes) > (20 if what == "add" else 6)
    assert sizes[0] == len(old)
    assert sizes[-1] == len(new)
    assert set(sizes) == {len(old), len(new)}
    later = entries(10, first=1000, seed=4)
    for place in range(1, len(sizes) + 1, 4):
        held = new if sizes[place - 1] == len(new) else old
        store = check(tmp_path / f"killed-{place}", held)
        # What the killed process left lying about does not get in the way of the next one.
        store.add(later)
        check(store.folder, held | {e.id: e for e in later})


ON_AND_ON = """
import sys
from pathlib import Path
from equiav.search import LocalStore
from tests.search.making import WIDTH, entries

store = LocalStore(Path(sys.argv[1]), WIDTH, limit=int(sys.argv[2]))
begun = len(store)
while True:
    first = len(store)
    store.add(entries(20, first=first, seed=first))
    if first == begun:
        print("added", flush=True)
"""


def test_killed_at_any_moment(tmp_path):
    LocalStore.create(tmp_path)
    before = 0
    for delay in (0.03, 0.11, 0.23, 0.37):
        child = run(ON_AND_ON, tmp_path, LIMIT)
        assert child.stdout.readline() == "added\n"
        time.sleep(delay)
        os.kill(child.pid, signal.SIGKILL)
        child.communicate()
        count = len(LocalStore(tmp_path, WIDTH))
        assert count % 20 == 0
        assert count >= before + 20
        before = count
    known = {e.id: e for first in range(0, before, 20) for e in entries(20, first=first, seed=first)}
    check(tmp_path, known)
