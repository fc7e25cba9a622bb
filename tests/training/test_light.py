"""Training parts of a model: frozen parts stay, learning rates by part, low-rank adapters; checkpoints load as ever."""

import pytest
import torch

from equiav.build import build_model
from equiav.checkpoint import load_checkpoint, load_state
from equiav.config import parse_config
from equiav.errors import ConfigError
from equiav.inference import load_model
from equiav.training import Trainer
from tests.models.foreign_encoders import recipe, save
from tests.objectives.methods import METHODS
from tests.training.small import small_config

SHORT = ("train.steps=3", "train.evaluate_every=null", "train.checkpoint_every=1")
LORA = "optim.lora={rank: 2, alpha: 8}"


def trained(tmp_path, *overrides):
    config = small_config(*SHORT, *overrides)
    before = {k: v.clone() for k, v in build_model(config).state_dict().items()}
    trainer = Trainer(config, tmp_path, lambda line: None)
    trainer.run()
    after = load_checkpoint(tmp_path).weights
    assert set(after) == set(before)
    return trainer, {name for name in before if not torch.equal(before[name], after[name])}


@pytest.mark.parametrize(
    ("frozen", "still"),
    [
        ("{encoder: all}", ("audio.f.", "visual.f.")),
        ("{audio.encoder: all}", ("audio.f.",)),
        ("{visual.encoder: 1}", ("visual.f.patch_embed", "visual.f.blocks.0")),
        ("{encoder: 0}", ("audio.f.patch_embed", "visual.f.patch_embed")),
        ("{predictor: all, visual.heads: all}", ("audio.u", "visual.u", "visual.g_")),
    ],
)
def test_frozen_parts_stay_and_all_others_move(tmp_path, frozen, still):
    trainer, moved = trained(tmp_path, f"optim.freeze={frozen}")
    expected = {name for name, _ in trainer.model.named_parameters() if not name.startswith(still)}
    assert moved == expected


def test_learning_rates_by_part(tmp_path):
    scales = "optim.lr_scales={encoder: 0.1, visual.encoder: 0.01, predictor: 2.0}"
    trainer = Trainer(small_config(*SHORT, scales), tmp_path, lambda line: None)
    rates = {id(p): g["scale"] for g in trainer.optimiser.param_groups for p in g["params"]}
    found = {name: rates[id(p)] for name, p in trainer.model.named_parameters()}
    assert {found[n] for n in found if n.startswith("audio.f.")} == {0.1}
    assert {found[n] for n in found if n.startswith("visual.f.")} == {0.01}
    assert {found[n] for n in found if ".u." in n} == {2.0}
    assert {found[n] for n in found if ".g_" in n} == {1.0}
    trainer.run()
    assert {g["scale"]: g["lr"] for g in trainer.optimiser.param_groups}[0.1] == pytest.approx(
        0.1 * trainer.lr(trainer.total - 1)
    )


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("optim.freeze={encoder: 3}", "the audio encoder has 2 blocks, not 3"),
        ("optim.freeze={heads: 1}", "heads has no blocks to count; freeze it whole"),
        ("optim.freeze={touch.encoder: all}", "this model has no touch.encoder; its parts are audio.encoder, audio.he"),
        ("optim.freeze={encoder: all, predictor: all, heads: all}", "nothing is left to train"),
        ("optim.lr_scales={touch.heads: 1.0}", "this model has no touch.heads"),
        ("optim={freeze: {encoder: all}, lora: {rank: 2}}", "no encoder is left to adapt"),
    ],
)
def test_what_cannot_be_frozen_is_one_line(tmp_path, override, message):
    with pytest.raises(ConfigError) as caught:
        Trainer(small_config(*SHORT, override), tmp_path, lambda line: None)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


CAVMAE = METHODS["cavmae"]


@pytest.mark.parametrize(
    ("frozen", "still"),
    [
        ("{encoder: all}", ("encoder.",)),
        (
            "{encoder: 1}",
            tuple(
                f"encoder.separate.{m}.{part}" for m in ("audio", "visual") for part in ("patch_", "mod", "blocks.0")
            ),
        ),
        (
            "{audio.encoder: all}",
            ("encoder.separate.audio.", "encoder.joint.0.norm1_alone.a", "encoder.joint.0.norm2_alone.a"),
        ),
        ("{heads: all}", ("decoder.",)),
    ],
)
def test_parts_of_cavmae_are_frozen(tmp_path, frozen, still):
    trainer, moved = trained(tmp_path, CAVMAE, f"optim.freeze={frozen}")
    names = {name for name, _ in trainer.model.named_parameters() if "pos_embed" not in name}
    assert moved == {name for name in names if not name.startswith(still)}


