"""Where in a frame is what a text names: heat maps of videos and images, as `equiav localise` makes them for audio."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float, UInt8
from torch import Tensor

from equiav.data import IMAGE_SUFFIXES, SUFFIXES, find_sources
from equiav.errors import DataError, EquiAVError
from equiav.evaluation.base import Report, Results, pixels, silent
from equiav.evaluation.localisation import Method, heat_maps, method_of, scale_of
from equiav.inference import Embedder, LoadedModel, frames_of
from equiav.io import Progress, write_whole
from equiav.media import square
from equiav.report import image_png, whole_overlay


def localise_text(
    model: LoadedModel,
    vector: Any,
    frames: UInt8[Tensor, "n 3 h w"],
    method: Method | None = None,
) -> tuple[Float[Tensor, "n side side"], UInt8[Tensor, "n 3 side side"]]:
    """Maps for decoded frames and the vector of a text, and the squares that they lie on."""
    squares = square(frames, model.config.visual.size)
    z = torch.as_tensor(vector).to(model.device).expand(len(squares), -1)
    return heat_maps(model, model.frames(squares.to(model.device)), z, method), squares


def where_files(
    embedder: Embedder,
    source: Path,
    text: str,
    out: Path,
    *,
    frames: int = 3,
    method: Method | None = None,
    report: Report = silent,
) -> Results:
    """Overlays for a video, an image or a folder of them: PNG files in `out`, results.json and a page.

    Files of a folder that cannot be used are skipped and listed.
    """
    method, vector = method_of(embedder.model, method), embedder.text(text)
    single = source.is_file()
    found = [source] if single else [clip.path for clip in find_sources(source, suffixes=SUFFIXES | IMAGE_SUFFIXES)]
    clips, skipped = [], []
    progress = Progress(len(found), report, "localising files")
    for number, path in enumerate(found, 1):
        assert path is not None  # found on disk
        name = source.name if single else path.relative_to(source).as_posix()
        try:
            seen = frames_of(path, start=0.0, seconds=embedder.seconds, frames=frames)
            maps, _ = localise_text(embedder.model, vector, seen, method)
            pairs = []
            for k, (frame, heat) in enumerate(zip(seen, maps, strict=True)):
                shown, stem = pixels(frame, scale_of(frame)), f"{number:04d}-{Path(name).stem}-{k}"
                write_whole(out / f"{stem}-frame.png", image_png(shown))
                write_whole(out / f"{stem}.png", image_png(whole_overlay(shown, heat.numpy())))
                pairs.append({"image": f"{stem}-frame.png", "overlay": f"{stem}.png"})
            clips.append({"source": name, "frames": pairs})
        except EquiAVError as error:
            if single:
                raise
            skipped.append({"path": str(path), "reason": str(error).removeprefix(f"{path}: ")})
        progress.update(number)
    if not clips:
        raise DataError(f"{source}: none of its {len(found)} files can be used; {skipped[0]['reason']}")
    record = {"task": "where", "text": text, "method": method, "clips": clips, "skipped": skipped}
    results = Results(
        {**record, "checkpoint": embedder.model.meta},
        primary="",
        lines=(f"{len(clips)} files, {len(skipped)} skipped.",),
        template="where.html",
    )
    results.write(out)
    return results
