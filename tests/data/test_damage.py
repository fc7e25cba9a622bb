"""Damaged folders and lists, disks that are full or cannot be written: one line each, and nothing silently wrong."""

import contextlib
import csv
import errno
import hashlib
import json
import os
import random
import shutil
import subprocess
import sys

import pytest

from equiav.data import PreparedIndex, ShardDataset, find_sources, merge, prepare, read_skipped, verify_prepared
from equiav.errors import DataError, EquiAVError
from tests.media.making import sine, write_media

pytestmark = pytest.mark.process

PREPARE = sys.modules["equiav.data.prepare"]
SMALL = {"workers": 1, "clip_seconds": 1.0, "short_side": 48, "frames": 2}
FORMULA = "=1+2.mp4"


@pytest.fixture(scope="module")
def media(tmp_path_factory):
    root = tmp_path_factory.mktemp("media")
    for number in range(3):
        write_media(root / f"video{number}.mp4", seconds=1, fps=10, sound=sine(1, 16000, 300 + 50 * number))
    write_media(root / FORMULA, seconds=1, audio=False)
    return root


@pytest.fixture(scope="module")
def folder(media, tmp_path_factory):
    out = tmp_path_factory.mktemp("prepared") / "out"
    prepare(find_sources(media), out, **SMALL)
    return out


def everything(folder):
    """A digest of all that a prepared folder says and holds."""
    data, digest = ShardDataset(folder, None, size=16), hashlib.sha256()
    digest.update(repr((data.meta, list(read_skipped(folder)))).encode())
    for i in range(len(data)):
        digest.update(repr((data.clip(i), data.info(i))).encode())
        digest.update(data.waveform(i).numpy().tobytes() + data.video(i).numpy().tobytes())
    return digest.hexdigest()


