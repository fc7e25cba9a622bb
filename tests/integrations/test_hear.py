"""The functions that HEAR's evaluation calls."""

import torch
from torch.testing import assert_close

from equiav.inference import Embedder, load_model
from equiav.integrations import hear
from tests.inference.models import saved_model
from tests.media.making import sine


def test_scenes_and_timestamps(tmp_path):
    path = saved_model(tmp_path / "model")
    model = hear.load_model(str(path))
    waves = torch.stack([torch.from_numpy(sine(5, 16000, hertz)) for hertz in (300, 700)])
    scenes = hear.get_scene_embeddings(waves, model)
    expected = Embedder(load_model(path)).clips([(wave, None) for wave in waves])
    assert_close(scenes, torch.stack([torch.from_numpy(z) for z, _ in expected]))
    assert scenes.shape == (2, model.scene_embedding_size)
    vectors, times = hear.get_timestamp_embeddings(waves, model)
    # 192 frames of 10 ms in patches of 16: a token every 160 ms; 5 s are three windows, of which 31 tokens count
    assert vectors.shape == (2, 31, model.timestamp_embedding_size)
    assert_close(times[1], (torch.arange(31) + 0.5) * 160)


def test_what_happens_late_is_seen_late(tmp_path):
    model = hear.load_model(str(saved_model(tmp_path / "model")))
    quiet = torch.from_numpy(sine(5, 16000, 300, 0.1))[None]
    changed = quiet.clone()
    changed[:, 48000:] = torch.from_numpy(sine(2, 16000, 2000, 0.9))
    before, times = hear.get_timestamp_embeddings(quiet, model)
    after, _ = hear.get_timestamp_embeddings(changed, model)
    moved = (before - after).norm(dim=2)[0]
    window = 1920  # ms: what the model hears at once; attention spreads a change over its window only
    assert_close(before[0, times[0] < window], after[0, times[0] < window])
    assert moved[times[0] > 3200].min() > 0
