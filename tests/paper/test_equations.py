"""Every loss against a letter-by-letter transcription of its equation, and the appendix' closed-form gradients."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from equiav.errors import ShapeError
from equiav.losses import LossWeights, equiav, equimod, info_nce, nt_xent
from equiav.models import AttentionPredictor, centroid
from tests.paper.golden_recipe import DEFAULT

TAU = 0.07


@pytest.fixture(params=[2, 3, 8])
def pair(request, rng):
    a = torch.randn(request.param, 16, generator=rng, dtype=torch.float64)
    return a, 0.5 * a + torch.randn(request.param, 16, generator=rng, dtype=torch.float64)


def s(x, y, tau=TAU):
    return torch.exp(F.cosine_similarity(x, y, dim=0) / tau)


def ell_intra(a, b):
    """Eq. (9) letter by letter."""
    total = a.new_zeros(())
    for i in range(len(a)):
        z_minus = [a[j] for j in range(len(a)) if j != i] + [b[j] for j in range(len(a)) if j != i]  # Eq. (8)
        total = total + torch.log(s(a[i], b[i]) / sum(s(a[i], z) for z in [*z_minus, b[i]]))
    return -total / len(a)


def ell_equimod(a, b):
    """Eq. (A) letter by letter."""
    total = a.new_zeros(())
    for i in range(len(a)):
        total = total + torch.log(s(a[i], b[i]) / sum(s(a[i], b[j]) + s(a[i], a[j]) for j in range(len(a)) if j != i))
    return -total / len(a)


def ell_inter(a, v):
    """Eq. (14) letter by letter."""
    total = a.new_zeros(())
    for i in range(len(a)):
        total = total + torch.log(s(a[i], v[i]) / sum(s(a[i], v[j]) for j in range(len(a))))
    return -total / len(a)


CASES = [(nt_xent, ell_intra), (equimod, ell_equimod), (info_nce, ell_inter)]


@pytest.mark.parametrize(("loss", "ell"), CASES, ids=["eq10", "eqB", "eq15"])
def test_loss_is_its_equation(loss, ell, pair):
    a, b = (x.clone().requires_grad_() for x in pair)
    ours, paper = loss(a, b, TAU), (ell(a, b) + ell(b, a)) / 2
    torch.testing.assert_close(ours, paper, rtol=1e-10, atol=1e-12)
    for mine, theirs in zip(torch.autograd.grad(ours, [a, b]), torch.autograd.grad(paper, [a, b]), strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-8, atol=1e-10)


def test_algorithm_1_writes_the_same_intra_loss(pair):
    """The interleaved indices 2k - 1, 2k of Algorithm 1."""
    z_hat, z_aug = pair
    n = len(z_hat)
    z = torch.stack([z_hat, z_aug], dim=1).flatten(0, 1)

    def ell(i, j):
        return -torch.log(s(z[i], z[j]) / sum(s(z[i], z[k]) for k in range(2 * n) if k != i))

    total = sum(ell(2 * k, 2 * k + 1) + ell(2 * k + 1, 2 * k) for k in range(n)) / (2 * n)
    torch.testing.assert_close(nt_xent(z_hat, z_aug, TAU), total, rtol=1e-10, atol=1e-12)


def test_equation_16():
    terms = [torch.tensor(x) for x in (2.0, 3.0, 5.0)]
    assert float(equiav(*terms).total) == 10.0
    assert float(equiav(*terms, LossWeights(0.5, 2.0, 1.0)).total) == 1.0 + 6.0 + 5.0


def test_closed_form_gradients_of_the_appendix(rng):
    """Eqs. (E), (F): dL_i/ds_ip of EquiMod is -1/s, EquiAV's is that times the share of the negatives."""
    positive = (torch.rand((), generator=rng, dtype=torch.float64) + 0.5).requires_grad_()
    negatives = torch.rand(6, generator=rng, dtype=torch.float64)
    without = -torch.log(positive / negatives.sum())  # Eq. (C)
    with_it = -torch.log(positive / (positive + negatives.sum()))  # Eq. (D)
    (g_equimod,) = torch.autograd.grad(without, positive)
    (g_equiav,) = torch.autograd.grad(with_it, positive)
    torch.testing.assert_close(g_equimod, -1 / positive.detach())
    share = negatives.sum() / (positive.detach() + negatives.sum())
    torch.testing.assert_close(g_equiav, g_equimod * share)


