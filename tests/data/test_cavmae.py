"""CAV-MAE's data files read in place: sounds, frames, labels, weights."""

import json
import wave
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from equiav.data import (
    CavMaeDataset,
    Dataset,
    Schedule,
    balanced_weights,
    evaluation_batches,
    labels_of,
    multi_hot,
    read_cavmae,
    read_vocabulary,
    read_weights,
    training_batches,
)
from equiav.errors import DataError, MediaError

LABELS = ["/m/a", "/m/a,/m/b", "/m/b", "/m/a"]
FRAMES = 3


def write_sound(path: Path, samples: np.ndarray, rate: int) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with wave.open(str(path), "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(rate)
        file.writeframes(samples.astype("<i2").tobytes())


@pytest.fixture
def data_file(tmp_path: Path) -> Path:
    """Four clips: sound i holds 1000 (i + 1) throughout, its frame k the grey 40 i + 10 k; paths are relative."""
    entries = []
    for i, labels in enumerate(LABELS):
        name = f"clip_{i}"
        write_sound(tmp_path / "audio" / f"{name}.wav", np.full(8000 * (i + 1), 1000 * (i + 1)), 16000)
        for k in range(FRAMES):
            path = tmp_path / "frames" / f"frame_{k}" / f"{name}.jpg"
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.new("RGB", (24, 16), (40 * i + 10 * k,) * 3).save(path, quality=100)
        entries.append({"video_id": name, "wav": f"audio/{name}.wav", "video_path": "frames/", "labels": labels})
    path = tmp_path / "train.json"
    path.write_text(json.dumps({"data": entries}))
    return path


def dataset(data_file: Path, **changes: object) -> CavMaeDataset:
    return CavMaeDataset(read_cavmae(data_file), size=8, frames=FRAMES, **changes)  # type: ignore[arg-type]


def test_samples(data_file: Path) -> None:
    clips = dataset(data_file, seconds=1.5)
    assert isinstance(clips, Dataset)
    assert (len(clips), clips.frames) == (4, FRAMES)
    for i in range(4):
        for k in range(FRAMES):
            sample = clips.sample(i, k)
            assert sample.id == clips.clip(i).id == f"clip_{i}"
            assert sample.inputs["audio"].shape == (min(8000 * (i + 1), 24000),)
            assert sample.inputs["audio"].dtype == torch.float32
            assert torch.allclose(sample.inputs["audio"], torch.tensor(1000 * (i + 1) / 32768), atol=1e-4)
            assert sample.inputs["visual"].shape == (3, 8, 8)
            assert sample.inputs["visual"].dtype == torch.uint8
            assert (sample.inputs["visual"].int() - (40 * i + 10 * k)).abs().max() <= 1
    assert clips.labels(1) == ("/m/a", "/m/b")


def test_other_rates_are_resampled(data_file: Path) -> None:
    write_sound(data_file.parent / "audio" / "clip_0.wav", np.zeros(44100), 44100)
    assert abs(len(dataset(data_file).sample(0, 0).inputs["audio"]) - 16000) <= 1


def test_root_replaces_the_folder_of_the_file(data_file: Path, tmp_path: Path) -> None:
    moved = tmp_path / "lists" / "train.json"
    moved.parent.mkdir()
    data_file.rename(moved)
    clips = CavMaeDataset(read_cavmae(moved, root=tmp_path), size=8)
    assert clips.sample(0, 0).id == "clip_0"
    with pytest.raises(DataError, match=r"clip_0: its audio .*lists/audio/clip_0\.wav is missing"):
        dataset(moved).sample(0, 0)


def test_loader_reads_it(data_file: Path) -> None:
    clips = dataset(data_file)
    schedule = Schedule(len(clips), clips.frames, batch=2, seed=0)
    (first, second) = training_batches(clips, schedule, start=0, stop=2, rank=0, world_size=1, workers=0)
    assert {*first.ids, *second.ids} == {f"clip_{i}" for i in range(4)}
    (batch,) = evaluation_batches(clips, batch=4)
    assert batch.lengths["audio"].tolist() == [8000, 16000, 24000, 32000]


def test_missing_frame(data_file: Path) -> None:
    (data_file.parent / "frames" / "frame_2" / "clip_1.jpg").unlink()
    with pytest.raises(DataError, match=r"clip_1: frame 2 is missing \(.*frame_2/clip_1\.jpg\)"):
        dataset(data_file).sample(1, 2)
    clips = dataset(data_file, fallback=True)
    assert torch.equal(clips.sample(1, 2).inputs["visual"], clips.sample(1, 1).inputs["visual"])
    assert clips.fallbacks == {"clip_1": 1}
    for k in (0, 1):
        (data_file.parent / "frames" / f"frame_{k}" / "clip_1.jpg").unlink()
    with pytest.raises(DataError, match="clip_1: frame 2 is missing and so are all before it"):
        clips.sample(1, 2)


def test_broken_media(data_file: Path) -> None:
    (data_file.parent / "frames" / "frame_0" / "clip_0.jpg").write_text("no picture")
    with pytest.raises(MediaError, match=r"frame_0/clip_0\.jpg: cannot be read as an image"):
        dataset(data_file).sample(0, 0)
    (data_file.parent / "audio" / "clip_0.wav").write_text("no sound")
    with pytest.raises(MediaError, match=r"clip_0\.wav: "):
        dataset(data_file).sample(0, 1)


def test_boxes_and_targets(data_file: Path) -> None:
    content = json.loads(data_file.read_text())
    content["data"][1]["boxes"] = [[0.0, 0.0, 0.5, 1.0]]
    data_file.write_text(json.dumps(content))
    clips = dataset(data_file)
    assert clips.clip(1).boxes == ((0.0, 0.0, 0.5, 1.0),)
    # 24 x 16 is cut to its middle 16 x 16: the left half of the frame is the left half of the square.
    assert clips.boxes(1, 0).tolist() == [[0.0, 0.0, 4.0, 8.0]]
    assert len(clips.boxes(0, 0)) == 0
    assert multi_hot(labels_of(clips), ("/m/b", "/m/a")).tolist() == [[0, 1], [1, 1], [1, 0], [0, 1]]
    content["data"][1]["boxes"] = [[0.0, 1.0]]
    data_file.write_text(json.dumps(content))
    with pytest.raises(DataError, match="clip_1: boxes are lists of x0, y0, x1, y1"):
        read_cavmae(data_file)


def test_class_weights(data_file: Path, tmp_path: Path) -> None:
    labels = [entry.labels for entry in read_cavmae(data_file)]
    a, b = 1000 / 3.01, 1000 / 2.01
    expected = torch.tensor([a, a + b, b, a], dtype=torch.float64)
    torch.testing.assert_close(balanced_weights(labels), expected)
    path = tmp_path / "train_weight.csv"
    path.write_text("".join(f"{w}\n" for w in expected.tolist()))
    torch.testing.assert_close(read_weights(path, clips=4), expected)
    with pytest.raises(DataError, match=r"train_weight\.csv: 4 weights for 5 clips"):
        read_weights(path, clips=5)
    path.write_text("one\n")
    with pytest.raises(DataError, match="not a file of one number per line"):
        read_weights(path, clips=1)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{", "cannot be read as JSON"),
        ('{"data": []}', "lists no clips"),
        ('{"data": [{"video_id": "a"}]}', "records with video_id, wav, video_path, labels"),
        ("[]", r'expected \{"data": \[\.\.\.\]\} of records'),
    ],
)
def test_bad_files(tmp_path: Path, content: str, message: str) -> None:
    (tmp_path / "data.json").write_text(content)
    with pytest.raises(DataError, match=message):
        read_cavmae(tmp_path / "data.json")


