"""Preparing: what is kept and what is left out, carrying on after kills, parts that equal a whole, real media."""

import csv
import hashlib
import json
import os
import random
import shutil
import signal
import socket
import sqlite3
import subprocess
import sys
import tarfile
import time
import tracemalloc
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from equiav.data import (
    PreparedIndex,
    ShardDataset,
    find_sources,
    key_of,
    merge,
    prepare,
    read_meta,
    read_skipped,
    split_of,
)
from equiav.data.cutting import Outcome, clip_of, fragment_path
from equiav.data.shards import pack
from equiav.data.sources import Clips
from equiav.errors import Busy, DataError, MediaError
from equiav.media import Failure, FilterBank, Workers, read_image, tick
from equiav.types import Clip
from tests.media.making import number_of, sine, write_media

PREPARE = sys.modules["equiav.data.prepare"]  # the function of that name hides it

pytestmark = pytest.mark.process

SMALL = {"clip_seconds": 2.0, "short_side": 48, "shard_bytes": 60_000}


@pytest.fixture(scope="module")
def media(tmp_path_factory):
    """Twelve films of 1 to 5 s, two copies, one without sound."""
    root = tmp_path_factory.mktemp("films")
    for k in range(12):
        seconds = 1 + k % 5
        write_media(
            root / f"day{k % 3}" / f"film{k:02d}.mp4", seconds=seconds, fps=10, sound=sine(seconds, 16000, 150 + 40 * k)
        )
    shutil.copy(root / "day0/film00.mp4", root / "day1/copy.mp4")
    shutil.copy(root / "day0/film00.mp4", root / "day2/copy.mp4")
    write_media(root / "mute.mp4", seconds=1, audio=False)
    return root


def contents(folder):
    """Everything that was stored, by name."""
    found = {}
    for shard in sorted((folder / "shards").glob("*.tar")):
        with tarfile.open(shard) as tar:
            for member in tar:
                assert member.name not in found, f"{member.name} is there twice"
                found[member.name] = hashlib.sha256(tar.extractfile(member).read()).hexdigest()
    return found


@pytest.fixture(scope="module")
def whole(media, tmp_path_factory):
    out = tmp_path_factory.mktemp("whole") / "out"
    prepare(find_sources(media), out, workers=2, **SMALL)
    return out


