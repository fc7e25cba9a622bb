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
