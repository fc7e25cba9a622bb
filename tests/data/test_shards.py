"""Shards open with WebDataset and plain tar; read by number, in any process; damage is named."""

import io
import json
import multiprocessing
import os
import pickle
import re
import shutil
import subprocess
import sys
import tarfile
from dataclasses import replace

import numpy as np
import pytest
import torch
import webdataset
from PIL import Image

from equiav.data import (
    Dataset,
    IndexWriter,
    PreparedIndex,
    Schedule,
    ShardDataset,
    evaluation_batches,
    find_sources,
    flac,
    merge,
    prepare,
    read_flac,
    training_batches,
)
from equiav.errors import DataError
from equiav.inspection import write_inspection
from tests.media.making import sine, write_media

pytestmark = pytest.mark.process


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    root = tmp_path_factory.mktemp("media")
    for k in range(6):
        write_media(root / f"film {k}.mp4", seconds=1, fps=10, size=(96, 64), sound=sine(1, 16000, 200 + 50 * k))
    out = tmp_path_factory.mktemp("prepared") / "out"
    sources = [replace(s, labels=(f"l{i}",), split="train") for i, s in enumerate(find_sources(root))]
    prepare(sources, out, workers=1, shard_bytes=50_000)
    return out


def test_flac_loses_nothing():
    rng = np.random.default_rng(0)
    for samples in (8000, 160000, 12345):
        sound = rng.integers(-32768, 32767, samples).astype(np.int16)
        np.testing.assert_array_equal(read_flac(flac(sound, 16000)), sound)


def test_it_is_a_clip_dataset(folder):
    data = ShardDataset(folder, "train", size=32)
    assert isinstance(data, Dataset)
    assert (len(data), data.frames) == (6, 10)
    sample = data.sample(2, 5)
    assert sample.inputs["visual"].shape == (3, 32, 32)
    assert sample.inputs["visual"].dtype == torch.uint8
    assert sample.inputs["audio"].dtype == torch.float32
    assert sample.id == data.name(2)
    assert data.labels(2) == ("l2",)
    assert data.video(2).shape == (10, 3, 32, 32)
    assert torch.equal(data.video(2)[5], sample.inputs["visual"])
    for size in (32, 64, 256):  # the short side as it is stored is 64
        data = ShardDataset(folder, "train", size=size)
        frames, whole = data.shown(2)
        assert torch.equal(frames, data.video(2))
        np.testing.assert_array_equal(whole, data.frame(2, 5, whole=True).permute(1, 2, 0).numpy())
    tone = torch.from_numpy(sine(1, 16000, 300))[: len(sample.inputs["audio"])]
    assert float((sample.inputs["audio"] - tone)[500:15000].square().mean().sqrt()) < 0.02
    with pytest.raises(DataError, match="frame 10 of clips that hold 10"):
        data.sample(0, 10)
    with pytest.raises(IndexError):
        data.sample(6, 0)


def test_a_clip_is_shown_with_each_frame_decoded_once(folder, monkeypatch):
    data, read = ShardDataset(folder, "train", size=32), []
    frame = data.frame
    monkeypatch.setattr(data, "frame", lambda index, k, **how: read.append(k) or frame(index, k, **how))
    data.shown(2)
    assert sorted(read) == list(range(10))


def test_webdataset_and_tar_read_the_same(folder):
    data = ShardDataset(folder, "train", size=64)
    shards = sorted(str(path) for path in (folder / "shards").glob("*.tar"))
    assert len(shards) > 1
    found = {sample["__key__"]: sample for sample in webdataset.WebDataset(shards, shardshuffle=False)}
    assert len(found) == len(data)
    for index in range(len(data)):
        sample = found[data.name(index)]
        sound = torch.from_numpy(read_flac(sample["flac"]).astype(np.float32)) / 32768
        assert torch.equal(sound, data.waveform(index))
        for frame in range(10):
            picture = np.array(Image.open(io.BytesIO(sample[f"{frame}.jpg"])))
            np.testing.assert_array_equal(picture, data.frame(index, frame, whole=True).permute(1, 2, 0).numpy())
    with tarfile.open(shards[0]) as tar:
        names = tar.getnames()
    assert names[:2] == [f"{data.name(0)}.flac", f"{data.name(0)}.0.jpg"]


def read_one(data, index, queue):
    queue.put(float(data.sample(index, 0).inputs["audio"].square().sum()))


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_shared_with_processes(folder, method):
    data = ShardDataset(folder, "train", size=32)
    expected = float(data.sample(1, 0).inputs["audio"].square().sum())  # files are open now
    context = multiprocessing.get_context(method)
    queue = context.SimpleQueue()
    process = context.Process(target=read_one, args=(data, 1, queue))
    process.start()
    assert queue.get() == pytest.approx(expected)
    process.join()
    assert len(pickle.dumps(data)) < 1000


def test_nothing_is_said_when_python_ends_before_it(folder):
    """What a module holds may be gone by then."""
    code = f"from equiav.data import ShardDataset; data = ShardDataset({str(folder)!r}, None); data.waveform(0)"
    run = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert run.stderr == ""


def test_loaders_read_it_with_workers(folder):
    data = ShardDataset(folder, "train", size=32)
    schedule = Schedule(len(data), data.frames, batch=3, seed=1)
    one, two = (
        list(training_batches(data, schedule, start=0, stop=4, rank=0, world_size=1, workers=workers))
        for workers in (0, 2)
    )
    for a, b in zip(one, two, strict=True):
        assert a.ids == b.ids
        assert torch.equal(a.inputs["visual"], b.inputs["visual"])
        assert torch.equal(a.inputs["audio"], b.inputs["audio"])
    assert sum(len(batch) for batch in evaluation_batches(data, batch=4)) == 6


