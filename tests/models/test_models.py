"""Encoders, predictors, branches: shapes, grids, one pass for both views, parity of key names with timm."""

import pytest
import torch
import torch.nn.functional as F

from equiav.build import build_bank, build_model, build_predictor
from equiav.config import Config, PredictorConfig, parse_config
from equiav.errors import WeightsError
from equiav.models import SIZES, HypernetworkPredictor, Size, ViT, load_strict, mean_pool, sincos_positions
from equiav.randomness import generator

TINY = {
    "model": {
        "encoder": {"size": None, "width": 32, "depth": 2, "heads": 4},
        "predictor": {"query_width": 16, "heads": 2, "head_width": 8},
        "heads": {"hidden": 24, "inter": 12, "intra": 10},
    },
    "audio": {"frames": 64, "bins": 32},
    "visual": {"size": 32},
}


@pytest.fixture
def model():
    return build_model(parse_config(TINY, "test")).eval()


def test_sizes_are_the_published_ones():
    assert (SIZES["base"], SIZES["small"], SIZES["tiny"]) == (Size(768, 12, 12), Size(384, 12, 6), Size(192, 12, 3))
    with torch.device("meta"):
        base = build_model(Config())
    ours = sum(p.numel() for p in base.parameters())
    # What the released checkpoint holds beside: two more channels of audio patches, never-used norms, norms for the
    # augmented views, modality vectors, position tables.
    beside = 2 * 768 * 256 + 192 * 768 + 4 * 768 + 2 * 768 + (512 + 196) * 768
    assert 211_655_168 - ours == beside


def test_key_names_are_timms():
    names = set(ViT(Size(32, 1, 4), input_size=(32, 32)).state_dict())
    assert names == {
        "patch_embed.proj.weight", "patch_embed.proj.bias", "norm.weight", "norm.bias",
        *(f"blocks.0.{part}.{kind}" for part in ("norm1", "attn.qkv", "attn.proj", "norm2", "mlp.fc1", "mlp.fc2")
          for kind in ("weight", "bias")),
    }  # fmt: skip


def test_patches_are_a_convolution(rng):
    vit = ViT(Size(32, 1, 4), input_size=(32, 48))
    x = torch.randn(2, 3, 32, 48, generator=rng)
    expected = vit.patch_embed.proj(x).flatten(2).transpose(1, 2)
    torch.testing.assert_close(vit.patch_embed(x), expected, atol=1e-5, rtol=1e-5)


def test_any_grid(rng):
    vit = ViT(Size(32, 1, 4), input_size=(32, 32))
    assert vit(torch.randn(1, 3, 64, 16, generator=rng)).shape == (1, 4, 32)
    assert torch.equal(vit.pos_embed, sincos_positions(32, 2, 2))


def test_views_in_one_pass_equal_two_passes(model, rng):
    x, y = torch.randn(2, 3, 3, 32, 32, generator=rng)
    h, h_aug = model.visual.f.views(x, y)
    torch.testing.assert_close(h, model.visual.encode(x))
    torch.testing.assert_close(h_aug, model.visual.encode(y))


def test_audio_tokens_run_along_time_within_a_frequency_row(model, rng):
    """Changing the last 16 frames of a spectrogram changes the last token of each frequency row (before mixing)."""
    x = torch.randn(1, 1, 64, 32, generator=rng)
    y = x.clone()
    y[:, :, 48:] += 1
    tokens = [model.audio.f.patch_embed(v.transpose(2, 3)) for v in (x, y)]
    changed = (tokens[0] != tokens[1]).any(-1)[0]
    assert changed.tolist() == [False, False, False, True] * 2


