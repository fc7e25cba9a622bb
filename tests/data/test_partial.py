"""Sounds without video and images without sound, kept when asked for: which clip has what, and who needs both."""

import sys

import numpy as np
import pytest
from PIL import Image

from equiav.cli import main
from equiav.data import PreparedIndex, ShardDataset, find_sources, merge, prepare, read_meta, read_skipped
from equiav.errors import DataError
from equiav.inspection import write_inspection
from tests.media.making import sine, write_media

pytestmark = pytest.mark.process

BOTH, SOUND, MUTE, IMAGE = "both.mp4", "sound.wav", "mute.mp4", "wide.png"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    root = tmp_path_factory.mktemp("partial")
    write_media(root / "in" / BOTH, seconds=1, fps=10, sound=sine(1, 16000, 300))
    write_media(root / "in" / SOUND, seconds=1, video=False, codecs=("", "pcm_s16le"))
    write_media(root / "in" / MUTE, seconds=1, fps=10, audio=False)
    write_media(root / "in" / "quiet.mp4", seconds=1, fps=10, sound=np.zeros(16000))
    gradient = np.tile(np.arange(0, 240, 0.5, dtype=np.float32).astype(np.uint8), (300, 1))
    Image.fromarray(np.stack([gradient] * 3, axis=2)).save(root / "in" / IMAGE)
    (root / "in" / "broken.png").write_bytes(b"no image")
    with pytest.MonkeyPatch.context() as patch:
        command = ["equiav", "prepare", str(root / "in"), str(root / "out"), "--need", "any", "--workers", "1"]
        patch.setattr(sys, "argv", command)
        with pytest.raises(SystemExit, match="0"):
            main()
    return root / "out"


def test_the_index_says_what_a_clip_has(folder):
    index = PreparedIndex(folder)
    names = [index.text("names", row) for row in range(len(index))]
    held = zip(index.holds("audio").tolist(), index.holds("visual").tolist(), strict=True)
    assert dict(zip(names, held, strict=True)) == {
        BOTH: (True, True), SOUND: (True, False), MUTE: (False, True), IMAGE: (False, True), "quiet.mp4": (False, True)
    }  # fmt: skip
    assert {source: reason for source, _, reason in read_skipped(folder)} == {
        "broken.png": "cannot be read as an image (unknown format)"
    }
    assert read_meta(folder)["partial"] is True
    assert read_meta(folder)["modalities"] == ["audio", "video"]


def test_samples_hold_what_a_clip_has(folder):
    data = ShardDataset(folder, None, size=32)
    found = {data.source(i): data.sample(i, 7).inputs for i in range(len(data))}
    assert {name: sorted(inputs) for name, inputs in found.items()} == {
        BOTH: ["audio", "visual"], SOUND: ["audio"], MUTE: ["visual"], IMAGE: ["visual"], "quiet.mp4": ["visual"]
    }  # fmt: skip
    place = [data.source(i) for i in range(len(data))].index(IMAGE)
    whole = data.frame(place, 0, whole=True)
    assert whole.shape == (3, 256, 410)  # scaled so that the short side fits
    assert (data.frame(place, 9, whole=True) == whole).all()  # one image stands for all frames
    assert data.clip(place).seconds == 0
    with pytest.raises(DataError, match="holds only visual"):
        data.waveform(place)


def test_sides_are_the_clips_that_have_a_modality(folder):
    data = ShardDataset(folder, None, size=32)
    assert not data.one_to_one
    sides = data.sides()
    assert {m: sorted(side.source(i) for i in range(len(side))) for m, side in sides.items()} == {
        "audio": [BOTH, SOUND], "visual": [BOTH, MUTE, "quiet.mp4", IMAGE]
    }  # fmt: skip
    assert [list(sides["audio"].sample(i, 0).inputs) for i in range(2)] == [["audio"], ["audio"]]
    complete = ShardDataset(folder, None, modalities=("audio", "visual"))
    assert [complete.source(i) for i in range(len(complete))] == [BOTH]
    assert complete.one_to_one
    assert complete.sides()["audio"] is complete


def test_the_page_shows_all_clips(folder, tmp_path):
    write_inspection(folder, tmp_path / "page.html")
    page = (tmp_path / "page.html").read_text()
    assert page.count("<audio") == 2
    assert all(name in page for name in (BOTH, SOUND, MUTE, IMAGE))


def test_parts_are_merged_and_what_is_missing_is_said(folder, tmp_path):
    sources = find_sources(folder.parent / "in", suffixes=frozenset({".wav", ".png"}))
    parts = [tmp_path / "one", tmp_path / "two"]
    for number, part in enumerate(parts, start=1):
        prepare(sources, part, workers=1, part=(number, 2), partial=True)
    merge(parts, tmp_path / "merged")
    assert read_meta(tmp_path / "merged")["partial"] is True
    data = ShardDataset(tmp_path / "merged", None)
    assert sorted(data.has(i) for i in range(len(data))) == [("audio",), ("visual",)]
    with pytest.raises(DataError, match=r"merged: no clip for any use has audio and visual$"):
        ShardDataset(tmp_path / "merged", None, modalities=("audio", "visual"))
