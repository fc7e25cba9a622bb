"""Foreign weights: what fits is taken, everything else is listed and refused; nothing is executed."""

import os
import pickle

import pytest
import torch

from equiav.build import build_model
from equiav.checkpoint import load_checkpoint
from equiav.convert import convert, released_config
from equiav.errors import CheckpointError, WeightsError
from equiav.inference import load_model
from equiav.models import SIZES, Size, from_mae, from_released, load_strict, read_state, released_sizes
from tests.paper import golden_recipe as recipe

SIZES_TINY = {"embed_dim": 64, "modality_specific_depth": 2, "num_heads": 4, "proj_hidden_dim": 96,
              "inter_proj_out_dim": 32, "intra_proj_out_dim": 48, "aug_emb_dim": 40, "img_size": 64,
              "audio_length": 128}  # fmt: skip


@pytest.fixture(scope="module")
def state():
    return recipe.state(recipe.pretrain_shapes(SIZES_TINY), SIZES_TINY, 0.15)


class Bomb:
    def __reduce__(self):
        return (os.system, ("touch exploded",))


def test_a_pickle_with_code_is_refused(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name, write in (
        ("a.pth", lambda p: torch.save({"x": Bomb()}, p)),
        ("b.pth", lambda p: pickle.dump(Bomb(), p.open("wb"))),
    ):
        path = tmp_path / name
        write(path)
        with pytest.raises(WeightsError, match="holds more than tensors and was not opened"):
            read_state(path)
    assert not (tmp_path / "exploded").exists()


@pytest.mark.parametrize("content", [b"", b"not weights at all", b"PK\x03\x04 broken"])
@pytest.mark.parametrize("suffix", [".pth", ".safetensors"])
def test_unreadable_files(tmp_path, content, suffix):
    path = tmp_path / f"weights{suffix}"
    path.write_bytes(content)
    with pytest.raises(WeightsError, match=path.name):
        read_state(path)


def test_import_export_through_files(tmp_path, state):
    source = tmp_path / "released.pth"
    torch.save(state, source)
    assert "released pre-training checkpoint" in convert(source, tmp_path / "ours", heads=4)
    loaded = load_model(tmp_path / "ours")
    assert loaded.config.augment.layout == "released"
    assert loaded.config.model.encoder.norm_eps == 1e-5
    assert loaded.banks["audio"].shape == (64, 24)
    x = torch.randn(2, 1, 128, 128, generator=torch.Generator().manual_seed(0))
    before = loaded.embed("audio", x)
    for name in ("back.pth", "back.safetensors"):
        assert "tensors in the released format" in convert(tmp_path / "ours", tmp_path / name)
        convert(tmp_path / name, tmp_path / f"{name}-again", heads=4)
        torch.testing.assert_close(load_model(tmp_path / f"{name}-again").embed("audio", x), before, atol=1e-5, rtol=0)
    with pytest.raises(CheckpointError, match="exists already"):
        convert(source, tmp_path / "ours", heads=4)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda s: s.pop("__M__.norm_v.weight"), "missing visual.f.norm.weight"),
        (lambda s: s.update({"__M__.surprise": torch.zeros(1)}), "unexpected surprise"),
        (lambda s: s.update({"__M__.norm_v.weight": torch.zeros(3)}), r"visual.f.norm.weight is \(3,\), not \(64,\)"),
        (lambda s: s.update({"__M__.norm_v.weight": torch.full((64,), float("nan"))}), "not finite"),
        (lambda s: s.pop("__M__.modality_a"), "missing modality_a"),
        (lambda s: s.update({"__M__.pos_embed_a": torch.zeros(1, 64, 64)}), "not the fixed sine-cosine table"),
        (lambda s: s.update({"__M__.patch_embed_a.proj.weight": torch.zeros(64, 1, 16, 16)}), "three channels"),
        (lambda s: s.pop("__M__.pos_embed_v"), "pos_embed_v"),
    ],
)
def test_what_does_not_fit_is_refused(tmp_path, state, change, message):
    wrong = dict(state)
    change(wrong)
    path = tmp_path / "wrong.pth"
    torch.save(wrong, path)
    with pytest.raises(WeightsError, match=message):
        convert(path, tmp_path / "out", heads=4)
    assert not (tmp_path / "out").exists()


def test_never_used_keys_may_be_there_or_not(state):
    lean = {k: v for k, v in state.items() if "norm1_a" not in k and "norm2_v" not in k}
    lean["__L_inter__.tau"] = torch.tensor(0.07)
    model = build_model(released_config(released_sizes(lean, heads=4)))
    load_strict(model, from_released(lean), "lean")


def test_weights_of_another_model(tmp_path):
    path = tmp_path / "other.pth"
    torch.save({"fc.weight": torch.zeros(2, 2)}, path)
    with pytest.raises(WeightsError, match="weights of no known model"):
        convert(path, tmp_path / "out")


