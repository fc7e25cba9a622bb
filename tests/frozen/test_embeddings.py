"""Embeddings of generated sounds, pictures and videos by models with seeded weights, pinned.

They hold together all that lies between a file and its vector: decoding, filter bank, encoders, predictor, bank,
heads, averaging; and the weights that a seed draws.
"""

import numpy as np
import pytest
from PIL import Image

from tests.frozen.api import embedder, frozen, rounded, seeded_model, stored_before_the_residual_form
from tests.frozen.media import noise, sweep, write_lossless

TOLERANCE = 1e-6
# A scaled pixel halfway between two whole numbers goes up or down with the last bit of a sum, whose order is the
# processor's: one such pixel moves the vector of a picture by a few 1e-5.
PICTURES = 1e-4
RECIPE = {
    "model": {
        "encoder": {"size": None, "width": 32, "depth": 2, "heads": 4},
        "predictor": {"query_width": 16, "heads": 2, "head_width": 8},
        "heads": {"hidden": 32, "inter": 12, "intra": 12},
    },
    "audio": {"frames": 192, "bins": 32},
    "visual": {"size": 48},
    "bank": {"size": 5, "seed": 3},
    "seed": 11,
}
VARIANTS = {
    "linear predictor": {"model": {**RECIPE["model"], "predictor": {"kind": "linear"}}},
    "hypernetwork": {"model": {**RECIPE["model"], "predictor": {"kind": "hypernetwork", "bases": 3}}},
    "hypernetwork, residual": {"model": {**RECIPE["model"], "predictor": {"kind": "hypernetwork", "bases": 3}}},
    "pooled": {"objective": {"intra": "invariant", "inter": "original"}},
    "released layout": {
        "augment": {"layout": "released"},
        "audio": {**RECIPE["audio"], "padding": "zero"},
        "model": {**RECIPE["model"], "encoder": {**RECIPE["model"]["encoder"], "norm_eps": 1e-5}},
    },
}


@pytest.fixture(scope="module")
def media(tmp_path_factory):
    root = tmp_path_factory.mktemp("media")
    write_lossless(root)
    return root


def test_twenty_vectors(media):
    found, e = {}, embedder(seeded_model(RECIPE))
    found["audio: file"] = e.audio(media / "tone.wav")
    found["audio: stereo at another rate"] = e.audio(str(media / "stereo.flac"))
    found["audio: of a video, from 1 s"] = e.audio(media / "film.mkv", start=1.0)
    found["audio: waveform"] = e.audio((sweep(1.2, 16000), 16000))
    found["audio: two channels of int16"] = e.audio(
        (np.stack([sweep(1, 22050), -0.5 * sweep(1, 22050)]) * 32767).astype(np.int16), sample_rate=22050
    )
    listed = e.audio([media / "long.mkv", media / "wide.mkv"])
    found["audio: list, 0"], found["audio: list, 1"] = listed
    found["image: file"] = e.image(media / "bars.png")
    found["image: transparent"] = e.image(media / "clear.png")
    found["image: grey"] = e.image(media / "grey.png")
    found["image: floats, channels first"] = e.image(noise((3, 40, 56), seed=1).astype(np.float32) / 255)
    found["image: of a video"] = e.image(media / "wide.mkv")
    found["image: list"] = e.image([np.array(Image.open(media / "bars.png"))[:, ::-1].copy()])[0]
    found["video: file"] = e.video(media / "film.mkv")
    found["video: without sound"] = e.video(media / "mute.mkv")
    found["video: sound only"] = e.video(media / "tone.wav")
    found["video: arrays"] = e.video((noise((3, 40, 40, 3), seed=2), sweep(1.5, 48000), 48000))
    windows = list(e.windows(media / "long.mkv", seconds=1.5, overlap=0.25))
    for number in (0, 1, len(windows) - 1):
        found[f"window {number}: sound"] = windows[number].audio
        found[f"window {number}: pictures"] = windows[number].visual
    assert len(found) >= 20
    frozen("embeddings", "windows", [[w.start, w.end] for w in windows], TOLERANCE)
    vectors = {name: rounded(vector) for name, vector in found.items()}
    heard = {name: v for name, v in vectors.items() if name.startswith("audio") or ": sound" in name}
    seen = {name: v for name, v in vectors.items() if name not in heard}
    frozen("embeddings", "sounds", heard, TOLERANCE)
    frozen("embeddings", "pictures", seen, PICTURES)


@pytest.mark.parametrize("name", VARIANTS)
def test_other_kinds_of_model(media, name):
    model = seeded_model({**RECIPE, **VARIANTS[name]})
    if name == "hypernetwork":
        stored_before_the_residual_form(model)
    e = embedder(model)
    found = {"audio": rounded(e.audio(media / "tone.wav")), "image": rounded(e.image(media / "bars.png"))}
    frozen("embeddings", name, found, TOLERANCE)
