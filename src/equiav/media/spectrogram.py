"""Kaldi-compatible log-mel filter bank: waveforms of unequal length in, (N, frames, bins) out."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor

from equiav.errors import ShapeError

WINDOW_SECONDS = 0.025
HOP_SECONDS = 0.010
PREEMPHASIS = 0.97
LOWEST_HZ = 20.0
# Kaldi's floor: the logarithm of float32's epsilon, which is also what silence gives.
FLOOR = torch.finfo(torch.float32).eps
LOG_FLOOR = -15.942385  # log(FLOOR)

CPU_WINDOWS = 1024

Padding = Literal["floor", "zero"]


@dataclass(frozen=True)
class FilterBank:
    """Shape of a spectrogram: `frames` rows of `bins` mel bands, 25 ms Hanning windows every 10 ms.

    Shorter sounds are padded after the filter bank, longer ones cut. `padding` is "floor" (silence) or "zero" (what
    released checkpoints were trained with).
    """

    sample_rate: int = 16000
    frames: int = 1024
    bins: int = 128
    padding: Padding = "floor"

    @property
    def window(self) -> int:
        """Samples in a window."""
        return int(self.sample_rate * WINDOW_SECONDS)

    @property
    def hop(self) -> int:
        """Samples from one window to the next."""
        return int(self.sample_rate * HOP_SECONDS)

    def rows(self, lengths: Int[Tensor, " n"]) -> Int[Tensor, " n"]:
        """How many rows of each spectrogram come from sound; the rest is padding."""
        whole = torch.div(lengths - self.window, self.hop, rounding_mode="floor") + 1
        return whole.clamp(0, self.frames)

    def __call__(
        self, waveforms: Float[Tensor, "n samples"], lengths: Int[Tensor, " n"] | None = None
    ) -> Float[Tensor, "n frames bins"]:
        """Log-mel energies of waveforms in [-1, 1]; of row i only the first lengths[i] samples count."""
        if waveforms.ndim != 2:
            raise ShapeError(f"waveforms must be (N, samples), got {tuple(waveforms.shape)}")
        if lengths is None:
            lengths = torch.full((len(waveforms),), waveforms.shape[1], device=waveforms.device)
        if not len(waveforms):
            return waveforms.new_empty(0, self.frames, self.bins)
        if int(lengths.min()) < self.window:
            raise ShapeError(f"a waveform of {int(lengths.min())} samples is shorter than a window of {self.window}")
        # The mean is that of the whole sound, also of the part that is cut off.
        count, samples, device = *waveforms.shape, waveforms.device
        inside = torch.arange(samples, device=device) < lengths[:, None] if int(lengths.min()) < samples else None
        total = (waveforms if inside is None else torch.where(inside, waveforms, 0.0)).sum(dim=1, keepdim=True)
        means, waveforms = total / lengths[:, None], waveforms[:, : self.window + self.hop * (self.frames - 1)]
        rows, kept = (waveforms.shape[1] - self.window) // self.hop + 1, self.rows(lengths)
        fill = LOG_FLOOR if self.padding == "floor" else 0.0
        out = waveforms.new_empty(count, self.frames, self.bins)
        out[:, rows:] = fill
        # A processor works on few enough windows at a time that they stay in its caches: three times as fast.
        chunk = max(1, CPU_WINDOWS // rows) if device.type == "cpu" else count
        for part in (slice(start, start + chunk) for start in range(0, count, chunk)):
            out[part, :rows] = self.energies(waveforms[part] - means[part])
        if int(kept.min()) < rows:
            out.masked_fill_((torch.arange(self.frames, device=device) >= kept[:, None])[:, :, None], fill)
        return out

    def energies(self, waveforms: Float[Tensor, "n samples"]) -> Float[Tensor, "n rows bins"]:
        """Log-mel energies of every whole window; neither the mean nor the padding of the sound is seen to."""
        windows = waveforms.unfold(1, self.window, self.hop)
        windows = windows - windows.mean(dim=2, keepdim=True)
        # Pre-emphasis inside each window; its first sample precedes itself.
        before = torch.cat([windows[:, :, :1], windows[:, :, :-1]], dim=2).mul_(PREEMPHASIS)
        hanning = torch.hann_window(self.window, periodic=False, dtype=windows.dtype, device=windows.device)
        windows = windows.sub_(before).mul_(hanning)  # not fused: single rounding shows in quiet bands
        size = 1 << (self.window - 1).bit_length()
        transformed = torch.fft.rfft(windows, n=size)
        spectrum = transformed.real.square().add_(transformed.imag.square())
        bands = [
            spectrum[..., low:high] @ bank.to(spectrum)
            for low, high, bank in _groups(self.bins, size, self.sample_rate)
        ]
        return torch.cat(bands, dim=-1).clamp_(min=FLOOR).log_()


def _mel(hertz: Tensor) -> Tensor:
    return 1127.0 * (1.0 + hertz / 700.0).log()


@lru_cache(maxsize=8)
def mel_bank(bins: int, fft_size: int, sample_rate: int) -> Float[Tensor, "half bins"]:
    """Triangles evenly spaced in mel between 20 Hz and the Nyquist frequency, one column per band.

    The edges of the lowest bands almost touch the grid of the transform, so their weights depend on rounding: all
    is single precision with edges multiplied up from the lowest, as in Kaldi and the code released weights saw.
    """
    lowest, highest = _mel(torch.tensor([LOWEST_HZ, sample_rate / 2], dtype=torch.float64)).tolist()
    step = (highest - lowest) / (bins + 1)
    left, centre, right = (lowest + (torch.arange(bins) + k) * step for k in (0.0, 1.0, 2.0))
    mel = _mel(torch.arange(fft_size // 2) * (sample_rate / fft_size))[:, None]
    bank = torch.minimum((mel - left) / (centre - left), (right - mel) / (right - centre)).clamp(min=0)
    return F.pad(bank, (0, 0, 0, 1))  # Kaldi ignores the Nyquist bin


@lru_cache(maxsize=8)
def _groups(bins: int, fft_size: int, sample_rate: int) -> list[tuple[int, int, Tensor]]:
    """`mel_bank` in four groups of bands, each with the part of the spectrum it weighs: a third of the products."""
    found = []
    for part in mel_bank(bins, fft_size, sample_rate).tensor_split(4, dim=1):
        weighed = part.any(dim=1).nonzero()[:, 0].tolist() or [0]
        low, high = weighed[0], weighed[-1] + 1
        found.append((low, high, part[low:high].contiguous()))
    return found


def standardise(spectrogram: Tensor, mean: float, std: float) -> Tensor:
    """(x - mean) / std with the statistics of the dataset."""
    return (spectrogram - mean) / std


def power_range(spectrogram: Float[Tensor, "t f"]) -> tuple[float, float]:
    """Sensible colour limits for showing a log-mel spectrogram."""
    return float(spectrogram.quantile(0.02)), float(spectrogram.quantile(0.998))
