"""The model built from released checkpoints gives the numbers of the authors' model."""

import functools
import json
import math

import numpy as np
import pytest
import torch

from equiav.build import build_classifier, build_model
from equiav.convert import released_config
from equiav.losses import equiav, info_nce, nt_xent
from equiav.models import finetuned_from_released, from_released, load_strict, mean_pool, released_sizes, to_released
from tests.paper import golden_recipe as recipe

FILES = recipe.golden_files()
EMBEDDING = {torch.float32: 1e-5, torch.float64: 1e-9}
LOSS = {torch.float32: 1e-4, torch.float64: 1e-9}
SUFFIX = {torch.float32: "f32", torch.float64: "f64"}


def test_golden_files_are_there():
    assert FILES, f"no pretrain_*.json with its .npz in {recipe.GOLDEN}"


def released_state(golden):
    shapes = recipe.pretrain_shapes(golden["constructor"])
    salt = golden["recipe"].get("weight_key_salt", "")
    return recipe.state(shapes, golden["constructor"], golden["weight_scale"], salt)


def imported(golden, dtype):
    state = released_state(golden)
    heads = golden["constructor"].get("num_heads")
    model = build_model(released_config(released_sizes(state, heads=heads))).to(dtype)
    load_strict(model, from_released(state, dtype), "golden weights")
    return model.eval()


@functools.lru_cache(maxsize=1)
def outputs(path, dtype):
    golden = recipe.read(path)
    model = imported(golden, dtype)
    x = {k: v.to(dtype) for k, v in recipe.inputs(golden).items()}
    out = {}
    with torch.no_grad():
        for letter, m in (("a", "audio"), ("v", "visual")):
            branch = model[m]
            h, h_aug = branch.f.views(x[letter], x[f"{letter}_aug"])
            out[f"z_{letter}_inter"] = branch.inter_centroid(h, x[f"t_{letter}_list"])
            out[f"z_{letter}_inter_nocentroid"] = branch.inter_pooled(h)
            out[f"z_{letter}_equi"] = branch.equivariant(h, x[f"t_{letter}"])
            out[f"z_{letter}_aug"] = branch.augmented(h_aug)
            out[f"hbar_{letter}"] = branch.u(h, x[f"t_{letter}_list"]).mean(dim=1)
            out[f"hhat_{letter}"] = branch.u(h, x[f"t_{letter}"][:, None])[:, 0]
            out[f"tok_norm_{letter}_pooled"] = mean_pool(h)
            out[f"tok_norm_{letter}_aug_pooled"] = mean_pool(h_aug)
            out[f"tok_norm_{letter}"] = h
            out[f"tok_norm_{letter}_aug"] = h_aug
    return golden, out


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=["float32", "float64"])
@pytest.mark.parametrize("path", FILES, ids=lambda p: p.stem)
def test_model_and_losses(path, dtype):
    golden, out = outputs(path, dtype)
    stored = np.load(path.with_suffix(".npz"))
    compared = 0
    for name, value in out.items():
        key = f"{name}_{SUFFIX[dtype]}"
        if key in stored.files:
            compared += 1
            error = np.abs(value.numpy() - stored[key]).max()
            assert error <= EMBEDDING[dtype], f"{name}: {error}"
        rows = f"{name}_rows_{SUFFIX[dtype]}"
        if rows in stored.files:
            chosen = golden[f"tokens_{SUFFIX[dtype]}"][name.removeprefix("tok_")]["rows"]
            error = np.abs(value[:, chosen, :64].numpy() - stored[rows]).max()
            assert error <= EMBEDDING[dtype], f"{name} rows: {error}"
    assert compared >= 12

    expected = golden[f"losses_{SUFFIX[dtype]}"]
    terms = {
        "inter": info_nce(out["z_a_inter"], out["z_v_inter"], 0.07),
        "intra_a": nt_xent(out["z_a_equi"], out["z_a_aug"], 0.07),
        "intra_v": nt_xent(out["z_v_equi"], out["z_v_aug"], 0.07),
    }
    for name, value in {**terms, "total_ones": equiav(terms, {})}.items():
        assert math.isclose(float(value), expected[name], rel_tol=LOSS[dtype]), name
    plain = info_nce(out["z_a_inter_nocentroid"], out["z_v_inter_nocentroid"], 0.07)
    assert math.isclose(float(plain), golden[f"losses_nocentroid_{SUFFIX[dtype]}"]["inter"], rel_tol=LOSS[dtype])


