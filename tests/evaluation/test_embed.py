"""Embeddings of a dataset: in order, independent of the batch, with one frame or all of them."""

import torch
import torch.nn.functional as F

from equiav.build import build_dataset
from equiav.data import Subset
from equiav.evaluation import embed_dataset, read_tokens, retrieval_metrics
from equiav.types import Embeddings
from tests.evaluation.made import loaded
from tests.training.small import small_config

CONFIG = small_config("data.validation=7")
LOADED = loaded(CONFIG)


def embed(batch):
    def reader(m, h):
        return [LOADED.model.embed_tokens(m, h, LOADED.banks[m])]

    found = read_tokens(LOADED, build_dataset(CONFIG, "validation"), reader, batch=batch)
    return Embeddings((), {m: z for m, (z,) in found.items()})


def test_batches_do_not_matter():
    whole = embed_dataset(LOADED, build_dataset(CONFIG, "validation"))
    assert whole.ids == tuple(f"world-0-{24 + i:07d}" for i in range(7))
    for batch in (1, 4):
        part = embed(batch)
        for m in ("audio", "visual"):
            torch.testing.assert_close(part[m], whole[m], atol=1e-5, rtol=0)
        assert retrieval_metrics(part) == retrieval_metrics(whole)


def test_all_frames_are_the_mean_of_each():
    clips = build_dataset(CONFIG, "validation")
    whole = embed_dataset(LOADED, clips, all_frames=True)
    looks = []
    for k in range(clips.frames):
        x = LOADED.frames(clips.sample(3, k).inputs["visual"][None])
        looks.append(F.normalize(LOADED.embed("visual", x), dim=1))
    torch.testing.assert_close(whole["visual"][3:4], torch.stack(looks).mean(0), atol=1e-5, rtol=1e-4)
    torch.testing.assert_close(whole["audio"], embed_dataset(LOADED, clips)["audio"])


def test_what_is_not_wanted_is_not_read(monkeypatch):
    clips = build_dataset(CONFIG, "validation")
    read = []

    class Watched(Subset):
        def part(self, index, frame, modalities):
            read.append(tuple(modalities))
            return super().part(index, frame, modalities)

    read_tokens(LOADED, Watched(clips, range(3)), lambda m, h: [h.mean(dim=1)], modalities=("audio",))
    assert read == [("audio",)] * 3
