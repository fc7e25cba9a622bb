"""The folder of somebody who reads the pages: small stand-ins for what they name, under those names."""

from __future__ import annotations

import csv
import shutil
import tarfile
from pathlib import Path

import numpy as np
import torch
from PIL import Image

from equiav.build import build_model
from equiav.checkpoint import save_model
from equiav.data import World, split_of
from equiav.models import CavMae, CavMaeSizes, write_cavmae
from equiav.web import write_film
from tests.data.test_readers import MINIATURES, media_of
from tests.docs.blocks import ROOT, blocks
from tests.media.making import sine, write_media
from tests.paper import golden_recipe
from tests.training.small import small_config

RELEASED = {"embed_dim": 64, "modality_specific_depth": 1, "num_heads": 1, "proj_hidden_dim": 96,
            "inter_proj_out_dim": 32, "intra_proj_out_dim": 48, "aug_emb_dim": 40, "img_size": 64,
            "audio_length": 128}  # fmt: skip
# Where the pages say that published sets lie, and which they are.
PUBLISHED = {
    "data/VGGSound": "vggsound", "datasets/vggsound": "vggsound", "datasets/audioset": "audioset-2m",
    "datasets/msrvtt": "msrvtt",
}  # fmt: skip


def furnish(place: Path) -> None:
    """Configs and results as they are; models, videos, sounds, pictures, foreign weights, published sets: small."""
    (place / "configs").symlink_to(ROOT / "configs")
    shutil.copytree(ROOT / "results", place / "results")
    models(place)
    world = World(size=64, seconds=2.0)
    videos(place, world)
    write_media(place / "bark.wav", video=False, sound=sine(2.0, 16_000), codecs=("", "pcm_s16le"))
    picture(world, 21, place / "dog.jpg")
    collection(place / "class_paired_train.tar", world, place / "class_paired")
    for root, name in PUBLISHED.items():
        published(place / "root" / root, name, world)
    esc50(place / "root/data/ESC-50-master")
    loss = next(block for block in blocks(ROOT / "docs/how-to/extend.md") if block.kind == "python")
    (place / "mine.py").write_text(loss.text)


def models(place: Path) -> None:
    """One small model in place of every trained one, and a file in the released format."""
    config = small_config("data.test=8", "data.validation=8")
    for name, kind in {"runs/demo": "pretrained", "runs/audioset2m": "pretrained", "weights/mae": "mae"}.items():
        save_model(place / name, config, dict(build_model(config).state_dict()), {"kind": kind})
    released = golden_recipe.state(golden_recipe.pretrain_shapes(RELEASED), RELEASED, 0.15)
    torch.save(released, place / "equiav_released.pth")
    sizes = CavMaeSizes(
        width=64, depth=1, decoder_width=32, decoder_depth=1, heads=1, decoder_heads=1, frames=64, image=32
    )
    torch.save(write_cavmae(CavMae(sizes).state_dict()), place / "audio_model.25.pth")


def videos(place: Path, world: World) -> None:
    """Six files that fall into training and two that fall into validation, and a table of them."""
    every = [f"video {number}.mp4" for number in range(100)]
    names = [n for n in every if split_of(n) == "train"][:6] + [n for n in every if split_of(n) == "validation"][:2]
    (place / "my_videos").mkdir()
    for number, name in enumerate(names):
        film(world, number, place / "my_videos" / name)
    (place / "videos.csv").write_text("\n".join(["path", *(f"my_videos/{name}" for name in names)]))
    film(world, 20, place / "my_video.mp4")


def film(world: World, number: int, path: Path) -> None:
    pictures = world.video(number).permute(0, 2, 3, 1).numpy()
    write_film(path, pictures, world.waveform(number).numpy(), rate=world.sample_rate, seconds=world.seconds)


def picture(world: World, number: int, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(np.ascontiguousarray(world.video(number)[0].permute(1, 2, 0).numpy())).save(path)


def collection(tar: Path, world: World, scratch: Path) -> None:
    """Sounds and pictures of two classes with their manifest."""
    rows = [("path", "kind", "class", "split", "source")]
    for number in range(24):
        label, split = f"class{number % 2}", "test" if number < 4 else "train"
        sound, shown = f"audio/{number}.wav", f"images/{number}.png"
        tone = sine(0.5, 16_000, 200.0 + 20 * number)
        write_media(scratch / sound, video=False, sound=tone, codecs=("", "pcm_s16le"))
        picture(world, number, scratch / shown)
        rows += [(sound, "audio", label, split, "made"), (shown, "image", label, split, "made")]
    with (scratch / "manifest.csv").open("w", newline="") as file:
        csv.writer(file).writerows(rows)
    with tarfile.open(tar, "w") as archive:
        archive.add(scratch, arcname=scratch.name)
    shutil.rmtree(scratch)


def published(root: Path, name: str, world: World) -> None:
    """A published set in miniature, with a film in place of each of its media."""
    MINIATURES[name](root)
    for number, path in enumerate(media_of(root)):
        path.unlink()
        film(world, number, path.with_suffix(".mp4"))


def esc50(root: Path) -> None:
    """Two folds of eight sounds: what `--folds` needs at the least."""
    rows = ["filename,fold,target,category,esc10,src_file,take"]
    for number in range(16):
        fold, target = 1 + number % 2, number // 2 % 2
        name = f"{fold}-{number}-A-{target}.wav"
        tone = sine(1.0, 16_000, 200.0 + 20 * number)
        write_media(root / "audio" / name, video=False, sound=tone, codecs=("", "pcm_s16le"))
        rows.append(f"{name},{fold},{target},class{target},True,{number},A")
    (root / "meta").mkdir()
    (root / "meta/esc50.csv").write_text("\n".join(rows))
