"""Runs: resumed equals uninterrupted, what is written, EMA, NaN, stopping."""

import json
import os
import signal
from dataclasses import replace

import pytest
import torch
import yaml

from equiav.build import build_model
from equiav.checkpoint import checkpoints_of, load_checkpoint, load_state, save_model
from equiav.data import collate
from equiav.errors import CheckpointError, ConfigError, DataError, TrainingError
from equiav.inference import load_model
from equiav.io import duration
from equiav.objectives import effective_rank, uniformity
from equiav.training import Trainer, autocast_type, cut_log, run_lock
from equiav.training import trainer as trainer_module
from tests.objectives.methods import small_method
from tests.training.small import small_config


def silent(line):
    pass


def weights_of(folder):
    return load_checkpoint(folder).weights


def same(a, b):
    return a.keys() == b.keys() and all(torch.equal(a[k], b[k]) for k in a)


def test_resumed_equals_uninterrupted(tmp_path):
    config = small_config("train.steps=9", "train.checkpoint_every=4", "train.ema=0.9", "train.evaluate_every=null")
    Trainer(config, tmp_path / "whole", silent).run()
    first = Trainer(config, tmp_path / "parts", silent)
    first.total = 6  # as if the machine had gone after step 6; the last checkpoint is step 4 or 6
    first.run()
    again = Trainer(config, tmp_path / "parts", silent)
    assert again.step == 6
    again.run()
    assert same(weights_of(tmp_path / "whole"), weights_of(tmp_path / "parts"))
    states = [load_state(checkpoints_of(tmp_path / name)[-1][1]) for name in ("whole", "parts")]
    assert same(*states)
    logs = [[json.loads(x) for x in (tmp_path / n / "log.jsonl").read_text().splitlines()] for n in ("whole", "parts")]
    assert [r["loss"] for r in logs[0]] == [r["loss"] for r in logs[1]]
    assert not same(weights_of(tmp_path / "whole"), {k.removeprefix("raw."): v for k, v in states[0].items()})


def test_what_a_run_writes(tmp_path):
    config = small_config("train.steps=6", "train.checkpoint_every=2", "train.keep=2", "train.evaluate_every=3")
    outcome = Trainer(config, tmp_path, silent).run()
    assert (outcome.step, outcome.interrupted) == (6, False)
    assert [step for step, _ in checkpoints_of(tmp_path)] == [4, 6]
    records = [json.loads(line) for line in (tmp_path / "log.jsonl").read_text().splitlines()]
    assert {r["kind"] for r in records} == {"train", "validation"}
    train = next(r for r in records if r["kind"] == "train")
    for key in ("effective_rank_audio", "uniformity_visual", "displacement_audio", "gradient_norm", "lr"):
        assert key in train
    assert list((tmp_path / "tensorboard").iterdir())
    model = load_model(tmp_path)  # a run's folder stands for its newest checkpoint
    assert model.meta["step"] == 6
    finished = Trainer(config, tmp_path, silent)
    assert finished.run().step == 6  # running again changes nothing


def test_sigterm_saves_and_stops(tmp_path):
    config = small_config("train.steps=50", "train.checkpoint_every=50", "train.evaluate_every=null")
    calls = []

    def say(line):
        calls.append(line)

    trainer = Trainer(config, tmp_path, say)
    take = trainer._take

    def after_three(*args):
        take(*args)
        if trainer.step == 3:
            os.kill(os.getpid(), signal.SIGTERM)

    trainer._take = after_three
    outcome = trainer.run()
    assert outcome.interrupted
    assert [step for step, _ in checkpoints_of(tmp_path)] == [outcome.step]
    assert outcome.step in (3, 4)


def test_nan_names_the_step_and_the_clips(tmp_path):
    config = small_config("train.steps=5", "train.checkpoint_every=1", "train.evaluate_every=null")
    trainer = Trainer(config, tmp_path, silent)
    clips = trainer.clips
    sick = next(iter(trainer.schedule.requests(2, 3)))[5][0]
    sample = type(clips).sample

    class Sick(type(clips)):
        def sample(self, index, frame):
            s = sample(self, index, frame)
            return replace(s, inputs={**s.inputs, "audio": s.inputs["audio"] * float("nan")}) if index == sick else s

    trainer.clips = Sick(clips.world, clips.start, clips.count)
    with pytest.raises(TrainingError, match=rf"not a number at step [123]; clips: {clips.clip(sick).id};"):
        trainer.run()
    kept = checkpoints_of(tmp_path)
    assert all(bool(v.isfinite().all()) for _, p in kept for v in weights_of(p).values())


