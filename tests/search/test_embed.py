"""Vectors of a collection as a file: the three formats, what is left out, and going on after a kill."""

import json
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from equiav.cli import app
from equiav.errors import DataError
from equiav.inference import Embedder
from equiav.search import embed_files
from tests.inference.models import random_model, saved_model
from tests.media.making import sine, write_media


@pytest.fixture(scope="module")
def embedder():
    return Embedder(random_model())


@pytest.fixture(scope="module")
def videos(tmp_path_factory):
    folder = tmp_path_factory.mktemp("videos")
    write_media(folder / "a.mp4", seconds=4)
    write_media(folder / "b.wav", seconds=2, video=False, codecs=("mpeg4", "pcm_s16le"), sound=sine(2, 16000, 900))
    (folder / "bad.mp4").write_bytes(b"no video")
    return folder


def rows_of(path):
    if path.suffix == ".jsonl":
        return [json.loads(line) for line in path.read_text().splitlines()]
    if path.suffix == ".npz":
        data = np.load(path)  # refuses pickles
        return [
            dict(zip(data.files, row, strict=True)) for row in zip(*(data[k].tolist() for k in data.files), strict=True)
        ]
    parquet = pytest.importorskip("pyarrow.parquet")
    return parquet.read_table(path).to_pylist()


@pytest.mark.parametrize("suffix", [".parquet", ".npz", ".jsonl"])
def test_every_window_and_modality_is_a_row(embedder, videos, tmp_path, suffix):
    done = embed_files(embedder, [videos], tmp_path / f"vectors{suffix}", workers=1)
    rows = rows_of(tmp_path / f"vectors{suffix}")
    windows = list(embedder.windows(videos / "a.mp4"))
    assert [(r["source"], r["modality"]) for r in rows] == [
        *[("a.mp4", side) for _ in windows for side in ("audio", "visual")],
        ("b.wav", "audio"),
    ]
    expected = [vector for window in windows for vector in (window.audio, window.visual)]
    np.testing.assert_allclose([r["vector"] for r in rows[:-1]], expected, atol=1e-6)
    assert [(r["start"], r["end"]) for r in rows[:-1:2]] == [(w.start, w.end) for w in windows]
    assert (done.rows, done.clips, done.skipped) == (len(rows), len(windows) + 1, 1)
    assert "bad.mp4" in done.reasons.read_text()
    assert {p.name for p in tmp_path.iterdir()} == {f"vectors{suffix}", "vectors.skipped.csv"}


def test_files_are_called_what_they_were_called(embedder, videos, tmp_path, monkeypatch):
    monkeypatch.chdir(videos)
    embed_files(embedder, [Path("b.wav"), Path("a.mp4"), Path("b.wav")], tmp_path / "v.jsonl", workers=1)
    assert {row["source"] for row in rows_of(tmp_path / "v.jsonl")} == {"a.mp4", "b.wav"}


def test_it_goes_on_after_an_interruption(embedder, videos, tmp_path, monkeypatch):
    import equiav.search.embed as module

    def killed(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as broken:
        broken.setattr(module, "_write", killed)
        with pytest.raises(KeyboardInterrupt):
            embed_files(embedder, [videos], tmp_path / "v.jsonl", workers=1)
    assert not (tmp_path / "v.jsonl").exists()
    lines = []
    done = embed_files(embedder, [videos], tmp_path / "v.jsonl", workers=1, progress=lines.append)
    assert done.clips == len({row["id"] for row in rows_of(tmp_path / "v.jsonl")})
    assert not any("/3 files" in line for line in lines), "what was embedded before is not embedded again"
    other = embed_files(embedder, [videos], tmp_path / "v.jsonl", seconds=1.0, workers=1)
    assert other.clips > done.clips


def test_killed_while_it_tidies_up(embedder, videos, tmp_path, monkeypatch):
    """Half of its working folder is gone: it is not taken for work to go on with, and neither is an old draft left."""
    import equiav.search.embed as module

    def killed(folder):
        (folder / "entries.db").unlink()
        raise KeyboardInterrupt

    with monkeypatch.context() as broken:
        broken.setattr(module.shutil, "rmtree", killed)
        with pytest.raises(KeyboardInterrupt):
            embed_files(embedder, [videos / "b.wav"], tmp_path / "v.jsonl", workers=1)
    (tmp_path / f".v.jsonl.{2**22 + 1}.tmp").write_text("of a process that cannot be")
    assert embed_files(embedder, [videos / "b.wav"], tmp_path / "v.jsonl", workers=1).rows == 1
    assert [p.name for p in tmp_path.iterdir()] == ["v.jsonl"]


def test_the_command_and_its_refusals(videos, tmp_path):
    model = saved_model(tmp_path / "model")
    run = CliRunner().invoke(
        app, ["embed", str(videos / "b.wav"), "--model", str(model), "--out", str(tmp_path / "v.npz"), "--workers", "1"]
    )
    assert run.exit_code == 0
    assert "1 vectors of 1 clips" in run.output
    with pytest.raises(DataError, match=r"v\.csv: vectors are written as \.parquet, \.npz, \.jsonl"):
        embed_files(Embedder(random_model()), [videos], tmp_path / "v.csv")
    with pytest.raises(DataError, match="give several files, or one folder"):
        embed_files(Embedder(random_model()), [videos, videos / "b.wav"], tmp_path / "v.npz")
    assert {p.name for p in tmp_path.iterdir()} == {"model", "v.npz"}


def test_what_cannot_be_embedded_leaves_nothing_behind(embedder, videos, tmp_path):
    with pytest.raises(DataError, match="cannot overlap"):
        embed_files(embedder, [videos], tmp_path / "v.jsonl", seconds=1.0, overlap=1.0, workers=1)
    assert list(tmp_path.iterdir()) == []
    embed_files(embedder, [videos], tmp_path / "v.jsonl", workers=1)
    embed_files(embedder, [videos / "b.wav"], tmp_path / "v.jsonl", workers=1)
    assert [p.name for p in tmp_path.iterdir()] == ["v.jsonl"], "the list of what was left out is of the earlier run"
