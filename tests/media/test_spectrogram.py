import pytest
import torch

from equiav.media import LOG_FLOOR, FilterBank, mel_bank


def test_unequal_lengths_equal_one_by_one(rng):
    lengths = torch.tensor([400, 5000, 16000, 9999])
    waves = torch.randn(4, 16000, generator=rng) * 0.1
    bank = FilterBank(frames=128)
    together = bank(waves, lengths)
    for i, n in enumerate(lengths.tolist()):
        alone = bank(waves[i : i + 1, :n])
        torch.testing.assert_close(together[i : i + 1], alone, rtol=0, atol=1e-4)
    assert bank.rows(lengths).tolist() == [1, 29, 98, 60]


def test_padding_is_silence_or_zero(rng):
    wave = torch.randn(1, 1600, generator=rng)
    assert (FilterBank(frames=64)(wave)[0, 8:] == LOG_FLOOR).all()
    assert (FilterBank(frames=64, padding="zero")(wave)[0, 8:] == 0).all()
    silent = FilterBank(frames=64)(torch.zeros(1, 16000))
    torch.testing.assert_close(silent, torch.full_like(silent, LOG_FLOOR))


def test_a_tone_stands_in_its_band():
    t = torch.arange(16000) / 16000
    loudest = FilterBank(frames=98)(torch.sin(2 * torch.pi * 1000 * t)[None])[0].mean(0).argmax()
    assert mel_bank(128, 512, 16000)[32].argmax() == loudest  # bin 32 of 512 at 16 kHz is 1000 Hz


@pytest.mark.parametrize(("bins", "rate"), [(128, 16000), (64, 16000), (128, 8000), (3, 16000)])
def test_every_band_weighs_the_whole_spectrum(rng, bins, rate):
    """Bands are computed in groups, each from a part of the spectrum; (128, 8000) has bands without any weight."""
    bank = FilterBank(rate, bins=bins)
    waves = torch.randn(2, rate, generator=rng)
    windows = waves.unfold(1, bank.window, bank.hop).double()
    windows = windows - windows.mean(dim=2, keepdim=True)
    windows = windows - 0.97 * torch.cat([windows[..., :1], windows[..., :-1]], dim=2)
    windows = windows * torch.hann_window(bank.window, periodic=False, dtype=torch.float64)
    size = 1 << (bank.window - 1).bit_length()
    energies = torch.fft.rfft(windows, n=size).abs() ** 2 @ mel_bank(bins, size, rate).double()
    expected = energies.clamp(min=torch.finfo(torch.float32).eps).log().float()
    torch.testing.assert_close(bank.energies(waves), expected, rtol=0, atol=1e-3)
