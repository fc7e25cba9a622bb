"""CAV-MAE built from released checkpoints gives the numbers of the authors' model."""

import functools
import json
import math
import zlib

import numpy as np
import pytest
import torch

from equiav.errors import ShapeError, WeightsError
from equiav.losses import cavmae, cavmae_contrast, masked_mean_square
from equiav.models.cavmae import (
    CavMae,
    CavMaeClassifier,
    cavmae_sizes,
    kind_of_cavmae,
    read_cavmae,
    released_name,
    write_cavmae,
)
from equiav.models.mae import kept_by_noise, removed
from tests.paper import golden_recipe as recipe

FILES = sorted(p for p in recipe.GOLDEN.glob("cavmae_*.json") if p.with_suffix(".npz").exists())
LETTERS = {"a": "audio", "v": "visual"}
SUFFIX = {torch.float32: "f32", torch.float64: "f64"}
EMBEDDING = {torch.float32: 1e-5, torch.float64: 1e-9}
LOSS = {torch.float32: 1e-4, torch.float64: 1e-9}
BASE = {
    "img_size": 224,
    "audio_length": 1024,
    "patch_size": 16,
    "embed_dim": 768,
    "modality_specific_depth": 11,
    "num_heads": 12,
    "mlp_ratio": 4,
    "decoder_embed_dim": 512,
    "decoder_depth": 8,
    "decoder_num_heads": 16,
}
# Where the stored arrays look at a prediction and at the tokens of the features.
PREDICTED = {"a": np.s_[:, ::7, ::5], "v": np.s_[:, ::3, ::11]}
TOKENS = {"a": np.s_[:, ::9, :16], "v": np.s_[:, ::3, :16]}


def block_shapes(name, width, hidden):
    shapes = {}
    for norm in ("norm1", "norm1_a", "norm1_v", "norm2", "norm2_a", "norm2_v"):
        shapes |= {f"{name}.{norm}.weight": (width,), f"{name}.{norm}.bias": (width,)}
    for part, (rows, columns) in {
        "attn.qkv": (3 * width, width),
        "attn.proj": (width, width),
        "mlp.fc1": (hidden, width),
        "mlp.fc2": (width, hidden),
    }.items():
        shapes |= {f"{name}.{part}.weight": (rows, columns), f"{name}.{part}.bias": (rows,)}
    return shapes


def linear_shapes(name, rows, columns):
    return {f"{name}.weight": (rows, columns), f"{name}.bias": (rows,)}


