"""A dataset of one's own, in one file: beeps and colours, trained on from a recipe and evaluated with labels."""

import torch

from equiav.config import parse_config
from equiav.data import Dataset
from equiav.evaluation import Retrieval
from equiav.training import Trainer
from equiav.types import AUDIO, VISUAL, Clip, Sample
from tests.training.small import small_config


class Beeps(Dataset):
    """Clip i is a tone whose pitch is the brightness of the frame."""

    frames = 2

    def __init__(self, config, split, count=16):
        self.count, self.first = count, {"train": 0, "validation": 1000, "test": 2000}[split]
        self.size, self.rate = config.visual.size, config.audio.sample_rate

    def __len__(self):
        return self.count

    def clip(self, index):
        return Clip(f"beep-{self.first + index}", labels=("high" if index % 8 > 3 else "low",))

    def sample(self, index, frame):
        pitch = 200 + 100 * (index % 8)
        wave = torch.sin(torch.arange(self.rate) * 2 * torch.pi * pitch / self.rate) * 0.3
        image = torch.full((3, self.size, self.size), 30 * (index % 8) + frame, dtype=torch.uint8)
        return Sample(f"beep-{self.first + index}", {AUDIO: wave, VISUAL: image})


def test_a_dataset_of_ones_own_trains_and_is_evaluated(tmp_path):
    tree = small_config("train.steps=2", "train.evaluate_every=2").model_dump(mode="json")
    tree["data"] = {"kind": f"{__name__}:Beeps", "options": {"count": 16}}
    trainer = Trainer(parse_config(tree, "a recipe"), tmp_path, str)
    assert isinstance(trainer.clips, Beeps)
    trainer.run()
    results = Retrieval()(trainer.loaded(), trainer.validation)
    assert results["retrieval/audio_to_video/pool"] == 16
    assert results["by_class/audio_to_video/chance"] == 50
