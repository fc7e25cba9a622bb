"""Masked autoencoding and CAV-MAE as objectives: masks, missing modalities, micro-batches, their checkpoints' ways."""

import json

import pytest
import torch

from equiav.build import build_dataset, build_model, build_objective
from equiav.checkpoint import checkpoints_of, load_checkpoint, load_state, save_model
from equiav.convert import convert
from equiav.data import Dataset, Subset, collate
from equiav.errors import CheckpointError, ConfigError, DataError
from equiav.evaluation import Reconstruction, Retrieval
from equiav.inference import load_model
from equiav.losses import cavmae_contrast, masked_mean_square
from equiav.models import read_state, removed
from equiav.models.mae import read_mae
from equiav.training import Step, Trainer
from equiav.types import Sample
from tests.objectives.methods import small_method


def silent(line):
    pass


def objective_of(config):
    return build_objective(config, build_model(config))


def batch_of(config, count=8):
    clips = build_dataset(config, "train")
    return collate([clips.sample(i, i % 2) for i in range(count)])


def step(objective, batch, *, micro_batch=None, count=8):
    objective.zero_grad()
    done = Step(objective, objective, micro_batch, None)(batch, objective.draw(count, 0, 0), 1, 1)
    return done, {name: p.grad.clone() for name, p in objective.named_parameters() if p.grad is not None}


