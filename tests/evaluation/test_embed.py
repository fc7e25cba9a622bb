"""Embeddings of a set: in order, independent of the batch, with one frame or all of them."""

import torch
import torch.nn.functional as F

from equiav.build import build_bank, build_inputs, build_model
from equiav.build_data import build_clips
from equiav.evaluation import embed_dataset
from equiav.types import Modality
from tests.training.small import small_config

CONFIG = small_config("data.validation=7")


def embed(**choices):
    return embed_dataset(
        build_model(CONFIG),
        build_clips(CONFIG, "validation"),
        build_inputs(CONFIG.audio),
        {m: build_bank(CONFIG, m) for m in Modality},
        "centroid",
        **choices,
    )


def test_batches_do_not_matter():
    one, all_at_once = embed(batch=1), embed(batch=64)
    assert one.names == all_at_once.names == tuple(f"world-0-{24 + i:07d}" for i in range(7))
    torch.testing.assert_close(one.audio, all_at_once.audio, atol=1e-5, rtol=0)
    torch.testing.assert_close(one.visual, all_at_once.visual, atol=1e-5, rtol=0)


def test_all_frames_are_the_mean_of_each():
    clips, model = build_clips(CONFIG, "validation"), build_model(CONFIG)
    whole = embed(all_frames=True)
    from equiav.media import normalise, to_float

    looks = []
    for k in range(clips.frames):
        x = normalise(to_float(clips.sample(3, k).frame[None]))
        looks.append(F.normalize(model.visual.embed(x, build_bank(CONFIG, Modality.VISUAL), "centroid"), dim=1))
    torch.testing.assert_close(whole.visual[3:4], torch.stack(looks).mean(0), atol=1e-5, rtol=1e-4)
    torch.testing.assert_close(whole.audio, embed().audio)
