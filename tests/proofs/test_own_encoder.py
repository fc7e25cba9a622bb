"""An encoder that is not our ViT, in one file: a small convolution that gives tokens, for either modality."""

import torch
from torch import nn

from equiav.evaluation import Retrieval
from equiav.inference import Embedder, load_model
from equiav.models import Encoder
from equiav.training import Trainer
from tests.training.small import small_config


class Convolution(Encoder):
    """Two strided convolutions; every place of the last one is a token."""

    def __init__(self, input_size, channels, width=24):
        super().__init__()
        self.channels, self.width = channels, width
        self.grid = (input_size[0] // 8, input_size[1] // 8)
        self.layers_ = nn.Sequential(nn.Conv2d(channels, width, 4, stride=4), nn.GELU(), nn.Conv2d(width, width, 2, 2))

    def forward(self, x, tokens=None, paths=None):
        if self.channels == 1:  # spectrograms come time first
            x = x.transpose(2, 3)
        h = self.layers_(x).flatten(2).transpose(1, 2)
        return h if tokens is None else h.gather(1, tokens[:, :, None].expand(-1, -1, self.width))


def test_an_encoder_of_ones_own_trains_embeds_and_is_evaluated(tmp_path):
    kind = f"model.visual.encoder={{kind: '{__name__}:Convolution', options: {{width: 40}}}}"
    config = small_config(kind, "train.steps=3", "train.evaluate_every=null")
    trainer = Trainer(config, tmp_path, str)
    assert isinstance(trainer.model["visual"].f, Convolution)
    assert trainer.model["visual"].f.width == 40
    trainer.run()
    model = load_model(tmp_path)
    results = Retrieval()(model, trainer.clips)
    assert results["retrieval/audio_to_video/pool"] == len(trainer.clips)
    vector = Embedder(model).image(torch.zeros(48, 48, 3, dtype=torch.uint8).numpy())
    assert vector.shape == (model.width,)
