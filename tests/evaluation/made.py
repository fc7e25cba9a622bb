"""Small models and datasets whose results are known by hand."""

import csv
import json
import wave

import numpy as np
import torch
from PIL import Image

from equiav.build import build_bank, build_model
from equiav.data import Dataset
from equiav.inference import LoadedModel
from equiav.models import EmbeddingModel
from equiav.types import Clip, Sample
from tests.training.small import small_config


def loaded(config):
    """A model of a recipe with its seeded random weights."""
    banks = {m: build_bank(config, m) for m in ("audio", "visual")}
    return LoadedModel(build_model(config).eval(), config, banks, {"step": 0})


class Raw:
    """Inputs that need no preparation."""

    def prepare(self, raw, lengths=None):
        return raw

    def finish(self, x):
        return x


class Passing(EmbeddingModel):
    """The embedding of a vector is the vector."""

    def __init__(self, modalities, width):
        super().__init__()
        self.modalities, self.width = tuple(modalities), width
        self.weight = torch.nn.Parameter(torch.zeros(1))

    def encode(self, modality, x):
        return x[:, None]

    def embed_tokens(self, modality, h, bank=None):
        return h.mean(dim=1)


class PassingModel(LoadedModel):
    inputs = property(lambda self: {m: Raw() for m in self.modalities})


def passing_model(modalities, width):
    return PassingModel(Passing(modalities, width), small_config(), {}, {})


class Vectors(Dataset):
    """Clips that hold one vector per modality."""

    def __init__(self, vectors, labels=None, one_to_one=True, ids=None):
        self.vectors, self.modalities, self.one_to_one = vectors, tuple(vectors), one_to_one
        self._labels = labels or [()] * len(self)
        self._ids = ids or [f"clip {i}" for i in range(len(self))]

    def __len__(self):
        return len(next(iter(self.vectors.values())))

    def clip(self, index):
        return Clip(self._ids[index], group=self._ids[index], labels=tuple(self._labels[index]))

    def sample(self, index, frame):
        return Sample(self._ids[index], {m: x[index] for m, x in self.vectors.items()})


def written(results, folder):
    """The results file and the page that results write."""
    page = results.write(folder)
    return json.loads((folder / "results.json").read_text()), page.read_text()


def write_wav(path, samples, rate=16000):
    path.parent.mkdir(parents=True, exist_ok=True)
    with wave.open(str(path), "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(rate)
        file.writeframes(np.asarray(samples).astype("<i2").tobytes())


def make_collection(root, *, classes=3, sounds=8, images=10):
    """Sounds and images that only classes pair; of each class one sound and two images are for testing."""
    rows = [("path", "kind", "class", "split", "source", "licence", "duration_s")]
    for c in range(classes):
        for i in range(sounds):
            path = f"audio/c{c}/s{i}.wav"
            write_wav(root / path, np.full(4000 * (1 + i % 2), 100 * c + i + 1))
            split = "test" if i == 0 else "train"
            rows.append((path, "audio", f"c{c}", split, f"AudioMNIST data/{i:02d}/{c}_{i:02d}_0.wav", "MIT", "0.25"))
        for i in range(images):
            path = f"images/c{c}/p{i}.png"
            (root / path).parent.mkdir(parents=True, exist_ok=True)
            Image.new("L", (12, 10), 10 * c + i).save(root / path)
            rows.append((path, "image", f"c{c}", "test" if i < 2 else "train", f"made {i}", "CC0", ""))
    with (root / "manifest.csv").open("w", newline="") as file:
        csv.writer(file).writerows(rows)
    return root
