"""Checkpoints on the Hub: pushed and fetched by name, from a stand-in on loopback and from a local cache."""

import os
import pickle
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from equiav.cli import app
from equiav.errors import CheckpointError
from equiav.evaluation import evaluation_folder
from equiav.inference import Embedder, load_model
from tests.inference.models import saved_model
from tests.integrations.hub_server import Hub

pytest.importorskip("huggingface_hub")


@pytest.fixture
def hub():
    server = Hub()
    yield server
    if not server.closed:
        server.close()


@pytest.fixture
def here(hub, tmp_path, monkeypatch):
    """The library asks the stand-in, and keeps what it gets in a cache of its own."""
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "ENDPOINT", hub.url)
    monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", hub.url + "/{repo_id}/resolve/{revision}/{filename}")
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
    return hub


def equiav(hub, tmp_path, *words, **environment):
    return subprocess.run(
        [sys.executable, "-m", "equiav.cli", *map(str, words)],
        env={**os.environ, "HF_ENDPOINT": hub.url, "HF_HOME": str(tmp_path / "home"), **environment},
        capture_output=True,
        text=True,
    )


def test_a_pushed_model_is_found_by_name(hub, here, tmp_path):
    run = saved_model(tmp_path / "run")
    done = equiav(hub, tmp_path, "push", run, "me/sounds", HF_TOKEN="hf_test")
    assert done.returncode == 0, done.stderr
    assert {"README.md", "weights.safetensors", "config.yaml", "meta.json"} <= set(hub.files["me/sounds"])
    wave = torch.randn(16000).numpy()
    ours, theirs = (
        Embedder(load_model(name)).audio(wave, sample_rate=16000)
        for name in (run, f"hf:me/sounds@{hub.commit('me/sounds')}")
    )
    np.testing.assert_array_equal(ours, theirs)


def test_commands_take_the_name_for_a_checkpoint(here, tmp_path, monkeypatch, capsys):
    run = saved_model(tmp_path / "run")
    here.files["me/kept"] = {path.name: path.read_bytes() for path in run.iterdir()}
    media = tmp_path / "media"
    media.mkdir()
    Image.fromarray(np.zeros((64, 64, 3), np.uint8)).save(media / "black.png")
    monkeypatch.chdir(tmp_path)
    for words in (
        "info hf:me/kept",
        "index media library --model hf:me/kept --workers 1",
        "search library --image media/black.png --among visual",  # the index knows its model
        "search library --image media/black.png --among visual --model hf:me/kept@main",
        "export hf:me/kept given --no-onnx",
        "verify hf:me/kept",
    ):
        app(words.split(), standalone_mode=False)
    assert "black.png" in capsys.readouterr().out
    with pytest.raises(CheckpointError, match="released models have 128 mel bins"):
        app(["convert", "hf:me/kept", "released.pth"], standalone_mode=False)
    assert evaluation_folder(Path("hf:me/kept@main"), "probe") == Path("runs/kept/evaluation/probe")
    assert not [path for path in tmp_path.iterdir() if path.name.startswith("hf:")]


def test_only_plain_data_is_fetched(here, tmp_path):
    run = saved_model(tmp_path / "run")
    files = {name: (run / name).read_bytes() for name in ("weights.safetensors", "config.yaml", "meta.json")}
    here.files["me/mixed"] = {
        **files,
        "pytorch_model.bin": pickle.dumps(print),
        "state.safetensors": b"",
        "code.py": b"raise SystemExit",
        "sub/weights.safetensors": b"",
    }
    load_model("hf:me/mixed")
    fetched = {path.rpartition("/")[2] for path in here.asked if "/resolve/" in path}
    assert fetched == set(files)


def test_what_is_in_the_cache_needs_no_network(hub, here, tmp_path, monkeypatch):
    run = saved_model(tmp_path / "run")
    here.files["me/kept"] = {name.name: name.read_bytes() for name in run.iterdir()}
    load_model("hf:me/kept")
    hub.close()
    load_model("hf:me/kept")
    with pytest.raises(CheckpointError, match=r"hf:me/other: .*cannot be reached.*hf download me/other"):
        load_model("hf:me/other")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(CheckpointError, match=r"hf:me/other: .*hf download me/other"):
        load_model("hf:me/other")


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("hf:me/none", "no such repository"),
        ("hf:me/there@v9", "has no revision 'v9'"),
        ("hf:nameless", "is named hf:owner/name"),
        ("hf:me/there@../../x y", "is named hf:owner/name"),
        ("hf:me/empty", "holds no weights as safetensors"),
    ],
)
def test_one_line_for_what_cannot_be_fetched(here, name, reason):
    here.files["me/there"] = {"config.yaml": b""}
    here.files["me/empty"] = {"README.md": b"hello"}
    with pytest.raises(CheckpointError, match=reason) as caught:
        load_model(name)
    assert "\n" not in str(caught.value)


def test_a_refused_push_is_one_line(hub, tmp_path):
    done = equiav(hub, tmp_path, "push", saved_model(tmp_path / "run"), "me/sounds", HF_TOKEN="hf_wrong")
    assert done.returncode == 2
    assert done.stderr.strip().splitlines()[-1].startswith("equiav: me/sounds: not uploaded: ")
    assert hub.files == {}