def test_our_losses_obey_the_closed_form(pair):
    """The same statement on the losses themselves: gradients with respect to the positive's cosine.

    d/dcos = s / tau * d/ds; it is read off by moving one pair of equal-norm vectors within the loss's own logits.
    """
    z_hat, z_aug = pair
    n = len(z_hat)
    z = F.normalize(torch.cat([z_hat, z_aug]), dim=1)
    cosines = z @ z.T
    off = ~torch.eye(2 * n, dtype=torch.bool)
    p = torch.arange(2 * n).roll(n)
    positive = torch.exp(cosines[torch.arange(2 * n), p] / TAU)
    negatives = (torch.exp(cosines / TAU) * off).sum(1) - positive
    per_anchor_equimod = -torch.log(positive / negatives)
    per_anchor_equiav = -torch.log(positive / (positive + negatives))
    torch.testing.assert_close(equimod(z_hat, z_aug, TAU), per_anchor_equimod.mean())
    torch.testing.assert_close(nt_xent(z_hat, z_aug, TAU), per_anchor_equiav.mean())


def test_golden_losses_and_gradients():
    golden = np.load(DEFAULT / "losses.npz")
    z = {k: torch.from_numpy(golden[k]).requires_grad_() for k in ("z_a", "z_v", "z_hat", "z_aug")}
    inter, intra = info_nce(z["z_a"], z["z_v"], TAU), nt_xent(z["z_hat"], z["z_aug"], TAU)
    assert abs(inter.item() - float(golden["inter"])) < 1e-9
    assert abs(intra.item() - float(golden["intra"])) < 1e-9
    (inter + intra).backward()
    for key, value in z.items():
        np.testing.assert_allclose(value.grad.numpy(), golden[f"grad_{key}"], atol=1e-9)


def test_equimod_refuses_a_batch_of_one(rng):
    with pytest.raises(ShapeError, match="no negatives in a batch of one"):
        equimod(torch.randn(1, 4, generator=rng), torch.randn(1, 4, generator=rng), TAU)


@pytest.mark.parametrize("loss", [nt_xent, equimod, info_nce])
def test_losses_ignore_length_and_order(loss, pair):
    a, b = pair
    order = torch.arange(len(a)).flip(0)
    torch.testing.assert_close(loss(3 * a, 0.2 * b, TAU), loss(a[order], b[order], TAU))


def test_predictor_is_equations_4_and_5(rng):
    """Head by head, vector by vector, with explicit softmax; norms and residual as the text says."""
    u = AttentionPredictor(12, 5, query_width=6, heads=2, head_width=4).double()
    h = torch.randn(3, 7, 12, generator=rng, dtype=torch.float64)
    t = torch.randn(3, 4, 5, generator=rng, dtype=torch.float64)
    expected = torch.empty(3, 4, 12, dtype=torch.float64)
    for n in range(3):
        for i in range(4):
            q, k, v = u.to_q(u.norm_t(u.f_t(t[n, i]))), u.to_k(h[n]), u.to_v(h[n])
            heads = []
            for j in range(2):
                part = slice(4 * j, 4 * j + 4)
                weights = torch.softmax(k[:, part] @ q[part] / 4**0.5, dim=0)
                heads.append(weights @ v[:, part])
            x = u.to_out(torch.cat(heads)) + h[n].mean(0)
            expected[n, i] = x + u.mlp.fc2(F.gelu(u.mlp.fc1(u.norm(x))))
    torch.testing.assert_close(u(h, t), expected)
    torch.testing.assert_close(u(h, t[:1]), u(h, t[:1].expand(3, -1, -1)))
    # Eq. (12), written as a sum
    torch.testing.assert_close(centroid(u(h, t)), sum(u(h, t[:, i : i + 1])[:, 0] for i in range(4)) / 4)
