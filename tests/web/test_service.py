"""What the page does: search, heat maps, limits; the demo's collection; examples; the map."""

import asyncio
import dataclasses
import io
import tempfile
import time
import wave
from pathlib import Path

import av
import fastapi
import httpx
import numpy as np
import pytest
import torch
from fastapi.testclient import TestClient
from PIL import Image

from equiav.build import build_model
from equiav.checkpoint import save_model
from equiav.config import Config, ShardsConfig
from equiav.errors import DataError, EquiAVError, MediaError
from equiav.inference import Embedder, LoadedModel, load_model
from equiav.media import decode
from equiav.report import wav
from equiav.search import Entry, Hit, Index
from equiav.types import Clip
from equiav.web import (
    Map,
    Service,
    UploadLimits,
    clips_html,
    demo_index,
    film_html,
    flatten,
    looks_html,
    map_html,
    open_collection,
    spoken,
    write_examples,
)
from equiav.web.api import clip_routes, sound_as_wav
from tests.media.making import write_media
from tests.training.small import small_config
from tests.web.loops import awaited


def test_scenes_are_films_of_what_they_are_called(films, service):
    assert len(films) == len(service.index) == 6
    clip = decode(films[0])
    assert clip.frames.shape[2:] == (192, 192)
    assert clip.waveform.abs().max() > 0.05
    entry = service.index.entry(films[0].stem).clip
    assert entry.path == films[0]
    assert set(entry.labels) <= set(films[0].stem.split("-"))


def test_the_collection_is_made_once(run, films, service):
    stamps = [film.stat().st_mtime_ns for film in films]
    index, embedder = open_collection(run, None)
    assert len(index) == 6
    assert [film.stat().st_mtime_ns for film in films] == stamps
    assert demo_index(run, embedder) == index.folder
    assert not list(run.rglob("*.tmp"))


@pytest.mark.parametrize("kind", ["audio", "image", "video"])
def test_search(service, films, kind, tmp_path):
    path = films[2]
    if kind == "image":
        path = tmp_path / "picture.png"
        Image.fromarray(decode(films[2]).frames[5].permute(1, 2, 0).numpy()).save(path)
    hits = service.search(kind, path)
    assert len(hits) == 6
    assert [h.score for h in hits] == sorted((h.score for h in hits), reverse=True)
    vector = getattr(service.embedder, kind)(path)
    entry = service.index.entry(hits[0].clip.id)
    assert hits[0].score == pytest.approx(float(vector @ entry.vectors[hits[0].side]), abs=1e-5)


def test_heat_maps_of_a_film(service, films):
    looks = service.locate_in_video(films[0])
    assert len(looks) == 4
    seconds = [look.second for look in looks]
    assert seconds == sorted(seconds)
    for look in looks:
        assert look.picture.shape == look.overlay.shape == (192, 192, 3)
        assert (look.picture != look.overlay).any()
    assert looks_html(looks).count("<img") == 8


def test_frames_keep_their_aspect_under_the_map(service, tmp_path):
    """What the model does not see of a wide frame is darker, and shown all the same."""
    write_media(tmp_path / "wide.mp4", seconds=2.0, size=(160, 90))
    (look, *_) = service.locate_in_video(tmp_path / "wide.mp4")
    assert look.picture.shape == look.overlay.shape
    assert look.picture.shape[1] / look.picture.shape[0] == pytest.approx(160 / 90, abs=0.02)
    margin = look.picture.shape[1] // 8
    assert (look.overlay[:, :margin] <= look.picture[:, :margin]).all()