def shapes_of(constructor, classes=0):
    """Keys and shapes of a released checkpoint, written out from the description of the model."""
    s = {**BASE, **constructor}
    d, e, p, own = s["embed_dim"], s["decoder_embed_dim"], s["patch_size"], s["modality_specific_depth"]
    tokens = {"a": 128 // p * (s["audio_length"] // p), "v": (s["img_size"] // p) ** 2}
    shapes = {}
    for m, channels in (("a", 1), ("v", 3)):
        shapes |= {f"modality_{m}": (1, 1, d), f"pos_embed_{m}": (1, tokens[m], d)}
        shapes |= {f"patch_embed_{m}.proj.weight": (d, channels, p, p), f"patch_embed_{m}.proj.bias": (d,)}
        for i in range(own):
            shapes |= block_shapes(f"blocks_{m}.{i}", d, int(d * s["mlp_ratio"]))
        shapes |= {f"norm_{m}.weight": (d,), f"norm_{m}.bias": (d,)}
    for i in range(12 - own):
        shapes |= block_shapes(f"blocks_u.{i}", d, int(d * s["mlp_ratio"]))
    shapes |= {"norm.weight": (d,), "norm.bias": (d,)}
    if classes:
        return shapes | {"mlp_head.0.weight": (d,), "mlp_head.0.bias": (d,)} | linear_shapes("mlp_head.1", classes, d)
    shapes |= {"mask_token": (1, 1, e), **linear_shapes("decoder_embed", e, d)}
    for i in range(s["decoder_depth"]):
        shapes |= block_shapes(f"decoder_blocks.{i}", e, int(e * s["mlp_ratio"]))
    shapes |= {"decoder_norm.weight": (e,), "decoder_norm.bias": (e,)}
    for m, channels in (("a", 1), ("v", 3)):
        shapes |= {f"decoder_modality_{m}": (1, 1, e), f"decoder_pos_embed_{m}": (1, tokens[m], e)}
        shapes |= linear_shapes(f"decoder_pred_{m}", p * p * channels, e)
    return shapes


def draw(key, shape, scale, salt):
    """As `recipe.draw`, but here every key that contains "norm" is a LayerNorm: decoder_norm too."""
    n = np.random.RandomState(zlib.crc32((salt + key).encode("ascii"))).standard_normal(shape)
    value = (1 + 0.02 * n if key.endswith("weight") else 0.02 * n) if "norm" in key else scale * n
    return torch.from_numpy(np.asarray(value)).float()


def released_state(golden, classes=0):
    s = {**BASE, **golden["constructor"]}
    p, r = s["patch_size"], golden["recipe"]
    grids = {"a": (128 // p, s["audio_length"] // p), "v": (s["img_size"] // p, s["img_size"] // p)}
    out = {}
    for key, shape in shapes_of(s, classes).items():
        fixed = "pos_embed" in key
        out[f"module.{key}"] = (
            recipe.positions(shape[2], *grids[key[-1]]) if fixed else draw(key, shape, r["scale"], r["weight_key_salt"])
        )
    return out


def read(path):
    return json.loads(path.read_text())


def loaded(golden, dtype):
    s = {**BASE, **golden["constructor"]}
    state = released_state(golden)
    sizes = cavmae_sizes(state, heads=s["num_heads"], decoder_heads=s["decoder_num_heads"])
    assert (sizes.frames, sizes.bins, sizes.image) == (s["audio_length"], 128, s["img_size"])
    model = CavMae(sizes)
    model.load_state_dict(read_cavmae(state))
    return model.to(dtype).eval()


def inputs(golden, dtype):
    """Spectrograms, images and the kept tokens of a golden file."""
    s, r = {**BASE, **golden["constructor"]}, golden["recipe"]
    n, frames, side, b, p = r["batch"], s["audio_length"], s["img_size"], r["image_block"], s["patch_size"]
    seeds = r["seeds"]
    x = {
        "audio": recipe.field(seeds["audio"], n, 1, frames, 128, *r["audio_block"]).to(dtype),
        "visual": recipe.field(seeds["image"], n, 3, side, side, b, b).to(dtype),
    }
    tokens = {"a": 128 // p * (frames // p), "v": (side // p) ** 2}
    kept = {}
    for letter, m in LETTERS.items():
        noise = np.random.RandomState(seeds[f"noise_{letter}"]).random_sample((n, tokens[letter]))
        kept[m] = kept_by_noise(torch.from_numpy(noise).float(), r["mask_ratio"])
    return x, kept


def losses(golden, model, x, kept, out):
    """Every loss of a golden file."""
    r = golden["recipe"]
    targets = model.targets(x)
    values = {}
    for m, target in targets.items():
        mask = removed(kept[m], target.shape[1]).to(target.dtype)
        values[f"mae_{m}"] = masked_mean_square(target, out.predictions[m], mask)
        values[f"mae_{m}_norm_pix"] = masked_mean_square(target, out.predictions[m], mask, norm_pix=True)
    pair = (out.contrast["audio"], out.contrast["visual"], r["temperature"])
    values["contrast_audio_given_video"] = cavmae_contrast(*pair)
    values["contrast_both"] = cavmae_contrast(*pair, both=True)
    reconstruction = {m: values[f"mae_{m}"] for m in targets}
    values["total_default"] = cavmae(reconstruction, values["contrast_audio_given_video"], r["contrast_weight"])
    return values


@functools.lru_cache(maxsize=2)
def run(path, dtype):
    golden = read(path)
    model = loaded(golden, dtype)
    x, kept = inputs(golden, dtype)
    with torch.no_grad():
        return golden, model, x, kept, model(x, kept)


def test_golden_files_are_there():
    assert FILES, f"no cavmae_*.json with its .npz in {recipe.GOLDEN}"


@pytest.mark.parametrize("dtype", SUFFIX, ids=SUFFIX.values())
@pytest.mark.parametrize("path", FILES, ids=lambda p: p.stem)
def test_outputs(path, dtype):
    _, model, x, kept, out = run(path, dtype)
    stored = np.load(path.with_suffix(".npz"))
    ours = {}
    with torch.no_grad():
        for letter, m in LETTERS.items():
            mask = removed(kept[m], stored[f"mask_{letter}"].shape[1])
            assert np.array_equal(mask.numpy(), stored[f"mask_{letter}"])
            ours[f"contrast_{letter}"] = out.contrast[m].numpy()
            ours[f"pred_{letter}"] = out.predictions[m].numpy()[PREDICTED[letter]]
            ours[f"feat_{letter}"] = model.encoder.features(m, x[m]).numpy()
            ours[f"feat_{letter}_tokens"] = model.encoder.tokens(m, x[m]).numpy()[TOKENS[letter]]
    expected = {k.removesuffix(f"_{SUFFIX[dtype]}"): stored[k] for k in stored.files if k.endswith(SUFFIX[dtype])}
    assert ours.keys() == expected.keys()
    for name, value in ours.items():
        assert value.shape == expected[name].shape, name
        error = np.abs(value - expected[name]).max()
        assert error <= EMBEDDING[dtype], f"{name}: {error}"


@pytest.mark.parametrize("dtype", SUFFIX, ids=SUFFIX.values())
@pytest.mark.parametrize("path", FILES, ids=lambda p: p.stem)
def test_losses(path, dtype):
    golden, *rest = run(path, dtype)
    expected = golden["losses"][SUFFIX[dtype]]
    with torch.no_grad():
        ours = losses(golden, *rest)
    assert ours.keys() == expected.keys()
    for name, value in ours.items():
        assert math.isclose(value.item(), expected[name], rel_tol=LOSS[dtype]), f"{name}: {value} {expected[name]}"


@pytest.mark.parametrize("path", FILES, ids=lambda p: p.stem)
def test_gradient_norms(path):
    golden = read(path)
    model = loaded(golden, torch.float64)
    x, kept = inputs(golden, torch.float64)
    losses(golden, model, x, kept, model(x, kept))["total_default"].backward()
    ours = {released_name(k): float(p.grad.norm()) for k, p in model.named_parameters() if p.grad is not None}
    expected = {k: v for k, v in golden["losses"]["gradient_norms_f64"].items() if v is not None}
    assert ours.keys() == expected.keys()
    for key, norm in ours.items():
        assert math.isclose(norm, expected[key], rel_tol=1e-6), f"{key}: {norm} {expected[key]}"


# Import and export


def listed(kind):
    """The published list of keys, as tensors that take no memory."""
    keys = read(recipe.DEFAULT / "cavmae_keys.json")[kind]
    return {key: torch.zeros(1).expand(shape) for key, shape in keys.items()}


@pytest.mark.parametrize(
    ("listing", "kind", "count"), [("pretrain", "pretrained", 647), ("finetune_audioset", "finetuned", 478)]
)
def test_every_released_key_has_a_place(listing, kind, count):
    state = listed(listing)
    assert len(state) == count
    written_out = shapes_of({}, classes=0 if listing == "pretrain" else 527)
    assert {f"module.{k}": v for k, v in written_out.items()} == {k: tuple(v.shape) for k, v in state.items()}
    assert kind_of_cavmae(state) == kind
    ours = read_cavmae(state)
    sizes = cavmae_sizes(state)
    assert (sizes.heads, sizes.depth, sizes.joint_depth, sizes.frames, sizes.image) == (12, 11, 1, 1024, 224)
    with torch.device("meta"):
        model = CavMaeClassifier(sizes) if sizes.classes else CavMae(sizes)
    assert {k: v.shape for k, v in model.state_dict().items()} == {k: v.shape for k, v in ours.items()}
    if kind == "pretrained":
        assert (sizes.decoder_width, sizes.decoder_depth, sizes.decoder_heads) == (512, 8, 16)
        assert sum(v.numel() for v in state.values()) == 191_036_160
    else:
        assert sizes.classes == 527


@pytest.mark.parametrize("classes", [0, 11], ids=["pretrained", "finetuned"])
def test_export_is_the_inverse_of_import(classes):
    golden = read(recipe.DEFAULT / "cavmae_tiny_hot.json")
    state = released_state(golden, classes)
    back = write_cavmae(read_cavmae(state))
    assert {k: v.shape for k, v in back.items()} == {k: v.shape for k, v in state.items()}
    unread = [k for k in state if not torch.equal(back[k], state[k])]
    # Only norms that nothing reads come back as fresh ones: two norms of two modalities in every block but the joint.
    assert len(unread) == (2 * 11 + (0 if classes else 2)) * 8
    assert all("blocks_u" not in k and (".norm1_" in k or ".norm2_" in k) for k in unread)
    again = read_cavmae(back)
    assert all(torch.equal(again[k], v) for k, v in read_cavmae(state).items())


def tiny_state(classes=0):
    return released_state(read(recipe.DEFAULT / "cavmae_tiny.json"), classes)


def without(state, key):
    return {k: v for k, v in state.items() if k != key}


def test_names_without_the_prefix_are_read_too():
    state = tiny_state()
    bare = {k.removeprefix("module."): v for k, v in state.items()}
    assert read_cavmae(bare).keys() == read_cavmae(state).keys()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda s: without(s, "module.norm_a.weight"), "missing norm_a.weight"),
        (lambda s: without(s, "module.blocks_v.3.norm1_a.bias"), "missing blocks_v.3.norm1_a.bias"),
        (lambda s: without(s, "module.pos_embed_v"), "pos_embed_v"),
        (lambda s: s | {"module.extra": torch.zeros(1)}, "unexpected extra"),
        (lambda s: s | {"extra": torch.zeros(1)}, "unexpected extra"),
        (lambda s: s | {"norm.weight": torch.zeros(64)}, "with and without 'module.'"),
        (lambda s: s | {"module.norm.weight": torch.zeros(3)}, r"norm.weight is \(3,\), not \(64,\)"),
        (lambda s: s | {"module.norm.weight": torch.full((64,), math.nan)}, "not finite"),
        (lambda s: s | {"module.pos_embed_v": torch.zeros(1, 15, 64)}, "not 8 rows and a square"),
        (lambda s: s | {"module.pos_embed_a": torch.zeros(64)}, "must hold pos_embed_a"),
        (lambda s: s | {"module.blocks_a.999999999.norm1.weight": torch.zeros(64)}, "missing blocks_a.11"),
        (lambda s: {}, "must hold"),
    ],
)
def test_a_checkpoint_that_does_not_fit_is_refused_in_one_line(change, message):
    with pytest.raises(WeightsError, match=message) as error:
        read_cavmae(change(tiny_state()))
    assert "\n" not in str(error.value)


def test_heads_that_do_not_divide_the_width_are_refused():
    with pytest.raises(WeightsError, match="5 attention heads"):
        cavmae_sizes(tiny_state(), heads=5)


def test_an_incomplete_or_foreign_model_is_not_written():
    ours = read_cavmae(tiny_state())
    with pytest.raises(WeightsError, match=r"missing norm_v\.bias"):
        write_cavmae(without(ours, "encoder.separate.visual.norm.bias"))
    with pytest.raises(WeightsError, match=r"audio\.f\.norm\.weight has no place"):
        write_cavmae(ours | {"audio.f.norm.weight": torch.zeros(64)})
    assert kind_of_cavmae({"__M__.patch_embed_a.proj.weight": torch.zeros(1)}) is None


# What the golden files do not hold


def test_classifier_takes_both_modalities_or_either(rng):
    golden = read(recipe.DEFAULT / "cavmae_tiny_hot.json")
    state = released_state(golden, classes=11)
    model = CavMaeClassifier(cavmae_sizes(state, heads=4))
    model.load_state_dict(read_cavmae(state))
    x, _ = inputs(golden, torch.float32)
    with torch.no_grad():
        both, audio = model(x), model({"audio": x["audio"]})
        assert both.shape == audio.shape == (4, 11)
        # Both: shared norms over all tokens. One: its own norms.
        h = torch.cat([model.encoder.separate[m](x[m]) for m in x], dim=1)
        block = model.encoder.joint[0]
        h = h + block.attn(block.norm1(h))
        h = model.encoder.norm(h + block.mlp(block.norm2(h)))
        torch.testing.assert_close(both, model.head(h.mean(dim=1)))
        torch.testing.assert_close(audio, model.head(model.encoder.features("audio", x["audio"])))


def test_an_input_of_another_size_is_refused():
    golden = read(recipe.DEFAULT / "cavmae_tiny.json")
    model = loaded(golden, torch.float32)
    with pytest.raises(ShapeError, match="frequency, time"):
        model.encoder.features("audio", torch.zeros(2, 1, 64, 128))
    with pytest.raises(ShapeError, match="height, width"):
        model.encoder.features("visual", torch.zeros(2, 1, 64, 64))
