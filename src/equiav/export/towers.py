"""The towers as they are exported: waveform or picture in, unit embedding out, with the bank of vectors inside."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from equiav.build import build_filter_bank
from equiav.inference import LoadedModel
from equiav.media import LOG_FLOOR, normalise, standardise
from equiav.types import Modality


class SoundTower(nn.Module):
    """Waveforms (N, samples) in [-1, 1] to unit embeddings (N, D), filter bank included.

    What `FilterBank` does for sounds of one length, without the checks and portions that a graph cannot hold.
    """

    bank: Tensor

    def __init__(self, loaded: LoadedModel) -> None:
        super().__init__()
        self.branch = loaded.model.audio
        self.register_buffer("bank", loaded.banks[Modality.AUDIO])
        self.audio = loaded.config.audio
        self.filter_bank = build_filter_bank(self.audio)
        self.representation = loaded.config.objective.representation

    def forward(self, waveforms: Tensor) -> Tensor:
        """Embeddings of sounds that are all of one length; longer than the model listens to are cut."""
        bank = self.filter_bank
        used = bank.window + bank.hop * (bank.frames - 1)
        whole = (waveforms.shape[1] - bank.window) // bank.hop + 1
        centred = waveforms - waveforms.mean(dim=1, keepdim=True)
        energies = bank.energies(F.pad(centred, (0, used))[:, :used])
        fill = LOG_FLOOR if bank.padding == "floor" else 0.0
        keep = torch.arange(bank.frames, device=waveforms.device) < whole
        energies = torch.where(keep[None, :, None], energies, fill)
        spectrograms = standardise(energies, self.audio.mean, self.audio.std)[:, None]
        return F.normalize(self.branch.embed(spectrograms, self.bank, self.representation), dim=1)


class PictureTower(nn.Module):
    """Pictures (N, 3, side, side), uint8, to unit embeddings (N, D), normalisation included."""

    bank: Tensor

    def __init__(self, loaded: LoadedModel) -> None:
        super().__init__()
        self.branch = loaded.model.visual
        self.register_buffer("bank", loaded.banks[Modality.VISUAL])
        self.representation = loaded.config.objective.representation

    def forward(self, pictures: Tensor) -> Tensor:
        """Embeddings of pictures of the side that the model wants."""
        embeddings = self.branch.embed(normalise(pictures.float() / 255), self.bank, self.representation)
        return F.normalize(embeddings, dim=1)
