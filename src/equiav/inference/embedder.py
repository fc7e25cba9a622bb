"""Embedder: sounds, pictures and videos, however they are given, as unit vectors of the shared space."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, Literal, overload

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from equiav.checkpoint import Digest
from equiav.errors import DataError, EquiAVError, MediaError, ShapeError
from equiav.inference.items import Picture, Sound, Vector, Video, film, frames_of, kind_of, waveform_of
from equiav.inference.model import LoadedModel
from equiav.inference.text import embed_text
from equiav.media import (
    CLIP_SECONDS,
    HOP_SECONDS,
    LEAST_SECONDS,
    ROUNDING,
    Excerpt,
    Limits,
    Workers,
    audible,
    decoded_in,
    excerpt,
    read_windows,
    square_frames,
    stacked,
    streamed_in,
)
from equiav.types import AUDIO, VISUAL

Errors = Literal["raise", "collect"]
Shown = tuple[Tensor | None, Tensor | None]  # of one item: spectrograms (n, 1, T, F), frames (K, 3, H, W)


@dataclass(frozen=True)
class ItemError:
    """One item of a list that could not be embedded: its place in the list, what it is, and why."""

    row: int
    item: str
    reason: str


@dataclass(frozen=True)
class Embedded:
    """Vectors (n, D) of the items that could be read, which items of the list they are, and what went wrong."""

    vectors: Vector
    rows: tuple[int, ...]
    errors: tuple[ItemError, ...]


class EmbeddingError(EquiAVError):
    """Some items of a list could not be embedded; `result` holds the others."""

    def __init__(self, result: Embedded) -> None:
        total, bad = len(result.rows) + len(result.errors), result.errors
        first = "; ".join(error.reason for error in bad[:3]) + ("; ..." if len(bad) > 3 else "")
        super().__init__(f'{len(bad)} of {total} items cannot be embedded ({first}); errors="collect" leaves them out')
        self.result = result


@dataclass(frozen=True)
class Window:
    """A stretch of a file, in seconds, with the unit vectors of its sound and of its pictures; either may be missing.

    `picture` is the one in the middle (H, W, 3), for looking at.
    """

    start: float
    end: float
    audio: Vector | None
    visual: Vector | None
    picture: NDArray[np.uint8] | None = None


class Embedder:
    """Unit vectors (float32) of sounds and pictures in the space the model was trained for.

    One item gives a vector (D,), a list gives (N, D). What is embedded is one window: the first 10 s of a file, or as
    much as the model hears if that is less; `start` moves it, `windows` goes through all of a long file. An item gives
    the same vector alone and in any list. Files are decoded within `limits`, in this process, or in `workers` if they
    are given: files from strangers can then neither crash nor stall it.
    """

    def __init__(
        self, model: LoadedModel, *, batch: int = 32, limits: Limits | None = None, workers: Workers | None = None
    ) -> None:
        if batch < 1:
            raise DataError(f"batches of {batch} items")
        self.model, self.batch, self.limits, self.workers = model, batch, limits, workers
        audio = model.config.audio
        self.rate: int = audio.sample_rate
        self._most = audio.frames * HOP_SECONDS
        self.seconds: float = min(CLIP_SECONDS, self._most)
        self._inputs = model.inputs

    @property
    def digest(self) -> Digest:
        """Which model made the vectors."""
        return self.model.digest

    @overload
    def audio(self, items: Sound | list[Any], *, sample_rate: int | None = None, start: float = 0.0) -> Vector: ...
    @overload
    def audio(
        self, items: list[Any], *, sample_rate: int | None = None, start: float = 0.0, errors: Literal["collect"]
    ) -> Embedded: ...
    def audio(
        self, items: Any, *, sample_rate: int | None = None, start: float = 0.0, errors: Errors = "raise"
    ) -> Vector | Embedded:
        """The sound of files (also of videos) and of waveforms.

        Args:
            items: a path, a waveform or (waveform, rate), or a list of these; waveforms are (samples,) or
                (channels, samples), floats in [-1, 1] or integers.
            sample_rate: of waveforms given without one.
            start: where in each item to begin, in seconds.
            errors: "raise" once all were tried, or "collect" what could be read and the reasons for the rest.
        """

        def read(item: Any) -> Shown:
            wave = waveform_of(item, rate=self.rate, sample_rate=sample_rate, **self._window(start))
            return self._spectrograms(wave), None

        return self._all(items, read, errors)

    @overload
    def image(self, items: Picture | list[Any], *, start: float = 0.0) -> Vector: ...
    @overload
    def image(self, items: list[Any], *, start: float = 0.0, errors: Literal["collect"]) -> Embedded: ...
    def image(self, items: Any, *, start: float = 0.0, errors: Errors = "raise") -> Vector | Embedded:
        """Pictures: files, or arrays (H, W, 3) or (3, H, W), uint8 or floats in [0, 1]; or a list of these.

        Of a film it is the direction of the mean of its pictures' unit vectors, two a second and ten at most.
        """

        def read(item: Any) -> Shown:
            return None, self._square(frames_of(item, **self._window(start)))

        return self._all(items, read, errors)

    @overload
    def video(self, items: Video | list[Any], *, start: float = 0.0) -> Vector: ...
    @overload
    def video(self, items: list[Any], *, start: float = 0.0, errors: Literal["collect"]) -> Embedded: ...
    def video(self, items: Any, *, start: float = 0.0, errors: Errors = "raise") -> Vector | Embedded:
        """Sound and pictures together: the direction halfway between `audio` and `image` of the same stretch.

        Items are paths or (frames, waveform, rate), or a list of these. A file without sound, or with silence, is
        what is seen in it; one without pictures what is heard.
        """

        def read(item: Any) -> Shown:
            if isinstance(item, str | Path):
                shown = self._shown(self.excerpt(Path(item), start=start))
                if shown[0] is None and shown[1] is None:
                    raise MediaError(Path(item), "silent, and without pictures")
                return shown
            if not isinstance(item, tuple) or len(item) != 3:
                raise ShapeError(f"a video is a path or (frames, waveform, rate), not {kind_of(item)}")
            frames, wave, rate = item
            cut = waveform_of((wave, rate), rate=self.rate, sample_rate=None, **self._window(start))
            return self._spectrograms(cut), self._square(film(frames))

        return self._all(items, read, errors)

    def text(self, items: str | list[str]) -> Vector:
        """Text, one or a list, for models that have learnt some; of a long text its first words count."""
        return embed_text(self.model, items, self.batch)

    def windows(
        self,
        path: str | Path,
        *,
        seconds: float | None = None,
        overlap: float = 0.0,
        span: tuple[float, float | None] = (0.0, None),
    ) -> Iterator[Window]:
        """All of a file: windows of `seconds` (those the model hears, without it), cut as `prepare` cuts clips.

        `span` (start, length) takes a part of the file, as one window if the model hears all of it. Windows longer
        than that are refused. Silence has no sound vector. Raises MediaError where the file breaks.
        """
        self.check_seconds(seconds, overlap)
        pieces = streamed_in(
            self.workers, read_windows, Path(path), seconds=seconds or self.seconds, overlap=overlap, rate=self.rate,
            span=span, most=self._most, limits=self.limits,
        )  # fmt: skip
        while batch := list(islice(pieces, self.batch)):
            for piece, (audio, visual) in zip(batch, self._vectors([self._shown(p) for p in batch]), strict=True):
                middle = piece.frames[len(piece.frames) // 2] if piece.frames else None
                yield Window(piece.cut.start, piece.cut.stop, audio, visual, middle)

    def excerpt(self, path: Path, *, start: float = 0.0, frames: int | None = None) -> Excerpt:
        """The window of a file that is embedded: the sound and the pictures it has, or so many `frames` of it."""
        how = {"start": start, "seconds": self.seconds, "rate": self.rate, "frames": frames, "limits": self.limits}
        return decoded_in(self.workers, excerpt, path, **how)

    def _window(self, start: float) -> dict[str, Any]:
        return {"start": start, "seconds": self.seconds, "limits": self.limits, "workers": self.workers}

    def check_seconds(self, seconds: float | None, overlap: float = 0.0) -> None:
        """Refuses windows of which the model would hear only a part, and those that would never get on."""
        if seconds is not None and not LEAST_SECONDS <= seconds <= self.seconds + ROUNDING:
            least, most = f"{LEAST_SECONDS:g}", f"{self.seconds:g}"
            raise DataError(f"windows of {seconds:g} s: choose {least} to {most} s, which is what the model hears")
        if not 0 <= overlap < (seconds or self.seconds):
            raise DataError(f"windows of {seconds or self.seconds:g} s cannot overlap by {overlap:g} s; choose less")

    def clips(self, clips: Sequence[tuple[Tensor | None, Tensor | None]]) -> list[tuple[Vector | None, Vector | None]]:
        """Sound and picture vectors of clips already read: waveforms at the model's rate, frames (K, 3, H, W) uint8.

        A sound longer than the model hears has the direction of the mean over windows spread evenly across all of it,
        as pictures have that of the mean over frames.
        """
        return self._vectors(
            [
                (None if wave is None else self._spectrograms(wave), None if frames is None else self._square(frames))
                for wave, frames in clips
            ]
        )

    def _all(self, items: Any, read: Callable[[Any], Shown], errors: Errors) -> Vector | Embedded:
        """One vector for one item; for a list every item is tried before anything is said about the bad ones."""
        if not isinstance(items, list):
            return self._joined([read(items)])[0]
        bad: list[ItemError] = []
        rows: list[int] = []
        vectors: list[Vector] = []
        for start in range(0, len(items), self.batch):
            shown = []
            for row, item in enumerate(items[start : start + self.batch], start):
                try:
                    shown.append(read(item))
                    rows.append(row)
                except EquiAVError as error:
                    named = isinstance(item, str | Path)
                    name, reason = (str(item), str(error)) if named else (f"item {row}", f"item {row}: {error}")
                    bad.append(ItemError(row, name, reason))
            vectors += self._joined(shown)
        stack = np.stack(vectors) if vectors else np.zeros((0, self.model.width), np.float32)
        result = Embedded(stack, tuple(rows), tuple(bad))
        if errors == "collect":
            return result
        if bad:
            raise EmbeddingError(result)
        return result.vectors

    def _shown(self, piece: Excerpt) -> Shown:
        heard = piece.waveform if audible(piece.waveform, self.rate) else None
        return (
            None if heard is None else self._spectrograms(torch.from_numpy(heard.astype(np.float32) / 32768)),
            self._square(stacked(piece.frames)) if piece.frames else None,
        )

    def _spectrograms(self, wave: Tensor) -> Tensor:
        """(n, 1, T, F): as few windows as cover a waveform; what the model hears whole is one."""
        length, pieces = round(self.seconds * self.rate), [wave]
        if len(wave) > (self._most + ROUNDING) * self.rate:
            starts = np.linspace(0, len(wave) - length, math.ceil(len(wave) / length)).round().astype(int)
            pieces = [wave[start : start + length] for start in starts]
        # Each alone and on the processor: beside longer sounds its mean would be summed in another order, which shows
        # in the logarithms of quiet bands.
        found = torch.cat([self._inputs[AUDIO].prepare(piece[None]) for piece in pieces])
        if not bool(found.isfinite().all()):
            raise ShapeError(f"a waveform of values up to {float(wave.abs().max()):.3g} is too extreme to embed")
        return found

    def _square(self, frames: Tensor) -> Tensor:
        images = list(frames.permute(0, 2, 3, 1).numpy())  # scaled as worker processes do it, to the bit
        return torch.from_numpy(square_frames(images, self.model.config.visual.size))

    def _joined(self, shown: Sequence[Shown]) -> list[Vector]:
        """Per item the direction of the sum of what it has."""
        return [joint(*(part for part in parts if part is not None)) for parts in self._vectors(shown)]

    def _vectors(self, shown: Sequence[Shown]) -> list[tuple[Vector | None, Vector | None]]:
        """Sound and picture vectors of items, batched across them; that of several inputs is the mean direction."""
        found: list[list[Vector | None]] = []
        for place, modality in enumerate((AUDIO, VISUAL)):
            stacks, transform = [parts[place] for parts in shown], self._inputs[modality]
            there = [x for x in stacks if x is not None]
            rows = []
            for x in torch.split(torch.cat(there), self.batch) if there else ():
                x = x.to(self.model.device)
                inputs = transform.prepare(x) if modality == VISUAL else x  # spectrograms are there already
                z = self.model.embed(modality, transform.finish(inputs))
                rows.append(F.normalize(z.float(), dim=1).cpu())
            if not all(bool(z.isfinite().all()) for z in rows):
                raise DataError("the model gives vectors that are not finite; its weights may be damaged")
            parts = iter(torch.split(torch.cat(rows), [len(x) for x in there]) if there else ())
            found.append([None if x is None else joint(*next(parts).numpy()) for x in stacks])
        return list(zip(*found, strict=True))


def joint(*vectors: Vector) -> Vector:
    """The direction of the mean of unit vectors."""
    if len(vectors) == 1:
        return vectors[0]
    total = np.sum(np.stack(vectors).astype(np.float64), axis=0)
    unit: Vector = (total / max(float(np.linalg.norm(total)), 1e-12)).astype(np.float32)
    return unit
