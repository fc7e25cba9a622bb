"""Keys and values of the results.json that every `equiav evaluate` command, fine-tuning and the demo write.

The checkpoint has seeded random weights: what is pinned is the way from weights and data to figures.
"""

import csv
import json
from fractions import Fraction

import av
import numpy as np
import pytest
from matplotlib.figure import Figure
from PIL import Image

from tests.frozen import api2

SMOKE = api2.ROOT / "configs/finetune/smoke.yaml"
CLASSES = ("bell", "drum", "wind")
RATE = 16000

# Keys whose values depend on the day, the machine, the commit or the folder; that they are there is pinned.
VOLATILE = {
    "commit", "utc", "python", "torch", "equiav", "threads", "cpu", "cores", "processes",
    "seconds_of_training", "encoder_ms", "predictor_ms", "weights",
}  # fmt: skip


def without_volatile(record):
    """The record with the values of volatile keys left out."""
    if isinstance(record, dict):
        return {key: None if key in VOLATILE else without_volatile(value) for key, value in record.items()}
    return [without_volatile(value) for value in record] if isinstance(record, list) else record


def results(name, path):
    """Compares a results file with the frozen one."""
    record = without_volatile(json.loads(path.read_text()))
    api2.frozen(f"results_{name}.json", record, relative=1e-4, absolute=1e-5)


@pytest.fixture(autouse=True)
def figures_are_not_drawn(monkeypatch):
    """Drawing takes most of the time, and figures are not pinned here."""
    monkeypatch.setattr(Figure, "savefig", lambda self, to, **how: Image.new("RGB", (8, 8)).save(to, format="png"))


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    # A world in which validation chooses well-conditioned probes: others hang on the last bit of the features.
    sizes = ("data.count=90", "data.validation=40", "data.test=20", "data.seed=8")
    return api2.save_checkpoint(tmp_path_factory.mktemp("model") / "model", "pretrain/smoke.yaml", *sizes)


@pytest.fixture(scope="module")
def classifier(model, tmp_path_factory):
    """A run of `equiav finetune` with two steps."""
    out = tmp_path_factory.mktemp("finetune") / "run"
    api2.run("finetune", SMOKE, f"weights={model}", "train.steps=2", "train.evaluate_every=1", "--out", out)
    return out


def sound(number, seconds=1.0):
    """A tone whose height is told by the class, its overtones and beats by the number."""
    time = np.arange(round(seconds * RATE)) / RATE
    hertz = 300 * (1 + number % 3) + 11 * number
    tone = np.sin(2 * np.pi * hertz * time) + 0.4 * np.sin(2 * np.pi * hertz * (1.5 + number / 9) * time)
    return np.round(9000 * tone * (0.6 + 0.4 * np.cos(2 * np.pi * (2 + number % 5) * time))).astype(np.int16)


def picture(number, at=0):
    """A coloured block on a ramp; block and colour are told by the number, its place also by the time."""
    ramp = np.linspace(20, 120 + 5 * number, 64)[:, None, None] * np.array([1.0, 0.8, 0.6])
    frame = np.broadcast_to(ramp, (64, 64, 3)).astype(np.uint8)
    left, top = 4 + 3 * number % 30 + at, 6 + 7 * number % 40
    frame[top : top + 16, left : left + 16] = [(200, 40, 60 + number)[(number + c) % 3] for c in range(3)]
    return np.ascontiguousarray(frame), [left / 64, top / 64, (left + 16) / 64, (top + 16) / 64]