@pytest.mark.parametrize(
    ("frozen", "message"),
    [
        ("{encoder: 3}", "optim.freeze: the encoder has 2 blocks, not 3"),
        ("{audio.encoder: 1}", "all modalities share the blocks of this encoder; count them as encoder: 1"),
    ],
)
def test_blocks_of_cavmae_are_counted_together(tmp_path, frozen, message):
    with pytest.raises(ConfigError, match=message):
        Trainer(small_config(*SHORT, CAVMAE, f"optim.freeze={frozen}"), tmp_path, lambda line: None)


def test_adapters_in_cavmae(tmp_path):
    trainer, moved = trained(tmp_path, CAVMAE, LORA)
    parts = ("attn.qkv", "attn.proj", "mlp.fc1", "mlp.fc2")
    blocks = ("separate.audio.blocks.0", "separate.visual.blocks.0", "joint.0")
    assert {name for name in moved if name.startswith("encoder.")} == {
        f"encoder.{block}.{part}.weight" for block in blocks for part in parts
    }
    x = torch.randn(2, 3, 32, 32)
    with torch.no_grad():
        live, loaded = trainer.model.eval().encode("visual", x), load_model(tmp_path).model.encode("visual", x)
    torch.testing.assert_close(live, loaded, rtol=0, atol=1e-5)


@pytest.mark.parametrize("value", ["{tail: all}", "{encoder: most}", "{encoder: -1}", "{a.b.encoder: all}"])
def test_unknown_parts_are_refused_in_the_recipe(value):
    with pytest.raises(ConfigError, match="freeze"):
        small_config(f"optim.freeze={value}")


def test_adapters_are_merged_and_only_they_are_trained(tmp_path):
    trainer, moved = trained(tmp_path, LORA, "optim.freeze={audio.encoder: all, visual.encoder: 1}")
    linear = {f"visual.f.blocks.1.{part}.weight" for part in ("attn.qkv", "attn.proj", "mlp.fc1", "mlp.fc2")}
    assert {name for name in moved if ".f." in name} == linear
    assert all(".f." not in name for name in moved - linear)
    live, loaded = trainer.model.eval(), load_model(tmp_path)
    x = torch.randn(2, 3, 32, 32)
    with torch.no_grad():
        torch.testing.assert_close(live.encode("visual", x), loaded.model.encode("visual", x), rtol=0, atol=1e-5)
    start = build_model(loaded.config).state_dict()["visual.f.blocks.1.attn.qkv.weight"]
    change = load_checkpoint(tmp_path).weights["visual.f.blocks.1.attn.qkv.weight"] - start
    assert int(torch.linalg.matrix_rank(change, rtol=1e-3)) == 2


@pytest.mark.parametrize("more", [(), ("train.ema=0.9",)])
def test_a_run_with_adapters_resumes_to_the_same_weights(tmp_path, more):
    Trainer(small_config(*SHORT, LORA, *more), tmp_path / "whole", lambda line: None).run()
    cut = Trainer(small_config(*SHORT, LORA, *more), tmp_path / "cut", lambda line: None)
    take = cut._take

    def stop_at_two(*args):
        take(*args)
        cut._stop = cut.step == 2

    cut._take = stop_at_two
    assert cut.run().interrupted
    Trainer(small_config(*SHORT, LORA, *more), tmp_path / "cut", lambda line: None).run()
    whole, resumed = (load_checkpoint(tmp_path / name).weights for name in ("whole", "cut"))
    assert all(torch.equal(whole[name], resumed[name]) for name in whole)
    assert not any("lora" in name for name in whole)
    state = load_state(tmp_path / "cut/checkpoints/step-00000003")
    assert any("lora" in name for name in state)


def test_adapters_in_an_encoder_of_transformers(tmp_path):
    model = save("dinov2", tmp_path / "dino")
    base = small_config(*SHORT, LORA).model_dump(mode="json")
    visual = recipe("dinov2", tmp_path / "dino")["model"]["visual"]
    config = parse_config({**base, "model": {**base["model"], "visual": visual}, "visual": {}}, "test")
    trainer = Trainer(config, tmp_path / "run", lambda line: None)
    trainer.run()
    after = load_model(tmp_path / "run").model.state_dict()
    before = {f"visual.f.network.{name}": value for name, value in model.state_dict().items()}
    moved = {n for n in before if "position" not in n and not torch.equal(before[n], after[n])}
    assert len(moved) == 2 * 6  # query, key, value, output, two of the MLP in each of two blocks
    assert all(".encoder.layer." in name and name.endswith(".weight") for name in moved)
