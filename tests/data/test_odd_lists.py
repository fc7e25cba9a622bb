"""Lists and folders as people and machines get them wrong: pipes, absurd numbers, huge members. No wait, one line."""

import csv
import json
import os
import tarfile
import threading

import pytest

from equiav.data import (
    CavMaeDataset,
    find_sources,
    prepare,
    read_cavmae,
    read_paired,
    read_published,
    read_skipped,
    read_weights,
)
from equiav.errors import DataError
from tests.data.test_cavmae import data_file  # noqa: F401 - a fixture
from tests.data.test_paired import make_collection
from tests.media.making import sine, write_media


def within(seconds, action):
    """What the action gives or raises; it must not wait for something that never comes."""
    answer = []

    def run():
        try:
            answer.append(("gave", action()))
        except BaseException as error:
            answer.append(("raised", error))

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(seconds)
    assert answer, "it waits"
    kind, value = answer[0]
    if kind == "raised":
        raise value
    return value


def commands(root):
    """The smallest folder of speech commands."""
    for word in ("yes", "no"):
        write_media(root / word / f"{word}_nohash_0.wav", seconds=1, video=False, codecs=("", "pcm_s16le"))
    (root / "validation_list.txt").write_text("yes/yes_nohash_0.wav\n")
    (root / "testing_list.txt").write_text("no/no_nohash_0.wav\n")
    (root / "_background_noise_").mkdir()
    return root


def test_a_pipe_among_the_noise_is_not_read(tmp_path):
    root = commands(tmp_path)
    os.mkfifo(root / "_background_noise_" / "hum.wav")
    (root / "_background_noise_" / "folder.wav").mkdir()
    found = within(20, lambda: read_published("speech-commands", root))
    assert {clip.labels[0] for clip in found.clips} >= {"yes", "no"}


def test_a_pipe_in_place_of_a_label_file_is_not_read(tmp_path):
    root = commands(tmp_path)
    (root / "testing_list.txt").unlink()
    os.mkfifo(root / "testing_list.txt")
    with pytest.raises(DataError, match=r"no testing_list\.txt"):
        within(20, lambda: read_published("speech-commands-35", root))


@pytest.mark.parametrize("box", [[10**400, 0, 1, 1], [float("nan"), 0, 1, 1], [float("inf"), 0, 1, 1], ["x", 0, 1, 1]])
def test_boxes_that_are_no_numbers(data_file, box):  # noqa: F811
    record = json.loads(data_file.read_text())
    record["data"][0]["boxes"] = [box]
    data_file.write_text(json.dumps(record))
    with pytest.raises(DataError, match="clip_0: boxes are lists of x0, y0, x1, y1"):
        read_cavmae(data_file)


@pytest.mark.parametrize("text", ["1\nnan\n", "1\n-1\n", "inf\n1\n", "0\n0\n", "1\n1e400\n"])
def test_weights_that_cannot_be_drawn_by(tmp_path, text):
    (tmp_path / "weights.csv").write_text(text)
    with pytest.raises(DataError, match=r"weights\.csv: weights are at least 0, finite, and not all 0"):
        read_weights(tmp_path / "weights.csv", clips=2)


@pytest.mark.parametrize("name", ["a\0b.wav", "a\ud800.wav", "x" * 5000])
def test_audio_whose_name_no_file_can_have(data_file, name):  # noqa: F811
    record = json.loads(data_file.read_text())
    record["data"][0]["wav"] = name
    data_file.write_text(json.dumps(record))
    with pytest.raises(DataError, match=r"clip_0: its audio .* is missing"):
        CavMaeDataset(read_cavmae(data_file), size=8, frames=3).sample(0, 0)


@pytest.mark.parametrize("form", ["folder", "tar"])
def test_huge_members_of_a_collection_are_refused(tmp_path, form):
    """A packed tar of some megabytes may hold a file of many gigabytes."""
    root = make_collection(tmp_path / "made")
    place = root / "audio/c0/s2.wav"
    if form == "folder":
        os.truncate(place, 3 << 30)  # sparse
    else:
        place.unlink()
        with tarfile.open(tmp_path / "made.tar", "w") as tar:
            tar.add(root, "made")
            end = tar.offset
        info = tarfile.TarInfo("made/audio/c0/s2.wav")
        info.size = 3 << 30
        root = tmp_path / "made.tar"
        with root.open("r+b") as file:
            file.seek(end)
            file.write(info.tobuf())
            file.truncate(file.tell() + info.size + 1024)
    with pytest.raises(DataError, match=r"s2\.wav.*larger than"):
        read_paired(root, size=8)


def test_names_that_are_formulas_stay_text_in_both_tables(tmp_path):
    media = tmp_path / "media"
    for name in ("=cmd|' /C calc'!A0.mp4", "@SUM(1).mp4", "+1.mp4", "-1.mp4"):
        write_media(media / name, seconds=1, fps=5, audio=False)
    write_media(media / "=good.mp4", seconds=1, fps=5, sound=sine(1, 16000))
    prepare(find_sources(media), tmp_path / "out", workers=1)
    for table in ("manifest.csv", "skipped.csv"):
        with (tmp_path / "out" / table).open(newline="") as file:
            cells = [cell for row in csv.reader(file) for cell in row]
        assert not [cell for cell in cells if cell[:1] in ("=", "+", "-", "@", "\t", "\r")]
    assert {source for source, _, _ in read_skipped(tmp_path / "out")} == {
        "=cmd|' /C calc'!A0.mp4", "@SUM(1).mp4", "+1.mp4", "-1.mp4",
    }  # fmt: skip
