"""Embedder: every way of handing things over, alone and in lists, gives the same unit vectors."""

import re

import av
import numpy as np
import pytest
import torch
from PIL import Image

import equiav
from equiav.build import build_model
from equiav.errors import DataError, EquiAVError, MediaError, ShapeError
from equiav.evaluation import embed_dataset
from equiav.inference import Embedder, EmbeddingError, LoadedModel
from equiav.inference.items import as_tensor
from equiav.media import Workers, cuts
from tests.inference.models import random_model, saved_model
from tests.media.making import sine, write_media


@pytest.fixture(scope="module")
def embedder():
    return Embedder(random_model())


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """Sounds, pictures and videos of unequal length, one file that is none, one picture that is none."""
    folder = tmp_path_factory.mktemp("media")
    noise = np.random.default_rng(0)
    for k, seconds in enumerate((0.8, 1.3, 5.0)):
        sound = sine(seconds, 16000, 200.0 * (k + 1)) * 0.5 + 0.1 * noise.standard_normal(round(seconds * 16000))
        write_media(folder / f"{k}.wav", video=False, sound=sound.astype(np.float32), codecs=("", "pcm_s16le"))
        write_media(folder / f"{k}.mp4", seconds=seconds, sound=sound.astype(np.float32))
        Image.fromarray(noise.integers(0, 255, (60 + 20 * k, 90, 3), dtype=np.uint8)).save(folder / f"{k}.png")
    write_media(folder / "mute.mp4", seconds=1.0, audio=False)
    (folder / "text.wav").write_text("no sound")
    (folder / "text.png").write_text("no picture")
    return folder


def test_one_is_a_unit_vector_and_a_list_a_matrix(embedder, files):
    for embed, suffix in ((embedder.audio, "wav"), (embedder.image, "png"), (embedder.video, "mp4")):
        one, many = embed(files / f"1.{suffix}"), embed([str(files / f"{k}.{suffix}") for k in range(3)])
        assert one.shape == (16,)
        assert many.shape == (3, 16)
        assert one.dtype == many.dtype == np.float32
        np.testing.assert_allclose(np.linalg.norm(many, axis=1), 1, atol=1e-6)
        np.testing.assert_allclose(one, many[1], atol=1e-5)
        np.testing.assert_array_equal(one, embed(files / f"1.{suffix}"))


@pytest.mark.parametrize("batch", [2, 32])
def test_the_same_alone_and_in_any_batch(batch):
    """Of a model with real input sizes, beside silence, loudness and every length."""
    rng = np.random.default_rng(1)
    lengths = (8000, 16001, 48000, 160000, 100000)
    waves = [np.float32(10.0 ** -rng.integers(0, 4)) * rng.uniform(-1, 1, n).astype(np.float32) for n in lengths]
    waves[3][2000:] = 0  # digital silence, where rounding shows most
    pictures = [rng.integers(0, 255, (64 + 50 * k, 200, 3), dtype=np.uint8) for k in range(5)]
    alone, together = Embedder(random_model("real"), batch=1), Embedder(random_model("real"), batch=batch)
    for one, many, items in (
        (alone.audio, together.audio, [(w, 16000) for w in waves]),
        (alone.image, together.image, pictures),
    ):
        singly = np.stack([one(item) for item in items])
        np.testing.assert_allclose(many(items), singly, atol=1e-5)
        np.testing.assert_allclose(many(items[::-1])[::-1], singly, atol=1e-5)
        assert np.linalg.norm(singly[0] - singly[2]) > 1e-3


def test_arrays_tensors_and_files_agree(embedder, files):
    with av.open(str(files / "0.wav")) as container:
        sound = np.concatenate([f.to_ndarray().reshape(-1) for f in container.decode(audio=0)])
    from_file = embedder.audio(files / "0.wav")
    floats = sound.astype(np.float32) / 32768
    for item in ((sound, 16000), (floats, 16000), (torch.from_numpy(floats), 16000), (np.stack([floats] * 2), 16000)):
        np.testing.assert_allclose(embedder.audio(item), from_file, atol=1e-5)
    np.testing.assert_allclose(embedder.audio(floats, sample_rate=16000), from_file, atol=1e-5)
    picture = np.array(Image.open(files / "0.png"))
    seen = embedder.image(files / "0.png")
    for item in (picture, picture.transpose(2, 0, 1), picture[::-1][::-1], picture / 255.0, torch.from_numpy(picture)):
        np.testing.assert_allclose(embedder.image(item), seen, atol=1e-5)


