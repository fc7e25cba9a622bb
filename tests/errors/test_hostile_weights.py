"""Weights from strangers that ask for all memory or all time: refused in one line before anything is expanded."""

import os
import random
import struct
import time
import zipfile
from pathlib import Path

import pytest
import torch
import yaml

from equiav.build import build_classifier, build_model
from equiav.checkpoint import save_checkpoint, save_model
from equiav.convert import convert
from equiav.errors import CheckpointError, EquiAVError, WeightsError
from equiav.inference import load_classifier, load_model
from equiav.models import read_state
from tests.errors.test_weights import SIZES_TINY
from tests.paper import golden_recipe as recipe
from tests.training.small import small_config

QUICK = 30.0  # seconds of computing; without the bounds these files take minutes
SMALL = 400  # MB; without the bounds these files take gigabytes


def peak_memory() -> float:
    """The most memory this process has held since `reset_peak`, in MB."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM")) / 1000


@pytest.fixture(autouse=True)
def bounded():
    if not os.access("/proc/self/clear_refs", os.W_OK):
        yield
        return
    Path("/proc/self/clear_refs").write_text("5")  # forgets the peak
    before, begun = peak_memory(), time.process_time()
    yield
    assert peak_memory() - before < SMALL
    assert time.process_time() - begun < QUICK


def widen(folder: Path) -> None:
    """Makes the recipe of a checkpoint ask for hundreds of gigabytes."""
    tree = yaml.safe_load((folder / "config.yaml").read_text())
    tree["model"]["encoder"] |= {"size": None, "width": 8192, "depth": 256, "heads": 64, "mlp_ratio": 64}
    (folder / "config.yaml").write_text(yaml.safe_dump(tree))
    (folder / "SHA256SUMS").unlink()


def test_shapes_are_compared_before_a_model_is_allocated(tmp_path):
    config = small_config()
    save_model(tmp_path / "model", config, build_model(config).state_dict(), {"kind": "pretrained"})
    widen(tmp_path / "model")
    with pytest.raises(CheckpointError, match=r"does not fit this model: missing audio\.f\.blocks"):
        load_model(tmp_path / "model")


def test_shapes_are_compared_before_a_classifier_is_allocated(tmp_path):
    config = small_config("classifier={mode: audio, classes: 3}")
    save_checkpoint(tmp_path / "model", config, build_classifier(config).state_dict(), {"kind": "finetuned"})
    widen(tmp_path / "model")
    with pytest.raises(CheckpointError, match=r"does not fit this model: missing encoders\.audio\.blocks"):
        load_classifier(tmp_path / "model")


@pytest.mark.parametrize("depth", [255, 10**9])
def test_released_weights_that_name_many_blocks(tmp_path, depth):
    wide = {**SIZES_TINY, "embed_dim": 8192, "modality_specific_depth": 0, "audio_length": 16, "img_size": 16}
    state = recipe.state({}, wide, 0.1)
    state |= {"__M__.blocks_a.0.mlp.fc1.weight": torch.zeros(4 * 8192, 1), f"__M__.blocks_a.{depth}.x": torch.zeros(1)}
    for m, channels in (("a", 3), ("v", 3)):
        state[f"__M__.patch_embed_{m}.proj.weight"] = torch.zeros(8192, channels, 1, 1)
        state[f"__M__.patch_embed_{m}.proj.bias"] = state[f"__M__.modality_{m}"] = torch.zeros(8192)
    torch.save(state, tmp_path / "deep.pth")
    with pytest.raises(EquiAVError, match=r"does not fit this model|depth: Input should be"):
        convert(tmp_path / "deep.pth", tmp_path / "out")


def test_a_compressed_archive_is_refused_before_it_expands(tmp_path):
    torch.save({"x": torch.zeros(1)}, tmp_path / "plain.pth")
    with (
        zipfile.ZipFile(tmp_path / "plain.pth") as plain,
        zipfile.ZipFile(tmp_path / "bomb.pth", "w", zipfile.ZIP_DEFLATED) as bomb,
    ):
        for name in plain.namelist():
            with bomb.open(name, "w", force_zip64=True) as part:
                for _ in range(600 if name.endswith("data/0") else 0):
                    part.write(bytes(1 << 20))
                part.write(plain.read(name))
    assert (tmp_path / "bomb.pth").stat().st_size < 1e6
    with pytest.raises(WeightsError, match=r"bytes that would become 6\d+; not opened"):
        read_state(tmp_path / "bomb.pth")


def test_tensors_that_share_a_few_bytes_are_refused(tmp_path):
    torch.save({"x": torch.zeros(1).expand(10**12)}, tmp_path / "expanded.pth")
    with pytest.raises(WeightsError, match="bytes that would become 4000000000000; not opened"):
        read_state(tmp_path / "expanded.pth")
    torch.save({"x": torch.eye(3).to_sparse()}, tmp_path / "sparse.pth")
    with pytest.raises(WeightsError, match="not a plain dictionary of tensors"):
        read_state(tmp_path / "sparse.pth")


def million(path: Path) -> None:
    """A safetensors file of a million empty tensors, header only."""
    names = ",".join(f'"k{i}":{{"dtype":"F32","shape":[0],"data_offsets":[0,0]}}' for i in range(10**6))
    header = b"{" + names.encode() + b"}"
    path.write_bytes(struct.pack("<Q", len(header)) + header)


@pytest.mark.parametrize("name", ["new.pth", "legacy.pth", "a.safetensors"])
def test_a_million_names_end_quickly(tmp_path, name):
    path = tmp_path / name
    if name == "a.safetensors":
        million(path)
    else:
        x = torch.zeros(1)
        torch.save(
            dict.fromkeys(map(str, range(100_000 if name == "legacy.pth" else 400_000)), x),
            path,
            _use_new_zipfile_serialization=name == "new.pth",
        )
    with pytest.raises(WeightsError, match="names too many tensors"):
        read_state(path)
    config = small_config()
    save_model(tmp_path / "model", config, build_model(config).state_dict(), {"kind": "pretrained"})
    if name == "a.safetensors":
        (tmp_path / "model/SHA256SUMS").unlink(missing_ok=True)
        path.replace(tmp_path / "model/weights.safetensors")
        with pytest.raises(CheckpointError, match="names too many tensors"):
            load_model(tmp_path / "model")


@pytest.mark.parametrize("legacy", [True, False])
def test_damaged_torch_files_are_one_line(tmp_path, legacy):
    path, moments, messages = tmp_path / "whole.pth", random.Random(0), []
    state = {f"x{i}": torch.full((3,), float(i)) for i in range(4)}
    torch.save({"model": state, "epoch": 3}, path, _use_new_zipfile_serialization=not legacy)
    assert read_state(path).keys() == state.keys()
    data = path.read_bytes()
    for number in range(400):
        damaged = bytearray(data)
        if number % 4:
            damaged[moments.randrange(len(data))] ^= 1 << moments.randrange(8)
        else:
            del damaged[moments.randrange(len(data)) :]
        path.write_bytes(damaged)
        try:
            read_state(path)
        except WeightsError as error:
            messages.append(str(error))
    assert len(messages) > 150
    assert not any("\n" in message for message in messages)
