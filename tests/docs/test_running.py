"""The pages' Python and their cheap commands, really run: in order, page by page, on small media and a small model."""

from __future__ import annotations

import contextlib
import io
import re
import shlex
import shutil
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from equiav.build import build_model
from equiav.cli import app
from equiav.data.manifest import split_of
from equiav.data.world import World
from equiav.inference import save_model
from equiav.web.scenes import write_film
from tests.docs.blocks import ROOT, Block, blocks, pages
from tests.media.making import sine, write_media
from tests.training.small import small_config

pytestmark = pytest.mark.process

SIZE = ["audio.frames=64", "audio.bins=32", "visual.size=32", "train.epochs=null", "train.steps=2", "train.workers=0"]
# What the test adds to a command so that it ends in seconds; the reader's command is the one on the page.
SMALLER = {
    "pretrain": [*SIZE, "train.batch=4", "model.encoder.size=micro", "model.heads.hidden=32", "bank.size=8"],
    "finetune": [
        *SIZE, "train.batch=8", "visual.patch=8", "data.count=24", "data.used=24", "data.validation=8", "data.test=8",
        "data.seconds=0.7", "model.encoder.size=null", "model.encoder.width=32", "model.encoder.depth=2",
        "model.encoder.heads=4",
    ],
}  # fmt: skip
RUNNING = [page for page in pages() if any(block.kind in ("python", "run") for block in blocks(page))]


@pytest.fixture(scope="module")
def furnished(tmp_path_factory) -> Path:
    """What the pages take for granted: configs, a trained model, videos, a sound, a picture."""
    place = tmp_path_factory.mktemp("reader")
    (place / "configs").symlink_to(ROOT / "configs")
    config = small_config("data.test=8", "data.validation=8")
    save_model(place / "runs/demo", config, dict(build_model(config).state_dict()), {"kind": "pretrained"})
    (place / "my_videos").mkdir()
    world = World(size=64, seconds=2.0)
    for number, name in enumerate(names()):
        film(world, number, place / "my_videos" / name)
    film(world, 20, place / "my_video.mp4")
    write_media(place / "bark.wav", video=False, sound=sine(2.0, 16_000), codecs=("", "pcm_s16le"))
    Image.fromarray(np.ascontiguousarray(world.pictures(21)[0].permute(1, 2, 0).numpy())).save(place / "dog.jpg")
    return place


def names() -> list[str]:
    """Six files that fall into training and two that fall into validation."""
    every = [f"video {number}.mp4" for number in range(100)]
    return [n for n in every if split_of(n) == "train"][:6] + [n for n in every if split_of(n) == "validation"][:2]


def film(world: World, number: int, path: Path) -> None:
    pictures = world.pictures(number).permute(0, 2, 3, 1).numpy()
    write_film(path, pictures, world.waveform(number).numpy(), rate=world.sample_rate, seconds=world.seconds)


@pytest.mark.parametrize("page", RUNNING, ids=lambda page: page.name)
def test_page(page, furnished, tmp_path, monkeypatch):
    place = tmp_path / "reader"
    shutil.copytree(furnished, place, symlinks=True)
    monkeypatch.chdir(place)
    session: dict[str, object] = {}
    printed = ""
    for block in blocks(page):
        if block.kind == "output":
            assert alike(block.text) == alike(printed), f"{block}: says\n{block.text}\nbut it prints\n{printed}"
        elif block.kind in ("python", "run"):
            printed = done(block, session)


def done(block: Block, session: dict[str, object]) -> str:
    """What a block prints."""
    heard = io.StringIO()
    with contextlib.redirect_stdout(heard):
        if block.kind == "python":
            exec(compile(block.text, str(block), "exec"), session)
        else:
            for command in block.commands():
                started(shlex.split(command))
    return heard.getvalue()


def started(words: list[str]) -> None:
    assert words[0] == "equiav", f"{words}: only our own commands are run"
    app([*words[1:], *SMALLER.get(words[1], ())], standalone_mode=False)


def alike(text: str) -> str:
    """Text without its figures and spacing: models differ, forms must not."""
    return " ".join(re.sub(r"-?\d+(\.\d*)?", "0", re.sub(r"([\[\]])", r" \1 ", text)).split())


def test_alike_is_strict_about_words():
    assert alike("(2, 128) float32\n[[ 0.13 -0.2]]") == alike("(2, 32) float32\n[[-0.5  1. ]]")
    assert alike("1 added") != alike("1 removed")


def test_pages_that_run():
    assert len(RUNNING) >= 7