def test_a_read_only_array_is_copied():
    """As `np.asarray` of a Pillow image is: torch warns of memory that must not be written, once in a process."""
    free, locked = np.zeros((2, 3)), np.zeros((2, 3))
    locked.flags.writeable = False
    assert as_tensor(free).data_ptr() == free.ctypes.data
    assert as_tensor(locked).data_ptr() != locked.ctypes.data


def test_a_waveform_of_another_rate_is_resampled(embedder):
    at_16, at_48 = sine(1.5, 16000, 440.0), sine(1.5, 48000, 440.0)
    same = embedder.audio((at_16, 16000)) @ embedder.audio((at_48, 48000))
    slower = embedder.audio((at_16, 16000)) @ embedder.audio((at_48, 16000))
    assert same > 0.999 > slower


def test_video_lies_halfway_between_sound_and_picture(embedder, files):
    path = files / "2.mp4"
    halfway = embedder.audio(path) + embedder.image(path)
    np.testing.assert_allclose(embedder.video(path), halfway / np.linalg.norm(halfway), atol=1e-5)
    np.testing.assert_allclose(embedder.video(files / "mute.mp4"), embedder.image(files / "mute.mp4"), atol=1e-6)
    frames = np.random.default_rng(0).integers(0, 255, (4, 40, 50, 3), dtype=np.uint8)
    sound = sine(1.0, 16000)
    films = [embedder.image(f) for f in frames]
    expected = embedder.audio((sound, 16000)) + np.sum(films, axis=0) / np.linalg.norm(np.sum(films, axis=0))
    np.testing.assert_allclose(embedder.video((frames, sound, 16000)), expected / np.linalg.norm(expected), atol=1e-5)


def test_errors_are_by_item(embedder, files):
    items = [files / "0.wav", files / "text.wav", files / "2.wav", files / "gone.wav", np.zeros(3)]
    found = embedder.audio(items, errors="collect")
    assert found.rows == (0, 2)
    np.testing.assert_allclose(found.vectors, embedder.audio([items[0], items[2]]), atol=1e-5)
    assert [e.row for e in found.errors] == [1, 3, 4]
    assert "cannot be opened as media" in found.errors[0].reason
    assert found.errors[1].reason.endswith("gone.wav: no such file")
    assert "needs its sample rate" in found.errors[2].reason
    with pytest.raises(EmbeddingError, match=r"3 of 5 items cannot be embedded .*text\.wav") as caught:
        embedder.audio(items)
    np.testing.assert_array_equal(caught.value.result.vectors, found.vectors)


SOUND, PICTURE = np.full(16000, 0.1, np.float32), np.zeros((40, 40, 3), np.uint8)


@pytest.mark.parametrize(
    ("embed", "item", "message"),
    [
        ("audio", None, "neither a path nor an array"),
        ("audio", (SOUND, 16000, 1), "not a tuple of 3"),
        ("audio", (SOUND, "16000"), "a sample rate is a whole number"),
        ("audio", {"a": 1}, "needs its sample rate"),
        ("image", None, "neither a path nor an array"),
        ("image", (PICTURE,), "a picture is"),
        ("video", None, "a video is a path or .*NoneType"),
        ("video", PICTURE, "a video is a path or .*ndarray"),
        ("video", (PICTURE[None], SOUND), "not a tuple of 2"),
        ("video", (None, SOUND, 16000), "neither a path nor an array"),
        ("video", (PICTURE[None], SOUND, None), "needs its sample rate"),
    ],
)
def test_items_of_the_wrong_kind_are_errors_by_item(embedder, files, embed, item, message):
    good = files / "1.mp4"
    found = getattr(embedder, embed)([item, good], errors="collect")
    assert found.rows == (1,)
    assert [error.row for error in found.errors] == [0]
    assert re.search(message, found.errors[0].reason)
    with pytest.raises(ShapeError, match=message):
        getattr(embedder, embed)(item)


