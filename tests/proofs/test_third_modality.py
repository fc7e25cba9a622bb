"""A third modality, in one file: generated vectors trained beside audio and frames, evaluated, indexed and searched."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from equiav.augment import Draw, Pipeline
from equiav.build import ModalitySpec, build_dataset
from equiav.config import parse_config
from equiav.data import Dataset
from equiav.evaluation import Retrieval, embed_dataset
from equiav.inference import load_model
from equiav.models import Encoder
from equiav.search import Entry, Index, Query
from equiav.training import Trainer
from equiav.types import Sample
from tests.training.small import small_config

TOUCH, NUMBERS = "touch", 12


class VectorInput:
    """Vectors go to the encoder as they are, as batches of one channel."""

    def prepare(self, raw, lengths=None):
        return raw[:, None]

    def finish(self, x):
        return x


class Dense(Encoder):
    """One token per four numbers."""

    def __init__(self, width=16):
        super().__init__()
        self.width, self.grid, self.linear = width, (1, NUMBERS // 4), nn.Linear(4, width)

    def forward(self, x, tokens=None, paths=None):
        h = F.gelu(self.linear(x.reshape(len(x), -1, 4)))
        return h if tokens is None else h.gather(1, tokens[:, :, None].expand(-1, -1, self.width))


@dataclass(frozen=True)
class Scale:
    """The vector is made longer or shorter."""

    p: float = 0.8
    slots: ClassVar = ("on", "factor")

    def sample(self, batch, rng):
        on = torch.rand(batch, generator=rng) < self.p
        return Draw(on, torch.where(on[:, None], torch.rand(batch, 1, generator=rng) + 0.5, 1.0))

    def encode(self, draw):
        return torch.cat([draw.on[:, None].float(), draw.values], dim=1)

    def apply(self, x, draw):
        return x * draw.values[:, :, None, None].to(x.device)


class Touch(ModalitySpec):
    """The specification that a recipe names."""

    def __init__(self, config, width=16):
        super().__init__(VectorInput(), Pipeline({"scale": Scale()}, ("scale",)), Dense(width))


class TouchedWorld(Dataset):
    """The generated world, each scene with a vector of what sounds in it."""

    modalities = ("audio", "visual", TOUCH)

    def __init__(self, config, split):
        world = config.model_copy(update={"data": small_config().data})
        self.clips = build_dataset(world, split)
        self.frames, self.classes = self.clips.frames, self.clips.classes

    def __len__(self):
        return len(self.clips)

    def clip(self, index):
        return self.clips.clip(index)

    def sample(self, index, frame):
        scene, sample = self.clips.scene(index), self.clips.sample(index, frame)
        numbers = [float(label in scene.labels) for label in self.classes] + [0.0] * NUMBERS
        noise = torch.randn(NUMBERS, generator=torch.Generator().manual_seed(index)) * 0.1
        return Sample(sample.id, {**sample.inputs, TOUCH: (torch.tensor(numbers[:NUMBERS]) + noise)[None]})


def test_a_third_modality(tmp_path):
    tree = small_config("train.steps=4", "train.evaluate_every=4").model_dump(mode="json")
    tree["data"] = {"kind": f"{__name__}:TouchedWorld"}
    tree["modalities"] = {TOUCH: {"kind": f"{__name__}:Touch", "options": {"width": 20}}}
    trainer = Trainer(parse_config(tree, "three modalities"), tmp_path / "run", str)
    assert trainer.model.modalities == ("audio", "visual", TOUCH)
    trainer.run()

    model = load_model(tmp_path / "run")
    test = TouchedWorld(model.config, "test")
    results = Retrieval()(model, test)
    ways = {f"{a}_to_{b}" for a in ("audio", "video", TOUCH) for b in ("audio", "video", TOUCH) if a != b}
    assert set(results["retrieval"]) == ways

    found = embed_dataset(model, test)
    vectors = {m: F.normalize(found[m], dim=1).numpy() for m in model.modalities}
    for a, b in (("audio", TOUCH), (TOUCH, "audio"), (TOUCH, "visual")):
        similarity = torch.from_numpy(vectors[a] @ vectors[b].T)
        first = (similarity > similarity.diagonal()[:, None]).sum(dim=1) == 0
        way = f"{a}_to_{'video' if b == 'visual' else b}"
        assert results[f"retrieval/{way}/R@1"] == pytest.approx(100 * float(first.double().mean()))
    entries = [Entry(test.clip(i), {m: vectors[m][i] for m in model.modalities}) for i in range(len(test))]
    index = Index.create(tmp_path / "index", model)
    assert index.add(entries, made_by=model.digest) == len(test)
    index.close()
    index = Index.open(tmp_path / "index")
    for query in (0, 3):
        asked = Query(vectors[TOUCH][query], TOUCH, model.digest)
        hits = index.search(asked, k=5, among="audio")
        order = np.argsort(-(vectors["audio"] @ vectors[TOUCH][query]), kind="stable")[:5]
        assert [hit.clip.id for hit in hits] == [test.clip(int(i)).id for i in order]
        assert index.search(asked, k=1, among=TOUCH)[0].clip.id == test.clip(query).id