def test_changed_recipe_is_refused(tmp_path):
    Trainer(small_config("train.steps=2", "train.evaluate_every=null"), tmp_path, silent).run()
    with pytest.raises(CheckpointError, match=r"another recipe \(optim.lr was 0.001, now 0.01\)"):
        Trainer(small_config("train.steps=2", "train.evaluate_every=null", "optim.lr=0.01"), tmp_path, silent)
    other = small_config("train.steps=2", "train.evaluate_every=null", "model.encoder.depth=3")
    with pytest.raises(CheckpointError, match=r"model.encoder.depth was 2, now 3"):
        Trainer(other, tmp_path, silent)


def test_starting_weights(tmp_path):
    Trainer(small_config("train.steps=2", "train.evaluate_every=null"), tmp_path / "a", silent).run()
    given = small_config("train.steps=2", "train.evaluate_every=null", f"weights={tmp_path / 'a'}", "seed=3")
    trainer = Trainer(given, tmp_path / "b", silent)
    start = weights_of(tmp_path / "a")
    assert all(torch.equal(v, start[k]) for k, v in trainer.model.state_dict().items())
    wrong = small_config("train.steps=2", f"weights={tmp_path / 'a'}", "model.encoder.depth=3")
    with pytest.raises(Exception, match="does not fit this model: missing audio"):
        Trainer(wrong, tmp_path / "c", silent)


def test_a_run_that_is_refused_leaves_nothing_behind(tmp_path):
    config = small_method("cavmae")
    save_model(tmp_path / "other", config, dict(build_model(config).state_dict()), {})
    wrong = small_config(f"weights={tmp_path / 'other'}")
    out = tmp_path / "runs" / "new"
    with pytest.raises(CheckpointError, match="whose weights cannot start equiav"), run_lock(out):
        Trainer(wrong, out, silent)
    assert not out.parent.exists()
    out.mkdir(parents=True)
    with pytest.raises(CheckpointError), run_lock(out):
        Trainer(wrong, out, silent)
    assert not list(out.iterdir()), "a folder that was there before stays"
    for kept in ("notes.txt", "checkpoints/step1/weights"):
        (out / kept).parent.mkdir(parents=True, exist_ok=True)
        (out / kept).touch()
        with pytest.raises(ValueError, match="any"), run_lock(out):
            raise ValueError("any")
        assert (out / kept).is_file()


def test_mae_gives_the_encoders_only(tmp_path):
    """Whatever predictor and heads the recipe asks for, they are its own."""
    config = small_config()
    save_model(tmp_path / "mae", config, dict(build_model(config).state_dict()), {"kind": "mae"})
    changes = ("seed=3", "model.predictor.kind=linear", "model.heads.hidden=48")
    start = Trainer(small_config(f"weights={tmp_path / 'mae'}", *changes), tmp_path / "a", silent).model.state_dict()
    drawn, given = build_model(small_config(*changes)).state_dict(), weights_of(tmp_path / "mae")
    for key, value in start.items():
        assert torch.equal(value, (given if ".f." in key else drawn)[key]), key
    key = "audio.f.patch_embed.proj.weight"
    assert not torch.equal(drawn[key], given[key])
    with pytest.raises(Exception, match="does not fit this model"):
        Trainer(small_config(f"weights={tmp_path / 'mae'}", "model.encoder.depth=3"), tmp_path / "b", silent)


def test_log_is_cut_back(tmp_path):
    path = tmp_path / "log.jsonl"
    path.write_text("".join(f'{{"step": {i}}}\n' for i in range(1, 6)) + '{"step": 6, "lo')
    cut_log(path, 3)
    assert [json.loads(x)["step"] for x in path.read_text().splitlines()] == [1, 2, 3]


def test_signs_of_collapse(rng):
    spread, collapsed = torch.randn(64, 16, generator=rng), torch.ones(64, 16)
    assert effective_rank(spread) > 12
    assert effective_rank(collapsed) == pytest.approx(1.0, abs=1e-6)
    assert uniformity(collapsed) == pytest.approx(0.0, abs=1e-6)
    assert uniformity(spread) < -2


def test_small_things(monkeypatch):
    assert [duration(s) for s in (5.0, 200.0, 7500.0)] == ["5 s", "3 min 20 s", "2 h 5 min"]
    assert autocast_type("auto", torch.device("cpu")) is None
    assert autocast_type("bfloat16", torch.device("cpu")) is torch.bfloat16
    # Older GPUs only emulate it.
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation=True: including_emulation)
    assert autocast_type("auto", torch.device("cuda")) is None


