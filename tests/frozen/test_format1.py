"""What version 0.1.0 wrote must open for ever: a prepared folder, two runs, an index; see make_format1.py.

Each test works on a copy: a later version may migrate what it opens, and it must do so without the media, the place
and the version that made it.
"""

import hashlib
import json
import shutil

import numpy as np
import pytest
from PIL import Image

from tests.frozen import api
from tests.frozen.api import cli, frozen, rounded
from tests.frozen.media import noise, sweep, write
from tests.media.making import numbered

FORMAT1 = api.HERE / "format1"


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A copy of everything, with some media to ask for; it is the current folder, as its recipes want it."""
    shutil.copytree(FORMAT1, tmp_path / "format1")
    monkeypatch.chdir(tmp_path / "format1")
    return tmp_path / "format1"


@pytest.fixture
def media(folder):
    write(folder / "heard.wav", video=False, codecs=("", "pcm_s16le"), seconds=0.9, sound=sweep(0.9, 16000))
    write(folder / "film.mkv", seconds=0.9, fps=7, codecs=("ffv1", "flac"), pixels="bgr0", size=(70, 50))
    Image.fromarray(numbered(21, 50, 40)).save(folder / "seen.png")
    return folder


def test_the_fixtures_are_as_they_were_made():
    files = sorted(path for path in FORMAT1.rglob("*") if path.is_file())
    found = {path.relative_to(FORMAT1).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}
    frozen("format1", "files", found)


@pytest.mark.parametrize("split", ["train", "validation", "test"])
def test_the_prepared_folder_serves_clips(folder, split):
    clips = api.ShardDataset(folder / "prepared", split, size=16)
    found = {}
    for i in range(len(clips)):
        clip, waveform, frames = api.served(clips, i)
        samples = (waveform * 32768).short().numpy().tobytes()
        found[clip.id] = {
            "source": clip.source,
            "group": clip.group,
            "labels": clip.labels,
            "seconds": clip.seconds,
            "described": clips.info(i),
            "sound": hashlib.sha256(samples).hexdigest(),  # FLAC loses nothing
            "pictures": rounded(frames.float().mean(dim=(1, 2, 3))),
        }
    assert clips.frames == 3
    frozen("format1", f"clips: {split}", found, 1e-2)  # JPEG decoders may differ by rounding


def test_the_prepared_folder_is_shown(folder):
    cli("inspect", "prepared")
    assert (folder / "prepared/inspect.html").read_text(encoding="utf-8").count("<audio") == 9


@pytest.mark.parametrize("place", ["pretrained", "pretrained/checkpoints/step-00000002"])
def test_the_model_embeds(media, place):
    e = api.embedder(media / place)
    clips = api.ShardDataset(media / "prepared", "train", size=e.model.config.visual.size)
    found = {"audio": e.audio(media / "heard.wav"), "image": e.image(media / "seen.png")}
    found |= {"video": e.video(media / "film.mkv"), "array": e.image(noise((20, 30, 3)))}
    for i in range(2):
        ((heard, seen),) = e.clips([api.served(clips, i)[1:]])
        found |= {f"clip {i}, sound": heard, f"clip {i}, pictures": seen}
    frozen("format1", "embeddings", {name: rounded(vector) for name, vector in found.items()}, 1e-6)


def test_models_are_described(folder):
    for name in ("pretrained", "finetuned"):
        lines = cli("info", name).splitlines()
        assert "step 2/4" in lines[1]


@pytest.mark.parametrize("place", ["finetuned", "finetuned/best", "finetuned/checkpoints/step-00000002"])
def test_the_classifier_scores(folder, place):
    clips = api.ShardDataset(folder / "prepared", "test", size=16)
    classes, rows = api.logits(folder / place, clips, range(2), 1)
    assert classes == ["bell", "dog"]
    frozen("format1", "logits", [rounded(row) for row in rows], 1e-6)


@pytest.mark.parametrize(("command", "run"), [("pretrain", "pretrained"), ("finetune", "finetuned")])
def test_runs_are_resumed(folder, command, run):
    """From step 2 of 4, with its optimiser and its moving average: losses and weights as if it had not stopped."""
    before = (folder / run / "log.jsonl").read_text(encoding="utf-8")
    cli(command, f"{command}.yaml", "--out", run)
    after = (folder / run / "log.jsonl").read_text(encoding="utf-8")
    assert after.startswith(before)
    (step, path) = api.checkpoints_of(folder / run)[-1]
    assert step == 4
    checkpoint = api.load_checkpoint(path)
    weights = {**checkpoint.weights, **{f"bank.{m}": bank for m, bank in checkpoint.banks.items()}}
    # The bias of keys cancels in the softmax: its gradient is rounding, which Adam makes as large as any other.
    norms = {k: float(v.double().norm()) for k, v in sorted(weights.items()) if not k.endswith("to_k.bias")}
    lines = [json.loads(line) for line in after.removeprefix(before).splitlines()]
    lines = [{"rate" if key == "lr" else key: value for key, value in line.items()} for line in lines]  # renamed
    frozen("format1", f"{command}: resumed", {"log": lines, "norms": norms}, 1e-4)


QUERIES = {
    "sound": ["--audio", "heard.wav"],
    "picture": ["--image", "seen.png"],
    "video": ["--video", "film.mkv", "-k", "3"],
    "sound among sounds": ["--audio", "heard.wav", "--among", "audio", "-k", "4"],
    "like": ["--like", "2-7824f0e8d0dc-0000"],
    "label": ["--image", "seen.png", "--filter", "label=dog"],
    "column and split": ["--audio", "heard.wav", "--filter", "city=Ulm", "--filter", "split!=test"],
    "group": ["--audio", "heard.wav", "--filter", "group=tower"],
    "times": ["--video", "film.mkv", "--filter", "start>=0.5", "--filter", "end<=2"],
    "source": ["--video", "film.mkv", "--filter", "source=media/*.mkv", "--filter", "label=bell"],
}


@pytest.mark.parametrize("name", QUERIES)
def test_the_index_answers(media, name):
    hits = json.loads(cli("search", "library", *QUERIES[name], "--model", "pretrained", "--json"))
    for hit in hits:
        Image.open(hit.pop("thumbnail")).verify()
    frozen("format1", f"search: {name}", hits, 1e-6)


def test_the_index_still_knows_its_model(media):
    """It recorded the digest that version 0.1.0 gave the model; whatever digests are now, that model is accepted."""
    recorded = json.loads((FORMAT1 / "library/index.json").read_text(encoding="utf-8"))["digest"]
    frozen("format1", "digest", recorded)
    said = cli("index", "film.mkv", "library", "--model", "pretrained")
    assert "1 entries added" in said
    assert "13 entries in library" in said
    asked = ["--audio", "film.mkv", "--among", "audio", "--model", "pretrained"]
    assert json.loads(cli("search", "library", *asked, "--json"))[0]["source"] == "film.mkv"


def test_another_model_is_refused(media):
    weights = media / "pretrained/checkpoints/step-00000002/weights.safetensors"
    content = bytearray(weights.read_bytes())
    content[-1] ^= 1  # the sign or exponent of the last weight
    weights.write_bytes(content)
    with pytest.raises(AssertionError, match="was made by checkpoint"):
        cli("search", "library", "--audio", "heard.wav", "--model", "pretrained")


def test_entries_are_removed(media):
    said = cli("index", "library", "--remove", "2-7824f0e8d0dc-0000")
    assert "1 entries removed; 11 left" in said
    hits = json.loads(cli("search", "library", "--image", "seen.png", "--model", "pretrained", "--json", "-k", "20"))
    assert len(hits) == 11
    assert {"2-7824f0e8d0dc-0000", "3-25201186e764-0000"}.isdisjoint(hit["id"] for hit in hits)
    vectors = api.equiav.Index.open(media / "library").vectors("audio")[1]
    np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), 1, atol=1e-6)
