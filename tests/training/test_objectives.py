"""Algorithm 1 line by line, every variant, and what each leaves out of the graph."""

import pytest
import torch

from equiav.build import build_filter_bank, build_inputs, build_model, build_pipelines
from equiav.build_data import build_clips
from equiav.data import collate
from equiav.losses import LossWeights, equimod, info_nce, nt_xent
from equiav.media import normalise, standardise, to_float
from equiav.training import Objective, Step, draw_step, strategy_weights
from equiav.types import Modality
from tests.training.small import small_config

N, S, SEED = 6, 3, 5
CONFIG = small_config()


@pytest.fixture(scope="module")
def batch():
    clips = build_clips(CONFIG, "train")
    return collate([clips.sample(i, i % clips.frames) for i in range(N)])


def objective(**choices):
    return Objective(build_model(CONFIG), build_pipelines(CONFIG.augment), build_inputs(CONFIG.audio), **choices)


def draws(o, count=S):
    return draw_step(o.augment, N, count, SEED, 1)


def test_algorithm_1(batch):
    """One clip at a time, one vector at a time, as the paper's listing does it."""
    o = objective()
    d = draws(o)
    terms = o.losses(o(batch, d), LossWeights())
    z_intra, z_bar = {}, {}
    for m in Modality:
        net, aug = o.model[m], o.augment[m]
        hats, primes, bars = [], [], []
        for k in range(N):
            one = batch.rows(k, k + 1)
            if m is Modality.AUDIO:
                energies = build_filter_bank(CONFIG.audio)(one.waveforms, one.lengths)
                x = standardise(energies, CONFIG.audio.mean, CONFIG.audio.std)[:, None]
                x_aug = aug.apply(x, d[m].intra.rows(k, k + 1))
            else:
                x = normalise(to_float(one.frames))
                x_aug = normalise(aug.apply(to_float(one.frames), d[m].intra.rows(k, k + 1)))
            h, h_aug = net.encode(x), net.encode(x_aug)
            t = aug.encode(d[m].intra.rows(k, k + 1))
            hats.append(net.g_intra(net.u(h, t[None])[:, 0]))
            primes.append(net.g_intra(h_aug.mean(dim=1)))
            parts = [net.u(h, d[m].inter[k, i][None, None])[:, 0] for i in range(S)]
            bars.append(net.g_inter(sum(parts) / S))
        z_intra[m], z_bar[m] = (torch.cat(hats), torch.cat(primes)), torch.cat(bars)
    inter = info_nce(z_bar[Modality.AUDIO], z_bar[Modality.VISUAL], 0.07)
    audio, visual = (nt_xent(*z_intra[m], 0.07) for m in Modality)
    torch.testing.assert_close(terms.inter, inter, atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(terms.intra_audio, audio, atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(terms.intra_visual, visual, atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(terms.total, inter + audio + visual, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("inter", ["original", "augmented"])
@pytest.mark.parametrize("intra", ["equivariant", "invariant", "none"])
def test_what_is_contrasted(batch, intra, inter):
    o = objective(intra=intra, inter=inter)
    d = draws(o)
    z = o(batch, d)
    x = to_float(batch.frames)
    seen = normalise(o.augment[Modality.VISUAL].apply(x, d.visual.intra) if inter == "augmented" else x)
    net = o.model.visual
    torch.testing.assert_close(z.inter_visual, net.g_inter(net.encode(seen).mean(1)), atol=1e-5, rtol=1e-4)
    if intra == "none":
        assert z.intra_visual is None
    if intra == "invariant":  # Eq. (1): two augmented views
        second = net.encode(normalise(o.augment[Modality.VISUAL].apply(x, d.visual.second)))
        torch.testing.assert_close(z.intra_visual[1], net.g_intra(second.mean(1)), atol=1e-5, rtol=1e-4)


def test_equivariant_inter_is_the_centroid_of_one(batch):
    one = objective(inter="equivariant")
    d3 = draws(one, 3)
    z = one(batch, d3)
    expected = one.model.audio.inter_centroid(
        one.model.audio.encode(one.inputs.before_augmentation(batch, Modality.AUDIO)), d3.audio.inter[:, :1]
    )
    torch.testing.assert_close(z.inter_audio, expected, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize(
    "choices", [{}, {"intra": "invariant", "inter": "original"}, {"intra": "none", "inter": "original"}]
)
def test_every_trainable_parameter_gets_a_gradient(batch, choices):
    o = objective(**choices)
    o.losses(o(batch, draws(o)), LossWeights(0.0, 0.0, 0.0)).total.backward()
    assert all(p.grad is not None for p in o.parameters() if p.requires_grad)
    frozen = {n.split(".")[2] for n, p in o.named_parameters() if not p.requires_grad}
    expected = {"equivariant": set(), "invariant": {"u"}, "none": {"u", "g_intra"}}[choices.get("intra", "equivariant")]
    assert frozen == expected


def test_equimod_is_used_when_asked(batch):
    o = objective(loss="equimod")
    z = o(batch, draws(o))
    terms = o.losses(z, LossWeights())
    torch.testing.assert_close(terms.intra_audio, equimod(*z.intra_audio, 0.07))


def test_strategies():
    w = LossWeights(1.0, 2.0, 3.0)
    assert strategy_weights(w, "joint", 4, 10) == w
    assert strategy_weights(w, "alternating", 1, 10) == LossWeights(0.0, 2.0, 3.0)
    assert strategy_weights(w, "alternating", 2, 10) == LossWeights(1.0, 0.0, 0.0)
    assert strategy_weights(w, "two_stage", 5, 10) == LossWeights(0.0, 2.0, 3.0)
    assert strategy_weights(w, "two_stage", 6, 10) == LossWeights(1.0, 0.0, 0.0)


@pytest.mark.parametrize("micro", [1, 2, 4])
@pytest.mark.parametrize("choices", [{}, {"loss": "equimod"}, {"intra": "none", "inter": "original"}])
def test_gradient_cache_gives_the_same_gradients(batch, micro, choices):
    whole, cached = objective(**choices), objective(**choices)
    d = draws(whole)
    terms, z = Step(whole, whole, None, None)(batch, d, LossWeights())
    again, z_again = Step(cached, cached, micro, None)(batch, d, LossWeights())
    torch.testing.assert_close(again.total, terms.total, rtol=1e-5, atol=1e-5)
    for a, b in zip(z.tensors(), z_again.tensors(), strict=True):
        torch.testing.assert_close(b, a, rtol=1e-4, atol=1e-5)
    for (name, a), b in zip(whole.named_parameters(), cached.parameters(), strict=True):
        if a.requires_grad:
            assert (b.grad - a.grad).norm() <= 1e-4 * a.grad.norm() + 1e-6, name


def test_draws_do_not_depend_on_the_variant_or_on_s():
    """Every purpose has its own stream: whatever S is, the same augmentations are applied."""
    pipelines = build_pipelines(CONFIG.augment)
    one, three = draw_step(pipelines, N, 1, SEED, 1), draw_step(pipelines, N, 3, SEED, 1)
    assert torch.equal(one.audio.intra["crop"].values, three.audio.intra["crop"].values)
    other = draw_step(pipelines, N, 3, SEED, 2)
    assert not torch.equal(three.audio.intra["crop"].values, other.audio.intra["crop"].values)
    part = three.rows(2, 5)
    assert torch.equal(part.visual.inter, three.visual.inter[2:5])