def test_bfloat16_runs(tmp_path):
    """The path that GPUs take; slow on a processor, but the same code."""
    config = small_config("train.steps=2", "train.precision=bfloat16", "train.evaluate_every=null")
    Trainer(config, tmp_path, silent).run()
    record = json.loads((tmp_path / "log.jsonl").read_text().splitlines()[-1])
    assert 0 < record["loss"] < 20


def test_stored_recipe_is_the_recipe(tmp_path):
    config = small_config("train.steps=1", "train.evaluate_every=null")
    Trainer(config, tmp_path, silent).run()
    stored = yaml.safe_load((checkpoints_of(tmp_path)[-1][1] / "config.yaml").read_text())
    assert stored == config.model_dump(mode="json")


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("augment.layout=released", "the released layout is for using imported checkpoints"),
        ("classifier={mode: audio, classes: 3}", "a pre-training recipe has none"),
    ],
)
def test_senseless_recipes_are_refused(tmp_path, override, message):
    with pytest.raises(ConfigError, match=message):
        Trainer(small_config(override), tmp_path, silent)
    norm = small_config("model.encoder.norm_augmented=true", "objective.intra=none", "objective.inter=original")
    with pytest.raises(ConfigError, match="only intra equivariant"):
        Trainer(norm, tmp_path, silent)


def test_exploding_weights_never_replace_a_good_checkpoint(tmp_path):
    calm = small_config("train.steps=3", "train.checkpoint_every=1", "train.keep=1", "train.evaluate_every=null")
    trainer = Trainer(calm, tmp_path, silent)
    take = trainer._take

    def explode(*args):
        if trainer.step == 1:
            trainer.lr = lambda step: 1e38
        take(*args)

    trainer._take = explode
    with pytest.raises(TrainingError, match=r"no numbers any more at step 2|not a number at step"):
        trainer.run()
    (kept,) = checkpoints_of(tmp_path)
    assert kept[0] == 1
    assert all(bool(v.isfinite().all()) for v in weights_of(kept[1]).values())


def test_a_gradient_that_is_no_number_stops_the_run(tmp_path):
    trainer = Trainer(small_config("train.steps=3", "optim.clip=null", "train.evaluate_every=null"), tmp_path, silent)
    trainer.model.audio.f.norm.weight.register_hook(lambda grad: grad * float("nan"))
    with pytest.raises(TrainingError, match="the gradient is not a number at step 1"):
        trainer.run()


def test_changed_data_is_refused_on_resume(tmp_path):
    config = small_config("train.steps=2", "train.evaluate_every=null")
    Trainer(config, tmp_path, silent).run()
    meta = checkpoints_of(tmp_path)[-1][1] / "meta.json"
    meta.write_text(meta.read_text().replace('"clips": 24', '"clips": 25'))
    (meta.parent / "SHA256SUMS").unlink()
    with pytest.raises(CheckpointError, match=r"was made with 25 clips, now.* 24"):
        Trainer(config, tmp_path, silent)


def test_inputs_keep_their_precision_under_autocast(tmp_path):
    """Filter bank and augmentations work in single precision, whatever the networks use."""
    trainer = Trainer(small_config("train.evaluate_every=null"), tmp_path, silent)
    seen = {}
    encode = trainer.model.audio.f.views

    def spy(x, x_aug, tokens):
        seen["dtypes"] = {x.dtype, x_aug.dtype}
        return encode(x, x_aug, tokens)

    trainer.model.audio.f.views = spy
    batch = collate([trainer.clips.sample(i, 0) for i in range(8)])
    draws = trainer.objective.draw(8, 0, 0)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        trainer.objective(batch, draws)
    assert seen["dtypes"] == {torch.float32}


def test_a_set_without_validation_is_said_and_trained_on(tmp_path, monkeypatch):
    said = []
    real = trainer_module.build_dataset

    def without(config, split):
        if split == "validation":
            raise DataError("no clips for validation")
        return real(config, split)

    monkeypatch.setattr(trainer_module, "build_dataset", without)
    Trainer(small_config("train.steps=2", "train.evaluate_every=1"), tmp_path, said.append).run()
    assert "no validation in this run: no clips for validation" in said
    assert [step for step, _ in checkpoints_of(tmp_path)] == [2]
