"""Sounds and images paired by class: splits, partners, and the collections it was made for."""

import csv
import math
import tarfile
import wave
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from equiav.data import (
    SPLITS,
    Dataset,
    PairedDataset,
    Schedule,
    assign_splits,
    evaluation_batches,
    loudest,
    open_files,
    read_manifest,
    read_paired,
    training_batches,
)
from equiav.errors import DataError, MediaError
from equiav.types import Clip

HEADER = ("path", "kind", "class", "split", "source", "licence", "duration_s")
RATE = 16000


def write_sound(path: Path, samples: np.ndarray) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with wave.open(str(path), "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(RATE)
        file.writeframes(samples.astype("<i2").tobytes())


def make_collection(root: Path, *, classes: int = 2, sounds: int = 6, images: int = 8) -> Path:
    """Sound i of class c holds the value 100 c + i + 1 throughout, image i the grey 10 c + i."""
    rows = []
    for c in range(classes):
        for i in range(sounds):
            path = f"audio/c{c}/s{i}.wav"
            write_sound(root / path, np.full(RATE // 4 * (1 + i % 2), 100 * c + i + 1))
            split = "test" if i == 0 else "train"
            rows.append((path, "audio", f"c{c}", split, f"AudioMNIST data/{i:02d}/{c}_{i:02d}_0.wav", "MIT", "0.25"))
        for i in range(images):
            path = f"images/c{c}/p{i}.png"
            (root / path).parent.mkdir(parents=True, exist_ok=True)
            Image.new("L", (12, 10), 10 * c + i).save(root / path)
            rows.append((path, "image", f"c{c}", "test" if i < 2 else "train", f"made {i}", "CC0", ""))
    write_manifest(root, rows)
    return root


def write_manifest(root: Path, rows: list[tuple[str, ...]]) -> None:
    with (root / "manifest.csv").open("w", newline="") as file:
        csv.writer(file).writerows([HEADER, *rows])


@pytest.fixture
def collection(tmp_path: Path) -> Path:
    return make_collection(tmp_path / "made")


def test_reads_every_file_once(collection: Path) -> None:
    paired = read_paired(collection, size=8, seconds=0.5)
    assert paired.classes == ("c0", "c1")
    assert [len(paired.items["audio", s]) for s in SPLITS] == [8, 2, 2]
    assert [len(paired.items["visual", s]) for s in SPLITS] == [10, 2, 4]
    for split in SPLITS:
        sounds, images = paired.items["audio", split], paired.items["visual", split]
        for i, name in enumerate(sounds.names):
            c, number = int(name.split("/")[1][1:]), int(name.rsplit("s", 1)[1])
            assert sounds.labels(i) == (f"c{c}",)
            expected = torch.full((RATE // 4 * (1 + number % 2),), (100 * c + number + 1) / 32768)
            assert torch.equal(sounds.sample(i, 0).inputs["audio"], expected)
        for i, name in enumerate(images.names):
            c, number = int(name.split("/")[1][1:]), int(name.rsplit("p", 1)[1])
            assert images.labels(i) == (f"c{c}",)
            assert images.sample(i, 0).inputs["visual"].unique().tolist() == [10 * c + number]
    assert paired.left_out == 0


@pytest.mark.parametrize("top", ["", "set/"])
def test_tar_and_folder_give_the_same(collection: Path, tmp_path: Path, top: str) -> None:
    with tarfile.open(tmp_path / "set.tar", "w") as tar:
        tar.add(collection, arcname=top or ".")
    for root in (tmp_path / "set.tar", collection.parent):
        other, paired = read_paired(root, size=8), read_paired(collection, size=8)
        for key, items in paired.items.items():
            assert other.items[key].names == items.names
            assert all(torch.equal(a, b) for a, b in zip(other.items[key].media, items.media, strict=True))


def test_splits_keep_speakers_apart(collection: Path) -> None:
    with open_files(collection) as read:
        entries = assign_splits(read_manifest(read("manifest.csv"), collection))
    splits_of: dict[str, set[str]] = {}
    for e in entries:
        splits_of.setdefault(e.group, set()).add(str(e.split))
    assert all(len(s) == 1 for s in splits_of.values())


def entry(path: str, group: str, held_out: bool | None) -> Clip:
    facts = {"kind": "audio", "held_out": held_out}
    return Clip(path, labels=("dog",), split="train", group=group, metadata=facts)


def test_clips_of_a_tested_recording_are_left_out() -> None:
    """ESC-50 and UrbanSound8K cut some clips from the same Freesound recording."""
    shared_recording = [entry("esc", "freesound 1", True), entry("urban", "freesound 1", False)]
    others = [entry(f"other {i}", f"freesound {i}", False) for i in range(2, 40)]
    splits = {e.id: e.split for e in assign_splits(shared_recording + others)}
    assert splits["esc"] == "test"
    assert splits["urban"] is None
    assert sum(s == "validation" for s in splits.values()) == 4
    assert sum(s == "train" for s in splits.values()) == 34


def test_splits_do_not_depend_on_order() -> None:
    entries = [entry(f"p{i}", f"p{i}", None) for i in range(200)]
    forward = {e.id: e.split for e in assign_splits(entries)}
    assert forward == {e.id: e.split for e in assign_splits(entries[::-1])}
    assert 10 <= sum(s == "test" for s in forward.values()) <= 30


@pytest.mark.parametrize("anchor", ["audio", "visual"])
def test_partners_share_class_and_split(collection: Path, anchor: str) -> None:
    paired = read_paired(collection, size=8)
    for split in SPLITS:
        clips = PairedDataset(paired, split, anchor=anchor, partners=5, seed=3)
        assert isinstance(clips, Dataset)
        assert clips.frames == 5
        others = paired.items["visual" if anchor == "audio" else "audio", split]
        for i in range(len(clips)):
            drawn, number = [clips.partner(i, k) for k in range(5)], clips.items.numbers[i]
            assert {others.numbers[row] for row in drawn} == {number}
            assert len(set(drawn)) == min(5, others.numbers.count(number))
            sample = clips.sample(i, 2)
            assert sample.id == clips.clip(i).id
            assert sample.inputs["visual"].shape == (3, 8, 8)
            assert int(sample.inputs["visual"][0, 0, 0]) // 10 == number
            assert int(sample.inputs["audio"][0] * 32768) // 100 == number


def test_partners_depend_on_the_seed_alone(collection: Path) -> None:
    paired = read_paired(collection, size=8)

    def drawn(seed: int) -> list[int]:
        clips = PairedDataset(paired, "train", seed=seed)
        return [clips.partner(i, k) for i in range(len(clips)) for k in range(clips.frames)]

    assert drawn(1) == drawn(1)
    assert drawn(1) != drawn(2)


def test_the_loader_meets_other_partners_in_other_epochs(collection: Path) -> None:
    clips = PairedDataset(read_paired(collection, size=8), "train")
    schedule = Schedule(len(clips), clips.frames, batch=4, seed=0)
    seen: dict[str, set[int]] = {}
    for batch in training_batches(clips, schedule, start=0, stop=12, rank=0, world_size=1, workers=0):
        for name, picture in zip(batch.ids, batch.inputs["visual"], strict=True):
            seen.setdefault(name, set()).add(int(picture[0, 0, 0]))
    assert len(seen) == 8
    assert all(len(greys) > 1 for greys in seen.values())
    first, second = (torch.cat([b.inputs["visual"] for b in evaluation_batches(clips, batch=3)]) for _ in range(2))
    assert torch.equal(first, second)


def test_loudest_stretch() -> None:
    sound = torch.zeros(1000, dtype=torch.int16)
    sound[400:500] = 30000
    assert torch.equal(loudest(sound, 100, step=10), sound[400:500])
    assert torch.equal(loudest(sound, 2000), sound)
    assert torch.equal(loudest(torch.zeros(50, dtype=torch.int16), 20), torch.zeros(20, dtype=torch.int16))


def test_loss_floor_is_the_mean_over_batches(collection: Path) -> None:
    clips = PairedDataset(read_paired(collection, size=8), "train")
    labels = torch.tensor(clips.items.numbers)
    generator = torch.Generator().manual_seed(0)
    drawn = []
    for _ in range(4000):
        rows = labels[torch.randperm(len(labels), generator=generator)[:4]]
        drawn.append(math.log(int((rows == rows[0]).sum())))
    assert clips.loss_floor(4) == pytest.approx(sum(drawn) / len(drawn), abs=0.02)
    assert clips.loss_floor(1) == 0.0
    assert clips.loss_floor(len(clips)) == pytest.approx(math.log(4))


def test_refusals(collection: Path, tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no such tar or folder"):
        read_paired(tmp_path / "absent.tar")
    (tmp_path / "text.tar").write_text("not a tar")
    with pytest.raises(DataError, match=r"text\.tar: not a readable tar"):
        read_paired(tmp_path / "text.tar")
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataError, match=r"holds no manifest\.csv"):
        read_paired(tmp_path / "empty")
    with pytest.raises(DataError, match="no class cow; it has c0, c1"):
        read_paired(collection, classes=["cow"])
    paired = read_paired(collection, size=8)
    with pytest.raises(DataError, match="at least one partner"):
        PairedDataset(paired, partners=0)
    with pytest.raises(DataError, match="fewer than a batch of 50"):
        PairedDataset(paired).loss_floor(50)
    (collection / "audio/c0/s1.wav").write_bytes(b"noise")
    with pytest.raises(MediaError, match=r"s1\.wav: cannot be opened as media"):
        read_paired(collection)
    (collection / "audio/c0/s1.wav").unlink()
    with pytest.raises(DataError, match=r"its manifest lists audio/c0/s1\.wav, which is missing"):
        read_paired(collection)


@pytest.mark.parametrize(
    ("row", "message"),
    [
        (("a.wav", "text", "c", "train", "", "", ""), "kind is one of audio, image"),
        (("a.wav", "audio", "c", "dev", "", "", ""), "split one of train, validation, test; got audio and dev"),
    ],
)
def test_bad_manifest_lines(tmp_path: Path, row: tuple[str, ...], message: str) -> None:
    write_manifest(tmp_path, [row])
    with pytest.raises(DataError, match=message):
        read_paired(tmp_path)


def test_manifest_without_columns_or_lines(tmp_path: Path) -> None:
    (tmp_path / "manifest.csv").write_text("path,kind\n")
    with pytest.raises(DataError, match="lacks the columns class, split, source"):
        read_paired(tmp_path)
    write_manifest(tmp_path, [])
    with pytest.raises(DataError, match="lists nothing"):
        read_paired(tmp_path)


def test_a_class_without_partners_is_named(tmp_path: Path) -> None:
    root = make_collection(tmp_path)
    lines = (root / "manifest.csv").read_text().splitlines(keepends=True)
    (root / "manifest.csv").write_text("".join(line for line in lines if not line.startswith("images/c1/")))
    paired = read_paired(root, size=8)
    with pytest.raises(DataError, match="split train: c1 has audio but no image"):
        PairedDataset(paired)
    assert len(PairedDataset(paired, anchor="visual")) == 5


def count_splits(root: Path) -> dict[tuple[str, str], int]:
    with open_files(root) as read:
        entries = assign_splits(read_manifest(read("manifest.csv"), root))
    counts: dict[tuple[str, str], int] = {}
    for e in entries:
        key = e.metadata["kind"], str(e.split)
        counts[key] = counts.get(key, 0) + 1
    groups = {s: {e.group for e in entries if e.split == s} for s in SPLITS}
    assert not groups["train"] & groups["test"]
    assert not groups["train"] & groups["validation"]
    assert not groups["validation"] & groups["test"]
    labels = {e.labels for e in entries}
    for kind in ("audio", "image"):
        for split in SPLITS:
            assert {e.labels for e in entries if e.metadata["kind"] == kind and e.split == split} == labels
    return counts


def test_real_class_paired(shared: Path) -> None:
    root = shared / "data" / "class_paired_train.tar"
    counts = count_splits(root)
    # 152 of ESC-50 fold 4 and 57 of UrbanSound8K fold 3; 18 clips share a recording with them.
    assert counts["audio", "test"] == 209
    assert counts["audio", "None"] == 18
    assert sum(n for (kind, _), n in counts.items() if kind == "audio") == 999
    assert counts["image", "train"] + counts["image", "validation"] + counts["image", "test"] == 5473
    paired = read_paired(root, size=32, seconds=2.0, classes=["helicopter", "cat"])
    assert paired.classes == ("cat", "helicopter")
    assert [sum(len(paired.items[m, s]) for s in SPLITS) for m in ("audio", "visual")] == [64, 373]
    clips = PairedDataset(paired, "test")
    assert len(clips) == 16
    assert all(clips.sample(i, 0).inputs["audio"].shape == (32000,) for i in range(len(clips)))


def test_real_av_mnist(shared: Path) -> None:
    root = shared / "data" / "av_mnist.tar"
    counts = count_splits(root)
    assert counts["audio", "test"] == 1000
    assert counts["image", "test"] == 2000
    assert counts["audio", "validation"] == 500
    assert ("audio", "None") not in counts
    paired = read_paired(root, size=28, seconds=1.0, classes=["7"])
    assert [sum(len(paired.items[m, s]) for s in SPLITS) for m in ("audio", "visual")] == [600, 1028]
    assert max(len(x) for s in SPLITS for x in paired.items["audio", s].media) <= 16000


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "path,kind,class,split,source\né.wav,audio,a,train,x\n".encode("latin-1"),
            "not UTF-8 text .*save it as UTF-8",
        ),
        ("path,kind,class,split,source\n".encode("utf-16"), "not UTF-8 text"),
        (b"path,kind,class,split,source\na.wav,audio\n", "line 2 has no class, split, source"),
        (b'path,kind,class,split,source\n"' + b"x" * 200_000 + b'",audio,a,train,x\n', "is not a table"),
    ],
)
def test_manifests_that_cannot_be_read_are_one_line(tmp_path, text, message):
    with pytest.raises(DataError, match=rf"manifest\.csv.*{message}") as caught:
        read_manifest(text, tmp_path)
    assert "\n" not in str(caught.value)


def test_a_byte_order_mark_is_no_part_of_a_manifest(tmp_path):
    (entry,) = read_manifest("\ufeffpath,kind,class,split,source\na.wav,audio,a,train,x\n".encode(), tmp_path)
    assert entry.id == "a.wav"


def test_a_share_thins_the_training_split_alone_and_grows_by_recordings(collection: Path) -> None:
    whole = read_paired(collection, size=8)
    half, more = (read_paired(collection, size=8, share=share) for share in (0.5, 0.75))
    for modality, kept in (("audio", 4), ("visual", 4)):
        names = [set(of.items[modality, "train"].names) for of in (half, more, whole)]
        assert names[0] < names[1] < names[2]
        assert len(names[0]) == kept  # two classes, two recordings (of four) or images (of five) each
        for split in ("validation", "test"):
            assert half.items[modality, split].names == whole.items[modality, split].names
    assert all(len(read_paired(collection, size=8, share=1e-6).items[m, "train"]) == 2 for m in ("audio", "visual"))
