"""Token dropping in the encoders: which tokens stay, that they keep their places, and that nothing else is seen."""

import pytest
import torch

from equiav.build import build_model
from equiav.config import parse_config
from equiav.models import draw_tokens
from equiav.randomness import stream
from equiav.types import Modality
from tests.models.test_models import TINY

B = 3


@pytest.fixture
def model():
    return build_model(parse_config(TINY, "test"))


def inputs(m, rng, batch=B):
    shape = (batch, 1, 64, 32) if m is Modality.AUDIO else (batch, 3, 32, 32)
    return torch.randn(shape, generator=rng)


def test_which_tokens_are_drawn():
    kept = draw_tokens(200, 8, 0.5, stream(0, 1, "tokens"))
    assert kept.shape == (200, 4)
    assert bool((kept.diff(dim=1) > 0).all())  # in order, none twice
    assert kept.min() == 0
    assert kept.max() == 7
    often = torch.bincount(kept.flatten(), minlength=8) / 200
    assert bool(((often - 0.5).abs() < 0.15).all())  # no place is preferred
    assert not torch.equal(kept[0], kept[1]) or not torch.equal(kept[1], kept[2])  # drawn per sample
    assert torch.equal(kept, draw_tokens(200, 8, 0.5, stream(0, 1, "tokens")))
    assert not torch.equal(kept, draw_tokens(200, 8, 0.5, stream(0, 2, "tokens")))


def test_all_or_hardly_any():
    assert draw_tokens(4, 8, 1.0, stream(0, 0, "tokens")) is None
    assert draw_tokens(4, 8, 0.999, stream(0, 0, "tokens")) is None  # rounds to all
    assert draw_tokens(4, 8, 0.001, stream(0, 0, "tokens")).shape == (4, 1)


@pytest.mark.parametrize("m", list(Modality))
def test_everything_chosen_is_everything(model, m, rng):
    x, tokens = inputs(m, rng), len(model[m].f.pos_embed)
    torch.testing.assert_close(model[m].encode(x, torch.arange(tokens).expand(B, -1)), model[m].encode(x))


@pytest.mark.parametrize("m", list(Modality))
def test_chosen_tokens_keep_their_patch_and_place(model, m, rng):
    """Before the blocks a kept token is what it would have been among all."""
    f, x = model[m].f, inputs(m, rng)
    f.blocks = torch.nn.ModuleList()
    whole = model[m].encode(x)
    chosen = draw_tokens(B, whole.shape[1], 0.5, rng)
    torch.testing.assert_close(
        model[m].encode(x, chosen), torch.stack([h[c] for h, c in zip(whole, chosen, strict=True)])
    )


def test_dropped_tokens_are_not_seen(model, rng):
    x = inputs(Modality.VISUAL, rng)
    chosen = torch.tensor([[0, 3]]).expand(B, -1)  # of a grid of 2 x 2
    y = x.clone()
    y[:, :, :16, 16:] += 5  # token 1
    assert torch.equal(model.visual.encode(x, chosen), model.visual.encode(y, chosen))
    y[:, :, 16:, 16:] += 5  # token 3
    assert not torch.allclose(model.visual.encode(x, chosen), model.visual.encode(y, chosen))


def test_views_have_tokens_of_their_own(model, rng):
    x, y = (inputs(Modality.AUDIO, rng) for _ in range(2))
    chosen = draw_tokens(2 * B, len(model.audio.f.pos_embed), 0.5, rng)
    h, h_aug = model.audio.encode_views(x, y, chosen)
    torch.testing.assert_close(h, model.audio.encode(x, chosen[:B]))
    torch.testing.assert_close(h_aug, model.audio.encode(y, chosen[B:]))
    assert h.shape == (B, 4, 32)
