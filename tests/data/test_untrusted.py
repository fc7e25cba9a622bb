"""Hostile media through the paired and the CAV-MAE reader, in a folder and in a tar: one door, the same refusals."""

import tarfile

import pytest
from tools.corpus import SDP, concat_list, eps, long_flac, png

from equiav.data import read_paired
from equiav.errors import MediaError
from tests.data.test_cavmae import data_file, dataset  # noqa: F401 - a fixture
from tests.data.test_paired import make_collection

PICTURES = {
    "bomb": (lambda folder: png((8000, 8000), rows=1), "8000x8000 are larger than allowed"),
    "drawing": (lambda folder: eps(), "cannot be read as an image"),
}
SOUNDS = {
    "list": (lambda folder: concat_list(folder / "other.wav"), "is a list of other files"),
    "session": (lambda folder: SDP, "is a list of other files"),
    "long": (lambda folder: long_flac(folder / "long.flac", hours=1.5).read_bytes(), "lasts 1.5 h; at most 1 h"),
}


@pytest.mark.parametrize("attack", [*PICTURES, *SOUNDS])
@pytest.mark.parametrize("form", ["folder", "tar"])
def test_paired(tmp_path, attack, form):
    root = make_collection(tmp_path / "made")
    (tmp_path / "other.wav").write_bytes((root / "audio/c0/s1.wav").read_bytes())
    content, reason = (PICTURES | SOUNDS)[attack]
    place = root / ("images/c0/p3.png" if attack in PICTURES else "audio/c0/s2.wav")
    place.write_bytes(content(tmp_path))
    assert place.stat().st_size < 200_000
    if form == "tar":
        with tarfile.open(tmp_path / "made.tar", "w") as tar:
            tar.add(root, "made")
        root = tmp_path / "made.tar"
    with pytest.raises(MediaError, match=rf"{place.name}: .*{reason}"):
        read_paired(root, size=8)


@pytest.mark.parametrize("attack", [*PICTURES, "list", "session"])
def test_cavmae(data_file, attack):  # noqa: F811
    folder = data_file.parent
    content, reason = (PICTURES | SOUNDS)[attack]
    place = folder / ("frames/frame_0/clip_0.jpg" if attack in PICTURES else "audio/clip_0.wav")
    (folder / "other.wav").write_bytes((folder / "audio/clip_1.wav").read_bytes())
    place.write_bytes(content(folder))
    with pytest.raises(MediaError, match=rf"{place.name}: .*{reason}"):
        dataset(data_file).sample(0, 0)