def test_no_flipped_bit_is_silently_wrong(folder, tmp_path):
    """200 bits over all files: what is read is what was written, or one line; and `verify_prepared` names each file."""
    copy, dice = shutil.copytree(folder, tmp_path / "copy"), random.Random(0)
    expected = everything(copy)
    assert verify_prepared(copy) == []
    files = sorted(path for path in copy.rglob("*") if path.is_file() and path.name != ".lock")
    assert {path.name for path in files} > {"meta.json", "SHA256SUMS", "manifest.csv", "skipped.csv", "members.npy"}
    refused = 0
    for trial in range(200):
        path = files[trial % len(files)]
        content = path.read_bytes()
        bit = dice.randrange(8 * len(content))
        damaged = bytearray(content)
        damaged[bit // 8] ^= 1 << bit % 8
        path.write_bytes(damaged)
        try:
            found = everything(copy)
        except DataError as error:
            refused, found = refused + 1, expected if "\n" not in str(error) else str(error)
        assert found == expected, f"bit {bit} of {path.name} is silently wrong"
        problems = verify_prepared(copy)
        assert problems, f"bit {bit} of {path.name} is not noticed"
        assert all("\n" not in line for line in problems)
        if path.name not in ("meta.json", "SHA256SUMS"):
            assert problems == [
                f"{path} is damaged: its bytes are not those that were written; prepare the folder again"
            ]
        path.write_bytes(content)
    assert refused > 150
    assert everything(copy) == expected


def test_missing_files_are_named(folder, tmp_path):
    copy = shutil.copytree(folder, tmp_path / "copy")
    (copy / "index/times.npy").unlink()
    next((copy / "shards").iterdir()).unlink()
    problems = verify_prepared(copy)
    assert len(problems) == 2
    assert all("No such file" in line for line in problems)
    with pytest.raises(DataError, match=r"times\.npy is damaged: No such file"):
        PreparedIndex(copy)
    (copy / "SHA256SUMS").unlink()
    with pytest.raises(DataError, match="SHA256SUMS is missing"):
        ShardDataset(copy, None)


def test_folders_without_checksums_open_as_before(folder, tmp_path):
    copy = shutil.copytree(folder, tmp_path / "copy")
    (copy / "SHA256SUMS").unlink()
    meta = json.loads((copy / "meta.json").read_text())
    (copy / "meta.json").write_text(json.dumps({k: v for k, v in meta.items() if k != "checksums"}))
    assert len(ShardDataset(copy, None)) == 3
    assert verify_prepared(copy) == [
        f"{copy} has no checksums: it was prepared by an earlier version; prepare it again to have them"
    ]
    merge([copy], tmp_path / "merged")  # which then has some
    assert verify_prepared(tmp_path / "merged") == []
    assert verify_prepared(tmp_path / "nothing")[0].endswith("no such folder; give one that `equiav prepare` wrote")


def test_without_checksums_damage_gets_one_line_too(folder, tmp_path):
    """A folder from elsewhere need not have any: whatever bit of its index is wrong, there is no traceback."""
    copy, dice = shutil.copytree(folder, tmp_path / "copy"), random.Random(1)
    (copy / "SHA256SUMS").unlink()
    meta = json.loads((copy / "meta.json").read_text())
    (copy / "meta.json").write_text(json.dumps({k: v for k, v in meta.items() if k != "checksums"}))
    files = sorted((copy / "index").iterdir())
    refused = 0
    for trial in range(300):
        path = files[trial % len(files)]
        content = path.read_bytes()
        bit = dice.randrange(8 * min(len(content), 200))  # the headers of the columns, and their first values
        damaged = bytearray(content)
        damaged[bit // 8] ^= 1 << bit % 8
        path.write_bytes(damaged)
        for read in (everything, lambda place: list(PreparedIndex(place).rows())):
            with contextlib.suppress(DataError):
                read(copy)
                refused -= 1
            refused += 1
        path.write_bytes(content)
    assert refused > 300
    meta.pop("part")
    (copy / "meta.json").write_text(json.dumps({k: v for k, v in meta.items() if k != "checksums"}))
    with pytest.raises(DataError, match="lacks what merging needs"):
        merge([copy], tmp_path / "merged")


def test_plain_tools_check_the_same_sums(folder):
    tool = shutil.which("sha256sum")
    if tool is None:
        pytest.skip("no sha256sum here")
    subprocess.run([tool, "--check", "--strict", "--quiet", "SHA256SUMS"], cwd=folder, check=True)


def test_sums_from_elsewhere_name_only_files_of_the_folder(folder, tmp_path):
    copy = shutil.copytree(folder, tmp_path / "copy")
    os.mkfifo(copy / "pipe")
    with (copy / "SHA256SUMS").open("a") as file:
        file.writelines(f"{'0' * 64}  {name}\n" for name in ("../secret", "/etc/passwd", "pipe"))
    assert [line.partition(": ")[2] for line in verify_prepared(copy)] == [
        "'../secret' is no file of a prepared folder; use another folder",
        "'/etc/passwd' is no file of a prepared folder; use another folder",
        "it is not a regular file; prepare the folder again",
    ]


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("frames", 1e999), ("frames", "ten"), ("sample_rate", 10**400), ("splits", [3]), ("splits", {"train": "x"}),
        ("modalities", 5), ("spectrogram", {"mean": float("nan"), "std": 1.0}), ("spectrogram", None),
    ],
)  # fmt: skip
def test_absurd_facts_in_meta_get_one_line(folder, tmp_path, key, value):
    copy = shutil.copytree(folder, tmp_path / "copy")
    meta = json.loads((copy / "meta.json").read_text())
    (copy / "meta.json").write_text(json.dumps({**meta, key: value}))
    with pytest.raises(DataError, match=r"meta\.json cannot be read") as refused:
        ShardDataset(copy, None)
    assert "\n" not in str(refused.value)