def test_repeated_ids(data_file: Path) -> None:
    entries = json.loads(data_file.read_text())["data"]
    data_file.write_text(json.dumps({"data": [*entries, entries[2]]}))
    with pytest.raises(DataError, match="1 video_ids stand there more than once, first clip_2"):
        read_cavmae(data_file)


def test_real_lists(shared: Path) -> None:
    audio = read_cavmae(shared / "annotations" / "audioset" / "cavmae_sample_json_as.json")
    vocabulary = read_vocabulary(shared / "annotations" / "audioset" / "class_labels_indices.csv")
    targets = multi_hot(labels_of(CavMaeDataset(audio, size=224)), tuple(vocabulary))
    assert targets.shape == (1725, 527)
    assert int((targets.sum(dim=0) > 0).sum()) == 524
    assert float(targets.sum(dim=1).mean()) == pytest.approx(2.57, abs=0.005)
    vgg = read_cavmae(shared / "annotations" / "retrieval" / "vgg_test_5_per_class_for_retrieval_template.json")
    classes = read_vocabulary(shared / "annotations" / "retrieval" / "class_labels_indices_vgg.csv")
    targets = multi_hot(labels_of(CavMaeDataset(vgg, size=224)), tuple(classes))
    assert targets.sum(dim=0).tolist() == [5.0] * 309


def test_a_recipe_reads_it(data_file: Path, tmp_path: Path) -> None:
    """From JSON and weight file to a schedule, by configuration alone."""
    from equiav.build import build_dataset, build_schedule, present_splits
    from equiav.config import parse_config

    count = len(read_cavmae(data_file))
    weights = tmp_path / "weights.csv"
    weights.write_text("".join(f"{i + 1}.0\n" for i in range(count)))
    recipe = {
        "data": {"kind": "cavmae", "train": str(data_file), "validation": str(data_file), "weights": str(weights)},
        "train": {"batch": 1, "steps": 1},
        "visual": {"size": 32},
    }
    config = parse_config(recipe, "recipe")
    with pytest.raises(DataError, match=r"data\.test: this recipe names no test file"):
        build_dataset(config, "test")
    assert present_splits(config) == {"train", "validation"}
    clips = build_dataset(config, "train")
    schedule = build_schedule(config, clips)
    assert len(clips) == count
    assert schedule.weights is not None
    assert schedule.weights.tolist() == [i + 1.0 for i in range(count)]
    assert len(schedule.order(0)) == count
