"""What the page does, without the page: nearest clips for an upload, and where its sound comes from."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from equiav.errors import MediaError
from equiav.evaluation import localise, overlay, pixels, scale_of
from equiav.inference import Embedder
from equiav.inference.items import PICTURES, excerpt, frames_of, waveform_of
from equiav.media import Limits, open_media, stacked
from equiav.search import Hit, Index, ask
from equiav.web.bounds import MEGABYTE, Bounds, spoken

Kind = Literal["audio", "image", "video"]
FOUND = 12
LOOKS = 4  # pictures of a video that get a heat map


@dataclass(frozen=True)
class Look:
    """A picture and the same under its heat map, as (H, W, 3); `second` is where in the film it is."""

    picture: NDArray[np.uint8]
    overlay: NDArray[np.uint8]
    second: float | None = None


class Service:
    """An index, the embedder that made it, and the limits for files that strangers hand over."""

    def __init__(self, index: Index, embedder: Embedder, bounds: Bounds | None = None) -> None:
        index.check_model(embedder.digest)
        self.index, self.bounds = index, bounds or Bounds()
        self.limits = Limits(wall=self.bounds.wall)
        self.embedder = Embedder(embedder.model, batch=embedder.batch, limits=self.limits)

    def search(self, kind: Kind, path: Path, *, k: int = FOUND) -> list[Hit]:
        """The clips nearest to a sound, a picture or a video."""
        self.check(path, timed=kind != "image" or lasting(path))
        query = ask(self.embedder, **{kind: path})  # type: ignore[arg-type]
        return self.index.search(query, k=k)

    def locate_in_video(self, path: Path) -> list[Look]:
        """Pictures of a video, each under the map of where its sound comes from."""
        self.check(path, timed=True)
        piece = excerpt(path, start=0.0, seconds=self.embedder.seconds, rate=self.embedder.rate, limits=self.limits)
        if piece.waveform is None:
            raise MediaError(path, "no sound")
        if not piece.frames:
            raise MediaError(path, "no picture")
        frames = stacked(piece.frames)
        chosen = torch.linspace(0, len(frames) - 1, min(LOOKS, len(frames))).round().long()
        waveform = torch.from_numpy(piece.waveform.astype(np.float32) / 32768)
        return self._looks(waveform, frames[chosen], [piece.times[i] for i in chosen.tolist()])

    def locate(self, sound: Path, picture: Path) -> list[Look]:
        """A picture under the map of where a sound would come from in it."""
        self.check(sound, timed=True)
        self.check(picture, timed=lasting(picture))
        embedder = self.embedder
        seconds, limits = embedder.seconds, self.limits
        waveform = waveform_of(sound, rate=embedder.rate, sample_rate=None, start=0.0, seconds=seconds, limits=limits)
        frames = frames_of(picture, start=0.0, seconds=seconds, limits=limits)
        return self._looks(waveform, frames[:1], [None])

    def _looks(self, waveform: Tensor, frames: Tensor, seconds: list[float | None]) -> list[Look]:
        maps, squares = localise(self.embedder.model, waveform, frames)
        return [
            Look(pixels(picture, scale_of(picture)), overlay(picture, heat), second)
            for picture, heat, second in zip(squares, maps, seconds, strict=True)
        ]

    def check(self, path: Path, *, timed: bool) -> None:
        """Refuses what is too large, or (for what lasts) too long or not media at all."""
        bounds = self.bounds
        if not path.is_file():
            raise MediaError(path, "is not here any more; give it again")
        size = path.stat().st_size
        if size > bounds.bytes:
            raise MediaError(path, f"is {size / MEGABYTE:.0f} MB; at most {bounds.megabytes} MB are taken")
        if timed:
            found = open_media(path, limits=self.limits)
            if found.duration > bounds.seconds:
                lasts, most = spoken(found.duration), spoken(bounds.seconds)
                raise MediaError(path, f"lasts {lasts}; at most {most} are taken")


def lasting(path: Path) -> bool:
    """Would this file, given as a picture, be read as a film? All that does not go by a picture's name would."""
    return path.suffix.lower() not in PICTURES
