"""Your own videos with maps of where their sound comes from: frames on a page, or the whole video."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, UInt8
from numpy.typing import NDArray
from torch import Tensor

from equiav.data import find_sources
from equiav.errors import DataError, EquiAVError
from equiav.evaluation.base import ASSETS, Report, Results, pixels, silent
from equiav.evaluation.localisation import (
    Method,
    embed_waveform,
    heat_maps,
    localise,
    method_of,
    nearest_transformation,
    scale_of,
)
from equiav.inference import LoadedModel
from equiav.io import Progress, replacing, write_whole
from equiav.media import (
    HOP_SECONDS,
    LEAST_SECONDS,
    Cut,
    Limits,
    Workers,
    decode,
    decoded_in,
    open_media,
    read_audio,
    read_clips,
    square,
    stacked,
    streamed_in,
    write_video,
)
from equiav.report import image_png, wav, whole_overlay
from equiav.types import Clip, DecodedClip

CHUNK = 1.0  # seconds of video in memory at a time
FASTEST = 30.0  # frames per second of what is written
MAPS = 4  # per second; those between are interpolated


def localise_files(
    model: LoadedModel,
    source: Path,
    out: Path,
    *,
    audio: Path | None = None,
    frames: int = 3,
    nearest: bool = False,
    method: Method | None = None,
    seed: int = 0,
    workers: Workers | None = None,
    report: Report = silent,
) -> Results:
    """Overlays for a video or a folder of them: PNG files in `out`, results.json and a page; returns the results.

    The beginning of each file is looked at, as much as the model hears at once; `audio` asks for the audio of another
    file instead. Files of a folder that cannot be used are skipped and listed. Decoding is done by `workers`, if given.
    """
    method = method_of(model, method)
    config = model.config
    how: dict[str, Any] = {"sample_rate": config.audio.sample_rate, "seconds": config.audio.frames * HOP_SECONDS}
    other = None
    if audio:
        other = decoded_in(workers, decode, audio, frames=frames, **how).waveform
        if other is None:
            raise DataError(f"{audio}: has no sound")
    paths = {source.stem: source} if source.is_file() else named_apart(find_sources(source))
    clips, skipped = [], []
    progress = Progress(len(paths), report, "localising files")
    for number, (name, path) in enumerate(paths.items(), 1):
        try:
            shown = decoded_in(workers, decode, path, frames=frames, **how)
            record = _localised(model, shown, other, out, name, method=method, nearest=nearest, seed=seed)
            clips.append({"source": path.name if source.is_file() else str(path.relative_to(source)), **record})
        except EquiAVError as error:
            if source.is_file():
                raise
            skipped.append({"path": str(path), "reason": str(error).removeprefix(f"{path}: ")})
        progress.update(number)
    if not clips:
        raise DataError(
            f"{source}: none of its {len(paths)} files can be used; {skipped[0]['path']}: {skipped[0]['reason']}"
        )
    record = {"task": "localise", "method": method, "clips": clips, "skipped": skipped, "checkpoint": model.meta}
    results = Results(
        record, primary="", lines=(f"{len(clips)} clips, {len(skipped)} skipped.",), template="localise.html"
    )
    results.write(out)
    return results


def named_apart(sources: Sequence[Clip]) -> dict[str, Path]:
    """Each file under a name of its own for what is written: its path in the folder, as one word."""
    named: dict[str, Path] = {}
    for source in sources:
        name = whole = "-".join(Path(source.id).with_suffix("").parts)
        number = 1
        while name in named:
            number += 1
            name = f"{whole} ({number})"
        assert source.path is not None  # found on disk
        named[name] = source.path
    return named


def _localised(
    model: LoadedModel,
    clip: DecodedClip,
    other: Tensor | None,
    out: Path,
    name: str,
    *,
    method: Method,
    nearest: bool,
    seed: int,
) -> dict[str, Any]:
    """The record of one file; what it names is written on the way: overlays beside the page, the rest as assets."""
    waveform = clip.waveform if other is None else other
    if clip.frames is None:
        raise DataError(f"{clip.name}: has no picture to look at")
    if waveform is None:
        raise DataError(f"{clip.name}: has no sound to look for; give one with --audio")

    def pair(stem: str, frame: Tensor, heat: Tensor, overlaid: str) -> dict[str, str]:
        plain = f"{ASSETS}/{stem}.png"
        shown = pixels(frame, scale_of(frame))  # at its own size, small ones enlarged
        write_whole(out / plain, image_png(shown))
        write_whole(out / overlaid, image_png(whole_overlay(shown, heat.numpy())))
        return {"image": plain, "overlay": overlaid}

    maps, _ = localise(model, waveform, clip.frames, method)
    heard = f"{ASSETS}/{name}.wav"
    write_whole(out / heard, wav(waveform.numpy(), clip.sample_rate))
    over = enumerate(zip(clip.frames, maps, strict=True))
    shown = [pair(f"{name}-{k}", f, m, f"{name}-{k}.png") for k, (f, m) in over]
    record: dict[str, Any] = {"audio": heard, "frames": shown}
    if nearest:
        middle = square(clip.frames[len(clip.frames) // 2][None], model.config.visual.size)[0]
        z_a = embed_waveform(model, waveform)[0]
        both, maps, cosine = nearest_transformation(model, middle, z_a, seed=seed, method=method)
        pairs = [
            pair(f"{name}-{word}", f, m, f"{ASSETS}/{name}-{word}-overlay.png")
            for word, f, m in zip(("original", "nearest"), both, maps, strict=True)
        ]
        record["nearest"] = {"pairs": pairs, "cosine": round(cosine, 4)}
    return record


def localise_video(
    model: LoadedModel,
    path: Path,
    out: Path,
    *,
    audio: Path | None = None,
    method: Method | None = None,
    limits: Limits | None = None,
    workers: Workers | None = None,
    seconds: float | None = None,
    short_side: int | None = None,
    report: Report = silent,
) -> float:
    """Writes a video with the map over it and its sound (H.264 and AAC in MP4); returns its length in seconds.

    Every moment is compared with the audio around it, as much as the model hears at once; `audio` asks where the audio
    of another file comes from instead, all of which is then looked for at every moment. `workers` decode, if given.
    `seconds` is how much of the video is written, `short_side` how large; without them all of it, as it is.
    """
    if out.suffix.lower() != ".mp4":
        raise DataError(f"{out}: videos are written as .mp4; name the file so")
    limits, rate = limits or Limits(), model.config.audio.sample_rate
    info = decoded_in(workers, open_media, path, limits=limits)
    if info.video is None:
        raise DataError(f"{path}: has no video to look at")
    if info.audio is None and audio is None:
        raise DataError(f"{path}: has no sound to look for; give one with --audio")
    how: dict[str, Any] = {"sample_rate": rate, "limits": limits}
    own = np.zeros(0, np.int16) if info.audio is None else decoded_in(workers, read_audio, path, **how)
    sound = own if audio is None else decoded_in(workers, read_audio, audio, **how)
    begin, end = info.video
    end = end if seconds is None else min(end, begin + seconds)
    fps = Fraction(min(info.fps or 25.0, FASTEST)).limit_denominator(1001)
    cuts = [Cut(start, min(CHUNK, end - start)) for start in np.arange(begin, end, CHUNK) if end - start > 1 / fps]
    progress = Progress(len(cuts), report, "seconds of video")
    waveform = torch.from_numpy(sound.astype(np.float32) / 32768)
    length = round(model.config.audio.frames * HOP_SECONDS * rate)
    if len(waveform) < LEAST_SECONDS * rate:
        raise DataError(f"only {len(waveform) / rate:.2f} s of sound to look for")

    def heard(moment: float) -> Tensor:
        """The embedding of what the model hears at once, with the moment in the middle where the file allows it."""
        middle = round(moment * rate) if audio is None else 0
        start = max(0, min(middle - length // 2, len(waveform) - length))
        return embed_waveform(model, waveform[start : start + length])

    def frames() -> Iterator[NDArray[np.uint8]]:
        for number, cut in enumerate(cuts, 1):
            count = max(1, round(cut.seconds * fps))
            look = {"cuts": [cut], "info": info, "frames": count, "short_side": short_side, "audio": False}
            (piece,) = streamed_in(workers, read_clips, path, limits=limits, **look)
            shown = stacked(piece.frames)
            yield from _overlaid(model, shown, heard(cut.start + cut.seconds / 2), method)
            progress.update(number)

    with replacing(out) as draft:
        write_video(draft, frames(), own[round(begin * rate) : round(end * rate)], rate=rate, fps=fps)
    return float(end - begin)


def _overlaid(
    model: LoadedModel, frames: UInt8[Tensor, "n 3 h w"], z_a: Float[Tensor, "1 out"], method: Method | None
) -> Iterator[NDArray[np.uint8]]:
    """The frames of a chunk under their maps, which are made for some of them and interpolated for the others."""
    count = min(len(frames), max(2, round(MAPS * CHUNK)))
    places = np.linspace(0, len(frames) - 1, count)
    squares = square(frames[places.round().astype(int)], model.config.visual.size)
    maps = heat_maps(model, model.frames(squares.to(model.device)), z_a.expand(count, -1), method)
    for number, frame in enumerate(frames):
        after = min(int(np.searchsorted(places, number)), count - 1)
        before = max(0, after - 1)
        gap = places[after] - places[before]
        share = (number - places[before]) / gap if gap else 1.0
        heat = torch.lerp(maps[before], maps[after], float(share))
        yield whole_overlay(frame.permute(1, 2, 0).numpy(), heat.numpy())