def test_a_video_with_the_map_over_it(service, films, tmp_path, monkeypatch):
    with monkeypatch.context() as patch:
        opened = av.open
        patch.setattr(av, "open", lambda file, mode="r", **how: opened(file, mode, **how) if mode == "w" else 1 / 0)
        content = service.video_with_map(films[0])  # decoded elsewhere, encoded here
    assert 'src="data:video/mp4;base64,' in film_html(content)
    with av.open(io.BytesIO(content)) as container:
        frames = [frame.to_ndarray(format="rgb24") for frame in container.decode(video=0)]
        assert len(container.streams.audio) == 1
        assert container.duration / av.time_base == pytest.approx(service.embedder.seconds, abs=0.3)
    plain = decode(films[0], frames=1).frames[0].permute(1, 2, 0).numpy()
    assert frames[0].shape[0] == frames[0].shape[1]
    assert np.abs(np.diff(frames[0].astype(float), axis=2)).mean() > np.abs(np.diff(plain.astype(float), axis=2)).mean()
    write_media(tmp_path / "mute.mp4", seconds=1.0, audio=False)
    with pytest.raises(MediaError, match="needs pictures and half a second of sound"):
        service.video_with_map(tmp_path / "mute.mp4")
    assert not list(Path(tempfile.gettempdir()).glob("*/located.mp4"))


def test_heat_map_of_a_sound_in_a_picture_follows_the_sound(service, films, tmp_path):
    Image.fromarray(decode(films[1]).frames[0].permute(1, 2, 0).numpy()).save(tmp_path / "p.png")
    one, other = (service.locate(film, tmp_path / "p.png")[0] for film in films[2:4])
    assert (one.picture == other.picture).all()
    assert (one.overlay != other.overlay).any()


def test_refusals_name_the_limit(service, films, tmp_path):
    def refused(kind, name, content, reason):
        (tmp_path / name).write_bytes(content)
        with pytest.raises(MediaError) as caught:
            service.search(kind, tmp_path / name)
        assert reason in caught.value.reason

    refused("audio", "large.wav", bytes(1_200_000), "at most 1 MB are taken")
    refused("audio", "long.wav", wav(np.zeros(40 * 4000, np.float32), 4000), "lasts 40 s; at most 30 s are taken")
    refused("audio", "no.wav", b"nothing", "cannot be opened as media")
    refused("video", "no.mp4", b"", "cannot be opened as media")
    refused("image", "no.png", b"nothing", "cannot be read as an image")
    refused("image", "long.mkv", wav(np.zeros(40 * 4000, np.float32), 4000), "lasts 40 s; at most 30 s are taken")
    with pytest.raises(MediaError, match="lasts 40 s"):
        service.locate(films[0], tmp_path / "long.mkv")
    with pytest.raises(MediaError, match="is not here any more"):
        service.search("audio", tmp_path / "gone.wav")
    (tmp_path / "tone.wav").write_bytes(wav(np.ones(16000, np.float32) / 3, 16000))
    with pytest.raises(MediaError, match="no picture"):
        service.locate_in_video(tmp_path / "tone.wav")


def test_all_decoding_is_isolated_and_ends_in_time(service, films, monkeypatch):
    seen, call = [], service.workers.call

    def noting(function, *arguments):
        seen.append(function.keywords["limits"])
        return call(function, *arguments)

    monkeypatch.setattr(service.workers, "call", noting)
    monkeypatch.setattr(av, "open", lambda *_, **__: pytest.fail("opened in this process"))
    for kind in ("audio", "image", "video"):
        service.search(kind, films[0])
    service.locate(films[0], films[1])
    service.locate_in_video(films[0])
    assert len(seen) == 12  # each file is looked into, and decoded
    assert {limits.wall for limits in seen} == {service.limits.wall}


def test_another_model_is_refused(service, run, tmp_path):
    config = small_config("seed=5")
    save_model(tmp_path / "other", config, build_model(config).state_dict(), {})
    with pytest.raises(DataError, match="made by checkpoint"):
        Service(service.index, Embedder(load_model(tmp_path / "other")))


