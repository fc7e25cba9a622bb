"""A collection to show right after the demo: held-out scenes of the generated world as small films, indexed."""

from __future__ import annotations

import dataclasses
import os
import shutil
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from equiav.build import build_dataset
from equiav.data import WorldDataset
from equiav.errors import EquiAVError
from equiav.inference import Embedder
from equiav.io import Progress
from equiav.media import write_video
from equiav.search import Entry, Index
from equiav.types import Clip

SCENES = 96
SIDE = 192  # drawn larger than the model sees them: for people
FOLDER, FILMS, INDEX = "page", "scenes", "index"


def demo_index(run: Path, embedder: Embedder, say: Callable[[str], None] = lambda line: None) -> Path:
    """The index of a run's held-out scenes, made once and kept in the run's folder."""
    clips = _scenes(run, embedder)
    home = (run / FOLDER / embedder.digest[:16]).absolute()
    if not home.is_dir():
        draft = home.with_name(f".{home.name}.{os.getpid()}.tmp")
        try:
            (draft / FILMS).mkdir(parents=True)
            _fill(clips, embedder, draft, home, run, say)
            draft.rename(home)
        except OSError as error:
            raise EquiAVError(f"{home}: cannot be written ({error.strerror or error})") from error
        finally:
            shutil.rmtree(draft, ignore_errors=True)
    return home / INDEX


def _scenes(run: Path, embedder: Embedder) -> WorldDataset:
    config = embedder.model.config
    if config.data.kind != "world":
        raise EquiAVError(f"{run}: a model, not an index; make one with: equiav index YOUR_CLIPS OUT --model {run}")
    clips = build_dataset(config, "test")
    assert isinstance(clips, WorldDataset)
    return WorldDataset(dataclasses.replace(clips.world, size=SIDE), clips.start, min(len(clips), SCENES))


def _fill(
    clips: WorldDataset, embedder: Embedder, draft: Path, home: Path, run: Path, say: Callable[[str], None]
) -> None:
    """Films and their index; entries name the films where they will lie."""
    index = Index.create(draft / INDEX, embedder.model, model_path=run)
    entries, progress = [], Progress(len(clips), say, "scenes made")
    for number in range(len(clips)):
        film = write_scene(clips, number, draft / FILMS)
        seen = next(iter(embedder.windows(film)))
        labels = tuple(clips.scene(number).labels)
        clip = Clip(film.stem, film.name, home / FILMS / film.name, seen.start, seen.end - seen.start, labels)
        vectors = {s: v for s, v in (("audio", seen.audio), ("visual", seen.visual)) if v is not None}
        entries.append(Entry(clip, vectors, seen.picture))
        progress.update(number + 1)
    index.add(entries, made_by=embedder.digest)
    index.close()


def write_scene(clips: WorldDataset, number: int, folder: Path) -> Path:
    """One scene as a film with its sound, named by its number and what sounds in it."""
    world, index = clips.world, clips.start + number
    labels = "-".join(clips.scene(number).labels)
    path = folder / f"scene-{number:03d}-{labels}.mp4"
    pictures = world.video(index).permute(0, 2, 3, 1).numpy()
    write_film(path, pictures, world.waveform(index).numpy(), rate=world.sample_rate, seconds=world.seconds)
    return path


def write_film(
    path: Path, pictures: NDArray[np.uint8], waveform: NDArray[np.float32], *, rate: int, seconds: float
) -> None:
    """Pictures (K, H, W, 3) spread over `seconds`, with mono sound: H.264 and AAC, which every browser plays."""
    fps = Fraction(len(pictures) / seconds).limit_denominator(1000)
    write_video(path, pictures, waveform, rate=rate, fps=fps, crf=18)
