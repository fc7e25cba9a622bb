"""A model as a SentenceTransformer: encode, similarity, save and load, with the real library."""

import numpy as np
import pytest
from PIL import Image

from equiav.inference import Embedder
from tests.inference.models import random_model
from tests.media.making import sine, write_media

pytest.importorskip("sentence_transformers")

from sentence_transformers import SentenceTransformer

from equiav.integrations.sentence_transformers import sentence_transformer


@pytest.fixture(scope="module")
def model():
    return sentence_transformer(random_model())


def test_what_it_encodes_is_what_the_embedder_gives(model, tmp_path):
    video = write_media(tmp_path / "a.mp4")
    sound = write_media(tmp_path / "a.wav", video=False, codecs=("mpeg4", "pcm_s16le"))
    picture = tmp_path / "a.png"
    Image.fromarray(np.random.default_rng(0).integers(0, 255, (40, 60, 3), np.uint8)).save(picture)
    embedder = Embedder(random_model())
    vectors = np.stack([model.encode(x) for x in (str(video), str(sound), str(picture), {"audio": str(video)})])
    expected = [embedder.video(video), embedder.audio(sound), embedder.image(picture), embedder.audio(video)]
    np.testing.assert_allclose(vectors, expected, atol=1e-6)
    wave = {"array": sine(1, 16000), "sampling_rate": 16000}
    np.testing.assert_allclose(model.encode(wave), embedder.audio((wave["array"], 16000)), atol=1e-6)
    np.testing.assert_allclose(model.encode(Image.open(picture)), embedder.image(picture), atol=1e-6)
    np.testing.assert_allclose(model.similarity(vectors, vectors), vectors @ vectors.T, atol=1e-6)


def test_saved_and_loaded_it_is_the_same(model, tmp_path):
    model.save(str(tmp_path / "model"))
    names = {p.name for p in (tmp_path / "model").rglob("*")}
    assert not {name for name in names if name.endswith((".bin", ".pt", ".pkl", ".py"))}
    video = str(write_media(tmp_path / "a.mp4"))
    for again in (
        sentence_transformer(tmp_path / "model"),
        SentenceTransformer(str(tmp_path / "model"), device="cpu", trust_remote_code=True),
    ):
        np.testing.assert_array_equal(again.encode([video]), model.encode([video]))
        assert again.get_embedding_dimension() == 16


def test_text_is_refused(model):
    with pytest.raises(ValueError, match="text"):
        model.encode(["a dog barking"])
