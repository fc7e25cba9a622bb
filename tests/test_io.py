"""Files are there whole or not at all, and on the disk; folders have one writer; progress says how long is left."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from equiav import io
from equiav.errors import Busy, EquiAVError
from equiav.io import Progress, duration, locked, provenance, replacing, write_json, write_whole


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


def test_provenance_is_plain_data():
    record = json.loads(json.dumps(provenance(model="x")))
    assert record["model"] == "x"
    assert {"commit", "utc", "torch", "python", "threads", "cpu", "cores"} < set(record)
