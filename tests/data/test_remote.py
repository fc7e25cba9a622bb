"""Prepared folders at an address: the same samples in the same order as from the disk, whatever the connection does."""

import json
import pickle
import re
import shlex
import shutil
import subprocess
import sys
from dataclasses import replace
from importlib import import_module
from pathlib import Path

import pytest
import torch

from equiav.data import (
    Schedule,
    ShardDataset,
    evaluation_batches,
    find_sources,
    prepare,
    prepared_folder,
    training_batches,
)
from equiav.data import remote as remote_module
from equiav.errors import DataError
from tests.data.file_server import FileServer
from tests.media.making import sine, write_media

pytestmark = pytest.mark.process

CLIPS = 6


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    root = tmp_path_factory.mktemp("media")
    for k in range(CLIPS):
        write_media(root / f"film {k}.mp4", seconds=1, fps=10, size=(96, 64), sound=sine(1, 16000, 200 + 50 * k))
    out = tmp_path_factory.mktemp("served") / "out"
    splits = ["train"] * (CLIPS - 2) + ["validation", "test"]
    sources = [replace(s, labels=("tone",), split=splits[i]) for i, s in enumerate(find_sources(root))]
    prepare(sources, out, workers=1, shard_bytes=50_000)
    return out


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("EQUIAV_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(remote_module, "DELAY", 0.01)
    remote_module.open_remote.cache_clear()
    return tmp_path / "cache"


@pytest.fixture
def serve(folder):
    servers = []

    def start(root=folder, **how):
        servers.append(FileServer(root, **how))
        return servers[-1]

    yield start
    for server in servers:
        server.close()


def batches(place, workers=0):
    data = ShardDataset(place, "train", size=32)
    schedule = Schedule(len(data), data.frames, batch=2, seed=1)
    trained = training_batches(data, schedule, start=0, stop=5, rank=0, world_size=1, workers=workers)
    return [*trained, *evaluation_batches(data, batch=3)]


def assert_equal(ours, expected):
    assert [batch.ids for batch in ours] == [batch.ids for batch in expected]
    for one, other in zip(ours, expected, strict=True):
        assert one.inputs.keys() == other.inputs.keys()
        assert all(torch.equal(one.inputs[m], other.inputs[m]) for m in one.inputs)


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("cached", ["10", "0"])
def test_same_samples_in_the_same_order_over_a_line_that_drops(folder, serve, monkeypatch, cached, workers):
    monkeypatch.setenv("EQUIAV_CACHE_GB", cached)
    server = serve(drop=3)
    assert_equal(batches(server.address, workers), batches(folder))
    assert any(path.startswith("/shards/") for path, _ in server.asked)
    assert all(asked for path, asked in server.asked if path.startswith("/shards/"))  # never a whole shard


def test_clips_that_were_read_are_kept_and_mended(folder, serve, cache):
    server = serve()
    batches(server.address)
    server.asked.clear()
    assert_equal(batches(server.address), batches(folder))
    assert server.asked == []
    kept = [path for path in cache.rglob("clips/*/*") if path.is_file()]
    assert len(kept) == CLIPS - 2  # those of the split that was read
    for path in kept:
        path.write_bytes(bytes(path.stat().st_size))
    assert_equal(batches(server.address), batches(folder))


def test_what_is_kept_is_bounded(folder, serve, cache, monkeypatch):
    whole = ShardDataset(folder, None)
    lengths = [int(m[-1, 0] + m[-1, 1] - m[0, 0]) for m in whole.index.members]
    limit = sum(lengths[:2]) + lengths[2] // 2
    monkeypatch.setenv("EQUIAV_CACHE_GB", str(limit / 1e9))
    assert_equal(batches(serve().address), batches(folder))
    kept = [path.stat().st_size for path in cache.rglob("clips/*/*") if path.is_file()]
    assert 0 < sum(kept) <= limit
    monkeypatch.setenv("EQUIAV_CACHE_GB", "much")
    with pytest.raises(DataError, match="EQUIAV_CACHE_GB is a number of gigabytes, not 'much'"):
        ShardDataset(serve().address, "train")


def test_it_goes_to_other_processes(folder, serve):
    data = pickle.loads(pickle.dumps(ShardDataset(serve().address, "train", size=32)))
    expected = ShardDataset(folder, "train", size=32)
    assert data.clip(1) == expected.clip(1)
    assert torch.equal(data.sample(1, 2).inputs["audio"], expected.sample(1, 2).inputs["audio"])


def test_a_folder_prepared_again_is_copied_again(folder, serve, tmp_path, cache):
    served = shutil.copytree(folder, tmp_path / "served")
    server = serve(served)
    first = prepared_folder(server.address)
    shutil.rmtree(served)
    prepare(
        [replace(s, split="train") for s in find_sources(write_media(tmp_path / "other.mp4", seconds=1))],
        served,
        workers=1,
    )
    remote_module.open_remote.cache_clear()
    second = prepared_folder(server.address)
    assert second != first
    assert not first.exists()
    assert len(ShardDataset(server.address, "train")) == 1


def one_line(place, match):
    with pytest.raises(DataError, match=match) as caught:
        ShardDataset(place, "train")
    assert "\n" not in str(caught.value)


def test_refusals_are_one_line(folder, serve, tmp_path):
    one_line(f"{serve().address}/elsewhere", r"elsewhere/SHA256SUMS: no such file; is this the address of a prepared")
    one_line(serve(ranges=False).address, "its server gives whole files only, no ranges of bytes; copy the folder")
    one_line(serve(status=403).address, r"SHA256SUMS: cannot be read \(ClientResponseError: 403")
    one_line("ftp://127.0.0.1/x", "an address begins with https://, http://, s3://, gs://, hf://")
    closed = serve()
    closed.close()
    one_line(closed.address, r"SHA256SUMS: cannot be read \(Client.*, tried 5 times")
    busy = serve(status=503)
    one_line(busy.address, r"cannot be read \(ClientResponseError: 503.*tried 5 times")
    assert 5 <= len(busy.asked) <= 10
    changed = shutil.copytree(folder, tmp_path / "changed")
    (changed / "index" / "times.npy").write_bytes(b"x" * 200)
    one_line(serve(changed).address, r"index/times\.npy: differs from its checksum in SHA256SUMS")
    (changed / "SHA256SUMS").write_text(f"{'0' * 64}  meta.json\n{'0' * 64}  index/../../x.npy\n")
    one_line(serve(changed).address, "SHA256SUMS: lists other files than those of a prepared folder")


def test_a_shard_that_is_gone_or_changed_is_named(folder, serve, tmp_path):
    served = shutil.copytree(folder, tmp_path / "served")
    server = serve(served)
    data = ShardDataset(server.address, "train")
    for shard in (served / "shards").iterdir():
        shard.write_bytes(bytes(shard.stat().st_size))
    with pytest.raises(DataError, match=rf"{server.address}/shards/train-.*\.tar: clip .* is damaged"):
        data.sample(0, 0)
    shutil.rmtree(served / "shards")
    with pytest.raises(DataError, match=r"shards/train-.*\.tar: no such file"):
        data.sample(1, 0)


PACKAGES = {"https": "aiohttp", "s3": "s3fs", "gs": "gcsfs", "hf": "huggingface_hub"}


@pytest.mark.parametrize(("protocol", "package"), [*PACKAGES.items(), ("https", "fsspec")])
def test_a_missing_package_is_one_line(monkeypatch, protocol, package):
    monkeypatch.delitem(import_module("fsspec.registry")._registry, protocol, raising=False)
    monkeypatch.setitem(sys.modules, package, None)
    one_line(f"{protocol}://bucket/data", r"needs further packages \(.*\); pip install 'equiav\[remote\]'")


def test_a_bucket(folder, serve, tmp_path, monkeypatch):
    """s3fs itself, against a stand-in: a bucket is a folder of the server."""
    pytest.importorskip("s3fs")
    bucket = tmp_path / "bucket"
    bucket.mkdir()
    (bucket / "clips").symlink_to(folder)
    server = serve(tmp_path, drop=4)
    monkeypatch.setenv("AWS_ENDPOINT_URL", server.address)
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "nobody")
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    assert_equal(batches("s3://bucket/clips"), batches(folder))
    assert any(path.startswith("/bucket/clips/shards/") and asked for path, asked in server.asked)


