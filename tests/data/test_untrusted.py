"""Hostile media through the paired and the CAV-MAE reader, in a folder and in a tar: one door, the same refusals."""

import io
import tarfile

import pytest
from tools.corpus import SDP, concat_list, eps, long_flac, png

from equiav.data import CavMaeDataset, find_sources, read_cavmae, read_paired
from equiav.errors import DataError, EquiAVError, MediaError
from equiav.media import read_image
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


@pytest.mark.parametrize("mode", ["w", "w:gz"])
def test_a_tar_that_expands_without_end(tmp_path, mode):
    """Headers claim what the file does not hold, or only in compressed form: it is refused by what they claim."""
    with tarfile.open(tmp_path / "made.tar", mode) as tar:
        for number in range(3):
            member = tarfile.TarInfo(f"made/{number}.wav")
            member.size = 1 << 20
            tar.addfile(member, io.BytesIO(bytes(1 << 20)))
        member.size = 1 << 40
        tar.fileobj.write(member.tobuf())
    with pytest.raises(DataError, match=r"bytes that would become 1[0-9]{12} or more; not read"):
        read_paired(tmp_path / "made.tar", size=8)


@pytest.mark.parametrize(
    "content", [b"", b"no tar", b"\x1f\x8b\x08" + bytes(30), b"\xfd7zXZ\x00" + bytes(30), bytes(5000)]
)
def test_what_is_no_tar_is_one_line(tmp_path, content):
    (tmp_path / "made.tar").write_bytes(content)
    with pytest.raises(DataError, match=r"made\.tar: ") as refused:
        read_paired(tmp_path / "made.tar", size=8)
    assert "\n" not in str(refused.value)


def test_names_that_no_file_can_have(data_file):  # noqa: F811
    with pytest.raises(DataError, match="is missing"):
        CavMaeDataset(read_cavmae(data_file, root=data_file.parent / ("x" * 5000)), size=8).sample(0, 0)
    with pytest.raises(DataError, match="frame 2 is missing"):
        CavMaeDataset(read_cavmae(data_file, root=data_file.parent / ("x" * 5000)), size=8).part(0, 2, ("visual",))
    with pytest.raises(MediaError, match=r"File name too long|no such file"):
        read_image(data_file.parent / ("x" * 5000))


@pytest.mark.parametrize("path", [".", "..", "/", "x/.."])
def test_paths_that_name_no_file(tmp_path, path):
    (tmp_path / "manifest.csv").write_text(f"path,kind,class,split,source\n{path},audio,dog,train,x\n")
    with pytest.raises(EquiAVError):
        read_paired(tmp_path, size=8)


def test_cells_of_several_lines_are_told_in_one(tmp_path):
    (tmp_path / "manifest.csv").write_text('path,kind,class,split,source\n"a\nb",audio,dog,"tr\nain",x\n')
    with pytest.raises(DataError, match="got audio and tr ain") as refused:
        read_paired(tmp_path, size=8)
    assert "\n" not in str(refused.value)
    (tmp_path / "table.csv").write_text('"a\nb","\x1b[2J"\n1,2\n')
    with pytest.raises(DataError, match=r"no column called path; it has a\\nb, \\x1b\[2J") as refused:
        find_sources(tmp_path / "table.csv")
    assert str(refused.value).isprintable()
