"""`equiav localise`: overlays for a file or a folder of videos, and one page of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from equiav.data import Source, find_sources
from equiav.errors import DataError, EquiAVError
from equiav.evaluation import (
    REPORT,
    Method,
    clip_cells,
    localise,
    method_of,
    overlay,
    representative,
    representative_cells,
)
from equiav.files import write_whole
from equiav.inference import LoadedModel, load_model
from equiav.media import HOP_SECONDS, decode, square
from equiav.progress import Countdown
from equiav.report import Page, picture_png, player, row
from equiav.types import DecodedClip

Skipped = list[tuple[Path, str]]


def localise_files(
    model: Path,
    source: Path,
    out: Path,
    *,
    audio: Path | None = None,
    frames: int = 3,
    nearest: bool = False,
    method: Method | None = None,
    seed: int = 0,
    say: Callable[[str], None] = lambda line: None,
) -> tuple[int, Skipped]:
    """Writes overlays as PNG files and a page of them; returns how many clips were done and what was skipped."""
    loaded = load_model(model)
    method = method_of(loaded, method)
    seconds = loaded.config.audio.frames * HOP_SECONDS
    other = _read(loaded, audio, frames, seconds).waveform if audio else None
    if audio and other is None:
        raise DataError(f"{audio}: has no sound")
    paths = {source.stem: source} if source.is_file() else named_apart(find_sources(source))
    page = Page("Where the sound comes from")
    page.text(f"Method: {method}. Each picture beside its map; dark is cold, yellow is hot.", note=True)
    skipped: Skipped = []
    countdown = Countdown(len(paths), say, "localising files")
    for number, (name, path) in enumerate(paths.items(), 1):
        try:
            clip = _read(loaded, path, frames, seconds)
            rows = _clip(loaded, clip, other, out / name, method=method, nearest=nearest, seed=seed)
            page.heading(path.name if source.is_file() else str(path.relative_to(source))).add(*rows)
        except EquiAVError as error:
            if source.is_file():
                raise
            skipped.append((path, str(error).removeprefix(f"{path}: ")))
        countdown.update(number)
    if len(skipped) == len(paths):
        raise DataError(f"{source}: none of its {len(paths)} files can be used; {skipped[0][0]}: {skipped[0][1]}")
    page.write(out / REPORT)
    return len(paths) - len(skipped), skipped


def named_apart(sources: Sequence[Source]) -> dict[str, Path]:
    """Each file under a name of its own for what is written: its path in the folder, as one word."""
    named: dict[str, Path] = {}
    for source in sources:
        name = whole = "-".join(Path(source.name).with_suffix("").parts)
        number = 1
        while name in named:
            number += 1
            name = f"{whole} ({number})"
        named[name] = source.path
    return named


def _read(loaded: LoadedModel, path: Path, frames: int, seconds: float) -> DecodedClip:
    return decode(path, sample_rate=loaded.config.audio.sample_rate, frames=frames, seconds=seconds)


def _clip(
    loaded: LoadedModel, clip: DecodedClip, other: Tensor | None, out: Path, *, method: Method, nearest: bool, seed: int
) -> list[str]:
    """The rows of one clip on the page; its overlays are written on the way, `out` with a number behind it."""
    sound = clip.waveform if other is None else other
    if clip.frames is None:
        raise DataError(f"{clip.name}: has no picture to look at")
    if sound is None:
        raise DataError(f"{clip.name}: has no sound to look for; give one with --audio")
    maps, squares = localise(loaded, sound, clip.frames, method)
    for k, (picture, heat) in enumerate(zip(squares, maps, strict=True)):
        write_whole(out.with_name(f"{out.name}-{k}.png"), picture_png(overlay(picture, heat)))
    rows = [row([player(sound.numpy(), clip.sample_rate), *clip_cells(squares, maps)])]
    if nearest:
        rows.append(row(representative_cells(_nearest(loaded, clip.frames, sound, seed=seed, method=method))))
    return rows


@torch.inference_mode()
def _nearest(loaded: LoadedModel, frames: Tensor, sound: Tensor, **how: Any) -> Any:
    z_a = loaded.embed_spectrograms(loaded.spectrograms(sound[None]))[0]
    middle = square(frames[len(frames) // 2][None], loaded.config.visual.size)[0]
    return representative(loaded, middle, z_a, **how)