@pytest.mark.parametrize("kind", ["attention", "linear", "hypernetwork"])
def test_predictors(kind, rng):
    u = build_predictor(PredictorConfig(kind=kind, query_width=16, heads=2, head_width=8), 32, 18, 1e-6)
    h, t = torch.randn(3, 5, 32, generator=rng), torch.randn(3, 4, 18, generator=rng)
    out = u(h, t)
    assert out.shape == (3, 4, 32)
    torch.testing.assert_close(out[:, 1:2], u(h, t[:, 1:2]), atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(out[2:], u(h[2:], t[2:]), atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(u(h, t[:1]), u(h, t[:1].expand(3, -1, -1)), atol=1e-5, rtol=1e-5)
    assert not torch.equal(out[:, 0], out[:, 1])


def test_hypernetwork_is_a_linear_map_chosen_by_t(rng):
    """The product never built: W(t) from the bases, applied explicitly."""
    u = HypernetworkPredictor(8, 3, hidden=4, bases=2)
    h, t = torch.randn(2, 5, 8, generator=rng), torch.randn(2, 3, 3, generator=rng)
    weight, bias = u.moves.weight.view(3, 8, 8), u.moves.bias.view(3, 8)
    for n in range(2):
        for i in range(3):
            c = u.coefficients(t[n, i])
            w = torch.eye(8) + c[0] * weight[0] + c[1] * weight[1] + c[2] * weight[2]
            b = c[0] * bias[0] + c[1] * bias[1] + c[2] * bias[2]
            torch.testing.assert_close(u(h, t)[n, i], w @ h[n].mean(0) + b, atol=1e-5, rtol=1e-5)


def test_a_drawn_hypernetwork_is_near_the_identity_and_not_the_same_for_two_vectors(rng):
    """It starts near mean h, and S vectors give S outputs: it is not collapsed to the identity."""
    config = parse_config({**TINY, "model": {**TINY["model"], "predictor": {"kind": "hypernetwork"}}}, "test")
    model = build_model(config)
    for m, tokens in (("audio", 8), ("visual", 4)):
        u = model[m].u
        h, t = torch.randn(5, tokens, model[m].f.width, generator=rng), build_bank(config, m)[None, :16]
        near = F.cosine_similarity(u(h, t), mean_pool(h)[:, None], dim=-1)
        assert near.min() > 0.8
        assert near.mean() > 0.9
        moved = u(h, t) - mean_pool(h)[:, None]
        apart = torch.cdist(moved, moved) + torch.eye(16)
        assert apart.min() > 1e-3 * moved.norm(dim=-1).mean()


def stored_before_the_residual_form(model):
    """A state with the names and shapes that hypernetworks had then."""
    state = {k.replace(".u.moves.", ".u.maps."): v.clone() for k, v in model.state_dict().items()}
    return {k: v[1:] if ".u.coefficients.2." in k else v for k, v in state.items()}


def test_a_hypernetwork_stored_before_its_residual_form_is_the_same_map(rng):
    """W(t) = W_0 + sum of c_k(t) W_k, as checkpoints before held it under `maps`."""
    config = parse_config({**TINY, "model": {**TINY["model"], "predictor": {"kind": "hypernetwork"}}}, "test")
    model = build_model(config)
    stored = stored_before_the_residual_form(model)
    load_strict(model, stored, "stored")
    u = model.visual.u
    h, t = torch.randn(2, 4, u.moves.in_features, generator=rng), build_bank(config, "visual")[None, :3]
    maps = F.linear(mean_pool(h), stored["visual.u.maps.weight"], stored["visual.u.maps.bias"])
    maps = maps.view(2, u.bases + 1, -1)
    c = u.coefficients(t)
    assert torch.equal(c[..., 0], torch.ones(1, 3))
    torch.testing.assert_close(u(h, t), maps[:, :1] + c[..., 1:] @ maps[:, 1:], atol=1e-5, rtol=1e-5)
    odd = {**stored, "visual.u.maps.weight": torch.zeros(3)}
    with pytest.raises(WeightsError, match=r"missing visual\.u\.moves\.weight.*unexpected visual\.u\.maps\.weight"):
        load_strict(model, odd, "damaged")


def test_embedding_kinds(model, rng):
    x, bank = torch.randn(2, 1, 64, 32, generator=rng), torch.randn(6, 24, generator=rng)
    h = model.audio.encode(x)
    centroid = model.embed("audio", x, bank)
    model.representation = "pooled"
    torch.testing.assert_close(model.embed("audio", x), model.audio.g_inter(mean_pool(h)))
    mean = torch.stack([model.audio.u(h, t[None, None].expand(2, 1, -1))[:, 0] for t in bank]).mean(0)
    torch.testing.assert_close(centroid, model.audio.g_inter(mean), atol=1e-5, rtol=1e-4)


def test_initialisation_is_a_function_of_the_seed():
    first, again = build_model(parse_config(TINY, "test")), build_model(parse_config(TINY, "test"))
    other = build_model(parse_config({**TINY, "seed": 1}, "test"))
    same = [torch.equal(a, b) for a, b in zip(first.parameters(), again.parameters(), strict=True)]
    assert all(same)
    assert not torch.equal(first.audio.f.blocks[0].attn.qkv.weight, other.audio.f.blocks[0].attn.qkv.weight)


def test_streams_are_separate():
    a, b = generator(0, 1, "intra"), generator(0, 1, "inter")
    assert not torch.equal(torch.rand(4, generator=a), torch.rand(4, generator=b))