def test_inspection_is_one_page_that_needs_nothing_else(folder, tmp_path):
    write_inspection(folder, tmp_path / "page.html")
    page = (tmp_path / "page.html").read_text()
    assert page.count("<audio") == 6
    assert "data:audio/flac" in page
    assert "l3" in page
    assert not re.search(r'(src|href)="(?!data:)', page)


def copy_of(folder, tmp_path):
    """The folder as earlier versions wrote it: without checksums, which would find what is done to it first."""
    copy = shutil.copytree(folder, tmp_path / "copy")
    (copy / "SHA256SUMS").unlink()
    meta = json.loads((copy / "meta.json").read_text())
    (copy / "meta.json").write_text(json.dumps({k: v for k, v in meta.items() if k != "checksums"}))
    return copy


def test_a_flipped_bit_is_an_error_that_names_shard_and_clip(folder, tmp_path):
    damaged = copy_of(folder, tmp_path)
    data = ShardDataset(damaged, "train")
    offset, size, _ = (int(x) for x in data.index.members[3, 0])
    shard = damaged / "shards" / data.index.text("shards", int(data.index.shard[3]))
    content = bytearray(shard.read_bytes())
    content[offset + size // 2] ^= 4
    shard.write_bytes(content)
    with pytest.raises(DataError, match=rf"{shard.name}: clip {data.name(3)} is damaged"):
        data.sample(3, 0)
    shard.write_bytes(content[: offset + 10])
    with pytest.raises(DataError, match=shard.name):
        ShardDataset(damaged, "train").sample(3, 0)
    shard.unlink()
    with pytest.raises(DataError, match=shard.name):
        ShardDataset(damaged, "train").sample(3, 0)


def test_unfinished_or_foreign_folders_are_refused(folder, tmp_path):
    with pytest.raises(DataError, match="holds no finished data"):
        ShardDataset(tmp_path, "train")
    with pytest.raises(DataError, match="no clips for test"):
        ShardDataset(folder, "test")
    damaged = copy_of(folder, tmp_path)
    (damaged / "index/members.npy").write_bytes(b"nonsense")
    with pytest.raises(DataError, match="is damaged"):
        ShardDataset(damaged, "train")


def renamed(folder, shard):
    """The folder with another name written into its index for every shard."""
    rows = [replace(row, shard=shard) for row in PreparedIndex(folder).rows()]
    with IndexWriter(folder, [shard]) as index:
        for row in rows:
            index.add(row)
    return folder


@pytest.mark.parametrize(
    "name",
    ["../victim.tar", "a/b.tar", "{outside}/victim.tar", "..", ".", "", ".hidden", "back\\slash.tar", "nul\0.tar"],
)
def test_a_shard_has_a_plain_name(folder, tmp_path, name):
    victim = tmp_path / "victim.tar"
    victim.write_bytes(b"precious")
    damaged = renamed(copy_of(folder, tmp_path), name.format(outside=tmp_path))
    with pytest.raises(DataError, match="is not the name of a shard") as refused:
        ShardDataset(damaged, "train")
    assert "\n" not in str(refused.value)
    with pytest.raises(DataError, match="is not the name of a shard"):
        merge([damaged], tmp_path / "merged")
    assert victim.read_bytes() == b"precious"
    assert {path.name for path in tmp_path.iterdir()} == {"copy", "victim.tar"}


@pytest.mark.parametrize("kind", ["link", "pipe", "folder"])
def test_a_shard_is_a_regular_file(folder, tmp_path, kind):
    damaged = copy_of(folder, tmp_path)
    shard = damaged / "shards" / next(PreparedIndex(damaged).rows()).shard
    shard.rename(tmp_path / "elsewhere.tar")
    {"link": lambda: shard.symlink_to("../../elsewhere.tar"), "pipe": lambda: os.mkfifo(shard), "folder": shard.mkdir}[
        kind
    ]()
    for use in (lambda: ShardDataset(damaged, "train"), lambda: merge([damaged], tmp_path / "merged")):
        with pytest.raises(DataError, match=rf"{shard.name}: a shard must be a regular file"):
            use()


def test_a_clip_in_a_shard_without_a_name_is_damage(folder, tmp_path):
    damaged = copy_of(folder, tmp_path)
    numbers = np.load(damaged / "index/shard.npy")
    for number in (-1, 1000):
        numbers[2] = number
        np.save(damaged / "index/shard.npy", numbers)
        with pytest.raises(DataError, match="is damaged"):
            ShardDataset(damaged, "train")


def test_merging_never_writes_into_a_part(folder, tmp_path):
    """Shards are linked: a second one of the same name would be copied over the first part's own."""
    parts = [copy_of(folder, tmp_path / str(number)) for number in (1, 2)]
    for number, part in enumerate(parts, start=1):
        meta = json.loads((part / "meta.json").read_text())
        (part / "meta.json").write_text(json.dumps({**meta, "part": [number, 2]}))
    with pytest.raises(DataError, match=r"both have a shard train-001-0000\d\d.tar"):
        merge(parts, tmp_path / "merged")
    assert {path.name for path in tmp_path.iterdir()} == {"1", "2"}
