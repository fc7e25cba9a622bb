"""Fine-tuning: mixing, drop path, rates, losses; starting weights; resuming; what is judged on which clips."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from typer.testing import CliRunner

from equiav.build import (
    build_classification,
    build_classifier,
    build_inputs,
    build_splits,
    resolve_finetuning,
    with_data,
)
from equiav.checkpoint import BEST, checkpoints_of, load_checkpoint, load_state
from equiav.cli import app
from equiav.config import ShardsConfig, load_config
from equiav.data import LabelledDataset, collate, hold_out, read_classes, split_of
from equiav.errors import CheckpointError, ConfigError, DataError
from equiav.evaluation import Classification, classify_dataset
from equiav.inference import LoadedClassifier, load_classifier, load_model
from equiav.media import encoder_inputs
from equiav.models import Block, draw_path
from equiav.objectives import binary_cross_entropy, cross_entropy
from equiav.training import (
    Finetuner,
    Step,
    Trainer,
    adamw,
    draw_mixing,
    finetune,
    layer_scales,
    mix_batch,
    set_lr,
)
from tests.training.small import small_config

SMOKE = Path(__file__).parents[2] / "configs" / "finetune" / "smoke.yaml"


def silent(line):
    pass


def config_of(*overrides):
    return load_config(SMOKE, ("data.count=24", "data.validation=9", "data.test=9", *overrides))


def finetuner(out, *overrides):
    config = config_of(*overrides)
    splits = build_splits(config)
    return Finetuner(resolve_finetuning(config, splits, 1)[0], splits, out, silent)


def same(a, b):
    return a.keys() == b.keys() and all(torch.equal(a[k], b[k]) for k in a)


# Mixup


def test_mixing_is_beta_10_10_with_the_chance_asked_for(rng):
    mixing = draw_mixing(20000, 0.5, 10, rng)
    mixed = mixing.share[mixing.share < 1]
    assert len(mixed) / 20000 == pytest.approx(0.5, abs=0.02)
    assert float(mixed.mean()) == pytest.approx(0.5, abs=0.01)
    assert float(mixed.var()) == pytest.approx(10 * 10 / (20**2 * 21), rel=0.05)
    assert sorted(mixing.partner.tolist()) == list(range(20000))
    assert bool((draw_mixing(8, 0.0, 10, rng).share == 1).all())


def test_a_process_with_its_further_rows_mixes_what_one_process_does(rng):
    x = torch.randn(12, 5, generator=rng)
    mixing = draw_mixing(12, 0.7, 10, rng)
    whole = mixing.mix(x)
    for start in (0, 4, 8):
        visitors = mixing.further_rows(start, start + 4)
        here = torch.cat([x[start : start + 4], x[visitors]])
        assert torch.equal(mixing.local(start, start + 4).mix(here), whole[start : start + 4])
    assert any(mixing.further_rows(s, s + 4) for s in (0, 4, 8))


def test_sound_picture_and_labels_are_mixed_alike(rng):
    splits = build_splits(config_of())
    batch = collate([splits.train.sample(i, 0) for i in range(8)])
    batch.lengths["audio"][3] -= 100
    batch = replace(batch, targets=splits.train.targets(range(8)))
    mixing = draw_mixing(8, 1.0, 10, rng)
    mixed = mix_batch(batch, mixing)
    for row in range(8):
        other, share = int(mixing.partner[row]), float(mixing.share[row])
        for got, x in (
            (mixed.inputs["audio"], batch.inputs["audio"]),
            (mixed.inputs["visual"], batch.inputs["visual"] / 255),
            (mixed.targets, batch.targets),
        ):
            torch.testing.assert_close(got[row], share * x[row] + (1 - share) * x[other])
        lengths = batch.lengths["audio"]
        assert mixed.lengths["audio"][row] == max(lengths[row], lengths[other])


# Drop path


def test_drop_path_keeps_the_mean_and_skips_samples(rng):
    kept = draw_path(20000, 3, 0.4, rng)
    assert kept.shape == (20000, 3, 2)
    torch.testing.assert_close(kept.mean(dim=0), torch.ones(3, 2), atol=0.03, rtol=0)
    dropped = (kept == 0).float().mean(dim=(0, 2))
    torch.testing.assert_close(dropped, torch.tensor([0.0, 0.2, 0.4]), atol=0.02, rtol=0)
    assert draw_path(4, 3, 0.0, rng) is None
    block = Block(8, 2, 2.0, 1e-6)
    x = torch.randn(2, 5, 8, generator=rng)
    out = block(x, torch.tensor([[1.0, 1.0], [0.0, 0.0]]))
    torch.testing.assert_close(out[0], block(x)[0])
    assert torch.equal(out[1], x[1])


def test_drop_path_reaches_every_block_of_the_encoders(tmp_path):
    model = finetuner(tmp_path).model
    encoder = model.encoders["audio"]
    x = torch.randn(2, 1, 64, 32)
    kept = torch.stack([torch.zeros(2, 2), torch.ones(2, 2)])  # the first clip skips both blocks
    h = encoder(x, paths=kept)
    patches = encoder.norm(encoder.patch_embed(x.transpose(2, 3)) + encoder.pos_embed)
    torch.testing.assert_close(h[0], patches[0])
    torch.testing.assert_close(h[1], encoder(x)[1])
    pictures = torch.randn(2, 3, 32, 32)
    inputs = {"audio": x, "visual": pictures}
    dropped = model(inputs, {"audio": kept})
    assert not torch.allclose(dropped[0], model(inputs)[0])
    torch.testing.assert_close(dropped[1], model(inputs)[1])


# Rates


def test_rates_fall_layer_by_layer():
    config = config_of()
    objective = build_classification(resolve_finetuning(config, build_splits(config), 1)[0])
    found = layer_scales(objective, objective.model, decay=0.5, head=3.0)
    scales = {name.removeprefix("model."): scale for name, scale in found.items()}
    assert scales["head.weight"] == 3.0
    assert scales["encoders.audio.norm.weight"] == 1.0
    assert scales["encoders.audio.blocks.1.attn.qkv.weight"] == 0.5
    assert scales["encoders.visual.blocks.0.mlp.fc1.bias"] == 0.25
    assert scales["encoders.visual.patch_embed.proj.weight"] == 0.125
    optimiser = adamw(objective, lr=1.0, weight_decay=0.0, betas=(0.9, 0.95), scales=found)
    set_lr(optimiser, 2.0)
    rates = {id(p): group["lr"] for group in optimiser.param_groups for p in group["params"]}
    assert {name: rates[id(p)] for name, p in objective.model.named_parameters()} == {
        k: 2 * v for k, v in scales.items()
    }


# Losses


def test_losses_are_torchs(rng):
    logits = torch.randn(6, 5, generator=rng)
    numbers = torch.tensor([0, 1, 2, 3, 4, 0])
    targets = F.one_hot(numbers, 5).float()
    torch.testing.assert_close(
        cross_entropy(logits, targets, 0.1), F.cross_entropy(logits, numbers, label_smoothing=0.1)
    )
    torch.testing.assert_close(cross_entropy(logits, 2 * targets), F.cross_entropy(logits, numbers))
    torch.testing.assert_close(
        binary_cross_entropy(logits, targets), F.binary_cross_entropy_with_logits(logits, targets)
    )
    spread = targets * 0.8 + 0.2 / 5
    torch.testing.assert_close(
        binary_cross_entropy(logits, targets, 0.2), F.binary_cross_entropy_with_logits(logits, spread)
    )


def test_portions_give_the_gradient_of_the_whole_batch(tmp_path):
    gradients = []
    for name, override in (("whole", "train.micro_batch=null"), ("portions", "train.micro_batch=3")):
        run = finetuner(tmp_path / name, override)
        request = next(iter(run.schedule.requests(0, 1)))
        batch = run._prepared(collate([run.clips.sample(*r) for r in request]))
        step = Step(run.objective, run.objective, run.config.train.micro_batch, None)
        done = step(batch, run.objective.draw(len(batch), 0, 0), 1, 10)
        gradients.append((done.terms["total"], {n: p.grad for n, p in run.model.named_parameters()}))
    torch.testing.assert_close(gradients[0], gradients[1], rtol=1e-4, atol=1e-6)


# Runs


def test_resumed_equals_uninterrupted(tmp_path):
    overrides = ("train.steps=7", "train.evaluate_every=2", "train.checkpoint_every=3", "train.ema=0.9")
    finetuner(tmp_path / "whole", *overrides).run()
    first = finetuner(tmp_path / "parts", *overrides)
    first.total = 5  # as if the machine had gone there
    first.run()
    again = finetuner(tmp_path / "parts", *overrides)
    assert again.step == 5
    assert again.best == first.best
    again.run()
    for read in (lambda p: load_checkpoint(p).weights, load_state):
        assert same(*(read(checkpoints_of(tmp_path / name)[-1][1]) for name in ("whole", "parts")))
    best = [load_checkpoint(tmp_path / name / BEST) for name in ("whole", "parts")]
    assert same(best[0].weights, best[1].weights)
    # Where the first part ended it was evaluated once more; every other line is the same.
    logs = [(tmp_path / n / "log.jsonl").read_text().splitlines() for n in ("whole", "parts")]
    assert [x for x in logs[1] if '"validation", "step": 5' not in x] == logs[0]


@pytest.mark.parametrize("mode", ["audio", "visual", "audiovisual"])
def test_a_run_from_start_to_results(tmp_path, mode):
    done = finetune(config_of(f"classifier.mode={mode}", "train.steps=4"), tmp_path, silent)
    assert (done.outcome.step, done.outcome.interrupted) == (4, False)
    results = json.loads((tmp_path / "results.json").read_text())
    assert results["metrics"]["clips"] == 9
    assert results["mode"] == mode
    assert "report.html" in {p.name for p in tmp_path.iterdir()}
    loaded = load_classifier(tmp_path)
    assert loaded.meta["best"] == done.best
    assert loaded.classes[0] == "disc"
    assert {k.split(".")[1] for k in loaded.model.state_dict() if k.startswith("encoders")} == set(
        loaded.model.modalities
    )
    with pytest.raises(CheckpointError, match="holds a classifier"):
        load_model(tmp_path)


def test_the_chosen_weights_are_those_of_the_best_validation(tmp_path):
    run = finetuner(tmp_path, "train.steps=6", "train.evaluate_every=1")
    run.run()
    lines = [json.loads(x) for x in (tmp_path / "log.jsonl").read_text().splitlines()]
    scores = {r["step"]: r["mAP"] for r in lines if r["kind"] == "validation"}
    assert len(scores) == 6
    assert run.best["score"] == max(scores.values()) == scores[run.best["step"]]
    assert load_checkpoint(tmp_path).meta["step"] == run.best["step"]  # the run's folder stands for it


def test_the_test_split_is_looked_at_once_and_by_nobody_else(tmp_path, monkeypatch):
    seen = []
    sample = LabelledDataset.sample

    def spy(self, index, frame):
        seen.append(self.clip(index).id)
        return sample(self, index, frame)

    monkeypatch.setattr(LabelledDataset, "sample", spy)
    config = config_of("train.steps=3")
    test = {f"world-0-{i:07d}" for i in range(24 + 9, 24 + 9 + 9)}
    run = finetuner(tmp_path, "train.steps=3")
    run.run()
    assert not test & set(seen)
    finetune(config, tmp_path, silent)
    assert test <= set(seen)
    seen.clear()
    again = finetune(config, tmp_path, silent)
    assert again.results["metrics"]["clips"] == 9
    assert not seen


def test_it_learns(tmp_path):
    """A kind of thing that sounds alone is soon told from others, by sound alone."""
    quick = ("finetune.mixup=0", "finetune.drop_path=0", "finetune.layer_decay=1", "finetune.audio.mask=0")
    easy = ("data.duet=0", "data.another=0", "data.count=160", "data.validation=40", "finetune.label_smoothing=0")
    run = finetuner(tmp_path, "classifier.mode=audio", "train.steps=160", "train.batch=16", *quick, *easy,
                    "optim.lr=3.0e-3", "train.evaluate_every=160", "train.checkpoint_every=160")  # fmt: skip
    before = run.validate()["metrics"]["accuracy"]
    run.run()
    assert run.best["validation"]["accuracy"] > max(50, before + 20)


# Where it starts


def test_encoders_come_from_a_pretrained_checkpoint(tmp_path):
    Trainer(small_config("train.steps=1", "train.evaluate_every=null"), tmp_path / "pre", silent).run()
    start = load_checkpoint(tmp_path / "pre").weights
    run = finetuner(tmp_path / "fine", f"weights={tmp_path / 'pre'}", "train.ema=0.9")
    scratch = finetuner(tmp_path / "scratch")
    state = run.model.state_dict()
    for m in ("audio", "visual"):
        for key, value in start.items():
            if key.startswith(f"{m}.f."):
                assert torch.equal(state[f"encoders.{m}.{key.removeprefix(f'{m}.f.')}"], value)
    assert same(run.average, state)  # the average starts where the weights do
    assert torch.equal(state["head.weight"], scratch.model.state_dict()["head.weight"])
    assert not [k for k in state if ".u." in k or "g_inter" in k]


def test_weights_that_do_not_fit_are_refused(tmp_path):
    Trainer(small_config("train.steps=1", "train.evaluate_every=null"), tmp_path / "pre", silent).run()
    pre = f"weights={tmp_path / 'pre'}"
    with pytest.raises(CheckpointError, match=r"width 32, depth 2, 4 heads; the recipe asks for 96, 3, 4"):
        finetuner(tmp_path / "a", pre, "model.encoder={size: micro}")
    with pytest.raises(CheckpointError, match="its norms have eps 1e-06, the recipe 1e-05"):
        finetuner(tmp_path / "b", pre, "model.encoder.norm_eps=1.0e-5")
    finetune(config_of("train.steps=1", "classifier.mode=audio"), tmp_path / "eight", silent)
    given = f"weights={tmp_path / 'eight'}"
    (tmp_path / "more.txt").write_text("\n".join([*load_classifier(tmp_path / "eight").classes, "star"]))
    with pytest.raises(CheckpointError, match="holds a classifier of 8 classes, the data have 9"):
        finetuner(tmp_path / "c", given, "classifier.mode=audio", f"finetune.classes_file={tmp_path / 'more.txt'}")
    with pytest.raises(CheckpointError, match=r"of another mode \(audio\)"):
        finetuner(tmp_path / "d", given)
    again = finetuner(tmp_path / "e", given, "classifier.mode=audio")
    assert same(again.model.state_dict(), load_checkpoint(tmp_path / "eight").weights)


# Data


def test_labels_that_are_no_class_are_refused(tmp_path):
    (tmp_path / "few.txt").write_text("disc\nsquare\n")
    with pytest.raises(DataError, match=r"clip world-0-\d+ has the label '\w+', which is none of the 2 classes"):
        build_splits(config_of(f"finetune.classes_file={tmp_path / 'few.txt'}"))
    (tmp_path / "twice.txt").write_text("disc\ndisc\n")
    with pytest.raises(DataError, match="names each once"):
        read_classes(tmp_path / "twice.txt")
    config = config_of("classifier.classes=5")
    with pytest.raises(ConfigError, match=r"classifier\.classes is 5, but the data have 8"):
        resolve_finetuning(config, build_splits(config), 1)


@pytest.mark.parametrize("section", ["classifier", "finetune"])
def test_a_recipe_of_another_kind_is_refused(section):
    with pytest.raises(ConfigError, match=f"{section}: a fine-tuning recipe has this section"):
        build_splits(config_of(f"{section}=null"))


def test_held_out_by_source_and_stable():
    groups = [f"video {i // 3}" for i in range(600)]
    held = hold_out(groups, 0.1)
    assert 0.05 < held.mean() < 0.15
    assert all(len(set(held[i : i + 3])) == 1 for i in range(0, 600, 3))
    assert np.array_equal(hold_out([*groups, "new"], 0.1)[:600], held)
    assert hold_out(["a", "a", "b"], 1e-9).sum() in (1, 2)  # at least one source


def test_held_out_of_what_preparing_left_for_training():
    groups = [name for name in (f"video {i}" for i in range(600)) if split_of(name) == "train"]
    assert 0.05 < hold_out(groups, 0.1).mean() < 0.15


def test_scores_of_one_class_compare_between_clips():
    """Cross-entropy leaves a clip's logits free up to a number of its own."""
    config = config_of("classifier.mode=visual", "data.validation=4")
    splits = build_splits(config)
    config = resolve_finetuning(config, splits, 1)[0]
    classifier = build_classifier(config)
    classifier.register_forward_hook(lambda module, given, logits: logits + 10 * torch.arange(len(logits))[:, None])
    recipes = {loss: config.finetune.model_copy(update={"loss": loss}) for loss in ("ce", "bce")}
    one, many = (
        LoadedClassifier(classifier, config.model_copy(update={"finetune": tune}), splits.classes, {})
        for tune in recipes.values()
    )
    for all_frames in (False, True):
        assert float(classify_dataset(one, splits.validation, all_frames=all_frames).max()) < 0
    raw = classify_dataset(many, splits.validation)
    assert float(raw[3].max()) > 20
    torch.testing.assert_close(classify_dataset(one, splits.validation), raw.log_softmax(dim=1))


