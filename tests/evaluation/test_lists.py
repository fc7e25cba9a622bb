"""`equiav evaluate` on data files of CAV-MAE and EquiAV (JSON), with any model."""

import json
import wave

import pytest
from PIL import Image
from typer.testing import CliRunner

from equiav.build import build_model
from equiav.checkpoint import save_model
from equiav.cli import app
from equiav.config import load_config
from equiav.data import World
from equiav.errors import ConfigError, DataError
from tests.training.small import SMOKE

CLIPS = 12


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """A model whose recipe speaks of other data."""
    config = load_config(SMOKE)
    save_model(tmp_path_factory.mktemp("model") / "model", config, build_model(config).state_dict(), {})
    return next(tmp_path_factory.getbasetemp().glob("model*/model"))


@pytest.fixture(scope="module")
def lists(tmp_path_factory):
    """Data files of twelve generated clips, with the middle frame (number 5) only; the last one lacks even that."""
    folder, world = tmp_path_factory.mktemp("lists"), World(size=32, seconds=1.0)
    records = []
    for i in range(CLIPS):
        samples = (world.waveform(i) * 32767).round().short().numpy()
        with wave.open(str(folder / f"clip{i}.wav"), "wb") as file:
            file.setparams((1, 2, 16000, 0, "NONE", ""))
            file.writeframes(samples.tobytes())
        frame = folder / f"frame_{5 if i < CLIPS - 1 else 4}" / f"clip{i}.jpg"
        frame.parent.mkdir(exist_ok=True)
        Image.fromarray(world.video(i)[5].permute(1, 2, 0).numpy()).save(frame)
        boxes = (world.boxes(i)[5] / 32).tolist()
        record = {"video_id": f"clip{i}", "wav": f"clip{i}.wav", "video_path": "", "labels": ("/m/a", "/m/b")[i % 2]}
        records.append({**record, "boxes": boxes})
    (folder / "all.json").write_text(json.dumps({"data": records}))
    (folder / "train.json").write_text(json.dumps({"data": records[:8]}))
    (folder / "test.json").write_text(json.dumps({"data": records[8:]}))
    listed = [{"video_id": name} for name in ("clip3", "clip1", "clip7", "gone")]
    (folder / "list.json").write_text(json.dumps({"data": listed}))
    return folder


def results(out, *arguments):
    run = CliRunner().invoke(app, ["evaluate", *map(str, arguments), "--out", str(out)])
    if run.exception and not isinstance(run.exception, SystemExit):
        raise run.exception
    assert run.exit_code == 0, run.output
    return json.loads((out / "results.json").read_text()), run


def test_retrieval(model, lists, tmp_path, caplog):
    record, _ = results(tmp_path, "retrieval", model, "--data", lists / "all.json", "--banks", 0)
    assert record["retrieval"]["audio_to_video"]["pool"] == CLIPS
    assert "clip11: frame 5 is missing, frame 4 stands in" in caplog.text


def test_retrieval_of_a_published_list(model, lists, tmp_path):
    arguments = ("--data", lists / "all.json", "--list", lists / "list.json", "--banks", 0)
    record, run = results(tmp_path, "retrieval", model, *arguments)
    assert record["retrieval"]["audio_to_video"]["pool"] == 3
    assert "4 listed, 3 found, 1 missing" in run.stderr
    assert record["listed"] == {"found": 3, "listed": 4}


def test_localisation(model, lists, tmp_path):
    record, _ = results(tmp_path, "localisation", model, "--data", lists / "all.json", "--list", lists / "list.json")
    assert record["localisation"]["all"]["sound"]["pictures"] == 3
    assert record["listed"] == {"found": 3, "listed": 4}
    assert "3 of the 4 clips on the published list" in (tmp_path / "report.html").read_text()


def test_probe(model, lists, tmp_path):
    with pytest.raises(DataError, match="one list cannot train and judge a probe; give another with --test"):
        results(tmp_path, "probe", model, "--data", lists / "all.json")
    with pytest.raises(ConfigError, match="test clips go with other data"):
        results(tmp_path, "probe", model, "--test", lists / "test.json")
    record, _ = results(tmp_path, "probe", model, "--data", lists / "train.json", "--test", lists / "test.json")
    assert record["probe"]["audio"]["linear probe"]["accuracy"] is not None
    assert "a tenth of the training sources" in json.dumps(record)


def test_probe_of_a_published_list(model, lists, tmp_path):
    (lists / "some.json").write_text(json.dumps({"data": [{"video_id": f"clip{i}"} for i in (8, 9, 11, 99)]}))
    arguments = ("--data", lists / "train.json", "--test", lists / "test.json", "--list", lists / "some.json")
    record, _ = results(tmp_path, "probe", model, *arguments)
    assert record["counts"]["test"]["audio"] == 3
    assert record["listed"] == {"found": 3, "listed": 4}
    assert "3 of the 4 clips on the published list" in (tmp_path / "report.html").read_text()


def test_an_imported_model(lists, tmp_path):
    """Of the released layout of vectors and padding, as `equiav convert` writes it."""
    config = load_config(SMOKE, ("augment.layout=released", "audio.padding=zero"))
    save_model(tmp_path / "model", config, build_model(config).state_dict(), {})
    arguments = ("--data", lists / "all.json", "--list", lists / "list.json")
    for task, more in (("retrieval", ("--banks", 0)), ("localisation", ())):
        record, _ = results(tmp_path / task, task, tmp_path / "model", *arguments, *more)
        assert record["listed"] == {"found": 3, "listed": 4}