@pytest.mark.parametrize("start", [float("nan"), float("inf"), -1.0])
def test_a_start_that_is_no_time(embedder, files, start):
    for embed, item in (
        ("audio", (SOUND, 16000)),
        ("audio", files / "1.wav"),
        ("image", PICTURE),
        ("video", files / "1.mp4"),
    ):
        found = getattr(embedder, embed)([item], start=start, errors="collect")
        assert "start must be seconds from 0 on" in found.errors[0].reason


def test_nothing_readable_is_an_empty_matrix(embedder, files):
    assert embedder.image([files / "text.png"], errors="collect").vectors.shape == (0, 16)
    assert embedder.image([]).shape == (0, 16)


@pytest.mark.parametrize(
    ("embed", "item", "message"),
    [
        ("audio", "text.wav", "cannot be opened as media"),
        ("audio", "mute.mp4", "no sound"),
        ("image", "text.png", r"cannot be read as an image \(unknown format\)"),
        ("image", "0.wav", "no picture"),
        ("video", "gone.mp4", "no such file"),
    ],
)
def test_one_bad_file_alone_raises(embedder, files, embed, item, message):
    with pytest.raises(MediaError, match=message):
        getattr(embedder, embed)(files / item)


@pytest.mark.parametrize(
    ("embed", "item", "message"),
    [
        ("audio", (np.zeros((16000, 33), np.float32), 16000), "a waveform is .channels, samples."),
        ("audio", (np.full(16000, np.nan, np.float32), 16000), "not finite"),
        ("audio", (np.linspace(-1e30, 1e30, 16000, dtype=np.float32), 16000), "up to 1e.30 is too extreme to embed"),
        ("audio", (np.zeros(100, np.float32), 16000), "0.5 s are needed"),
        ("audio", (np.zeros(16000, np.uint8), 16000), "int16 or int32"),
        ("audio", (np.zeros(16000, np.float32), 3), "a sample rate of 3"),
        ("image", np.zeros((5, 40, 40), np.uint8), r"a picture is .H, W, 3."),
        ("image", np.full((40, 40, 3), 255.0), r"values in \[0, 1\]"),
        ("image", np.array(["a"]), "neither a path nor an array"),
        ("video", (np.zeros((40, 40, 3), np.uint8), np.zeros(16000, np.float32), 16000), "frames of a film"),
    ],
)
def test_arrays_that_make_no_sense(embedder, embed, item, message):
    with pytest.raises(ShapeError, match=message):
        getattr(embedder, embed)(item)


def test_a_model_that_gives_no_numbers(files):
    config = random_model().config
    model = build_model(config).eval()
    for parameter in model.parameters():
        parameter.data.fill_(float("inf"))
    broken = Embedder(LoadedModel(model, config, random_model().banks, {}))
    with pytest.raises(DataError, match="vectors that are not finite"):
        broken.audio((np.sin(np.arange(16000, dtype=np.float32)), 16000))


def test_windows_are_the_clips_of_prepare(embedder, files):
    windows = list(embedder.windows(files / "2.mp4", overlap=0.5))
    expected = cuts(0.0, 5.0, seconds=1.92, overlap=0.5)
    assert len(windows) == 3
    assert [w.start for w in windows] == pytest.approx([c.start for c in expected])
    assert [w.end for w in windows] == pytest.approx([c.stop for c in expected])
    for window in windows:
        np.testing.assert_allclose(window.audio, embedder.audio(files / "2.mp4", start=window.start), atol=1e-5)
        np.testing.assert_allclose(window.visual, embedder.image(files / "2.mp4", start=window.start), atol=1e-5)
        assert window.picture.shape == (48, 64, 3)
    small = list(Embedder(embedder.model, batch=2).windows(files / "2.mp4", overlap=0.5))
    for one, other in zip(windows, small, strict=True):
        np.testing.assert_allclose(one.audio, other.audio, atol=1e-5)
        np.testing.assert_allclose(one.visual, other.visual, atol=1e-5)