def test_an_undefined_score_is_no_best_for_ever(tmp_path):
    run = finetuner(tmp_path)
    run.every, run._write_best = 1, lambda: None
    for run.step, score in ((1, None), (2, None), (3, 0.0), (4, None)):
        values = {run.tune.metric: score}
        run.validate = lambda values=values: {"metrics": values}
        run._evaluate(None)
        assert run.best["step"] == min(run.step, 3)


def test_what_is_said_and_judged_afterwards(tmp_path):
    """Only of the run's own test clips it is known that they took no part; frames are those of the recipe."""
    config = config_of("train.steps=1", "classifier.mode=visual", "finetune.all_frames=true")
    finetune(config, tmp_path / "run", silent)
    said = "these clips took no part in it"
    assert said in (tmp_path / "run/report.html").read_text()
    loaded, clips = load_classifier(tmp_path / "run"), build_splits(config).test
    elsewhere = Classification(split="test", own_data=False)(loaded, clips)
    unknown = Classification(split="test")(replace(loaded, meta={}), clips)
    assert not elsewhere["chosen_without_these"]
    assert not unknown["chosen_without_these"]
    assert said not in elsewhere.write(tmp_path / "elsewhere").read_text()
    for more, frames in (([], "all"), (["--middle-frame"], "middle")):
        arguments = ["evaluate", "classification", str(tmp_path / "run"), "--out", str(tmp_path / "out"), *more]
        assert CliRunner().invoke(app, arguments).exit_code == 0
        assert json.loads((tmp_path / "out/results.json").read_text())["frames"] == frames


def test_other_data_have_folds_of_their_own():
    config = config_of().model_copy(update={"data": ShardsConfig(path="a", test="b", fold=2)})
    assert with_data(config, Path("c")).data == ShardsConfig(path="c")


def test_targets():
    splits = build_splits(config_of())
    train = splits.train
    expected = [[float(name in train.clip(i).labels) for name in splits.classes] for i in (2, 0, 1)]
    assert train.targets([2, 0, 1]).tolist() == expected
    assert [train.labels(i) for i in range(3)] == [train.clip(i).labels for i in range(3)]
    with pytest.raises(DataError, match="which is none of the 1 classes"):
        LabelledDataset(train, range(len(train)), splits.classes[:1])


def test_inputs_of_one_modality_need_nothing_of_the_other():
    splits = build_splits(config_of("classifier.mode=visual"))
    batch = collate([splits.train.sample(i, 0) for i in range(3)])
    assert set(batch.inputs) == {"visual"}
    assert encoder_inputs(build_inputs(config_of()), batch)["visual"].shape == (3, 3, 32, 32)