def test_a_folder_becomes_clips(media, whole):
    summary = prepare(find_sources(media), whole, workers=1, **SMALL)  # finished: only read back
    # 1, 2, 3, 4, 5 s in clips of 2 s: 1, 1, 1, 2, 2 (a tail of 1 s is dropped).
    assert summary.clips == sum([1, 1, 1, 2, 2][k % 5] for k in range(12))
    assert (summary.used, summary.skipped) == (12, 3)
    assert {s: r for s, _, r in read_skipped(whole)} == {
        "day1/copy.mp4": "same content as day0/film00.mp4",
        "day2/copy.mp4": "same content as day0/film00.mp4",
        "mute.mp4": "no sound",
    }
    with (whole / "manifest.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == summary.clips
    assert {row["split"] for row in rows} <= {"train", "validation"}
    assert all(row["split"] == split_of(row["name"]) for row in rows)
    assert not (whole / "work").exists()


COMMANDS = """
import sys
from equiav.cli import app
from equiav.media import Workers

loaded = "'torch' in __import__('sys').modules"
media, out, joined = sys.argv[1:]
app(["prepare", media, out, "--seconds", "1", "--workers", "1"], standalone_mode=False)
with Workers() as workers:
    print(eval(loaded), workers.call(eval, loaded))
app(["merge", out, "--out", joined], standalone_mode=False)
print(eval(loaded))
"""


def test_only_processes_that_cut_load_torch(tmp_path):
    """And those all get it from the server that they are forked from, where there is one."""
    film = write_media(tmp_path / "a.mp4", seconds=1)
    run = [sys.executable, "-c", COMMANDS, film, tmp_path / "out", tmp_path / "joined"]
    said = subprocess.run(run, check=True, capture_output=True, text=True).stdout.splitlines()
    assert [said[1], said[3]] == [f"False {sys.platform == 'linux'}", "False"]


def test_stored_frames_are_those_of_the_stated_times(whole):
    index = PreparedIndex(whole)
    for row, stored in enumerate(index.rows()):
        data = ShardDataset(whole, stored.clip.split)
        place = int(np.flatnonzero(data.rows == row)[0])
        times = data.info(place)["times"]
        shown = [number_of(data.frame(place, k, whole=True).permute(1, 2, 0).numpy()) for k in range(10)]
        assert shown == [int(t * 10 + 1e-3) for t in times]


def test_clips_behind_the_first_of_a_shard_are_found(media, tmp_path):
    """Members are stored by their offset in the shard; a wrong one would fail its checksum."""
    prepare(find_sources(media / "day0"), tmp_path, workers=1, clip_seconds=1.0, short_side=48)
    data = ShardDataset(tmp_path, None)
    assert len({stored.shard for stored in PreparedIndex(tmp_path).rows()}) < len(data)
    for place in range(len(data)):
        assert data.sample(place, 9).inputs["audio"].any()


def test_statistics_are_those_of_the_training_clips(whole):
    data = ShardDataset(whole, "train")
    bank = FilterBank()
    values = []
    for index in range(len(data)):
        waveform = data.waveform(index)[None]
        values.append(bank(waveform)[0, : int(bank.rows(torch.tensor([waveform.shape[1]])))].flatten().double())
    values = torch.cat(values)
    stated = read_meta(whole)["spectrogram"]
    assert stated["mean"] == pytest.approx(float(values.mean()), abs=1e-9)
    assert stated["std"] == pytest.approx(float(values.std(correction=0)), abs=1e-9)


@pytest.mark.parametrize("listed", [False, True])
def test_only_regular_files_are_opened(media, tmp_path, listed):
    """Pipes, devices and sockets have size 0, so they were compared with each other: reading them never ends."""
    root, out = tmp_path / "in", tmp_path / "out"
    root.mkdir()
    shutil.copy(media / "day0/film00.mp4", root / "film.mp4")
    os.mkfifo(root / "pipe.mp4")
    os.mkfifo(root / "second.mp4")
    (root / "zero.mp4").symlink_to("/dev/zero")
    (root / "folder.mp4").mkdir()
    (root / "empty.mp4").touch()
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(os.path.relpath(root / "socket.mp4"))  # such names must be short
        place = root
        if listed:
            place = root / "list.txt"
            names = ["film", "pipe", "second", "zero", "folder", "empty", "socket", "absent"]
            place.write_text("".join(f"{name}.mp4\n" for name in names))
        command = [sys.executable, "-m", "equiav.cli", "prepare", str(place), str(out), "--workers", "1"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    reasons = {source: reason for source, _, reason in read_skipped(out)}
    opened = reasons.pop("empty.mp4")
    assert opened.startswith("cannot be opened as media")
    special = dict.fromkeys(("pipe.mp4", "second.mp4", "zero.mp4", "socket.mp4"), "not a regular file")
    expected = {**special, "folder.mp4": "not a regular file", "absent.mp4": "no such file"} if listed else special
    assert reasons == expected
    assert read_meta(out)["sources"]["used"] == 1


RUN = """
import sys
from pathlib import Path
from equiav.data import find_sources, prepare
prepare(find_sources(Path(sys.argv[1])), Path(sys.argv[2]), workers=2, clip_seconds=2.0, short_side=48,
        shard_bytes=60_000)
"""


def start(media, out):
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.Popen(
        [sys.executable, "-c", RUN, str(media), str(out)],
        env=environment,
        stderr=subprocess.PIPE,
        start_new_session=True,
    )


def finished(out):
    """Numbers of the sources in the journal, each on a line of its own and once; the last line may be cut short."""
    journal = out / "work/journal.jsonl"
    lines = journal.read_text().split("\n")[:-1] if journal.exists() else []
    numbers = [json.loads(line)["number"] for line in lines]
    assert len(set(numbers)) == len(numbers), "a finished source was done again"
    return numbers


def shards_of(out):
    """Shards and drafts of shards."""
    return {path.name for path in (out / "shards").iterdir()} if (out / "shards").exists() else set()


def test_killed_and_carried_on_equals_uninterrupted(media, whole, tmp_path):
    out, dice, kills = tmp_path / "out", random.Random(3), 0
    done = []
    for attempt in range(5):
        run = start(media, out)
        before, shards = len(done), shards_of(out)
        if attempt % 2:  # in the middle of writing a shard, or right behind it
            while run.poll() is None and shards_of(out) == shards:
                time.sleep(0.0005)
        else:  # something new to lose, and a little longer
            while run.poll() is None and len(finished(out)) <= before:
                time.sleep(0.002)
            time.sleep(dice.uniform(0, 0.05))
        if run.poll() is not None:
            break
        os.killpg(run.pid, signal.SIGKILL)
        run.wait()
        kills += 1
        assert finished(out)[: len(done)] == done
        if attempt == 2:  # a kill may cut a line short
            os.truncate(out / "work/journal.jsonl", (out / "work/journal.jsonl").stat().st_size - 20)
        done = finished(out)
    assert kills >= 3
    run = start(media, out)
    assert run.wait(timeout=120) == 0, run.stderr.read().decode()
    assert contents(out) == contents(whole)
    assert {p.name for p in (out / "shards").iterdir()} == {p.name for p in (whole / "shards").iterdir()}
    assert json.loads((out / "meta.json").read_text()) == json.loads((whole / "meta.json").read_text())
    assert (out / "manifest.csv").read_text() == (whole / "manifest.csv").read_text()
    assert (out / "skipped.csv").read_text() == (whole / "skipped.csv").read_text()


@pytest.mark.parametrize("step", ["IndexWriter", "_finish"])
def test_stopped_while_finishing(media, whole, tmp_path, monkeypatch, step):
    """All shards stand and all fragments are gone: nothing is read again."""
    out = tmp_path / "out"

    def stop(*_, **__):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(PREPARE, step, stop)
        with pytest.raises(KeyboardInterrupt):
            prepare(find_sources(media), out, workers=2, **SMALL)
    with pytest.raises(DataError, match="holds no finished data"):
        ShardDataset(out, "train")
    with monkeypatch.context() as patch:
        patch.setattr(PREPARE.Workers, "map", lambda self, cutter, jobs: (stop() for _ in jobs))
        prepare(find_sources(media), out, workers=2, **SMALL)
    assert contents(out) == contents(whole)
    assert (out / "meta.json").read_text() == (whole / "meta.json").read_text()


def test_stopped_in_the_middle_of_a_shard(media, whole, tmp_path, monkeypatch):
    """Half a shard never stands where a whole one belongs."""
    out, contents_of = tmp_path / "out", PREPARE._contents

    def half(work, pieces):
        yield next(contents_of(work, pieces))
        if shards_of(out):
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(PREPARE, "_contents", half)
        with pytest.raises(KeyboardInterrupt):
            prepare(find_sources(media), out, workers=2, **SMALL)
    assert {path.stat().st_size for path in (out / "shards").glob("*.tar")} <= {
        path.stat().st_size for path in (whole / "shards").glob("*.tar")
    }
    prepare(find_sources(media), out, workers=2, **SMALL)
    assert contents(out) == contents(whole)


def test_two_runs_in_one_folder_are_refused(media, tmp_path):
    out = tmp_path / "out"
    run = start(media, out)
    lock = out / ".lock"
    while run.poll() is None and not (lock.exists() and lock.read_text()):  # its holder signs it once it is taken
        time.sleep(0.01)
    with pytest.raises(Busy, match="is being written by process"):
        prepare(find_sources(media), out, workers=1, **SMALL)
    os.killpg(run.pid, signal.SIGKILL)
    run.wait()


def test_two_parts_merged_equal_one_run(media, whole, tmp_path, monkeypatch):
    sources = find_sources(media)
    parts = [tmp_path / "one", tmp_path / "two"]
    for number, part in enumerate(parts, start=1):
        prepare(sources, part, workers=2, part=(number, 2), **SMALL)
    with pytest.raises(DataError, match="needs each of the 2 parts once"):
        merge(parts[:1], tmp_path / "merged")
    assert len(PreparedIndex(whole)) > 3
    monkeypatch.setattr("equiav.data.shards.MAPPED_ROWS", 3)  # the index is read in several portions
    summary = merge(parts, tmp_path / "merged")
    assert contents(tmp_path / "merged") == contents(whole)
    one, two = (json.loads((folder / "meta.json").read_text()) for folder in (tmp_path / "merged", whole))
    assert {**one, "shards": 0} == {**two, "shards": 0}
    assert summary.clips == two["clips"]
    assert list(read_skipped(tmp_path / "merged")) == list(read_skipped(whole))
    assert [row.clip for row in PreparedIndex(tmp_path / "merged").rows()] == [
        row.clip for row in PreparedIndex(whole).rows()
    ]
    data, other = ShardDataset(tmp_path / "merged", "train"), ShardDataset(whole, "train")
    for index in range(len(data)):
        assert torch.equal(data.sample(index, 4).inputs["visual"], other.sample(index, 4).inputs["visual"])
    with pytest.raises(DataError, match="exists already"):
        merge(parts, tmp_path / "merged")


def test_other_sources_or_settings_are_refused(media, whole):
    with pytest.raises(DataError, match="other sources or with other settings"):
        prepare(find_sources(media), whole, workers=1, **{**SMALL, "clip_seconds": 3.0})
    with pytest.raises(DataError, match="other sources"):
        prepare(find_sources(media)[1:], whole, workers=1, **SMALL)


def test_arguments_that_make_no_sense_are_refused(media, tmp_path):
    sources = find_sources(media)
    for options, reason in (
        ({"part": (3, 2)}, "part 3/2 does not exist"),
        ({"overlap": 10.0}, "make no sense"),
        ({"frames": 0}, "frames 1 to 1000"),
        ({"need": ()}, "need must name"),
        ({"workers": 0}, "at least one worker"),
    ):
        with pytest.raises(DataError, match=reason):
            prepare(sources, tmp_path / "out", **{"workers": 1, **options})


def test_one_modality_alone(tmp_path):
    root = tmp_path / "media"
    write_media(root / "a.wav", seconds=1, video=False, codecs=("", "pcm_s16le"))
    write_media(root / "b.mp4", seconds=1, sound=sine(1, 16000, 300))
    write_media(root / "c.mp4", seconds=1, audio=False, fps=10)
    for need, used in ((("audio",), {"a.wav", "b.mp4"}), (("video",), {"b.mp4", "c.mp4"})):
        out = tmp_path / need[0]
        prepare([*sources_in(root)], out, workers=1, need=need)
        assert read_meta(out)["modalities"] == list(need)
        data = ShardDataset(out, "train")
        assert {data.source(i) for i in range(len(data))} == used
        assert data.frames == (10 if need == ("video",) else 0)
        if need == ("video",):
            assert data.frame(0, 0).shape == (3, 224, 224)
            with pytest.raises(DataError, match="holds only visual"):
                data.waveform(0)
        else:
            assert data.waveform(0).shape == (16000,)


def sources_in(root):
    return [replace(source, split="train") for source in find_sources(root)]


def test_stretches_and_labels_from_tables(media, tmp_path):
    table = tmp_path / "list.csv"
    film = media / "day1/film04.mp4"
    table.write_text(
        "path,start,seconds,labels,split,fold,boxes,extra\n"
        f'{film},0,1.5,dog;cat,train,4,"[[0,0.25,0.5,1]]",x\n'
        f"{film},2,2,,validation,,,\n"
        f"{film},40,2,,,,,\n"
    )
    sources = find_sources(table)
    assert [source.labels for source in sources] == [("dog", "cat"), (), ()]
    assert [source.metadata for source in sources] == [{"extra": "x"}, {}, {}]
    summary = prepare(sources, tmp_path / "out", workers=1, short_side=48)
    assert (summary.clips, summary.skipped) == (2, 1)
    data = ShardDataset(tmp_path / "out", "train")
    name = f"{film}@0"
    assert replace(data.clip(0), id="", seconds=1.5) == Clip(
        "", name, film, seconds=1.5, labels=("dog", "cat"), split="train", group=str(film), fold=4,
        boxes=((0.0, 0.25, 0.5, 1.0),),
    )  # fmt: skip
    assert data.clip(0).id == data.name(0)
    assert data.modalities == ("audio", "visual")
    assert data.clip(0).seconds == pytest.approx(1.5)
    later = ShardDataset(tmp_path / "out", "validation")
    assert later.clip(0).start == 2
    assert number_of(later.frame(0, 0, whole=True).permute(1, 2, 0).numpy()) == 21
    assert later.group(0) == data.group(0) == str(film)


def test_lists_of_paths_and_json_lines(media, tmp_path):
    shutil.copy(media / "day0/film00.mp4", tmp_path / "here.mp4")
    (tmp_path / "list.txt").write_text("here.mp4\n\n")
    here = Clip("here.mp4", "here.mp4", tmp_path / "here.mp4", group="here.mp4")
    assert list(find_sources(tmp_path / "list.txt")) == [here]
    (tmp_path / "list.jsonl").write_text('{"path": "here.mp4", "labels": ["a", "b"], "name": "n"}\n')
    assert find_sources(tmp_path / "list.jsonl")[0].labels == ("a", "b")
    for name, content, reason in (
        ("bad.csv", "file\nx.mp4\n", "no column called path"),
        ("bad.csv", "path,split\nx.mp4,holdout\n", "line 2: split must be one of"),
        ("bad.csv", "path,start\nx.mp4,soon\n", "line 2"),
        ("bad.jsonl", "{\n", "cannot be read as a list"),
        ("bad.txt", "x.mp4\nx.mp4\n", "two sources are called 'x.mp4'"),
        ("bad.txt", "", "names no media"),
    ):
        (tmp_path / name).write_text(content)
        with pytest.raises(DataError, match=reason):
            find_sources(tmp_path / name)
    with pytest.raises(DataError, match="no such folder"):
        find_sources(tmp_path / "nothing")


def misbehave(job):
    """What decoders do to their process."""
    match job:
        case "crash":
            os.kill(os.getpid(), signal.SIGSEGV)
        case "hang":
            time.sleep(60)
        case "memory":
            return len(bytearray(8 << 30))
        case "slow":
            for _ in range(4):
                time.sleep(0.5)
                tick()
    return job.upper()


def test_workers_that_die_or_hang_cost_only_their_work():
    jobs = ["a", "crash", "b", "hang", "c", "slow", "d", "memory", "e"]
    with Workers(2, patience=1.5) as workers:
        results = dict(workers.map(misbehave, jobs))
    assert {job: result.reason for job, result in results.items() if isinstance(result, Failure)} == {
        "crash": "decoder crashed",
        "hang": "took too long",
        "memory": "took too much memory",
    }
    assert {job: result for job, result in results.items() if isinstance(result, str)} == {
        job: job.upper() for job in ("a", "b", "c", "d", "e", "slow")
    }


def process_of(job):
    time.sleep(0.2)
    return os.getpid()


def full(job):
    raise OSError("no space left")


def test_single_calls_use_workers_again_and_pass_errors_on(tmp_path):
    with Workers(2, patience=20.0) as workers:
        first = workers.call(process_of, "a")
        assert first == workers.call(process_of, "b") != os.getpid()
        with ThreadPoolExecutor(4) as threads:
            assert len(set(threads.map(lambda job: workers.call(process_of, job), range(4)))) == 2
        with pytest.raises(MediaError, match=r"none\.png: no such file"):
            workers.call(read_image, tmp_path / "none.png")
        with pytest.raises(DataError, match="no space left"):
            workers.call(full, "a")
        with pytest.raises(Failure, match="decoder crashed"):
            workers.call(misbehave, "crash")
        assert workers.call(misbehave, "a") == "A"
    with pytest.raises(Failure):
        workers.call(misbehave, "a")


def test_work_that_is_given_up_ends_its_processes():
    workers = Workers(2, patience=60.0)
    results = workers.map(misbehave, ["a", "hang", "hang", "hang", "hang"])
    assert next(results) == ("a", "A")
    began = time.monotonic()
    results.close()
    assert time.monotonic() - began < 10
    with pytest.raises(DataError, match="no space left"):
        list(Workers(1, patience=20.0).map(full, ["a", "b"]))


def test_a_script_without_a_guard_is_told_so(media, tmp_path):
    """Workers import the script that started them; without a guard it would start again in each of them."""
    (tmp_path / "script.py").write_text(RUN)
    run = subprocess.run(
        [sys.executable, tmp_path / "script.py", media, tmp_path / "out"], capture_output=True, text=True, timeout=120
    )
    assert run.returncode == 1
    assert "DataError: a worker process did not start; a script that prepares" in run.stderr


def test_clips_are_not_held_in_memory(tmp_path, monkeypatch):
    """Journal and index are streamed: preparing 6,000 clips holds little more than the outcome of one source."""
    sources = [Clip(f"film{k:02d}.mp4", path=tmp_path / f"{k}.mp4") for k in range(30)]

    def many(workers, cutter, jobs):
        for number, source in jobs:
            made = [
                pack(
                    clip_of(source, key_of(source.id, k), float(k), 1.0),
                    [("flac", b"x"), ("json", b"{}")],
                    (1.0, 2.0, 3.0),
                )
                for k in range(200)
            ]
            fragment_path(cutter.folder, number).write_bytes(b"".join(blob for blob, _ in made))
            yield (number, source), Outcome(number, clips=tuple(stored for _, stored in made))

    monkeypatch.setattr(PREPARE.Workers, "map", many)
    tracemalloc.start()
    summary = prepare(sources, tmp_path / "out", workers=1, shard_bytes=100_000)
    most = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert summary.clips == 6000
    assert len(ShardDataset(tmp_path / "out", None)) == 6000
    assert most < 600 * 6000  # bytes; a clip as an object takes about 1,500, and files are hashed in portions of 1 MB


def test_only_regular_files_are_read(media, tmp_path):
    """Two pipes are of one size: comparing their content would wait for ever."""
    for name in ("a.mp4", "b.mp4"):
        os.mkfifo(tmp_path / name)
    film = media / "day0/film00.mp4"
    (tmp_path / "list.txt").write_text(f"a.mp4\nb.mp4\n/dev/zero\n/dev/full\n{film}\n")
    summary = prepare(find_sources(tmp_path / "list.txt"), tmp_path / "out", workers=1, short_side=48)
    assert (summary.clips, summary.skipped) == (1, 4)
    assert {reason for _, _, reason in read_skipped(tmp_path / "out")} == {"not a regular file"}


def test_real_media_are_prepared_whole(shared, tmp_path):
    """All 13 clips and 59 of the library; sound as FLAC is sample for sample what was decoded."""
    lines = []
    summary = prepare(find_sources(shared / "media"), tmp_path / "out", workers=2, progress=lines.append)
    assert (summary.used, summary.skipped) == (72, 0)
    assert summary.clips == 73
    assert any("clips/s" in line for line in lines)
    seconds = {}
    for row in PreparedIndex(tmp_path / "out").rows():
        seconds[row.clip.source] = seconds.get(row.clip.source, 0.0) + row.clip.seconds
    for table, column in (("manifest.csv", "clips"), ("library.csv", "library")):
        with (shared / "media" / table).open(newline="") as file:
            for line in csv.DictReader(file):
                stated = float(line["duration_s"])
                # A tail shorter than 2 s is dropped, and sound or picture may end up to 0.25 s before the other.
                kept = seconds[line["path"]]
                whole = stated if stated < 10 else 10.0
                assert kept == pytest.approx(whole, abs=0.3) or kept == pytest.approx(13, abs=0.1), column


def test_clips_are_kept_on_disk_and_come_back_as_they_were():
    def clip(name):
        return Clip(
            name, source=name, path=Path("/v") / f"{name}.mp4", start=1.5, seconds=2.0, labels=("a", "ü"), split="test",
            group="g", fold=3, boxes=((0.0, 0.1, 0.5, 1.0),), text="words", metadata={"year": 1999},
        )  # fmt: skip

    given = [clip(f"video {n:05d}") for n in (3, 1, 2)] + [Clip("0")]
    assert list(Clips(given)) == sorted(given, key=lambda clip: clip.id)
    assert Clips(given)[-1] == given[0]
    assert Clips(given)[1:3] == [given[1], given[2]]
    with pytest.raises(DataError, match="two sources are called '0'"):
        Clips([*given, Clip("0")])
    odd = [Clip(name) for name in ("\udcff", "\U0001f600", "é", "z", "Z", "\uffff")]
    assert [clip.id for clip in Clips(odd)] == sorted(clip.id for clip in odd)
    with pytest.raises(IndexError):
        Clips(given)[4]


def test_sources_are_not_held_in_memory(tmp_path, monkeypatch):
    """Finding files and comparing those of one size takes as much memory for 1,200 as for 200."""
    monkeypatch.setattr(PREPARE, "COMPARED", 100)
    # As many buffers of 1 MB are held as threads happen to read at once: not what is measured.
    monkeypatch.setattr(PREPARE, "sha256", lambda path: hashlib.sha256(path.read_bytes()).hexdigest())
    most = []
    for count in (200, 1200):
        folder = tmp_path / str(count)
        folder.mkdir()
        for number in range(count):
            (folder / f"{number}.mp4").write_text(f"{number:04d}")
        tracemalloc.start()
        sources = find_sources(folder)
        assert len(sources) == count
        assert PREPARE._copies(sources, lambda line: None) == {}
        most.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert most[1] - most[0] < 40 * 1000  # bytes; a path alone takes about 500


def test_a_full_folder_for_temporary_files_is_one_line(monkeypatch):
    def full(*_, **__):
        raise sqlite3.OperationalError("database or disk is full")

    monkeypatch.setattr(sqlite3, "connect", full)
    with pytest.raises(DataError, match=r"no room for the list of sources .* \(database or disk is full\); see TMPDIR"):
        Clips([])


def test_folders_behind_links_are_not_searched(tmp_path):
    (tmp_path / "a").mkdir()
    (tmp_path / "a/film.mp4").write_bytes(b"x")
    (tmp_path / "a/folder.mp4").mkdir()
    (tmp_path / "a/up").symlink_to(tmp_path)
    (tmp_path / "linked.mp4").symlink_to("a/film.mp4")
    (tmp_path / "gone.mp4").symlink_to("nowhere")
    assert [clip.id for clip in find_sources(tmp_path)] == ["a/film.mp4", "linked.mp4"]