@pytest.mark.parametrize("tag", ["tiny", "tiny_hot"])
def test_gradients(tag):
    """Gradient norms of every parameter that our model shares one to one with the released one."""
    golden = recipe.read(recipe.DEFAULT / f"pretrain_{tag}.json")
    norms = json.loads((recipe.DEFAULT / f"pretrain_{tag}_grads.json").read_text())["grad_norm_per_parameter"]
    model = imported(golden, torch.float64)
    x = {k: v.double() for k, v in recipe.inputs(golden).items()}
    z = {}
    for letter, m in (("a", "audio"), ("v", "visual")):
        h, h_aug = model[m].f.views(x[letter], x[f"{letter}_aug"])
        z[letter] = (
            model[m].inter_centroid(h, x[f"t_{letter}_list"]),
            model[m].equivariant(h, x[f"t_{letter}"]),
            model[m].augmented(h_aug),
        )
    inter = info_nce(z["a"][0], z["v"][0], 0.07)
    (inter + nt_xent(*z["a"][1:], 0.07) + nt_xent(*z["v"][1:], 0.07)).backward()
    # The released names of our gradients: rename the gradients as if they were weights.
    grads = to_released({k: p.grad for k, p in model.named_parameters()}, 128, 64)
    compared = 0
    for key, grad in grads.items():
        norm = norms[key.removeprefix("__M__.")]
        if norm is None or "modality" in key or "pos_embed" in key:
            continue
        # to_released spreads the audio kernel as thirds over three channels; a gradient stands whole in each.
        ours = float(grad.norm()) * (3 if key.endswith("patch_embed_a.proj.weight") else 1)
        assert math.isclose(ours, norm, rel_tol=1e-9, abs_tol=1e-12), key
        compared += 1
    assert compared > 90


def test_export_is_the_inverse_of_import():
    golden = recipe.read(recipe.DEFAULT / "pretrain_tiny_hot.json")
    state = released_state(golden)
    ours = from_released(state, torch.float64)
    back = to_released(ours, 128, 64)
    assert {k: tuple(v.shape) for k, v in back.items()} == {k: tuple(v.shape) for k, v in state.items()}
    again = from_released(back, torch.float64)
    for key, value in ours.items():
        torch.testing.assert_close(again[key], value, rtol=0, atol=1e-15)


def test_export_has_every_released_key():
    listed = json.loads((recipe.DEFAULT / "official_pretrain_keys.json").read_text())["keys"]
    with torch.device("meta"):
        model = build_model(released_config(released_sizes_of_base()))
    written = to_released({k: torch.empty(v.shape) for k, v in model.state_dict().items()}, 1024, 224)
    assert {k: list(v.shape) for k, v in written.items()} == {e["key"]: e["shape"] for e in listed}


def released_sizes_of_base():
    keys = json.loads((recipe.DEFAULT / "official_pretrain_keys.json").read_text())["keys"]
    return released_sizes({e["key"]: torch.empty(e["shape"], device="meta") for e in keys})


CASES = {
    "multimodal/inter_linear=True": ("audiovisual", "linear", 32),
    "multimodal/inter_linear=False": ("audiovisual", "mlp", 32),
    "video_only/inter_linear=True": ("visual", "linear", 32),
    "video_only/inter_linear=False": ("visual", "mlp", 32),
    "audio_only/inter_linear=True/proj_out_dim=embed_dim": ("audio", "linear", 64),
}


@pytest.mark.parametrize("case", CASES)
def test_finetuned_logits(case):
    golden = json.loads((recipe.DEFAULT / "finetune_tiny.json").read_text())
    mode, head, out_dim = CASES[case]
    sizes = {**recipe.BASE, "embed_dim": 64, "modality_specific_depth": 2, "img_size": 64, "audio_length": 128}
    shapes = recipe.encoder_shapes("a", sizes) | recipe.encoder_shapes("v", sizes)
    for m in "av":
        name = f"pred_{m}_inter"
        if head == "linear":
            shapes |= {f"{name}.weight": (out_dim, 64), f"{name}.bias": (out_dim,)}
        else:
            shapes |= recipe.mlp_head_shapes(name, 64, 96, out_dim)
    shapes |= {"mlp_head.0.weight": (11, 2 * out_dim if mode == "audiovisual" else 64), "mlp_head.0.bias": (11,)}
    state = recipe.state(shapes, sizes, golden["weight_scale"])
    model = build_classifier(released_config(released_sizes(state, heads=4), mode)).double()
    load_strict(model, finetuned_from_released(state, mode, torch.float64), case)
    tiny = recipe.inputs(recipe.read(recipe.DEFAULT / "pretrain_tiny.json"))
    with torch.no_grad():
        logits = model({"audio": tiny["a"].double(), "visual": tiny["v"].double()})
    expected = np.array(golden["results"][case]["logits_f64"])
    assert np.abs(logits.numpy() - expected).max() < 1e-9
