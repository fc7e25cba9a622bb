"""Algorithm 1 line by line, every variant, and what each leaves out of the graph."""

import pytest
import torch

from equiav.build import build_dataset, build_filter_bank, build_inputs, build_model, build_pipelines
from equiav.data import collate
from equiav.losses import equimod, info_nce, nt_xent
from equiav.media import normalise, prepare_batch, standardise, to_float
from equiav.objectives import EquiAVObjective, strategy_weights
from equiav.training import Step
from tests.training.small import small_config

N, S, SEED = 6, 3, 5
CONFIG = small_config()


@pytest.fixture(scope="module")
def batch():
    clips = build_dataset(CONFIG, "train")
    return collate([clips.sample(i, i % clips.frames) for i in range(N)])


def objective(**choices):
    choices = {"representations": S, **choices}
    return EquiAVObjective(build_model(CONFIG), build_pipelines(CONFIG), build_inputs(CONFIG), **choices)


def draws(o, step=1):
    return o.draw(N, SEED, step)


def test_algorithm_1(batch):
    """One clip at a time, one vector at a time, as the paper's listing does it."""
    o = objective()
    d = draws(o)
    terms = o.losses(o(batch, d), 1, 10)
    z_intra, z_bar = {}, {}
    for m in ("audio", "visual"):
        net, aug = o.model[m], o.augment[m]
        hats, primes, bars = [], [], []
        for k in range(N):
            one = batch.rows(k, k + 1)
            if m == "audio":
                energies = build_filter_bank(CONFIG.audio)(one.inputs["audio"], one.lengths["audio"])
                x = standardise(energies, CONFIG.audio.mean, CONFIG.audio.std)[:, None]
                x_aug = aug.apply(x, d[m].intra.rows(k, k + 1))
            else:
                x = normalise(to_float(one.inputs["visual"]))
                x_aug = normalise(aug.apply(to_float(one.inputs["visual"]), d[m].intra.rows(k, k + 1)))
            h, h_aug = net.encode(x), net.encode(x_aug)
            t = aug.encode(d[m].intra.rows(k, k + 1))
            hats.append(net.g_intra(net.u(h, t[None])[:, 0]))
            primes.append(net.g_intra(h_aug.mean(dim=1)))
            parts = [net.u(h, d[m].inter[k, i][None, None])[:, 0] for i in range(S)]
            bars.append(net.g_inter(sum(parts) / S))
        z_intra[m], z_bar[m] = (torch.cat(hats), torch.cat(primes)), torch.cat(bars)
    inter = info_nce(z_bar["audio"], z_bar["visual"], 0.07)
    audio, visual = (nt_xent(*z_intra[m], 0.07) for m in ("audio", "visual"))
    torch.testing.assert_close(terms["inter"], inter, atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(terms["intra_audio"], audio, atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(terms["intra_visual"], visual, atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(terms["total"], inter + audio + visual, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("inter", ["original", "augmented"])
@pytest.mark.parametrize("intra", ["equivariant", "invariant", "none"])
def test_what_is_contrasted(batch, intra, inter):
    o = objective(intra=intra, inter=inter)
    d = draws(o)
    z = o(batch, d)
    x = to_float(batch.inputs["visual"])
    seen = normalise(o.augment["visual"].apply(x, d["visual"].intra) if inter == "augmented" else x)
    net = o.model.visual
    torch.testing.assert_close(z["inter/visual"], net.g_inter(net.encode(seen).mean(1)), atol=1e-5, rtol=1e-4)
    if intra == "none":
        assert not any(name.startswith("intra") for name in z)
    if intra == "invariant":  # Eq. (1): two augmented views
        second = net.encode(normalise(o.augment["visual"].apply(x, d["visual"].second)))
        torch.testing.assert_close(z["intra/visual/augmented"], net.g_intra(second.mean(1)), atol=1e-5, rtol=1e-4)


def test_equivariant_inter_is_the_centroid_of_one(batch):
    one = objective(inter="equivariant")
    d3 = draws(one)
    z = one(batch, d3)
    x = prepare_batch(one.inputs, batch, "audio")
    expected = one.model["audio"].inter_centroid(one.model["audio"].encode(x), d3["audio"].inter[:, :1])
    torch.testing.assert_close(z["inter/audio"], expected, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize(
    "choices", [{}, {"intra": "invariant", "inter": "original"}, {"intra": "none", "inter": "original"}]
)
def test_every_trainable_parameter_gets_a_gradient(batch, choices):
    o = objective(**choices, weights=dict.fromkeys(("inter", "intra_audio", "intra_visual"), 0.0))
    o.losses(o(batch, draws(o)), 1, 10)["total"].backward()
    assert all(p.grad is not None for p in o.parameters() if p.requires_grad)
    frozen = {n.split(".")[2] for n, p in o.named_parameters() if not p.requires_grad}
    expected = {"equivariant": set(), "invariant": {"u"}, "none": {"u", "g_intra"}}[choices.get("intra", "equivariant")]
    assert frozen == expected


def test_equimod_is_used_when_asked(batch):
    o = objective(loss=equimod)
    z = o(batch, draws(o))
    terms = o.losses(z, 1, 10)
    torch.testing.assert_close(
        terms["intra_audio"], equimod(z["intra/audio/predicted"], z["intra/audio/augmented"], 0.07)
    )


def test_strategies():
    w = {"inter": 1.0, "intra_audio": 2.0, "intra_visual": 3.0}
    intra, inter = {**w, "inter": 0.0}, {**w, "intra_audio": 0.0, "intra_visual": 0.0}
    assert strategy_weights(w, "joint", 4, 10) == w
    assert strategy_weights(w, "alternating", 1, 10) == intra
    assert strategy_weights(w, "alternating", 2, 10) == inter
    assert strategy_weights(w, "two_stage", 5, 10) == intra
    assert strategy_weights(w, "two_stage", 6, 10) == inter


@pytest.mark.parametrize("micro", [1, 2, 4])
@pytest.mark.parametrize("choices", [{}, {"loss": equimod}, {"intra": "none", "inter": "original"}])
def test_gradient_cache_gives_the_same_gradients(batch, micro, choices):
    whole, cached = objective(**choices), objective(**choices)
    d = draws(whole)
    done, again = Step(whole, whole, None, None)(batch, d, 1, 10), Step(cached, cached, micro, None)(batch, d, 1, 10)
    torch.testing.assert_close(again.terms["total"], done.terms["total"], rtol=1e-5, atol=1e-5)
    assert list(again.outputs) == list(done.outputs)
    for name, value in done.outputs.items():
        torch.testing.assert_close(again.outputs[name], value, rtol=1e-4, atol=1e-5)
    for (name, a), b in zip(whole.named_parameters(), cached.parameters(), strict=True):
        if a.requires_grad:
            assert (b.grad - a.grad).norm() <= 1e-4 * a.grad.norm() + 1e-6, name


def test_draws_do_not_depend_on_the_variant_or_on_s():
    """Every purpose has its own generator: whatever S is, the same augmentations are applied."""
    one, three = draws(objective(representations=1)), draws(objective())
    assert torch.equal(one["audio"].intra["crop"].values, three["audio"].intra["crop"].values)
    other = draws(objective(), step=2)
    assert not torch.equal(three["audio"].intra["crop"].values, other["audio"].intra["crop"].values)
    part = three.rows(2, 5)
    assert torch.equal(part["visual"].inter, three["visual"].inter[2:5])
