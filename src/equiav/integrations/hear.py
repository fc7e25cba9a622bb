"""The API of the HEAR benchmark (hearbenchmark.com): load_model, get_scene_embeddings, get_timestamp_embeddings."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from equiav.inference import Embedder, LoadedModel
from equiav.inference import load_model as load_checkpoint
from equiav.media import HOP_SECONDS
from equiav.types import AUDIO


class HearModel(nn.Module):
    """What HEAR asks of a model: sample rate and sizes as attributes, and a device that it can be moved to."""

    def __init__(self, loaded: LoadedModel) -> None:
        super().__init__()
        self.loaded, self.model = loaded, loaded.model
        self.embedder = Embedder(loaded)
        self.sample_rate: int = loaded.config.audio.sample_rate
        self.scene_embedding_size: int = loaded.width
        spectrogram = torch.zeros(1, 1, loaded.config.audio.frames, loaded.config.audio.bins, device=loaded.device)
        with torch.inference_mode():
            h = self.model.encode(AUDIO, spectrogram)
            self.columns = self.model.grid(AUDIO, spectrogram, h)[1]  # of tokens: frequency is the rows
        self.timestamp_embedding_size: int = h.shape[2]


def load_model(model_file_path: str = "") -> HearModel:
    """A run's folder, a checkpoint, or hf:owner/name, as HEAR's evaluation wants a model."""
    return HearModel(load_checkpoint(model_file_path))


def get_scene_embeddings(audio: Tensor, model: HearModel) -> Tensor:
    """Unit vectors (n, D) of waveforms (n, samples) at the model's rate; long ones by the mean over windows."""
    vectors = [model.embedder.clips([(wave.float().cpu(), None)])[0][0] for wave in audio]
    return torch.stack([torch.from_numpy(vector) for vector in vectors]).to(audio.device)


@torch.inference_mode()
def get_timestamp_embeddings(audio: Tensor, model: HearModel) -> tuple[Tensor, Tensor]:
    """Tokens of the encoder, averaged over frequency: (n, T, width), and their times in ms: (n, T).

    One every patch of the spectrogram (160 ms for patches of 16); windows of what the encoder hears lie side by side.
    """
    transform = model.loaded.inputs[AUDIO]
    seconds = model.loaded.config.audio.frames * HOP_SECONDS
    step = seconds / model.columns
    length = round(seconds * model.sample_rate)
    parts = []
    for waves in torch.split(audio.float().cpu(), length, dim=1):
        x = torch.cat([transform.finish(transform.prepare(wave[None])) for wave in waves]).to(model.loaded.device)
        h = model.model.encode(AUDIO, x)
        parts.append(h.view(len(h), *model.model.grid(AUDIO, x, h), -1).mean(dim=1))  # (n, columns, width)
    count = max(1, round(audio.shape[1] / model.sample_rate / step))
    embeddings = torch.cat(parts, dim=1)[:, :count]
    times = (torch.arange(embeddings.shape[1]) + 0.5) * step * 1000
    return embeddings.to(audio.device), times.expand(len(audio), -1).to(audio.device)