def test_no_cell_is_a_formula(folder):
    """A spreadsheet that opens the list computes nothing; who reads it back gets the names as they are."""
    with (folder / "skipped.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert rows == [{"source": f"'{FORMULA}", "start": "", "reason": "no sound"}]
    assert list(read_skipped(folder)) == [(FORMULA, "", "no sound")]


@pytest.mark.parametrize("name", ["=1", "+1", "-1", "@a", "'=1", "'", "''", "a=1", "", "\t=1"])
def test_cells_are_read_back(name):
    from equiav.data.shards import cell, uncelled

    assert uncelled(cell(name)) == name
    assert cell(name)[:1] not in tuple("=+-@\t\r")


def test_a_full_disk_leaves_no_drafts(media, tmp_path, monkeypatch):
    """Wherever it gets full, the answer is one line, and a run with space again gives the whole."""
    out = tmp_path / "out"

    def full(*_, **__):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    for owner, name in ((PREPARE, "_contents"), (PREPARE.IndexWriter, "add"), (PREPARE, "_finish")):
        with monkeypatch.context() as patch:
            patch.setattr(owner, name, full)
            with pytest.raises(DataError, match=r"out: cannot be written \(No space left on device\)"):
                prepare(find_sources(media), out, **SMALL)
        assert not list(out.rglob(".*.tmp"))
    prepare(find_sources(media), out, **SMALL)
    assert verify_prepared(out) == []
    for name in ("copyfile", "IndexWriter"):
        with monkeypatch.context() as patch:
            patch.setattr(os, "link", full)
            patch.setattr(*((shutil, name) if name == "copyfile" else (PREPARE, name)), full)
            with pytest.raises(DataError, match="merged: cannot be written"):
                merge([out], tmp_path / "merged")
        assert {path.name for path in tmp_path.iterdir()} == {"out"}


def test_drafts_of_a_killed_run_are_removed(media, tmp_path):
    out = tmp_path / "out"
    (out / ".index.1.tmp").mkdir(parents=True)
    (out / "shards").mkdir()
    (out / "shards/.train-001-000000.tar.1.tmp").touch()
    prepare(find_sources(media), out, **SMALL)
    assert not list(out.rglob(".*.tmp"))


@pytest.mark.parametrize("place", ["file/out", "/proc/out"])
def test_an_output_that_cannot_be_written_gets_one_line(media, tmp_path, place):
    (tmp_path / "file").touch()
    with pytest.raises(EquiAVError, match="cannot be written") as refused:
        prepare(find_sources(media), tmp_path / place, **SMALL)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("suffix", "line", "reason"),
    [
        (".jsonl", r'{"path": "a\u0000.mp4"}', "line 1: no path holds the character NUL"),
        (".txt", "a\0.mp4", "line 1: no path holds the character NUL"),
        (".csv", "path\na\0.mp4", "NUL"),
        (".jsonl", '{"path": "a.mp4", "start": 1e999}', "line 1: start must be"),
        (".jsonl", '{"path": "a.mp4", "start": 1%s}' % ("0" * 400), "line 1: "),
        (".jsonl", '{"path": "a.mp4", "start": 1%s}' % ("0" * 5000), "cannot be read as a list"),
        (".jsonl", '{"path": "a.mp4", "start": 1e300}', "line 1: start must be"),
        (".jsonl", '{"path": "a.mp4", "seconds": NaN}', "line 1: start must be"),
        (".jsonl", '{"path": "a.mp4", "fold": 1e999}', "line 1: "),
        (".csv", "path,fold\na.mp4,1" + "0" * 30, "line 2: fold must be"),
        (".csv", "path,boxes\na.mp4,\"[[NaN,0,1,1]]\"", "line 2: boxes must be numbers"),
        (".csv", "path,boxes\na.mp4,\"[[0,1,1]]\"", "line 2: "),
        (".jsonl", "[" * 100_000, "cannot be read as a list"),
        (".jsonl", "5", "line 1: a line is a record"),
        (".csv", "path\n" + "x" * 200_000, "cannot be read as a list"),
        (".txt", "\udcff.mp4", "cannot be read as a list"),
    ],
)  # fmt: skip
def test_absurd_lists_get_one_line(tmp_path, suffix, line, reason):
    path = tmp_path / f"list{suffix}"
    path.write_bytes(line.encode("utf-8", "surrogateescape"))
    with pytest.raises(DataError, match=reason) as refused:
        find_sources(path)
    assert "\n" not in str(refused.value)


def test_surrogates_in_a_list_cost_their_file_only(media, tmp_path):
    """JSON can name what no file system and no encoding can: the line is skipped with a reason, the others are used."""
    lines = [{"path": "a\ud800.mp4", "labels": ["l\ud800"]}, {"path": str(media / "video0.mp4"), "labels": ["l\ud800"]}]
    (tmp_path / "list.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    summary = prepare(find_sources(tmp_path / "list.jsonl"), tmp_path / "out", **SMALL)
    assert (summary.clips, summary.skipped) == (1, 1)
    assert ShardDataset(tmp_path / "out", None).labels(0) == ("l\\ud800",)
    ((source, _, reason),) = read_skipped(tmp_path / "out")
    assert source == "a\\ud800.mp4"
    assert "cannot be opened" in reason or "no such file" in reason
