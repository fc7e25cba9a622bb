"""Checksums: a flipped bit in any file is noticed when it is loaded and by `equiav verify`, in one line."""

import random
import shutil
import sys
from contextlib import closing

import pytest
from typer.testing import CliRunner

from equiav.build import build_model
from equiav.checkpoint import load_checkpoint, load_state, save_model, verify_checkpoint
from equiav.cli import app, main
from equiav.data import find_sources, prepare
from equiav.errors import CheckpointError
from equiav.export import export
from equiav.inference import Embedder, load_model
from equiav.io import check_sums
from equiav.search import Index, index_folder
from tests.frozen import api
from tests.media.making import write_media
from tests.training.small import small_config

FLIPS = 300


@pytest.fixture
def folder(tmp_path):
    config = small_config()
    model = build_model(config)
    state = {f"state.{k}": v for k, v in model.state_dict().items()}
    save_model(
        tmp_path / "model", config, model.state_dict(), {"kind": "pretrained", "step": 3, "total": 9}, state=state
    )
    return tmp_path / "model"


def test_no_flipped_bit_goes_unnoticed(folder):
    files = sorted(path for path in folder.iterdir())
    assert [path.name for path in files] == [
        "SHA256SUMS", "config.yaml", "meta.json", "state.safetensors", "weights.safetensors",
    ]  # fmt: skip
    places = random.Random(0)
    assert verify_checkpoint(folder) == []
    for number in range(FLIPS):
        path = files[number % len(files)]
        data = path.read_bytes()
        # Headers decide the most: half of the flips are in the first kilobyte.
        place = places.randrange(min(len(data), 1024) if number % 2 else len(data))
        path.write_bytes(data[:place] + bytes([data[place] ^ 1 << places.randrange(8)]) + data[place + 1 :])
        problems = verify_checkpoint(folder)
        assert problems, (path, place)
        assert not any("\n" in line for line in problems)
        with pytest.raises(CheckpointError, match=r"differs|damaged|format|not among") as caught:
            load_checkpoint(folder), load_state(folder)
        assert "\n" not in str(caught.value)
        path.write_bytes(data)
    assert verify_checkpoint(folder) == []


def test_missing_and_unlisted_files(folder):
    (folder / "state.safetensors").unlink()
    assert [line.partition(";")[0] for line in verify_checkpoint(folder)] == [f"{folder}/state.safetensors: missing"]
    sums = (folder / "SHA256SUMS").read_text()
    (folder / "SHA256SUMS").write_text("".join(line for line in sums.splitlines(True) if "config" not in line))
    with pytest.raises(CheckpointError, match=r"config\.yaml: not among the files of SHA256SUMS"):
        load_checkpoint(folder)
    (folder / "SHA256SUMS").write_text("0" * 64 + "  ../elsewhere\n")
    assert check_sums(folder) == [f"{folder}/SHA256SUMS: damaged, so that no file can be checked"]


def test_checkpoints_of_earlier_versions_have_no_checksums(folder):
    (folder / "SHA256SUMS").unlink()
    assert verify_checkpoint(folder) == []
    load_checkpoint(folder)
    data = (folder / "state.safetensors").read_bytes()
    (folder / "state.safetensors").write_bytes(data[:-1])
    assert "cannot be resumed" in verify_checkpoint(folder)[0]
    assert verify_checkpoint(api.HERE / "format1/pretrained") == []


def run(*arguments):
    result = CliRunner().invoke(app, ["verify", *map(str, arguments)])
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result.exit_code, result.output.splitlines()


def test_the_command(folder, tmp_path):
    assert run(folder) == (0, ["all 4 files as written"])
    for step in (1, 2):
        shutil.copytree(folder, tmp_path / f"run/checkpoints/step-{step}")
    (tmp_path / "run/log.jsonl").write_text("{}")
    assert run(tmp_path / "run") == (0, ["all 8 files as written"])
    export(folder, tmp_path / "shared", onnx=False)
    assert run(tmp_path / "shared") == (0, ["all 4 files as written"])
    (tmp_path / "shared/README.md").write_text("changed")
    code, lines = run(tmp_path / "shared")
    assert code == 2
    assert lines == [
        f"equiav: {tmp_path}/shared/README.md: differs from its checksum in SHA256SUMS: damaged or changed since; "
        "restore it from a copy, or delete SHA256SUMS if you changed it on purpose"
    ]
    (tmp_path / "run/checkpoints/step-1/SHA256SUMS").unlink()
    assert "an earlier version wrote none" in run(tmp_path / "run")[1][0]
    (tmp_path / "empty").mkdir()
    assert run(tmp_path / "empty") == (2, [f"equiav: {tmp_path}/empty: neither a checkpoint nor a run with one"])


def test_the_command_on_a_prepared_folder_and_on_an_index(folder, tmp_path):
    media, prepared, index = tmp_path / "media", tmp_path / "prepared", tmp_path / "library"
    for number in range(2):
        write_media(media / f"{number}.mp4")
    prepare(find_sources(media), prepared, workers=1)
    model = load_model(folder)
    with closing(Index.create(index, model, model_path=folder)) as made:
        index_folder(made, Embedder(model), media, workers=1)
    for place, damaged in ((prepared, "shards"), (index, "visual")):
        code, lines = run(place)
        assert (code, lines[-1].split()[0]) == (0, "all"), lines
        path = max((p for p in place.rglob("*") if p.is_file() and damaged in str(p)), key=lambda p: p.stat().st_size)
        data = bytearray(path.read_bytes())
        data[len(data) // 2] ^= 1
        path.write_bytes(data)
        code, lines = run(place)
        assert code == 2
        assert any(path.name in line or str(place) in line for line in lines), lines


def test_no_such_folder(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["equiav", "verify", str(tmp_path / "nowhere")])
    with pytest.raises(SystemExit, match="2"):
        main()
    assert capsys.readouterr().err == f"equiav: {tmp_path}/nowhere: no such folder\n"