def test_a_finetuned_checkpoint_must_say_its_mode(tmp_path):
    sizes = {**recipe.BASE, **SIZES_TINY}
    shapes = recipe.encoder_shapes("a", sizes) | recipe.encoder_shapes("v", sizes)
    shapes |= {f"pred_{m}_inter.{k}": s for m in "av" for k, s in (("weight", (32, 64)), ("bias", (32,)))}
    shapes |= {"mlp_head.0.weight": (11, 64), "mlp_head.0.bias": (11,)}
    path = tmp_path / "tuned.pth"
    torch.save(recipe.state(shapes, sizes, 0.1), path)
    with pytest.raises(Exception, match="does not say its modality"):
        convert(path, tmp_path / "out", heads=4)
    assert "visual classifier of 11 classes" in convert(path, tmp_path / "out", heads=4, mode="visual")
    with pytest.raises(CheckpointError, match="holds a classifier"):
        load_model(tmp_path / "out")


def mae_state(size, channels=3):
    rng = torch.Generator().manual_seed(0)
    d = size.width
    shapes = {"cls_token": (1, 1, d), "pos_embed": (1, 197, d), "patch_embed.proj.weight": (d, channels, 16, 16),
              "patch_embed.proj.bias": (d,), "norm.weight": (d,), "norm.bias": (d,)}  # fmt: skip
    for i in range(size.depth):
        for name, shape in (("norm1", (d,)), ("norm2", (d,)), ("attn.qkv", (3 * d, d)), ("attn.proj", (d, d)),
                            ("mlp.fc1", (4 * d, d)), ("mlp.fc2", (d, 4 * d))):  # fmt: skip
            shapes[f"blocks.{i}.{name}.weight"], shapes[f"blocks.{i}.{name}.bias"] = shape, shape[:1]
    return {k: torch.randn(s, generator=rng) * 0.02 for k, s in shapes.items()}


def test_mae_goes_into_both_encoders(state):
    config = released_config(released_sizes(state, heads=4))
    config = config.model_copy(update={"model": config.model.model_copy(update={
        "encoder": config.model.encoder.model_copy(update={"norm_augmented": False})})})  # fmt: skip
    model = build_model(config)
    before = {k: v.clone() for k, v in model.state_dict().items()}
    mae = mae_state(Size(64, 2, 4))
    load_strict(model, from_mae(mae, model.state_dict()), "MAE")
    after = model.state_dict()
    for m in ("audio", "visual"):
        assert torch.equal(after[f"{m}.f.blocks.1.attn.qkv.weight"], mae["blocks.1.attn.qkv.weight"])
        assert torch.equal(after[f"{m}.u.to_q.weight"], before[f"{m}.u.to_q.weight"])
    kernel = mae["patch_embed.proj.weight"]
    torch.testing.assert_close(after["audio.f.patch_embed.proj.weight"], kernel.sum(1, keepdim=True))
    # The audio encoder sees one channel as the MAE encoder would see it three times.
    x = torch.randn(1, 1, 32, 32, generator=torch.Generator().manual_seed(1))
    torch.testing.assert_close(
        model.audio.f.patch_embed(x), model.visual.f.patch_embed(x.repeat(1, 3, 1, 1)), atol=1e-5, rtol=1e-5
    )
    with pytest.raises(WeightsError, match="the MAE checkpoint does not fit"):
        from_mae(mae_state(SIZES["tiny"]), model.state_dict())


def test_damaged_checkpoints(tmp_path, state):
    with pytest.raises(CheckpointError, match="no such checkpoint folder"):
        load_checkpoint(tmp_path / "nowhere")
    torch.save(state, tmp_path / "released.pth")
    folder = tmp_path / "ours"
    convert(tmp_path / "released.pth", folder, heads=4)
    meta = (folder / "meta.json").read_text()
    (folder / "meta.json").write_text(meta.replace('"format": 1', '"format": 99'))
    with pytest.raises(CheckpointError, match="format 99"):
        load_checkpoint(folder)
    (folder / "meta.json").write_text(meta)
    config = (folder / "config.yaml").read_text()
    (folder / "config.yaml").write_text(config.replace("depth: 2", "depth: 3"))
    with pytest.raises(CheckpointError, match=r"config\.yaml: differs from its checksum in SHA256SUMS"):
        load_model(folder)
    (folder / "SHA256SUMS").unlink()
    with pytest.raises(CheckpointError, match=r"missing audio\.f\.blocks\.2"):
        load_model(folder)
    (folder / "config.yaml").write_text(config)
    data = (folder / "weights.safetensors").read_bytes()
    (folder / "weights.safetensors").write_bytes(data[: len(data) // 2])
    with pytest.raises(CheckpointError, match="damaged"):
        load_checkpoint(folder)
    (folder / "weights.safetensors").unlink()
    with pytest.raises(CheckpointError, match=r"it lacks weights\.safetensors"):
        load_checkpoint(folder)
