"""Trackers beside the run's own log: the real packages, one that is missing, and one that fails half-way."""

import importlib.util
import json
import sqlite3
import warnings

import pytest

from equiav.errors import EquiAVError
from equiav.training.log import LOG, PACKAGES, Trackers, check_trackers


def needs(name):
    return pytest.mark.skipif(importlib.util.find_spec(name) is None, reason=f"{name} is not installed")


def report(name, folder):
    """Two records through one tracker, without a warning."""
    folder.mkdir()
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message=f"{name}: ")
        trackers = Trackers([name], folder, 0, {"seed": 3})
        trackers.write({"train/loss": 2.5, "train/lr": 0.1}, 10)
        trackers.write({"train/loss": 1.5}, 20)
        trackers.close()


def test_tensorboard(tmp_path):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    report("tensorboard", tmp_path / "run")
    events = EventAccumulator(str(tmp_path / "run" / "tensorboard"))
    events.Reload()
    assert [(e.step, e.value) for e in events.Scalars("train/loss")] == [(10, 2.5), (20, 1.5)]


@needs("mlflow")
def test_mlflow(tmp_path, monkeypatch):
    import mlflow

    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    mlflow.set_tracking_uri((tmp_path / "store").as_uri())
    report("mlflow", tmp_path / "run")
    (run,) = mlflow.search_runs(experiment_names=["equiav"], output_format="list")
    history = mlflow.MlflowClient().get_metric_history(run.info.run_id, "train/loss")
    assert [(m.step, m.value) for m in history] == [(10, 2.5), (20, 1.5)]
    assert run.info.run_name == "run"


@needs("trackio")
def test_trackio(tmp_path, monkeypatch):
    monkeypatch.setattr("trackio.utils.TRACKIO_DIR", tmp_path / "kept", raising=False)
    monkeypatch.setattr("trackio.sqlite_storage.TRACKIO_DIR", tmp_path / "kept", raising=False)
    report("trackio", tmp_path / "run")
    (file,) = (tmp_path / "kept").rglob("*.db")
    with sqlite3.connect(file) as database:
        rows = database.execute("select step, metrics from metrics order by step").fetchall()
    assert [(step, json.loads(values)["train/loss"]) for step, values in rows] == [(10, 2.5), (20, 1.5)]


@needs("wandb")
def test_wandb(tmp_path, monkeypatch):
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_SILENT", "true")
    report("wandb", tmp_path / "run")
    assert list((tmp_path / "run").rglob("*.wandb"))


def test_a_missing_package_is_one_line(monkeypatch):
    monkeypatch.setitem(PACKAGES, "wandb", "no_such_package")
    with pytest.raises(EquiAVError, match=r"^train.report_to names wandb, which is not installed: pip install"):
        check_trackers(["tensorboard", "wandb"])


def test_one_that_fails_is_left_out_and_the_others_go_on(tmp_path, monkeypatch):
    trackers = Trackers(["tensorboard"], tmp_path, 0, {})
    written = []

    def fails(values, step):
        raise ConnectionError("no route to host")

    trackers._open = {"wandb": (fails, fails), **trackers._open, "mlflow": (lambda v, s: written.append(s), list)}
    with pytest.warns(UserWarning, match="wandb: ConnectionError: no route to host"):
        trackers.write({"train/loss": 1.0}, 1)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        trackers.write({"train/loss": 1.0}, 2)
        trackers.close()
    assert written == [1, 2]


def test_one_that_does_not_open_is_left_out(tmp_path):
    with pytest.warns(UserWarning, match="no tracker 'other'"):
        trackers = Trackers(["other"], tmp_path, 0, {})
    trackers.write({"train/loss": 1.0}, 1)


def test_a_run_reports_and_survives_its_tracker(tmp_path, monkeypatch):
    from equiav.training import Trainer
    from equiav.training import log as trackers
    from tests.training.small import small_config

    real, seen = trackers._opened, []

    def opened(name, folder, step, config):
        if name == "tensorboard":
            return real(name, folder, step, config)

        def write(values, step):
            seen.append((step, "train/loss" in values or "train/total" in values))
            raise OSError("disk of the tracker is full")

        return write, list

    monkeypatch.setattr(trackers, "_opened", opened)
    monkeypatch.setitem(PACKAGES, "wandb", "json")
    config = small_config("train.steps=3", "train.log_every=1", "train.report_to=[tensorboard,wandb]")
    with pytest.warns(UserWarning, match="wandb: OSError: disk of the tracker is full"):
        Trainer(config, tmp_path / "run", lambda line: None).run()
    assert seen[0][0] == 1
    assert len(seen) == 1
    lines = [json.loads(line) for line in (tmp_path / "run" / LOG).read_text().splitlines()]
    assert [line["step"] for line in lines if line["kind"] == "train"] == [1, 2, 3]


def test_a_missing_tracker_is_refused_before_a_run_leaves_anything(tmp_path, monkeypatch):
    from equiav.training import Trainer
    from tests.training.small import small_config

    monkeypatch.setitem(PACKAGES, "mlflow", "no_such_package")
    with pytest.raises(EquiAVError, match="names mlflow, which is not installed"):
        Trainer(small_config("train.steps=1", "train.report_to=[mlflow]"), tmp_path / "run", lambda line: None)
    assert not (tmp_path / "run").exists()
