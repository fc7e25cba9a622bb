"""Files are there whole or not at all, and on the disk; folders have one writer; progress says how long is left."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from equiav import io
from equiav.errors import Busy, EquiAVError
from equiav.io import Progress, duration, locked, provenance, replacing, sync_paths, write_json, write_whole


def names(folder):
    return [path.name for path in folder.iterdir()]


def test_a_file_is_replaced_whole_or_not_at_all(tmp_path):
    path = tmp_path / "deep/er/a.txt"
    write_whole(path, "one")
    with pytest.raises(TypeError), replacing(path) as draft:
        [draft.write_text(text) for text in ("half of tw", 7)]
    assert path.read_text() == "one"
    write_whole(path, b"two")
    assert path.read_bytes() == b"two"
    assert names(path.parent) == ["a.txt"]


def test_a_folder_is_replaced_whole_or_not_at_all(tmp_path):
    path = tmp_path / "folder"
    for text in ("one", "two"):
        with replacing(path) as draft:
            draft.mkdir()
            (draft / "file").write_text(text)
    with pytest.raises(FileExistsError), replacing(path) as draft:
        [draft.mkdir() for _ in range(2)]
    assert (path / "file").read_text() == "two"
    assert names(tmp_path) == ["folder"]


def test_a_file_never_takes_the_place_of_a_folder(tmp_path):
    (tmp_path / "folder").mkdir()
    with pytest.raises(EquiAVError, match="folder: cannot be written"):
        write_whole(tmp_path / "folder", "text")
    assert (tmp_path / "folder").is_dir()
    assert names(tmp_path) == ["folder"]


def test_bytes_are_on_the_disk_before_the_name_and_the_name_after(tmp_path, monkeypatch):
    happened = []
    replace = type(tmp_path).replace
    monkeypatch.setattr(os, "fsync", lambda handle: happened.append(str(Path(f"/proc/self/fd/{handle}").readlink())))
    monkeypatch.setattr(type(tmp_path), "replace", lambda a, b: happened.append("moved") or replace(a, b))
    write_whole(tmp_path / "a.txt", "text")
    draft = str(tmp_path / f".a.txt.{os.getpid()}.tmp")
    assert happened == [draft, "moved", str(tmp_path)]
    happened.clear()
    write_whole(tmp_path / "a.txt", "text", sync=False)
    assert happened == ["moved"]
    happened.clear()
    with replacing(tmp_path / "folder") as draft:
        (draft / "in").mkdir(parents=True)
        (draft / "in/side").write_text("text")
    assert {str(draft), str(draft / "in"), str(draft / "in/side")} == set(happened[: happened.index("moved")])


def test_names_of_new_folders_are_on_the_disk(tmp_path, monkeypatch):
    """Or all that is inside would go with them."""
    synced = []
    monkeypatch.setattr(os, "fsync", lambda handle: synced.append(Path(f"/proc/self/fd/{handle}").readlink()))
    write_whole(tmp_path / "a/b/c.txt", "text")
    with locked(tmp_path / "d/e"):
        pass
    assert {tmp_path, tmp_path / "a", tmp_path / "a/b", tmp_path / "d"} <= set(synced)


@pytest.mark.parametrize("whole", [True, False])
def test_many_files_are_synced_by_their_file_system(tmp_path, monkeypatch, whole):
    """One by one where that cannot be asked for, and where there are few."""
    files, systems, single = [tmp_path / str(number) for number in range(100)], [], []
    for file in files:
        file.touch()
    monkeypatch.setattr(io, "_sync_system", lambda path: systems.append(path) or whole)
    monkeypatch.setattr(io, "sync_path", single.append)
    sync_paths([*files, tmp_path])
    assert len(systems) == 1
    assert single == ([] if whole else [*files, tmp_path])
    single.clear()
    sync_paths(files[:5])
    assert single == files[:5]


@pytest.mark.skipif(sys.platform != "linux", reason="other systems have no such call")
def test_a_file_system_is_synced(tmp_path):
    assert io._sync_system(tmp_path)
    assert not io._sync_system(tmp_path / "gone")


class Disk:
    """What of a folder is on the disk after each step, by what was synced: contents of files, names in folders."""

    def __init__(self, root, monkeypatch):
        self.root, self.contents, self.names, self.seen = root, {}, {}, []
        sync, exchange = io.sync_path, io._exchange
        monkeypatch.setattr(io, "sync_path", lambda path: (sync(path), self.synced(path)))
        monkeypatch.setattr(io, "_exchange", lambda a, b: (exchange(a, b), self.lose_power())[0])
        for name in ("rename", "replace"):
            move = getattr(Path, name)
            monkeypatch.setattr(Path, name, lambda a, b, move=move: (move(a, b), self.lose_power())[0])
        for path in [root, *root.rglob("*")]:
            self.synced(path, record=False)

    def synced(self, path, record=True):
        number = path.stat().st_ino
        if path.is_dir():
            self.names[number] = {item.name: item.stat().st_ino for item in path.iterdir()}
        else:
            self.contents[number] = path.read_bytes()
        if record:
            self.lose_power()

    def lose_power(self):
        """Both ends of what a file system may do: names as last synced, and names as they are by now."""
        self.seen.append(self.tree(self.root.stat().st_ino))
        files = {path: self.contents.get(path.stat().st_ino, b"") for path in self.root.rglob("*") if path.is_file()}
        self.seen.append({path.relative_to(self.root).as_posix(): content for path, content in files.items()})

    def tree(self, number, above=""):
        found = {}
        for name, inner in self.names.get(number, {}).items():
            if inner in self.names:
                found |= self.tree(inner, f"{above}{name}/")
            else:
                found[above + name] = self.contents.get(inner, b"")
        return found


@pytest.mark.parametrize("swap", [True, False])
def test_after_power_loss_the_old_one_is_there_or_the_new_one(tmp_path, monkeypatch, swap):
    def write(text):
        write_whole(tmp_path / "file", text)
        with replacing(tmp_path / "folder") as draft:
            draft.mkdir()
            (draft / "a").write_text(text)
            (draft / "b").write_text(text)

    write("old")
    disk = Disk(tmp_path, monkeypatch)
    if not swap:
        monkeypatch.setattr(io, "_exchange", lambda a, b: False)
    write("new")
    assert len(disk.seen) > 10
    for number, tree in enumerate(disk.seen):
        assert tree["file"] in (b"old", b"new"), number
        here = [tree.get(f"folder/{name}") for name in "ab"]
        if not swap and here == [None, None]:  # between two renames: under another name, from which it comes back
            here = next([tree[name], tree[name[:-1] + "b"]] for name in tree if name.endswith(".old/a"))
        assert here in ([b"old", b"old"], [b"new", b"new"]), (number, tree)
    assert disk.seen[-1]["file"] == disk.seen[-1]["folder/b"] == b"new"


def test_what_cannot_be_written_is_one_line(tmp_path):
    (tmp_path / "file").touch()
    for write in (lambda p: write_whole(p, ""), lambda p: write_json(p, {})):
        with pytest.raises(EquiAVError, match="cannot be written"):
            write(tmp_path / "file/below")
    with pytest.raises(EquiAVError, match="cannot be written"), locked(tmp_path / "file/below"):
        pass
    assert names(tmp_path) == ["file"]


def test_a_folder_has_one_writer(tmp_path):
    code = "import sys; from pathlib import Path; from equiav.io import locked\nwith locked(Path(sys.argv[1])): pass"
    with (
        locked(tmp_path),
        pytest.raises(Busy, match=f"is being written by process {os.getpid()} on "),
        locked(tmp_path),
    ):
        pass
    with locked(tmp_path):
        run = subprocess.run([sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True, check=False)
    assert "is being written by process" in run.stderr
    with locked(tmp_path):
        pass


def test_progress_speaks_now_and_then_and_at_the_end(monkeypatch):
    clock, lines = [100.0], []
    monkeypatch.setattr(io.time, "monotonic", lambda: clock[0])
    progress = Progress(10, lines.append, "clips", start=4)
    for done in range(5, 11):
        clock[0] += 1.5
        progress.update(done, "2 left out" if done == 10 else "")
    assert lines == ["clips: 6 of 10, 6 s left", "clips: 8 of 10, 3 s left", "clips: 10 of 10, 2 left out, 0 s left"]
    assert [duration(s) for s in (5.0, 200.0, 7500.0)] == ["5 s", "3 min 20 s", "2 h 5 min"]


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({}, 64),
        ({"cpu.max": "200000 100000\n"}, 2),
        ({"cpu.max": "max 100000\n"}, 64),
        ({"cpu.max": "150000 100000\n"}, 2),
        ({"cpu/cpu.cfs_quota_us": "50000\n", "cpu/cpu.cfs_period_us": "100000\n"}, 1),
        ({"cpu/cpu.cfs_quota_us": "-1\n", "cpu/cpu.cfs_period_us": "100000\n"}, 64),
    ],
)
def test_cores_are_those_that_a_container_grants(tmp_path, monkeypatch, files, expected):
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: range(64), raising=False)
    monkeypatch.setattr(io, "CGROUP", tmp_path)
    for name, content in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(content)
    assert io.cores() == expected


def test_provenance_is_plain_data():
    record = json.loads(json.dumps(provenance(model="x")))
    assert record["model"] == "x"
    assert {"commit", "utc", "torch", "python", "threads", "cpu", "cores"} < set(record)
