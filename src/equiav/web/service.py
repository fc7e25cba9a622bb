"""What the page does, without the page: nearest clips for an upload, where its sound comes from; and the limits."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from threading import Lock
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from equiav.bridge import Bridge
from equiav.checkpoint import CONFIG, resolve
from equiav.errors import DataError, EquiAVError, MediaError
from equiav.evaluation import localise, localise_video, pixels, scale_of
from equiav.inference import PICTURES, Embedder, frames_of, load_model, waveform_of
from equiav.io import duration
from equiav.media import Limits, Workers, decoded_in, open_media, stacked
from equiav.report import whole_overlay
from equiav.search import INDEX, Hit, Index, Query, ask
from equiav.text import TEXT
from equiav.web.scenes import demo_index

Kind = Literal["audio", "image", "video"]
Vector = NDArray[np.float32]
FOUND = 12
LONGEST = 1000  # characters of a query in words
NO_TEXT = "text is not taken here: the model has learnt none, and the index has no bridge (equiav bridge)"
LOOKS = 4  # frames of a video that get a map
SHORT_SIDE = 256  # of a video with the map over it
MEGABYTE = 1 << 20
BROKEN = "Something went wrong on the server; its log says what."


@dataclass(frozen=True)
class UploadLimits:
    """What one visitor may cost; each refusal names the limit that was met.

    `waiting` requests stand in the queue while others are worked on; more are refused. Uploads are deleted after
    `keep` seconds. `at_once` files are decoded at a time, each in a process of its own that may take `wall` seconds
    (`hurry` while others wait) and `memory` bytes.
    """

    megabytes: int = 64
    seconds: float = 600.0
    waiting: int = 16
    at_once: int = 4
    keep: float = 600.0
    wall: float = 20.0
    hurry: float = 5.0
    memory: int = 1 << 30

    @property
    def bytes(self) -> int:
        """Largest upload."""
        return self.megabytes * MEGABYTE

    @property
    def stored(self) -> int:
        """Most that uploads may take on the disk together."""
        return 16 * self.bytes


def spoken(seconds: float) -> str:
    """A limit as people say it: whole minutes without their seconds."""
    return duration(seconds).removesuffix(" 0 s")


@dataclass(frozen=True)
class Look:
    """A frame and the same under its map, as (H, W, 3) of its own aspect; `second` is where in the video it is."""

    picture: NDArray[np.uint8]
    overlay: NDArray[np.uint8]
    second: float | None = None


class Service:
    """An index, the embedder that made it, and the limits for files that strangers hand over."""

    def __init__(self, index: Index, embedder: Embedder, limits: UploadLimits | None = None) -> None:
        index.check_model(embedder.digest)
        self.index, self.limits = index, limits or UploadLimits()
        self.decoding = Limits(wall=self.limits.wall)
        wall, hurry, memory = self.limits.wall, self.limits.hurry, self.limits.memory
        # Behind the page in line for the processor: a decoder at work for long must not make it slow to answer.
        self.workers = Workers(self.limits.at_once, patience=wall + 2, hurry=hurry, memory=memory, niceness=5)
        self.embedder = Embedder(embedder.model, batch=embedder.batch, limits=self.decoding, workers=self.workers)
        self.bridge: Bridge | None = None
        self.bridging = Lock()

    def close(self) -> None:
        """Ends the processes that decode, whatever they are doing."""
        self.workers.close()

    def embed(self, kind: Kind, path: Path, *, start: float = 0.0) -> Vector:
        """The vector of a sound, a picture or a video."""
        return self._query(kind, path, start).vector

    def search(
        self,
        kind: Kind,
        path: Path,
        *,
        start: float = 0.0,
        k: int = FOUND,
        among: str | None = None,
        filters: Sequence[str] = (),
    ) -> list[Hit]:
        """The clips nearest to a sound, a picture or a video."""
        return self.index.search(self._query(kind, path, start), k=k, among=among, filters=filters)

    @property
    def takes_text(self) -> bool:
        """Whether the model has learnt text, or the index has a bridge."""
        return TEXT in self.embedder.model.modalities or Bridge.there(self.index.folder)

    def ask_in_words(self, text: str) -> Query:
        """A text as a query, by the model itself or through the bridge of the index."""
        if not self.takes_text:
            raise EquiAVError(NO_TEXT)
        if TEXT in self.embedder.model.modalities:
            return Query(self.embedder.text(text), TEXT, self.embedder.digest)
        with self.bridging:  # the other model is loaded once, by whoever asks first
            self.bridge = self.bridge or Bridge.open(self.index.folder)
        return self.bridge.query(text, self.embedder.digest)

    def search_in_words(self, text: str, among: str = "both") -> list[Hit]:
        """The clips nearest to a text."""
        return self.index.search(self.ask_in_words(text), k=FOUND, among=among)

    def _query(self, kind: Kind, path: Path, start: float) -> Query:
        self.check(path, timed=kind != "image" or path.suffix.lower() not in PICTURES)
        return ask(self.embedder, start=start, **{kind: path})

    def locate_in_video(self, path: Path) -> list[Look]:
        """Pictures of a video, each under the map of where its sound comes from."""
        self.check(path, timed=True)
        piece = self.embedder.excerpt(path, frames=LOOKS)
        if piece.waveform is None:
            raise MediaError(path, "no sound")
        if not piece.frames:
            raise MediaError(path, "no picture")
        waveform = torch.from_numpy(piece.waveform.astype(np.float32) / 32768)
        return self._looks(waveform, stacked(piece.frames), list(piece.times))

    def video_with_map(self, path: Path) -> bytes:
        """The beginning of a video with the map over it and its sound, as an MP4 file."""
        self.check(path, timed=True)
        how: dict[str, Any] = {"limits": self.decoding, "workers": self.workers, "seconds": self.embedder.seconds}
        with tempfile.TemporaryDirectory() as folder:
            out = Path(folder) / "located.mp4"
            try:
                localise_video(self.embedder.model, path, out, short_side=SHORT_SIDE, **how)
            except DataError as error:  # it speaks of the command's options
                raise MediaError(path, "needs pictures and half a second of sound") from error
            return out.read_bytes()

    def locate(self, sound: Path, picture: Path) -> list[Look]:
        """A picture under the map of where a sound would come from in it."""
        self.check(sound, timed=True)
        self.check(picture, timed=picture.suffix.lower() not in PICTURES)
        how: dict[str, Any] = {"seconds": self.embedder.seconds, "limits": self.decoding, "workers": self.workers}
        waveform = waveform_of(sound, rate=self.embedder.rate, sample_rate=None, start=0.0, **how)
        frames = frames_of(picture, start=0.0, **how)
        return self._looks(waveform, frames[:1], [None])

    def _looks(self, waveform: Tensor, frames: Tensor, seconds: list[float | None]) -> list[Look]:
        maps, _ = localise(self.embedder.model, waveform, frames)
        shown = [pixels(frame, scale_of(frame)) for frame in frames]
        overlays = [whole_overlay(frame, heat.numpy()) for frame, heat in zip(shown, maps, strict=True)]
        return [Look(*parts) for parts in zip(shown, overlays, seconds, strict=True)]

    def check(self, path: Path, *, timed: bool) -> None:
        """Refuses what is too large, or (`timed`: not a still picture) too long or not media at all."""
        limits = self.limits
        if not path.is_file():
            raise MediaError(path, "is not here any more; give it again")
        size = path.stat().st_size
        if size > limits.bytes:
            raise MediaError(path, f"is {size / MEGABYTE:.0f} MB; at most {limits.megabytes} MB are taken")
        if timed:
            found = decoded_in(self.workers, open_media, path, limits=self.decoding)
            if found.duration > limits.seconds:
                lasts, most = spoken(found.duration), spoken(limits.seconds)
                raise MediaError(path, f"lasts {lasts}; at most {most} are taken")


def open_collection(
    place: Path, model: Path | None, say: Callable[[str], None] = lambda line: None
) -> tuple[Index, Embedder]:
    """The index at `place`, or that of a run's held-out scenes, and the embedder for questions to it."""
    if (place / INDEX).is_file():
        index = Index.open(place)
        path = model or index.model_path
        if path is None:
            raise EquiAVError(f"{place}: does not say which checkpoint made it; give --model")
        return index, Embedder(load_model(path))
    if not (resolve(place) / CONFIG).is_file():
        raise EquiAVError(f"{place}: neither an index nor a model; `make demo` or `equiav index CLIPS OUT` comes first")
    embedder = Embedder(load_model(place))
    return Index.open(demo_index(place, embedder, say)), embedder
