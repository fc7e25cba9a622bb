"""The token store: the same losses as encoders that compute everything again; resumable, never stale; refusals."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import torch

from equiav.config import load_config
from equiav.errors import ConfigError, DataError
from equiav.training import Trainer, finetune
from equiav.training import tokens as module
from tests.training.small import SMOKE, small_config

FROZEN = ("train.steps=5", "train.evaluate_every=null", "optim.freeze={encoder: all}", "train.log_every=1")
TERMS = ("loss", "inter", "intra_audio", "intra_visual", "gradient_norm")


def config_of(store, *overrides, precision="float32"):
    place = "null" if store is None else store
    views = f"train.views={{count: 3, frames: 2, store: {place}, precision: {precision}}}"
    return small_config(*FROZEN, views, *overrides)


def losses(config, out, report=lambda line: None):
    trainer = Trainer(config, out, report)
    trainer.run()
    records = [json.loads(x) for x in (out / "log.jsonl").read_text().splitlines()]
    return torch.tensor([[r[k] for k in TERMS if k in r] for r in records if r["kind"] == "train"]), trainer


@pytest.fixture(scope="module")
def recomputed(tmp_path_factory):
    """A run whose encoders compute everything in every step."""
    return losses(config_of(None), tmp_path_factory.mktemp("recomputed"))


@pytest.mark.parametrize(("precision", "tolerance"), [("float32", 1e-6), ("float16", 1e-3)])
def test_losses_are_those_of_recomputed_encoders(recomputed, tmp_path, precision, tolerance):
    expected, trainer = recomputed
    lines = []
    found, stored = losses(config_of(tmp_path / "tokens", precision=precision), tmp_path / "run", lines.append)
    assert found.shape == expected.shape == (5, 5)
    torch.testing.assert_close(found[:, :4], expected[:, :4], rtol=tolerance, atol=0)
    torch.testing.assert_close(found[:, 4], expected[:, 4], rtol=5 * tolerance, atol=0)  # of the gradient
    assert any("tokens of 24 clips and 3 views of each: 0.00 GB in" in line for line in lines)
    for name, weight in trainer.model.state_dict().items():
        if ".f." in name:
            assert torch.equal(weight, stored.model.state_dict()[name])  # frozen
    files = {p.name: p.stat().st_size for p in (tmp_path / "tokens").iterdir()}
    half = 4 if precision == "float32" else 2
    assert files["visual.tokens"] == 24 * 2 * 16 * 32 * half
    assert files["audio.tokens"] == 24 * 1 * 8 * 32 * half
    assert files["visual.views"] == 24 * 3 * 32 * 4


@pytest.mark.parametrize("overrides", [("objective.intra=none", "objective.inter=augmented"), ("train.micro_batch=3",)])
def test_variants_and_micro_batches(tmp_path, overrides):
    expected, _ = losses(config_of(None, *overrides), tmp_path / "a")
    found, _ = losses(config_of(tmp_path / "tokens", *overrides), tmp_path / "b")
    torch.testing.assert_close(found, expected, rtol=2e-6, atol=1e-7)


def test_a_store_serves_many_runs_and_resuming(tmp_path, monkeypatch):
    whole, _ = losses(config_of(tmp_path / "tokens"), tmp_path / "whole")
    before = {p.name: p.stat().st_mtime_ns for p in (tmp_path / "tokens").iterdir()}

    def refuse(*args):
        raise AssertionError("the store was filled before")

    monkeypatch.setattr(module.TokenStore, "_encode", refuse)
    other, _ = losses(config_of(tmp_path / "tokens", "optim.lr=0.01"), tmp_path / "other")
    assert not torch.equal(whole[-1], other[-1])
    trainer = Trainer(config_of(tmp_path / "tokens", "train.checkpoint_every=2"), tmp_path / "cut", lambda line: None)
    take = trainer._take

    def stop_at_three(*args):
        take(*args)
        trainer._stop = trainer.step == 3

    trainer._take = stop_at_three
    assert trainer.run().interrupted
    resumed, _ = losses(config_of(tmp_path / "tokens", "train.checkpoint_every=2"), tmp_path / "cut")
    assert torch.equal(resumed[-1], whole[-1])
    assert before == {p.name: p.stat().st_mtime_ns for p in (tmp_path / "tokens").iterdir()}


@pytest.mark.parametrize(
    ("override", "named"),
    [
        ("seed=1", "other encoders"),
        ("data.seed=1", "other clips"),
        ("data.count=25", "other clips"),
        ("augment.visual.crop_area=[0.5, 1.0]", "other views"),
        ("train.views.seed=1", "other views"),
        ("train.views.precision=float16", "other precision"),
        ("audio.mean=-5.0", "other inputs"),
    ],
)
def test_a_stale_store_is_refused(tmp_path_factory, override, named):
    root = tmp_path_factory.getbasetemp() / "stale"
    if not root.exists():
        Trainer(config_of(root / "tokens"), root / "run", lambda line: None).run()
    trainer = Trainer(config_of(root / "tokens", override), root / override.split("=")[0], lambda line: None)
    with pytest.raises(DataError, match=f"was made with {named}.*delete it or name another"):
        trainer.run()


def test_a_store_that_was_cut_short_is_finished(tmp_path, monkeypatch, recomputed):
    """As after a kill between two batches; what had been computed is not computed again."""
    monkeypatch.setattr(module, "BATCH", 8)
    done = []
    encode = module.TokenStore._encode

    def interrupted(objective, batch, *rest):
        if batch.ids[0].endswith("016"):
            raise KeyboardInterrupt
        done.append(batch.ids)
        return encode(objective, batch, *rest)

    monkeypatch.setattr(module.TokenStore, "_encode", staticmethod(interrupted))
    with pytest.raises(KeyboardInterrupt):
        losses(config_of(tmp_path / "tokens"), tmp_path / "run")
    assert json.loads((tmp_path / "tokens/progress.json").read_text()) == {"done": 16}
    first = set(sum(done, ()))
    done.clear()
    monkeypatch.setattr(
        module.TokenStore, "_encode", staticmethod(lambda o, b, *r: done.append(b.ids) or encode(o, b, *r))
    )
    found, _ = losses(config_of(tmp_path / "tokens"), tmp_path / "run")
    assert not first & set(sum(done, ()))
    torch.testing.assert_close(found, recomputed[0], rtol=1e-6, atol=0)


@pytest.mark.process
def test_a_run_killed_while_filling_carries_on(tmp_path):
    """SIGKILL in the midst of it; the next process fills the rest and trains."""
    views = f"train.views={{count: 3, store: {tmp_path / 'tokens'}}}"
    small = ("data.count=600", "train.batch=8", *FROZEN, views)
    command = [sys.executable, "-m", "equiav.cli", "pretrain", str(SMOKE), *small, "--out", str(tmp_path / "run")]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    progress = tmp_path / "tokens/progress.json"
    with subprocess.Popen(command, env=environment, stderr=subprocess.PIPE) as process:
        while process.poll() is None and not (progress.exists() and json.loads(progress.read_text())["done"] >= 32):
            time.sleep(0.05)
        process.send_signal(signal.SIGKILL)
    filled = json.loads(progress.read_text())["done"]
    before = np.fromfile(tmp_path / "tokens/visual.tokens", "float16").reshape(600, -1)[:filled]
    assert 32 <= filled < 600
    subprocess.run(command, env=environment, check=True, capture_output=True)
    assert json.loads(progress.read_text()) == {"done": 600}
    after = np.fromfile(tmp_path / "tokens/visual.tokens", "float16").reshape(600, -1)
    assert np.array_equal(before, after[:filled])
    assert np.abs(after[filled:]).sum(axis=1).min() > 0


def test_sigterm_while_filling_stops_and_the_next_run_goes_on(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "BATCH", 8)
    trainer = Trainer(config_of(tmp_path / "tokens"), tmp_path / "run", lambda line: setattr(trainer, "_stop", True))
    assert trainer.run().interrupted
    assert json.loads((tmp_path / "tokens/progress.json").read_text())["done"] < 24
    assert losses(config_of(tmp_path / "tokens"), tmp_path / "run")[1].step == 5


def test_a_disk_too_small_is_one_line_and_leaves_nothing(tmp_path, monkeypatch):
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage._replace(free=1000))
    trainer = Trainer(config_of(tmp_path / "deep/tokens"), tmp_path / "run", lambda line: None)
    with pytest.raises(DataError) as caught:
        trainer.run()
    assert "needs 0.00 GB for tokens, and only 0.00 GB are free; set fewer train.views.frames" in str(caught.value)
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "deep").exists()
    monkeypatch.undo()

    def full(*args):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", full)
    with pytest.raises(DataError, match="more than the disk gives"):
        trainer.run()
    assert [p.name for p in (tmp_path / "deep").iterdir()] == [".tokens.lock"]


def test_what_is_no_store_is_refused(tmp_path):
    (tmp_path / "tokens").mkdir()
    trainer = Trainer(config_of(tmp_path / "tokens"), tmp_path / "run", lambda line: None)
    with pytest.raises(DataError, match="is no token store; name another"):
        trainer.run()
    shutil.rmtree(tmp_path / "tokens")
    trainer.run()
    (tmp_path / "tokens/audio.tokens").write_bytes(b"short")
    with pytest.raises(DataError, match=r"audio.tokens: damaged"):
        Trainer(config_of(tmp_path / "tokens", "optim.lr=0.1"), tmp_path / "other", lambda line: None).run()


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (("optim.freeze={}",), "needs frozen encoders; set optim.freeze"),
        (("optim.freeze={audio.encoder: all}",), "needs frozen encoders"),
        (("optim.freeze={encoder: 1}",), "needs frozen encoders"),
        (("objective.intra=invariant", "objective.inter=original"), "compares two new views in every step"),
        (("objective.keep_tokens=0.5",), "holds all tokens"),
        (("model.encoder.norm_augmented=true",), "is not for encoders with norm_augmented"),
    ],
)
def test_recipes_without_meaning_are_refused(tmp_path, overrides, message):
    with pytest.raises(ConfigError, match=message):
        Trainer(config_of(tmp_path / "tokens", *overrides), tmp_path / "run", lambda line: None)
    assert not (Path(tmp_path) / "tokens").exists()


def test_kept_spectrograms_change_no_number(tmp_path):
    steps = ("train.steps=6", "train.evaluate_every=null", "train.log_every=1")
    expected, _ = losses(small_config(*steps), tmp_path / "a")
    found, trainer = losses(small_config(*steps, "train.keep_spectrograms=true"), tmp_path / "b")
    assert torch.equal(found, expected)
    assert trainer.clips.sample(0, 0).inputs["audio"].ndim == 3


def test_kept_spectrograms_need_one_sound_a_clip(tmp_path, monkeypatch):
    monkeypatch.setattr("equiav.data.WorldDataset.one_to_one", False)
    with pytest.raises(ConfigError, match="keep_spectrograms: a clip of these data meets another sound"):
        Trainer(small_config("train.keep_spectrograms=true"), tmp_path)


def test_kept_spectrograms_are_not_for_fine_tuning(tmp_path):
    recipe = SMOKE.parents[1] / "finetune" / "smoke.yaml"
    config = load_config(recipe, ("train.keep_spectrograms=true",))
    with pytest.raises(ConfigError, match="fine-tuning mixes waveforms before their spectrograms"):
        finetune(config, tmp_path / "run", lambda line: None)
