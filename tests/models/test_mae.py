"""Masked autoencoding: patches, masks, the decoder, its loss, and MAE's file format."""

import pytest
import torch
from torch.nn import functional as F

from equiav.errors import ShapeError, WeightsError
from equiav.losses import masked_mean_square, reconstruct
from equiav.models.encoder import Size, ViT
from equiav.models.layers import initialise
from equiav.models.mae import (
    Decoder,
    initialise_masked,
    kept_by_noise,
    patchify,
    read_mae,
    removed,
    unpatchify,
    write_mae,
)

GRID, PATCH = (2, 3), 4


def models(rng, channels=3):
    encoder = ViT(Size(16, 2, 2), input_size=(8, 12), patch=PATCH, channels=channels)
    decoder = Decoder(16, GRID, patch=PATCH, channels=channels, width=8, depth=2, heads=2)
    initialise(encoder, rng)
    initialise_masked(decoder, rng)
    return encoder, decoder


def test_patches_are_rows_of_the_image_in_order_row_column_channel(rng):
    x = torch.randn(2, 3, 8, 12, generator=rng)
    patches = patchify(x, PATCH)
    assert patches.shape == (2, 6, 48)
    assert torch.equal(patches[1, 4].reshape(PATCH, PATCH, 3), x[1, :, 4:8, 4:8].permute(1, 2, 0))
    assert torch.equal(unpatchify(patches, GRID, PATCH), x)
    with pytest.raises(ShapeError, match="8 x 12"):
        patchify(x, 5)


def test_noise_says_which_tokens_stay():
    noise = torch.tensor([[0.9, 0.1, 0.5, 0.2], [0.0, 0.3, 0.2, 0.1]])
    assert kept_by_noise(noise, 0.5).tolist() == [[1, 3], [0, 3]]
    assert kept_by_noise(noise, 0.75).tolist() == [[1], [0]]
    assert kept_by_noise(noise, 0.99).tolist() == [[1], [0]]  # at least one
    assert removed(kept_by_noise(noise, 0.5), 4).tolist() == [[1, 0, 1, 0], [0, 1, 1, 0]]


@pytest.mark.parametrize("norm_pix", [False, True])
def test_loss_is_the_mean_square_over_removed_patches(norm_pix, rng):
    target, prediction = (torch.randn(2, 6, 48, generator=rng, dtype=torch.float64) for _ in range(2))
    kept = torch.tensor([[0, 4], [1, 2]])
    squares = []
    for i in range(2):
        for j in set(range(6)) - set(kept[i].tolist()):
            patch = target[i, j]
            if norm_pix:
                variance = ((patch - patch.mean()) ** 2).sum() / 47
                patch = (patch - patch.mean()) / (variance + 1e-6).sqrt()
            squares += ((prediction[i, j] - patch) ** 2).tolist()
    loss = masked_mean_square(target, prediction, removed(kept, 6).double(), norm_pix)
    assert loss.item() == pytest.approx(sum(squares) / len(squares), rel=1e-12)


def test_a_sample_without_removed_patches_does_not_count(rng):
    target, prediction = (torch.randn(2, 6, 48, generator=rng) for _ in range(2))
    mask = removed(torch.tensor([[0], [1]]), 6)
    absent = mask * torch.tensor([[1.0], [0.0]])
    alone = masked_mean_square(target[:1], prediction[:1], mask[:1])
    torch.testing.assert_close(masked_mean_square(target, prediction, absent), alone)
    assert masked_mean_square(target, prediction, torch.zeros_like(mask)).item() == 0


def test_reconstruction_shows_seen_patches_and_predicted_ones(rng):
    target = 5 + 3 * torch.randn(2, 6, 48, generator=rng)
    mask = removed(torch.tensor([[0], [1]]), 6)
    standardised = (target - target.mean(-1, keepdim=True)) / target.std(-1, keepdim=True)
    torch.testing.assert_close(reconstruct(target, standardised, mask, norm_pix=True), target, rtol=0, atol=1e-4)
    blank = reconstruct(target, torch.zeros_like(target), mask)
    assert torch.equal(blank == 0, (mask > 0)[:, :, None].expand_as(target))


def test_decoder_sees_kept_tokens_at_their_places(rng):
    """Written out with MAE's own steps: kept tokens in any order, mask tokens appended, unshuffled."""
    encoder, decoder = models(rng)
    x = torch.randn(2, 3, 8, 12, generator=rng)
    kept = torch.tensor([[0, 4], [1, 2]])
    h = encoder(x, tokens=kept)
    prediction = decoder(h, kept)
    assert prediction.shape == (2, 6, 48)
    rest = torch.tensor([[1, 2, 3, 5], [0, 3, 4, 5]])
    restore = torch.cat([kept, rest], dim=1).argsort(dim=1)
    full = torch.cat([decoder.embed(h), decoder.mask_token.expand(2, 4, -1)], dim=1)
    y = full.gather(1, restore[:, :, None].expand(-1, -1, 8)) + decoder.pos_embed
    for block in decoder.blocks:
        y = block(y)
    torch.testing.assert_close(prediction, decoder.predict(decoder.norm(y)))


def test_start_is_a_function_of_the_generator():
    one, two, other = (models(torch.Generator().manual_seed(s))[1] for s in (1, 1, 2))
    assert all(torch.equal(a, b) for a, b in zip(one.parameters(), two.parameters(), strict=True))
    assert not torch.equal(one.mask_token, other.mask_token)
    assert 0 < one.mask_token.abs().max() < 0.1


