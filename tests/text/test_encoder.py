"""The text encoder as any encoder: shapes, chosen tokens, layers; and that empty places do not count."""

import pytest
import torch

from equiav.errors import ShapeError
from equiav.models import Encoder, Size, initialise, mean_pool
from equiav.text import TextEncoder, TextInput


@pytest.fixture
def encoder(rng):
    made = TextEncoder(Size(32, 2, 4), words=12, letters=8)
    initialise(made, rng)
    return made.eval()


def batch(*texts, words=12):
    read = TextInput(words, 8)
    return read.prepare(torch.stack([read.read(text) for text in texts]))


def test_is_an_encoder(encoder):
    x = batch("a dog barks", "rain")
    h = encoder(x)
    assert isinstance(encoder, Encoder)
    assert h.shape == (2, encoder.tokens, encoder.width)
    one, two = encoder.views(x, x)
    torch.testing.assert_close(one, h)
    torch.testing.assert_close(two, h)
    assert sorted(name for group in encoder.layers() for name in group) == sorted(
        name for name, _ in encoder.named_parameters()
    )


def test_empty_places_do_not_count(encoder, rng):
    """A longer grid with the same weights gives the same mean, and its words the same tokens."""
    longer = TextEncoder(Size(32, 2, 4), words=20, letters=8).eval()
    longer.load_state_dict(encoder.state_dict())
    short, long = encoder(batch("a small red ring")), longer(batch("a small red ring", words=20))
    torch.testing.assert_close(short[:, :4], long[:, :4])
    torch.testing.assert_close(mean_pool(short), mean_pool(long))
    torch.testing.assert_close(mean_pool(short), short[:, :4].mean(dim=1))


def test_letters_and_order_matter(encoder):
    z = mean_pool(encoder(batch("red ring", "ring red", "red rnig", "red ring")))
    assert torch.equal(z[0], z[3])
    assert min(float((z[0] - z[i]).abs().max()) for i in (1, 2)) > 1e-3


def test_chosen_tokens_keep_their_positions(encoder):
    x = batch("a small red ring", "rain")
    every = torch.arange(12).expand(2, -1)
    torch.testing.assert_close(encoder(x, every), encoder(x))
    assert encoder(x, every[:, 4:6]).shape == (2, 2, 32)  # no words among them: still numbers
    assert encoder(x, every[:, 4:6]).isfinite().all()


def test_blank_rows_are_finite_and_carry_gradients(encoder):
    encoder(torch.zeros(2, 1, 12, 8)).sum().backward()
    assert all(p.grad is None or p.grad.isfinite().all() for p in encoder.parameters())


def test_other_shapes_are_refused(encoder):
    with pytest.raises(ShapeError, match="text encoder wants"):
        encoder(torch.zeros(2, 1, 11, 8))