@pytest.mark.parametrize("kind", ["masked", "cavmae"])
@pytest.mark.parametrize("norm_pix", ["true", "false"])
def test_the_loss_is_that_of_the_removed_patches(kind, norm_pix):
    config = small_method(kind, f"objective.masked.norm_pix={norm_pix}", "objective.masked.flip=0.0")
    config = config.model_copy(
        update={"objective": config.objective.model_copy(update={"masked": config.objective.masked.model_copy(
            update={"crop_area": None})})}
    )  # fmt: skip
    objective, batch = objective_of(config), batch_of(config)
    draws = objective.draw(8, 3, 5)
    terms = objective.losses(objective(batch, draws), 1, 1)
    x = {m: objective.encoder_input(batch, draws, m) for m in ("audio", "visual")}
    predictions, targets = objective.model.predict(x, draws.kept), objective.model.targets(x)
    for m in x:
        assert draws.kept[m].shape == (8, targets[m].shape[1] // 4)  # a quarter is visible
        mask = removed(draws.kept[m], targets[m].shape[1])
        expected = masked_mean_square(targets[m], predictions[m], mask, norm_pix == "true")
        torch.testing.assert_close(terms[f"reconstruction_{m}"], expected)
    both = terms["reconstruction_audio"] + terms["reconstruction_visual"]
    if kind == "masked":
        torch.testing.assert_close(terms["total"], both)
    else:
        contrast = objective.model(x, draws.kept).contrast
        torch.testing.assert_close(terms["contrast"], cavmae_contrast(contrast["audio"], contrast["visual"], 0.05))
        torch.testing.assert_close(terms["total"], both + 0.01 * terms["contrast"])


@pytest.mark.parametrize("kind", ["masked", "cavmae"])
def test_micro_batches_give_the_gradients_of_the_whole(kind):
    config = small_method(kind)
    objective, batch = objective_of(config), batch_of(config)
    whole, expected = step(objective, batch)
    parts, found = step(objective, batch, micro_batch=3)
    torch.testing.assert_close(parts.terms["total"], whole.terms["total"])
    assert expected.keys() == found.keys() == {n for n, p in objective.named_parameters() if p.requires_grad}
    for name, value in expected.items():
        torch.testing.assert_close(found[name], value, rtol=1e-4, atol=1e-6)


def test_draws_depend_on_seed_and_step_alone():
    objective = objective_of(small_method("masked"))
    first, again, other = objective.draw(8, 0, 3), objective.draw(8, 0, 3), objective.draw(8, 0, 4)
    assert all(torch.equal(first.kept[m], again.kept[m]) for m in first.kept)
    assert any(not torch.equal(first.kept[m], other.kept[m]) for m in first.kept)
    assert torch.equal(first.rows(2, 5).kept["audio"], first.kept["audio"][2:5])


class OneSided(Dataset):
    """Every third clip has sound only, every third an image only."""

    def __init__(self, clips):
        self.clips, self.frames = clips, clips.frames

    def __len__(self):
        return len(self.clips)

    def clip(self, index):
        return self.clips.clip(index)

    def sample(self, index, frame):
        whole = self.clips.sample(index, frame)
        kept = [("audio",), ("visual",), ("audio", "visual")][index % 3]
        return Sample(whole.id, {m: whole.inputs[m] for m in kept})


def test_clips_that_lack_a_modality_count_for_the_others():
    config = small_method("masked")
    objective, clips = objective_of(config), build_dataset(config, "train")
    samples = [OneSided(clips).sample(i, 0) for i in range(6)]
    batch = collate(samples)
    assert batch.present["audio"].tolist() == [True, False, True] * 2
    assert batch.rows(1, 3).present["visual"].tolist() == [True, True]
    outputs, draws = objective(batch, objective.draw(6, 0, 0)), objective.draw(6, 0, 0)
    assert outputs["reconstruction/audio"][[1, 4]].tolist() == [[0, 0]] * 2
    full = objective(collate([clips.sample(i, 0) for i in range(6)]), draws)
    torch.testing.assert_close(outputs["reconstruction/audio"][[0, 2]], full["reconstruction/audio"][[0, 2]])
    # A portion without any sound still reaches every weight, with a gradient of zero.
    done, gradients = step(objective, batch, micro_batch=1, count=6)
    assert gradients.keys() == {n for n, p in objective.named_parameters() if p.requires_grad}
    whole, expected = step(objective, batch, count=6)
    torch.testing.assert_close(done.terms["total"], whole.terms["total"])
    name = "model.audio.f.blocks.0.attn.qkv.weight"
    torch.testing.assert_close(gradients[name], expected[name], rtol=1e-4, atol=1e-6)
    silent_half, gradients = step(objective, collate([samples[1], samples[4]]), count=2)
    assert silent_half.terms["reconstruction_audio"] == 0
    assert float(gradients[name].abs().max()) == 0


def test_cavmae_names_a_clip_without_its_image():
    config = small_method("cavmae")
    clips = build_dataset(config, "train")
    batch = collate([OneSided(clips).sample(i, 0) for i in (2, 0)])
    objective = objective_of(config)
    with pytest.raises(DataError, match=f"clip {clips.clip(0).id} has no visual input, and CAV-MAE needs both"):
        objective(batch, objective.draw(2, 0, 0))


def test_one_modality_alone(tmp_path):
    config = small_method("masked", "objective.masked.modalities=[audio]", "train.steps=2", "train.evaluate_every=2")
    trainer = Trainer(config, tmp_path / "audio", silent)
    assert trainer.clips.modalities == ("audio",)
    assert "visual" not in trainer.clips.sample(0, 0).inputs
    trainer.run()
    saved = load_checkpoint(tmp_path / "audio")
    assert {key.split(".")[0] for key in saved.weights} == {"audio"}
    assert not saved.banks
    # It gives its encoder to pre-training; the other modality starts as the recipe draws it.
    start = small_method("equiav", f"weights={tmp_path / 'audio'}", "seed=4")
    given, drawn = Trainer(start, tmp_path / "b", silent).model.state_dict(), build_model(start).state_dict()
    for key, value in given.items():
        assert torch.equal(value, (saved.weights if key.startswith("audio.f.") else drawn)[key]), key
    with pytest.raises(ConfigError, match="smell is none of audio, visual"):
        build_model(small_method("masked", "objective.masked.modalities=[smell]"))


class Unpaired(OneSided):
    modalities = ("audio", "visual")


def test_unpaired_clips_train(tmp_path):
    config = small_method("masked", "train.steps=3", "train.evaluate_every=3")
    clips, held = (Unpaired(build_dataset(config, split)) for split in ("train", "validation"))
    Trainer(config, tmp_path, silent, dataset=clips, validation=held).run()
    log = [json.loads(line) for line in (tmp_path / "log.jsonl").read_text().splitlines()]
    assert [r["kind"] for r in log].count("validation") == 1
    assert log[-1]["total"] == pytest.approx(log[-1]["audio"] + log[-1]["visual"])


@pytest.mark.parametrize("kind", ["masked", "cavmae"])
def test_resumed_equals_uninterrupted(tmp_path, kind):
    config = small_method(kind, "train.steps=6", "train.checkpoint_every=2", "train.evaluate_every=3", "train.ema=0.9")
    Trainer(config, tmp_path / "whole", silent).run()
    first = Trainer(config, tmp_path / "parts", silent)
    first.total = 4
    first.run()
    Trainer(config, tmp_path / "parts", silent).run()
    for read in (lambda p: load_checkpoint(p).weights, lambda p: load_state(checkpoints_of(p)[-1][1])):
        a, b = read(tmp_path / "whole"), read(tmp_path / "parts")
        assert a.keys() == b.keys()
        assert all(torch.equal(a[k], b[k]) for k in a)


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """A checkpoint of each method, as a run writes it."""
    folder = tmp_path_factory.mktemp("methods")
    for kind in ("equiav", "masked", "cavmae"):
        config = small_method(kind)
        save_model(folder / kind, config, build_model(config).state_dict(), {"kind": "pretrained", "step": 1})
    return folder


@pytest.mark.parametrize(
    ("before", "now"), [("equiav", "masked"), ("equiav", "cavmae"), ("cavmae", "equiav"), ("cavmae", "masked")]
)
def test_weights_of_another_method_are_refused(saved, tmp_path, before, now):
    with pytest.raises(
        CheckpointError, match=f"trained with objective.kind {before}, whose weights cannot start {now}"
    ):
        Trainer(small_method(now, f"weights={saved / before}"), tmp_path, silent)


def test_a_run_of_another_method_is_not_resumed(tmp_path):
    Trainer(small_method("masked", "train.steps=1", "train.evaluate_every=null"), tmp_path, silent).run()
    with pytest.raises(CheckpointError, match=r"another recipe \(objective.kind was masked, now cavmae"):
        Trainer(small_method("cavmae", "train.steps=1", "train.evaluate_every=null"), tmp_path, silent)


def test_masked_weights_start_equiav(saved, tmp_path):
    given = load_checkpoint(saved / "masked").weights
    trainer = Trainer(small_method("equiav", f"weights={saved / 'masked'}", "seed=9"), tmp_path, silent)
    taken = [
        key for key, value in trainer.model.state_dict().items() if key in given and torch.equal(value, given[key])
    ]
    assert {key for key in given if ".f." in key} <= set(taken)
    with pytest.raises(Exception, match="does not fit this model"):
        Trainer(small_method("equiav", f"weights={saved / 'masked'}", "model.encoder.depth=3"), tmp_path / "b", silent)


def test_masked_weights_start_cavmae(saved, tmp_path):
    """Depth 2: one block of each modality, one joint block with the norms of both."""
    given = load_checkpoint(saved / "masked").weights
    config = small_method("cavmae", f"weights={saved / 'masked'}", "seed=9")
    start, drawn = Trainer(config, tmp_path, silent).model.state_dict(), build_model(config).state_dict()
    for m in ("audio", "visual"):
        for ours, theirs in (
            (f"separate.{m}.patch_embed.proj.weight", "patch_embed.proj.weight"),
            (f"separate.{m}.blocks.0.attn.qkv.weight", "blocks.0.attn.qkv.weight"),
            (f"separate.{m}.norm.weight", "norm.weight"),
            (f"joint.0.norm1_alone.{m}.bias", "blocks.1.norm1.bias"),
        ):
            assert torch.equal(start[f"encoder.{ours}"], given[f"{m}.f.{theirs}"])
    assert torch.equal(start["encoder.joint.0.mlp.fc1.weight"], given["visual.f.blocks.1.mlp.fc1.weight"])
    taken = [k for k in start if k.startswith("encoder.") and not k.endswith(("modality", "pos_embed"))]
    assert not any(torch.equal(start[k], drawn[k]) for k in taken if k.endswith(("qkv.weight", "proj.weight")))
    assert torch.equal(start["decoder.embed.weight"], drawn["decoder.embed.weight"])


def test_masked_models_have_no_shared_space(saved):
    with pytest.raises(CheckpointError, match="masked autoencoders, which have no shared space; pre-train from it"):
        load_model(saved / "masked")


@pytest.mark.parametrize("modality", ["audio", "visual"])
@pytest.mark.parametrize("class_token", [True, False])
def test_masked_models_are_written_in_the_format_of_mae(saved, tmp_path, modality, class_token):
    with pytest.raises(CheckpointError, match="choose --mode audio or visual"):
        convert(saved / "masked", tmp_path / "mae.pth")
    line = convert(saved / "masked", tmp_path / "mae.pth", mode=modality, class_token=class_token)
    assert f"the {modality} encoder and its decoder" in line
    state = read_state(tmp_path / "mae.pth")
    assert ("cls_token" in state) == class_token
    rows = load_model(saved / "masked", shared_space=False).model[modality].f.grid[0]
    encoder, decoder = read_mae(state, rows=rows)
    weights = load_checkpoint(saved / "masked").weights
    for part, found in (("f", encoder), ("decoder", decoder)):
        prefix = f"{modality}.{part}."
        own = {k.removeprefix(prefix): v for k, v in weights.items() if k.startswith(prefix)}
        assert own.keys() == found.keys()
        assert all(torch.equal(own[k], found[k]) for k in own)


def test_reconstruction_lowers_its_loss_and_shows_it(tmp_path):
    """On scenes that training never saw: below the untrained model and below the mean of the visible patches."""
    config = small_method("masked", "train.steps=60", "train.evaluate_every=null", "optim.lr=5.0e-3",
                          "objective.masked.norm_pix=false")  # fmt: skip
    trainer = Trainer(config, tmp_path / "run", silent)
    held = build_dataset(config, "test")
    before = Reconstruction(examples=0)(trainer.loaded(), held)
    trainer.run()
    results = Reconstruction(examples=2)(load_model(tmp_path / "run", shared_space=False), held)
    for m in ("audio", "visual"):
        assert results[f"loss/{m}"] < 0.75 * before[f"loss/{m}"]
    assert results.headline() == f"total {results.value:.4f}"
    assert len(results.assets) == 2 * 2 * 3
    page = results.write(tmp_path / "page").read_text()
    assert page.count("<img") == 12
    again = Reconstruction(examples=0)(load_model(tmp_path / "run", shared_space=False), held)
    assert again["loss"] == results["loss"]


def test_only_models_that_reconstruct_are_taken(saved):
    config = small_method("equiav")
    with pytest.raises(ConfigError, match=r"objective\.kind equiav reconstructs nothing"):
        Reconstruction()(load_model(saved / "equiav"), build_dataset(config, "test"))


def test_a_joint_model_reconstructs_nothing_without_one_of_its_modalities(saved):
    held = build_dataset(small_method("equiav"), "test")
    silent_clips = Subset(held, range(2), ["visual"])
    with pytest.raises(DataError, match="this model reconstructs audio and visual; these clips hold visual"):
        Reconstruction(examples=0)(load_model(saved / "cavmae"), silent_clips)
    masked = load_model(saved / "masked", shared_space=False)
    assert set(Reconstruction(examples=0)(masked, silent_clips)["loss"]) == {"visual", "total"}


def test_cavmae_reconstructs_and_retrieves(saved):
    loaded = load_model(saved / "cavmae")
    held = build_dataset(loaded.config, "test")
    assert set(Reconstruction(examples=1)(loaded, held)["loss"]) == {"audio", "visual", "total"}
    found = Retrieval(banks=3)(loaded, held)
    assert found["further_bank_seeds"] == []
    assert found["bank_size"] is None


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ("objective={kind: masked, temperature: 0.1}", "temperature is not an option of kind masked"),
        ("objective.masked.ratio=0.5", "masked is not an option of kind equiav"),
        ("objective={kind: cavmae, masked: {modalities: [audio]}}", "CAV-MAE has audio and visual"),
        ("objective={kind: masked, masked: {decoder: {width: 10, heads: 3}}}", "multiple of 4 and of heads 3"),
    ],
)
def test_keys_that_a_method_never_reads_are_refused(overrides, message):
    from tests.training.small import small_config

    with pytest.raises(ConfigError, match=message):
        small_config(overrides)