def test_it_learns(rng):
    encoder, decoder = models(rng)
    x = torch.randn(4, 3, 1, 1, generator=rng).expand(4, 3, 8, 12)  # one colour each: seen patches say it all
    optimiser = torch.optim.Adam([p for m in (encoder, decoder) for p in m.parameters()], lr=3e-3)
    values = []
    for _ in range(60):
        kept = kept_by_noise(torch.rand(4, 6, generator=rng), 0.75)
        loss = masked_mean_square(patchify(x, PATCH), decoder(encoder(x, tokens=kept), kept), removed(kept, 6))
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        values.append(loss.item())
    assert sum(values[-5:]) < 0.2 * sum(values[:5])


# MAE's format

NAMES = {"cls_token", "pos_embed", "mask_token", "decoder_pos_embed"} | {
    f"{part}.{kind}"
    for part in ("patch_embed.proj", "norm", "decoder_embed", "decoder_norm", "decoder_pred")
    for kind in ("weight", "bias")
}


@pytest.mark.parametrize("class_token", [True, False])
@pytest.mark.parametrize("channels", [1, 3])
def test_written_and_read_again(class_token, channels, rng):
    encoder, decoder = models(rng, channels)
    state = write_mae(encoder.state_dict(), decoder.state_dict(), GRID, class_token=class_token)
    others = {k for k in state if "blocks." not in k}
    assert others == (NAMES if class_token else NAMES - {"cls_token"})
    assert state["pos_embed"].shape == (1, 6 + class_token, 16)
    assert state["decoder_pos_embed"].shape == (1, 6 + class_token, 8)
    assert {"blocks.1.attn.qkv.weight", "decoder_blocks.1.mlp.fc2.bias"} < state.keys()
    read_encoder, read_decoder = read_mae(state, rows=2)
    for ours, given in ((encoder, read_encoder), (decoder, read_decoder)):
        assert ours.state_dict().keys() == given.keys()
        assert all(torch.equal(v, given[k]) for k, v in ours.state_dict().items())


def test_an_encoder_alone_is_written_and_read(rng):
    encoder, _ = models(rng)
    state = write_mae(encoder.state_dict(), {}, GRID)
    assert not any(k.startswith("decoder") for k in state)
    assert read_mae(state, rows=2)[1] == {}


def mae_tokens(state, x, heads):
    """A plain MAE encoder, from its names: what a reader of the file computes."""
    patches = F.conv2d(x, state["patch_embed.proj.weight"], state["patch_embed.proj.bias"], stride=PATCH)
    h = patches.flatten(2).transpose(1, 2)
    if "cls_token" in state:
        h = torch.cat([state["cls_token"].expand(len(x), -1, -1), h], dim=1)
    h = h + state["pos_embed"]

    def norm(name, y):
        return F.layer_norm(y, y.shape[-1:], state[f"{name}.weight"], state[f"{name}.bias"], eps=1e-6)

    def linear(name, y):
        return F.linear(y, state[f"{name}.weight"], state[f"{name}.bias"])

    for i in range(2):
        b, n, d = h.shape
        q, k, v = linear(f"blocks.{i}.attn.qkv", norm(f"blocks.{i}.norm1", h)).view(b, n, 3, heads, -1).unbind(2)
        weights = (torch.einsum("bnhc,bmhc->bhnm", q, k) * (d // heads) ** -0.5).softmax(-1)
        h = h + linear(f"blocks.{i}.attn.proj", torch.einsum("bhnm,bmhc->bnhc", weights, v).reshape(b, n, d))
        h = h + linear(f"blocks.{i}.mlp.fc2", F.gelu(linear(f"blocks.{i}.mlp.fc1", norm(f"blocks.{i}.norm2", h))))
    return norm("norm", h)


def test_a_reader_without_class_token_computes_the_same(rng):
    encoder, decoder = models(rng)
    x = torch.randn(2, 3, 8, 12, generator=rng)
    state = write_mae(encoder.state_dict(), decoder.state_dict(), GRID, class_token=False)
    torch.testing.assert_close(mae_tokens(state, x, heads=2), encoder(x), rtol=0, atol=1e-5)
    with_token = write_mae(encoder.state_dict(), decoder.state_dict(), GRID)
    assert bool(mae_tokens(with_token, x, heads=2).isfinite().all())  # a zero token survives every norm


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda s: {k: v for k, v in s.items() if k != "norm.bias"}, "missing norm.bias"),
        (lambda s: {k: v for k, v in s.items() if k != "decoder_norm.bias"}, "missing decoder_norm.bias"),
        (lambda s: s | {"head.weight": torch.zeros(1)}, "unexpected head.weight"),
        (lambda s: s | {"decoder_embed.weight": torch.zeros(8, 12)}, r"decoder_embed.weight is \(8, 12\)"),
        (lambda s: s | {"pos_embed": torch.zeros(1, 7, 16)}, "not MAE's fixed sine-cosine table"),
        (lambda s: s | {"pos_embed": torch.zeros(1, 6, 16)}, "grid of 2 rows"),
        (lambda s: {}, "must hold patch_embed"),
    ],
)
def test_files_that_do_not_fit_are_refused(change, message, rng):
    encoder, decoder = models(rng)
    state = write_mae(encoder.state_dict(), decoder.state_dict(), GRID)
    with pytest.raises(WeightsError, match=message):
        read_mae(change(state), rows=2)