def test_opening(run, tmp_path, service):
    index, _ = open_collection(service.index.folder, None)
    assert len(index) == 6
    with pytest.raises(EquiAVError, match="neither an index nor a model; `make demo`"):
        open_collection(tmp_path / "nowhere", None)
    anonymous = Index.create(tmp_path / "index", load_model(run))
    anonymous.close()
    with pytest.raises(EquiAVError, match="give --model"):
        open_collection(tmp_path / "index", None)
    assert open_collection(tmp_path / "index", run)[1].digest == index.digest


def test_a_model_of_real_videos_needs_an_index(service, tmp_path):
    loaded = service.embedder.model
    config = Config(**{**dict(loaded.config), "data": ShardsConfig(path="videos")})
    trained = LoadedModel(loaded.model, config, loaded.banks, loaded.meta)
    with pytest.raises(EquiAVError, match="equiav index YOUR_CLIPS OUT"):
        demo_index(tmp_path, Embedder(trained))


def test_examples(service, tmp_path):
    found = write_examples(service.index, tmp_path, largest=10**6)
    assert len(found["audio"]) == len(found["image"]) == len(found["video"]) == 4
    assert service.search("audio", found["audio"][0])
    assert service.search("image", found["image"][0])
    assert not write_examples(service.index, tmp_path, largest=10)["video"]


def test_examples_of_a_collection_whose_files_are_gone(run, tmp_path, service):
    model = load_model(run)
    index = Index.create(tmp_path / "index", model)
    vector = np.eye(model.width, dtype=np.float32)[0]
    index.add([Entry(Clip("a", "a.mp4", tmp_path / "a.mp4", 0.0, 1.0), {"audio": vector})], made_by=model.digest)
    found = write_examples(index, tmp_path, largest=10**6)
    assert (found["audio"], found["image"], found["video"]) == ([], [], [])


def made_index(run, folder, entries):
    model = load_model(run)
    index = Index.create(folder, model)
    vector = np.eye(model.width, dtype=np.float32)[0]
    index.add([dataclasses.replace(entry, vectors={"visual": vector}) for entry in entries], made_by=model.digest)
    return index


def test_examples_of_pictures_alone(run, tmp_path):
    picture = np.zeros((20, 30, 3), np.uint8)
    entries = [Entry(Clip(f"{i}", "same.png", tmp_path / f"{i}.png"), picture=picture + i) for i in range(5)]
    found = write_examples(made_index(run, tmp_path / "index", entries), tmp_path / "examples", largest=10**6)
    assert (found["audio"], found["video"]) == ([], [])
    assert len(set(found["image"])) == 4
    assert sorted(round(np.asarray(Image.open(p)).mean()) for p in found["image"]) == [0, 1, 2, 3]


def test_examples_take_every_source_first(run, films, tmp_path):
    picture = np.zeros((20, 30, 3), np.uint8)
    spans = [(film, start) for film in films[:2] for start in (0.0, 0.1, 0.2)]
    entries = [
        Entry(Clip(f"{film.stem}@{start}", film.name, film, start, 0.55), picture=picture) for film, start in spans
    ]
    found = write_examples(made_index(run, tmp_path / "index", entries), tmp_path / "examples", largest=10**6)
    assert found["video"] == films[:2]
    assert [p.stem for p in found["audio"]] == [
        films[0].stem,
        films[1].stem,
        f"{films[0].stem}-0.1s",
        f"{films[0].stem}-0.2s",
    ]
    assert len({p.read_bytes() for p in found["audio"]}) == 4


def test_cards_escape_what_they_are_given():
    paths = (None, Path("x.mp4"), Path("x.mkv"))
    clips = [Clip('"<b>', "<script>x</script>.mp3", path, 0.0, 1.0, ("<i>",)) for path in paths]
    html = clips_html([Hit(clip, 0.5, "audio") for clip in clips])
    assert "<script>" not in html
    assert "<i>" not in html
    assert "Nothing found" in clips_html([])


