"""Filling an index from media and from prepared folders, and the two commands on it."""

import csv
import json
import os
import shutil
import signal
import struct
import zlib
from dataclasses import replace

import numpy as np
import pytest
import torch
from PIL import Image
from typer.testing import CliRunner

import equiav
from equiav.cli import app
from equiav.data import find_sources, prepare
from equiav.errors import DataError, EquiAVError
from equiav.inference import Embedder
from equiav.search import Hit, ask, build, index_folder, sound_of, write_results
from equiav.types import Clip
from tests.inference.models import random_model, saved_model
from tests.media.making import sine, write_media
from tests.search.making import entries


@pytest.fixture(scope="module")
def media(tmp_path_factory):
    """Two videos, a sound, a picture, a file that is none, and a table that describes the videos."""
    folder = tmp_path_factory.mktemp("library")
    write_media(folder / "deep" / "long.mp4", seconds=6.0, sound=sine(6.0, 16000, 300.0))
    write_media(folder / "short.mp4", seconds=1.0, sound=sine(1.0, 16000, 900.0))
    write_media(folder / "beep.wav", video=False, seconds=1.0, codecs=("", "pcm_s16le"))
    Image.fromarray(np.random.default_rng(0).integers(0, 255, (80, 60, 3), dtype=np.uint8)).save(folder / "photo.jpg")
    (folder / "broken.mp4").write_bytes(b"not a film")
    with (folder / "table.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["path", "labels", "city", "year"])
        writer.writerow(["deep/long.mp4", "dog; loud", "Bonn", "1999"])
        writer.writerow(["short.mp4", "cat", "", "2005"])
    return folder


@pytest.fixture
def index(tmp_path):
    return equiav.Index.create(tmp_path / "index", random_model())


@pytest.fixture(scope="module")
def embedder():
    return Embedder(random_model())


def skipped(index):
    with (index.folder / "skipped.csv").open(newline="") as file:
        return {row["source"]: row["reason"] for row in csv.DictReader(file)}


def test_a_folder_of_media(media, index, embedder):
    said = []
    done = index_folder(index, embedder, media, progress=said.append)
    assert (done.added, done.files, done.skipped, done.known) == (6, 4, 1, 0)
    assert "5/5 files  6 entries  1 left out" in said[-1]
    assert list(skipped(index)) == ["broken.mp4"]
    found = {(e.source, round(e.start, 2)) for e in index.clips()}
    assert found == {("deep/long.mp4", 0.0), ("deep/long.mp4", 1.92), ("deep/long.mp4", 3.84), ("short.mp4", 0.0),
                     ("beep.wav", 0.0), ("photo.jpg", 0.0)}  # fmt: skip
    (hit,) = index.search(ask(embedder, audio=media / "beep.wav"), k=1, among="audio", filters=["source=beep.wav"])
    assert hit.score == pytest.approx(1, abs=1e-5)
    assert hit.thumbnail is None
    (hit,) = index.search(ask(embedder, image=media / "photo.jpg"), k=1, among="visual")
    assert (hit.clip.source, hit.clip.path) == ("photo.jpg", (media / "photo.jpg").resolve())
    assert hit.score == pytest.approx(1, abs=1e-5)
    assert Image.open(hit.thumbnail).size == (60, 80)


def test_an_index_among_its_media_does_not_eat_itself(media, embedder, tmp_path):
    library = tmp_path / "library"
    shutil.copytree(media, library)
    index = equiav.Index.create(library / "deep" / "index", random_model())
    other = equiav.Index.create(library / "other", random_model())
    for one in (index, other):
        assert index_folder(one, embedder, library).added == 6
        again = index_folder(one, embedder, library)
        assert (again.added, again.known) == (0, 4)
    with pytest.raises(DataError, match="give the index a folder of its own"):
        index_folder(index, embedder, index.folder)


def test_nothing_is_lost_beyond_what_the_model_hears(media, index, embedder, tmp_path):
    """Longer windows are refused, longer stretches cut, and longer clips heard to their end."""
    with pytest.raises(DataError, match=r"windows of 5 s: choose 0.5 to 1.92 s"):
        index_folder(index, embedder, media, seconds=5.0)
    (tmp_path / "stretch.csv").write_text(f"path,start,seconds\n{media / 'deep' / 'long.mp4'},0,5\n")
    index_folder(index, embedder, tmp_path / "stretch.csv")
    assert [round(e.start, 2) for e in index.clips()] == [0.0, 1.92]
    prepare(find_sources(media / "deep"), tmp_path / "clips", workers=1, clip_seconds=6.0)
    clips = equiav.Index.create(tmp_path / "second", random_model())
    index_folder(clips, embedder, tmp_path / "clips")
    (entry,) = clips.clips()
    assert entry.end - entry.start == pytest.approx(6, abs=0.1)
    noise = np.random.default_rng(0).uniform(-1, 1, 6 * 16000).astype(np.float32)
    wave = torch.from_numpy(noise * np.linspace(0.01, 1, len(noise), dtype=np.float32) ** 3)
    (whole, _), (first, _) = embedder.clips([(wave, None), (wave[: round(1.92 * 16000)], None)])
    (late, _), _ = embedder.clips([(wave[:48000], None), (wave, None)])
    assert np.linalg.norm(whole) == pytest.approx(1, abs=1e-5)
    assert np.abs(whole - first).max() > 1e-4
    assert np.abs(whole - late).max() > 1e-4


def test_the_time_inside_a_long_video(media, index, embedder):
    index_folder(index, embedder, media / "deep")
    (hit,) = index.search(ask(embedder, audio=media / "deep" / "long.mp4", start=1.92), k=1, among="audio")
    assert (hit.clip.start, hit.clip.end) == pytest.approx((1.92, 3.84), abs=1e-3)
    rate, sound = sound_of(hit.clip)
    assert len(sound) / rate == pytest.approx(1.92, abs=0.01)


def test_again_adds_only_what_is_new(media, index, embedder, tmp_path):
    index_folder(index, embedder, media / "deep")
    done = index_folder(index, embedder, media)
    assert (done.added, done.known) == (3, 1)
    # The same name in another folder is another file.
    write_media(tmp_path / "other" / "short.mp4", seconds=1.0)
    assert index_folder(index, embedder, tmp_path / "other").added == 1
    assert len(index) == 7
    index.remove(sources=["short.mp4"])
    assert len(index) == 5
    assert index_folder(index, embedder, media).added == 1


def test_columns_of_a_table_are_filters(media, index, embedder):
    index_folder(index, embedder, media / "table.csv")
    query = ask(embedder, audio=media / "beep.wav")
    assert {h.clip.source for h in index.search(query, filters=["city=Bonn"])} == {"deep/long.mp4"}
    assert {h.clip.source for h in index.search(query, filters=["year>=2000"])} == {"short.mp4"}
    assert {h.clip.source for h in index.search(query, filters=["label=loud", "year<=2000"])} == {"deep/long.mp4"}
    assert not index.search(query, filters=["label=loud", "year>=2000"])


def test_a_prepared_folder(media, index, embedder, tmp_path):
    prepare(find_sources(media / "table.csv"), tmp_path / "clips", workers=1, clip_seconds=2.0)
    done = index_folder(index, embedder, tmp_path / "clips", table=media / "table.csv")
    assert (done.added, done.known) == (4, 0)
    query = ask(embedder, audio=media / "short.mp4")
    (hit,) = index.search(query, k=1, among="audio", filters=["year>=2000"])
    assert (hit.clip.source, hit.clip.labels) == ("short.mp4", ("cat",))
    assert hit.clip.split in ("train", "validation")
    assert hit.score > 0.99
    assert hit.thumbnail.is_file()
    assert index_folder(index, embedder, tmp_path / "clips").added == 0
    assert hit.record()["metadata"]["split"] == hit.clip.split
    gone = replace(hit.clip, path=tmp_path / "gone.mp4")
    assert len(sound_of(gone)[1]) == pytest.approx(len(sound_of(hit.clip)[1]), abs=400)
    with pytest.raises(DataError, match="is cut into clips already"):
        index_folder(index, embedder, tmp_path / "clips", seconds=3.0)


def test_the_same_index_whatever_the_number_of_processes(media, tmp_path, embedder):
    """Entries in the order of the files, with the vectors that Embedder gives in this process."""
    made = []
    for workers in (1, 3):
        index = equiav.Index.create(tmp_path / f"index-{workers}", random_model())
        assert index_folder(index, embedder, media, workers=workers).added == 6
        entries = [index.entry(clip.id) for clip in index.clips()]
        pictures = [None if (place := index.thumbnail(e.clip.id)) is None else place.read_bytes() for e in entries]
        made.append(([(e.clip, {s: v.tobytes() for s, v in e.vectors.items()}) for e in entries], pictures))
    assert made[0] == made[1]
    windows = list(embedder.windows(media / "deep" / "long.mp4"))
    for (clip, vectors), window in zip(made[0][0][1:4], windows, strict=True):
        assert (clip.source, clip.start) == ("deep/long.mp4", round(window.start, 6))
        assert vectors == {"audio": window.audio.tobytes(), "visual": window.visual.tobytes()}


def test_hostile_files_cost_their_own_entries(media, index, embedder, tmp_path):
    folder = tmp_path / "hostile"
    shutil.copytree(media / "deep", folder)
    whole = (folder / "long.mp4").read_bytes()
    (folder / "half.mp4").write_bytes(whole[: len(whole) // 2])
    os.mkfifo(folder / "pipe.mp4")
    bomb = b"\x89PNG\r\n\x1a\n"
    for chunk in (b"IHDR" + struct.pack(">IIBBBBB", 60_000, 60_000, 8, 2, 0, 0, 0), b"IDAT" + zlib.compress(bytes(9))):
        bomb += struct.pack(">I", len(chunk) - 4) + chunk + struct.pack(">I", zlib.crc32(chunk))
    (folder / "bomb.png").write_bytes(bomb)
    done = index_folder(index, embedder, folder, workers=2)
    assert (done.added, done.files, done.skipped) == (3, 1, 3)
    reasons = skipped(index)
    assert reasons["pipe.mp4"] == "not a regular file"
    assert "pixels" in reasons["bomb.png"]
    assert reasons.keys() == {"bomb.png", "half.mp4", "pipe.mp4"}


def test_a_process_that_dies_costs_its_own_file(media, index, embedder, monkeypatch):
    """And what a worker allows in time and memory is passed on to it."""
    monkeypatch.setattr(build, "read_pieces", dies_of_the_short_one)
    done = index_folder(index, embedder, media, workers=2)
    assert (done.files, done.skipped) == (3, 2)
    assert skipped(index)["short.mp4"] == "decoder crashed"


def dies_of_the_short_one(path, **how):
    if path.name == "short.mp4":
        os.kill(os.getpid(), signal.SIGKILL)
    yield from build.read_pieces(path, **how)


def test_vectors_that_are_not_finite(media, index, monkeypatch):
    """Their file is named among what was left out, and the others are there."""
    embedder = Embedder(random_model())
    right = embedder.clips

    def wrong(clips):
        found = right(clips)
        return [(a, None if v is None else np.full_like(v, np.nan)) if a is None else (a, v) for a, v in found]

    monkeypatch.setattr(embedder, "clips", wrong)
    done = index_folder(index, embedder, media)
    assert (done.added, done.skipped) == (5, 2)
    assert skipped(index)["photo.jpg"] == "photo.jpg: its visual vector holds numbers that are not finite"
    with pytest.raises(DataError, match="the query's vector holds numbers that are not finite"):
        index.search(replace(ask(embedder, audio=media / "beep.wav"), vector=np.full(16, np.inf, np.float32)))


def test_files_that_changed_and_files_that_are_gone(media, tmp_path, monkeypatch):
    library, place, model = tmp_path / "library", tmp_path / "index", saved_model(tmp_path / "model")
    shutil.copytree(media, library)
    assert "6 entries added" in run("index", library, place, "--model", model, "--workers", 1)
    before = {clip.id for clip in equiav.Index.open(place).clips()}
    os.utime(library / "beep.wav")  # another time, the same content
    write_media(library / "deep" / "long.mp4", seconds=4.0, sound=sine(4.0, 16000, 700.0))
    (library / "short.mp4").unlink()
    said = run("index", library, place)
    assert "2 entries added, 2 known already, 1 files had changed; 1 left out" in said
    assert f"1 files with 1 entries are gone ({library / 'short.mp4'}); --prune removes them" in said
    index = equiav.Index.open(place)
    assert {clip.source for clip in index.clips()} == {"deep/long.mp4", "short.mp4", "beep.wav", "photo.jpg"}
    assert {clip.id for clip in index.clips()} < before  # one window less, under the same names
    embedder = Embedder(random_model())
    (hit,) = index.search(ask(embedder, audio=library / "deep" / "long.mp4"), k=1, among="audio")
    assert (hit.clip.source, hit.score) == ("deep/long.mp4", pytest.approx(1, abs=1e-5))
    assert ".file" not in hit.record()["metadata"]
    index.close()
    assert "0 entries added, 3 known already; 1 left out" in run("index", library, place)
    assert "are gone" in run("index", library, place, "--prune")
    assert "0 entries removed; 4 left" in run("index", place, "--prune")


@pytest.mark.parametrize("gone", [0, 1])
def test_a_file_that_changed_leaves_nothing_of_what_it_was(tmp_path, index, embedder, gone):
    """Windows may have been removed one by one: those after the gap are still of the old content."""
    write_media(tmp_path / "media" / "long.mp4", seconds=8.0)
    index_folder(index, embedder, tmp_path / "media")
    ids = sorted(clip.id for clip in index.clips())
    index.remove([ids[gone]])
    write_media(tmp_path / "media" / "long.mp4", seconds=4.0, sound=sine(4.0, 16000, 700.0))
    assert index_folder(index, embedder, tmp_path / "media").added == 2
    assert sorted(clip.id for clip in index.clips()) == ids[:2]


def test_clips_of_two_prepared_folders_may_not_be_called_alike(tmp_path, index, embedder):
    for number in (1, 2):
        write_media(tmp_path / str(number) / "a.mp4", seconds=2.0, sound=sine(2.0, 16000, 300.0 * number))
        prepare(find_sources(tmp_path / str(number)), tmp_path / f"clips{number}", workers=1)
    index_folder(index, embedder, tmp_path / "clips1")
    with pytest.raises(DataError, match=r"clips2: its clip .* is called like another one, of .*clips1; make an index"):
        index_folder(index, embedder, tmp_path / "clips2")
    (tmp_path / "clips1").rename(tmp_path / "moved")
    assert index_folder(index, embedder, tmp_path / "moved").added == 0


def test_windows_that_would_never_get_on_are_refused(media, index, embedder):
    index_folder(index, embedder, media / "deep")
    os.utime(media / "deep" / "long.mp4")
    for overlap in (1.0, 2.0, -1.0):
        with pytest.raises(DataError, match=f"windows of 1 s cannot overlap by {overlap:g} s; choose less"):
            index_folder(index, embedder, media / "deep", seconds=1.0, overlap=overlap)
    assert len(index) == 3


def test_other_programs_have_an_index_json_too(index, embedder, tmp_path):
    write_media(tmp_path / "gallery" / "thumbnails" / "a.mp4", seconds=1.0)
    for text in ('{"pictures": []}', "[" * 100_000, "no JSON"):
        (tmp_path / "gallery" / "index.json").write_text(text)
        index_folder(index, embedder, tmp_path / "gallery")
    assert len(index) == 1


def test_a_source_that_is_not_there_makes_no_index(tmp_path):
    with pytest.raises(EquiAVError, match="no such folder or list of media"):
        run("index", tmp_path / "typo", tmp_path / "index", "--model", saved_model(tmp_path / "model"))
    assert not (tmp_path / "index").exists()


def test_portions_grow_with_the_index(index, monkeypatch):
    """Each commit reads the whole database: as many for every so many entries would cost with the square of them."""
    monkeypatch.setattr(build, "COMMIT_ENTRIES", 4)
    monkeypatch.setattr(build, "COMMIT_MOST", 16)
    sizes, add = [], index.add
    monkeypatch.setattr(index, "add", lambda new, made_by: sizes.append(len(new)) or add(new, made_by=made_by))
    files = ((entry.clip.id, [entry], []) for entry in entries(100))
    build._fill(index, Embedder(random_model()), files, total=100, known=0, unit="files", progress=lambda line: None)
    assert sizes == [4, 4, 4, 4, 4, 5, 6, 7, 9, 11, 14, 16, 12]
    assert len(index) == 100


def test_another_model_may_not_fill_it(media, index):
    with pytest.raises(DataError, match="make a new index"):
        index_folder(index, Embedder(random_model(seed=1)), media)
    assert len(index) == 0


def test_one_question_at_a_time(media, embedder):
    with pytest.raises(DataError, match="not none"):
        ask(embedder)
    with pytest.raises(DataError, match="not audio and image"):
        ask(embedder, audio=media / "beep.wav", image=media / "photo.jpg")


def run(*arguments):
    result = CliRunner().invoke(app, [str(a) for a in arguments])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result.output


@pytest.mark.parametrize("store", [None, "vectors.db"])
def test_the_commands(media, tmp_path, store, monkeypatch):
    if store:
        pytest.importorskip("milvus_lite", reason="milvus-lite is not installed")
    model, place = saved_model(tmp_path / "model"), tmp_path / "index"
    monkeypatch.chdir(tmp_path)
    options = ["--store", store] if store else []
    assert "6 entries added; 1 left out" in run("index", media, place, "--model", model, *options)
    assert "0 entries added, 4 known already; 1 left out" in run("index", media, place, *options)
    table = run("search", place, "--audio", media / "beep.wav", "--k", 2).splitlines()
    assert table[0].split() == ["score", "by", "its", "time", "source", "labels", "id"]
    assert len(table) == 3
    assert "pictures" in table[1]
    page = tmp_path / "page.html"
    out = run("search", place, "--image", media / "photo.jpg", "--among", "both", "--json", "--html", page)
    hits = json.loads(out[: out.rindex("]") + 1])
    assert hits[0]["source"] == "photo.jpg"
    assert hits[0]["score"] == pytest.approx(1, abs=1e-5)
    html = page.read_text()
    assert html.count('<div class="hit">') == len(hits) == 6
    assert html.count("data:audio/flac") == 5
    assert html.count("data:image/") == 6  # five thumbnails, and what was asked
    assert "http" not in html.replace("http-equiv", "")
    assert "#t=1.92,3.84" in html
    other = run("search", place, "--like", hits[0]["id"], "--filter", "source=*.mp4")
    assert "photo.jpg" not in other
    assert "long.mp4" in other
    assert "video" not in run("search", place, "--video", media / "short.mp4", "-k", 1)
    assert "3 entries removed; 3 left" in run("index", place, "--remove-source", "deep/*")
    assert "1 entries removed; 2 left" in run("index", place, "--remove", hits[0]["id"])


def test_the_page_escapes_what_it_is_given(tmp_path):
    image = tmp_path / "<img>.jpg"
    Image.new("RGB", (8, 6)).save(image)
    clip = Clip('"<b>', "<script>x</script>", image, labels=("<i>", "&"))
    write_results([Hit(clip, 0.5, "visual", image)], tmp_path / "page.html", title="<u>", query=image, kind="image")
    html = (tmp_path / "page.html").read_text()
    for bad in ("<script>", "<i>", "<u>", '<b>"', "<img>"):
        assert bad not in html
    assert "&lt;script&gt;x&lt;/script&gt;" in html
    assert f'href="{image.as_uri()}"' in html
    write_results([], tmp_path / "page.html", title="none")
    assert "Nothing was found" in (tmp_path / "page.html").read_text()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["search", "INDEX"], "give one of --audio"),
        (["search", "INDEX", "--like", "x", "--audio", "a.wav"], "give one of --audio"),
        (["search", "INDEX", "--like", "x"], "holds no clip called 'x'"),
        (["search", "INDEX", "--audio", "gone.wav"], "gone.wav: no such file"),
        (["search", "INDEX", "--audio", "a.wav", "--model", "OTHER"], "was made by checkpoint|no such file"),
        (["search", "INDEX", "--like", "x", "--among", "smells"], "choose audio, visual or both"),
        (["search", "nowhere", "--like", "x"], "is no index"),
        (["index", "MEDIA", "new"], "give the model"),
        (["index", "MEDIA"], "give what to index"),
        (["index", "MEDIA", "INDEX", "--store", "x.db"], "keeps its vectors in its own folder"),
        (["index", "MEDIA", "INDEX", "--model", "OTHER"], "was made by checkpoint"),
        (["index", "gone", "INDEX"], "no such folder or list of media"),
        (["index", "BROKEN", "INDEX"], "nothing in .*broken.mp4 could be indexed: .*skipped.csv says why"),
    ],
)
def test_refusals(media, tmp_path, arguments, message):
    model = saved_model(tmp_path / "model")
    equiav.Index.create(tmp_path / "index", random_model(), model_path=model)
    places = {
        "INDEX": tmp_path / "index", "MEDIA": media, "BROKEN": media / "broken.mp4",
        "OTHER": saved_model(tmp_path / "other", seed=1),
    }  # fmt: skip
    with pytest.raises(EquiAVError, match=message):
        run(*[places.get(a, a) for a in arguments])


def test_a_real_library(shared, index, embedder):
    """Real videos: all of them are indexed, and each window finds itself."""
    done = index_folder(index, embedder, shared / "media" / "library")
    assert done.skipped == 0
    assert done.files == 59
    for entry in list(index.clips())[::20]:
        (hit,) = index.search(ask(embedder, video=entry.path, start=entry.start), k=1, filters=[f"id={entry.id}"])
        found = index.entry(entry.id)
        halfway = sum(found.vectors.values())
        best = max(v @ halfway for v in found.vectors.values()) / np.linalg.norm(halfway)
        assert hit.score == pytest.approx(float(best), abs=1e-3)
        assert hit.thumbnail is not None
