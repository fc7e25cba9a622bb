"""Own videos from end to end: prepare a folder, train on it, with nothing else; also when there are few."""

import os
import subprocess
import sys
from pathlib import Path

import av
import numpy as np
import pytest

from equiav.data import World
from equiav.inference import load_model

pytestmark = pytest.mark.process
ROOT = Path(__file__).parents[2]
RECIPE = ROOT / "configs/pretrain/own_videos.yaml"
SMALL = ["model.encoder.size=micro", "model.heads.hidden=32", "visual.size=32", "audio.frames=64", "audio.bins=32"]


def write_video(path, frames, waveform, sample_rate, rate=10):
    """A generated clip as a real file."""
    with av.open(str(path), "w") as out:
        video = out.add_stream("mpeg4", rate=rate)
        video.width, video.height, video.pix_fmt = frames.shape[3], frames.shape[2], "yuv420p"
        sound = out.add_stream("aac", rate=sample_rate)
        sound.layout = "mono"
        for picture in frames.permute(0, 2, 3, 1).numpy():
            out.mux(video.encode(av.VideoFrame.from_ndarray(np.ascontiguousarray(picture), format="rgb24")))
        out.mux(video.encode(None))
        frame = av.AudioFrame.from_ndarray(waveform.numpy()[None], format="fltp", layout="mono")
        frame.sample_rate, frame.pts = sample_rate, 0
        out.mux(sound.encode(frame))
        out.mux(sound.encode(None))


def equiav(*arguments):
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "equiav.cli", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, env=environment)


@pytest.fixture(scope="module")
def prepared(tmp_path_factory):
    folder = tmp_path_factory.mktemp("videos")
    world = World(size=64, seconds=1.0)
    for i in range(24):
        write_video(folder / f"video {i}.mp4", world.video(i), world.waveform(i), world.sample_rate)
    (folder / "notes.mp4").write_text("not a video")
    out = tmp_path_factory.mktemp("data") / "mine"
    run = equiav("prepare", folder, out, "--workers", 2)
    assert run.returncode == 0, run.stderr
    assert "24 clips of 24 files; 1 files left out" in run.stdout
    return out


def test_few_clips_shrink_the_batch_and_say_so(prepared, tmp_path):
    run = equiav(
        "pretrain", RECIPE, f"data.path={prepared}", *SMALL, "train.epochs=2", "train.workers=2", "--out", tmp_path
    )
    assert run.returncode == 0, run.stderr
    assert "the batch shrinks to" in run.stderr
    assert "clips are few" in run.stderr
    loaded = load_model(tmp_path)
    assert loaded.config.audio.mean != -4.346  # that of the folder
    assert loaded.meta["step"] == loaded.meta["total"]
    again = equiav(
        "pretrain", RECIPE, f"data.path={prepared}", *SMALL, "train.epochs=2", "train.workers=2", "--out", tmp_path
    )
    assert again.returncode == 0, again.stderr


def test_balanced_and_apart(prepared, tmp_path):
    choices = ["data.one_per_source=true", "train.epochs=1", "train.workers=0"]
    run = equiav("pretrain", RECIPE, f"data.path={prepared}", *SMALL, *choices, "--out", tmp_path)
    assert run.returncode == 0, run.stderr


def test_damaged_shard_is_named(prepared, tmp_path):
    import shutil

    broken = tmp_path / "broken"
    shutil.copytree(prepared, broken)
    for shard in (broken / "shards").glob("train-*.tar"):
        content = bytearray(shard.read_bytes())
        content[len(content) // 4 : 3 * len(content) // 4] = bytes(len(content) // 2)
        shard.write_bytes(content)
    run = equiav(
        "pretrain",
        RECIPE,
        f"data.path={broken}",
        *SMALL,
        "train.epochs=1",
        "train.workers=0",
        "--out",
        tmp_path / "run",
    )
    assert run.returncode == 2
    assert "train-" in run.stderr
    assert "is damaged" in run.stderr
    assert "Traceback" not in run.stderr


def test_inspection(prepared, tmp_path):
    run = equiav("inspect", prepared, "--out", tmp_path / "page.html")
    assert run.returncode == 0, run.stderr
    assert "<audio" in (tmp_path / "page.html").read_text()