def write_video(path, number):
    """One second without loss: ten frames and the sound."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with av.open(str(path), "w") as container:
        film = container.add_stream("ffv1", rate=10, options={"slices": "4"})
        film.width, film.height, film.pix_fmt = 64, 64, "bgr0"
        track = container.add_stream("pcm_s16le", rate=RATE, layout="mono")
        for at in range(10):
            frame = av.VideoFrame.from_ndarray(picture(number, at)[0], format="rgb24")
            frame.pts, frame.time_base = at, Fraction(1, 10)
            container.mux(film.encode(frame))
        container.mux(film.encode(None))
        piece = av.AudioFrame.from_ndarray(sound(number)[None], format="s16", layout="mono")
        piece.sample_rate, piece.time_base, piece.pts = RATE, Fraction(1, RATE), 0
        container.mux(track.encode(piece))
        container.mux(track.encode(None))


@pytest.fixture(scope="module")
def videos(tmp_path_factory):
    """Eighteen prepared videos with one label, a fold and a box each; and a published list of some of them."""
    folder = tmp_path_factory.mktemp("videos")
    with (folder / "table.csv").open("w", newline="") as file:
        table = csv.writer(file)
        table.writerow(["path", "name", "label", "split", "fold", "boxes"])
        for i in range(18):
            write_video(folder / "media" / f"{i:02d}.mkv", i)
            split = "train" if i < 9 else "validation" if i < 12 else "test"
            row = [f"media/{i:02d}.mkv", f"v{i:02d}", CLASSES[i % 3], split, 1 + i % 2, json.dumps([picture(i, 5)[1]])]
            table.writerow(row)
    api2.run("prepare", folder / "table.csv", folder / "prepared", "--workers", 1, "--seconds", 1)
    (folder / "list.json").write_text(json.dumps({"data": [{"video_id": f"v{i:02d}"} for i in (17, 13, 15, 99)]}))
    return folder


@pytest.fixture(scope="module")
def collection(tmp_path_factory):
    """Sounds and images that only classes pair."""
    folder = tmp_path_factory.mktemp("paired") / "collection"
    rows = [("path", "kind", "class", "split", "source", "licence", "duration_s")]
    for i in range(24):
        (folder / "audio").mkdir(parents=True, exist_ok=True)
        (folder / "images").mkdir(exist_ok=True)
        with av.open(str(folder / f"audio/{i:02d}.wav"), "w") as container:
            track = container.add_stream("pcm_s16le", rate=RATE, layout="mono")
            piece = av.AudioFrame.from_ndarray(sound(i, 0.7)[None], format="s16", layout="mono")
            piece.sample_rate, piece.time_base, piece.pts = RATE, Fraction(1, RATE), 0
            container.mux(track.encode(piece))
            container.mux(track.encode(None))
        Image.fromarray(picture(i)[0]).save(folder / f"images/{i:02d}.png")
        split, name = "test" if i < 9 else "train", CLASSES[i % 3]
        rows.append((f"audio/{i:02d}.wav", "audio", name, split, f"AudioMNIST data/{i:02d}/{i}.wav", "MIT", "0.7"))
        rows.append((f"images/{i:02d}.png", "image", name, split, f"made {i}", "CC0", ""))
    with (folder / "manifest.csv").open("w", newline="") as file:
        csv.writer(file).writerows(rows)
    return folder


def test_cost(tmp_path):
    api2.run("evaluate", "cost", api2.ROOT / "configs/pretrain/smoke.yaml", "--repeats", 0, "--out", tmp_path / "smoke")
    results("cost_smoke", tmp_path / "smoke")
    api2.run("evaluate", "cost", "--repeats", 0, "--out", tmp_path / "base")
    results("cost_base", tmp_path / "base")


def test_retrieval(model):
    api2.run("evaluate", "retrieval", model, "--banks", 2)
    results("retrieval", model / "evaluation/retrieval/results.json")


def test_retrieval_with_all_frames(model, tmp_path):
    options = ("--banks", 0, "--all-frames", "--split", "validation", "--out", tmp_path)
    api2.run("evaluate", "retrieval", model, *options)
    results("retrieval_all_frames", tmp_path / "results.json")


def test_retrieval_among_listed_videos(model, videos, tmp_path):
    options = ("--data", videos / "prepared", "--list", videos / "list.json", "--banks", 1, "--out", tmp_path)
    api2.run("evaluate", "retrieval", model, *options)
    results("retrieval_listed", tmp_path / "results.json")


def test_retrieval_by_class(model, collection, tmp_path):
    api2.run("evaluate", "retrieval", model, "--data", collection, "--banks", 1, "--out", tmp_path)
    results("retrieval_by_class", tmp_path / "results.json")


def test_probe(model):
    api2.run("evaluate", "probe", model)
    results("probe", model / "evaluation/probe/results.json")


def test_probe_of_one_class_each(model, collection, tmp_path):
    api2.run("evaluate", "probe", model, "--data", collection, "--out", tmp_path)
    results("probe_one_class", tmp_path / "results.json")


def test_equivariance(model):
    api2.run("evaluate", "equivariance", model, "--count", 4)
    results("equivariance", model / "evaluation/equivariance/results.json")


@pytest.mark.parametrize("method", ["blend", "removal", "centroid", "projection", "attention"])
def test_localisation(model, method, tmp_path):
    api2.run("evaluate", "localisation", model, "--method", method, "--out", tmp_path)
    results(f"localisation_{method}", tmp_path / "results.json")


def test_localisation_on_boxes_of_videos(model, videos, tmp_path):
    api2.run("evaluate", "localisation", model, "--data", videos / "prepared", "--seed", 3, "--out", tmp_path)
    results("localisation_videos", tmp_path / "results.json")


def test_finetuning(classifier):
    results("finetune", classifier / "results.json")


def test_classification(classifier):
    api2.run("evaluate", "classification", classifier, "--split", "validation", "--all-frames")
    results("classification", classifier / "evaluation/classification/results.json")


def test_finetuning_over_folds(videos, tmp_path):
    data = f"data={{kind: shards, path: {videos / 'prepared'}}}"
    few = ("classifier.mode=audio", "finetune.loss=ce", "finetune.metric=accuracy", "train.steps=2", "train.batch=4")
    api2.run("finetune", SMOKE, data, *few, "--folds", "--out", tmp_path)
    results("finetune_folds", tmp_path / "results.json")
    results("finetune_fold1", tmp_path / "fold1/results.json")


def test_demo(tmp_path, monkeypatch):
    sizes = ("data.count=24", "data.validation=12", "data.test=12", "train.batch=8", "train.steps=2", "bank.size=8")
    small = ("model.encoder={size: null, width: 32, depth: 1, heads: 4}", "audio.frames=64", "audio.bins=32")
    api2.demo(tmp_path, (*sizes, *small, "visual.size=32", "train.evaluate_every=2"), monkeypatch)
    results("demo", tmp_path / "results.json")


def test_localise(model, videos, tmp_path):
    """What the overlays look like, block by block, and which files there are."""
    api2.run("localise", model, videos / "media/03.mkv", "--frames", 2, "--nearest", "--out", tmp_path)
    found = {}
    for path in sorted(tmp_path.iterdir()):
        if path.suffix != ".png":
            found[path.name] = None
            continue
        image = Image.open(path).convert("RGB")
        blocks = np.asarray(image.resize((4, 4), Image.Resampling.BOX)).astype(float).mean(axis=2)
        found[path.name] = {"size": image.size, "brightness": blocks.tolist()}
    api2.frozen("results_localise.json", found, absolute=1.0)