def test_a_dataset_of_the_hub(folder, serve, tmp_path, monkeypatch):
    """huggingface_hub itself, against a stand-in."""
    constants = pytest.importorskip("huggingface_hub.constants")
    server = serve(tmp_path, drop=4)
    server.hub.mkdir(parents=True)
    (server.hub / "prepared").symlink_to(folder)
    monkeypatch.setattr(constants, "ENDPOINT", server.address)
    template = constants.HUGGINGFACE_CO_URL_TEMPLATE.replace("https://huggingface.co", server.address)
    monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
    assert_equal(batches("hf://datasets/owner/clips/prepared"), batches(folder))
    assert any("/shards/" in path and asked for path, asked in server.asked)


def test_the_guide(folder, serve, tmp_path):
    """Its command, with another address and a smaller model: the losses are those of a run on the disk."""
    root = Path(__file__).parents[2]
    page = (root / "docs/how-to/remote.md").read_text()
    (command,) = re.findall(r"^\$ (equiav pretrain .*)$", page, re.MULTILINE)
    small = ["model.encoder.size=micro", "model.heads.hidden=32", "visual.size=32", "audio.frames=64", "audio.bins=32"]
    small += ["train.epochs=2", "train.workers=2", "train.log_every=1"]
    losses = []
    for place in (folder, serve(drop=5).address):
        out = tmp_path / f"run{len(losses)}"
        words = shlex.split(command.replace("https://media.example.org/clips", str(place)))[1:]
        run = subprocess.run(
            [sys.executable, "-m", "equiav.cli", *words, *small, "--out", str(out)],
            cwd=root,
            capture_output=True,
            text=True,
        )
        assert run.returncode == 0, run.stderr
        lines = map(json.loads, (out / "log.jsonl").read_text().splitlines())
        losses.append([line["loss"] for line in lines if "loss" in line])
    assert losses[0]
    assert losses[0] == losses[1]