def test_players_only_where_something_plays(films, tmp_path):
    def card(path, end=1.0, **metadata):
        return clips_html([Hit(Clip("a", "a", path, 0.0, end, metadata=metadata), 0.5, "visual")])

    (tmp_path / "a.mkv").write_bytes(b"")
    assert "<video" in card(films[0])
    assert "<audio" in card(tmp_path / "a.mkv")
    assert "<audio" in card(tmp_path / "gone.mp4", prepared="somewhere")
    for silent in (card(tmp_path / "gone.mp4"), card(None), card(tmp_path / "a.mkv", end=0.0)):
        assert "<audio" not in silent
        assert "<video" not in silent


def test_sounds_of_clips(service):
    app = fastapi.FastAPI()
    app.include_router(clip_routes(service))
    entry = next(service.index.clips())
    with TestClient(app) as client:
        answer = client.get("/clip/sound", params={"id": entry.id})
        assert client.get("/clip/sound", params={"id": "unknown"}).status_code == 404
    with wave.open(io.BytesIO(answer.content)) as file:
        assert file.getnframes() / file.getframerate() == pytest.approx(entry.end - entry.start, abs=0.05)
    assert sound_as_wav(dataclasses.replace(entry, path=Path("gone.mp4"))) is None


def test_clips_without_sound_and_few_at_once(service, run, tmp_path, monkeypatch):
    index = made_index(run, tmp_path / "index", [Entry(Clip("a", "a.mp4", tmp_path / "a.mp4", 0.0, 1.0))])
    app = fastapi.FastAPI()
    app.include_router(clip_routes(Service(index, service.embedder, UploadLimits(at_once=2))))
    working, seen = [], []

    def slow(entry, workers):
        working.append(entry)
        seen.append(len(working))
        time.sleep(0.05)
        working.pop()

    async def ask_often():
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://page") as client:
            return await asyncio.gather(*(client.get("/clip/sound?id=a") for _ in range(6)))

    monkeypatch.setattr("equiav.web.api.sound_of", slow)
    answers = awaited(ask_often())
    assert [answer.status_code for answer in answers] == [404] * 6
    assert max(seen) == 2


def test_few_points_are_read_of_many(service):
    whole, rows = service.index.vectors("audio")
    some, few = service.index.vectors("audio", 4)
    assert some == whole[::2]
    assert (few == rows[::2]).all()


def test_the_map_is_drawn_once_per_state(run, tmp_path, monkeypatch):
    entries = [Entry(Clip(f"{i}", "a.png")) for i in range(3)]
    index = made_index(run, tmp_path / "index", entries)
    drawn = []
    monkeypatch.setattr("equiav.web.views.map_html", lambda index: drawn.append(len(index)) or str(len(index)))
    seen = Map(index)
    assert [seen.html(), seen.html()] == ["3", "3"]
    index.remove(["1"])
    assert [seen.html(), seen.html()] == ["2", "2"]
    assert drawn == [3, 2]


def test_map(service):
    html = map_html(service.index)
    assert html.count("<circle") == 12
    assert html.count("<image") == 12


def test_flatten_is_principal_components(rng):
    scales = torch.tensor([5.0, 2.0, 0.1, 0.1])
    rotation = torch.linalg.qr(torch.randn(4, 4, generator=rng))[0]
    axes = torch.randn(200, 4, generator=rng) * scales
    flat = flatten((axes @ rotation).numpy())
    assert flat.min() == 0
    assert flat.max() == 1
    for k in range(2):
        assert abs(np.corrcoef(flat[:, k], axes[:, k].numpy())[0, 1]) > 0.99
    assert flatten(np.ones((3, 1), np.float32)).shape == (3, 2)


def test_spoken():
    assert [spoken(s) for s in (30.0, 600.0, 90.0)] == ["30 s", "10 min", "1 min 30 s"]
    assert UploadLimits(megabytes=2).bytes == 2 << 20