def test_windows_of_what_is_missing(embedder, files, tmp_path):
    assert all(w.audio is None and w.visual is not None for w in embedder.windows(files / "mute.mp4"))
    assert all(w.audio is not None and w.visual is None for w in embedder.windows(files / "2.wav"))
    quiet = np.zeros(6 * 16000, np.float32)
    quiet[: round(1.5 * 16000)] = sine(1.5, 16000)
    write_media(tmp_path / "quiet.wav", video=False, sound=quiet, codecs=("", "pcm_s16le"))
    heard = [w.audio is not None for w in embedder.windows(tmp_path / "quiet.wav", seconds=1.9)]
    assert heard == [True, False, False]


def test_as_in_evaluation_with_all_frames(embedder):
    """The picture vector of a clip has the direction of what evaluation uses."""
    from equiav.data import World, WorldDataset

    clips = WorldDataset(World(seed=0, size=32, seconds=1.5), 0, 3)
    found = embed_dataset(embedder.model, clips, all_frames=True)
    for i in range(3):
        sound, frames = clips.media(i)
        ((audio, visual),) = embedder.clips([(sound.float() / 32768, frames)])
        np.testing.assert_allclose(audio, torch.nn.functional.normalize(found["audio"][i], dim=0), atol=1e-5)
        np.testing.assert_allclose(visual, torch.nn.functional.normalize(found["visual"][i], dim=0), atol=1e-5)


def test_the_digest_tells_models_apart(tmp_path):
    one = equiav.load_model(saved_model(tmp_path / "one"))
    assert one.digest == random_model().digest == equiav.load_model(saved_model(tmp_path / "copy")).digest
    assert one.digest != random_model(seed=1).digest


def test_a_device_that_is_not_there(tmp_path):
    path = saved_model(tmp_path / "model")
    for device in ("abacus", "cuda:99"):
        with pytest.raises(EquiAVError, match=f"device '{device}': .* try cpu"):
            equiav.load_model(path, device=device)


@pytest.mark.parametrize("device", ["cuda", "mps"])
def test_the_same_on_an_accelerator(tmp_path, files, device):
    there = {"cuda": torch.cuda.is_available, "mps": torch.backends.mps.is_available}[device]()
    if not there:
        pytest.skip(f"no {device} here")
    there, here = (Embedder(equiav.load_model(saved_model(tmp_path / d), d)) for d in (device, "cpu"))
    for name in ("audio", "image", "video"):
        one, other = (getattr(e, name)(files / "2.mp4") for e in (there, here))
        np.testing.assert_allclose(one, other, atol=1e-3)


def test_real_media(shared, embedder):
    path = shared / "media" / "clips" / "107_dog_barking.mp4"
    windows = list(embedder.windows(path))
    assert len(windows) > 1
    np.testing.assert_allclose(windows[0].audio, embedder.audio(path), atol=1e-5)
    np.testing.assert_allclose(windows[0].visual, embedder.image(path), atol=1e-5)


def test_files_decoded_in_workers_give_the_same(embedder, files):
    film = files / "2.mp4"
    with Workers(1) as workers:
        isolated = Embedder(embedder.model, workers=workers)
        for embed in ("audio", "image", "video"):
            np.testing.assert_array_equal(getattr(isolated, embed)(film), getattr(embedder, embed)(film))
        there, here = list(isolated.windows(film)), list(embedder.windows(film))
        assert [w.start for w in there] == [w.start for w in here]
        np.testing.assert_array_equal(there[0].visual, here[0].visual)


def test_extreme_sounds_are_refused(embedder):
    with pytest.raises(ShapeError, match=r"values up to 1e\+30 is too extreme to embed"):
        embedder.audio((np.full(16000, 1e30, np.float32) * np.resize([1, -1], 16000), 16000))
    result = embedder.audio([(np.full(16000, 1e30, np.float32) * np.resize([1, -1], 16000), 16000)], errors="collect")
    assert "too extreme" in result.errors[0].reason
