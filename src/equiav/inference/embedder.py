"""Embedder: sounds, pictures and videos, however they are given, as unit vectors of the shared space."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, Literal, TypeVar, overload

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from equiav.checkpoint import Digest
from equiav.errors import DataError, EquiAVError, MediaError, ShapeError
from equiav.inference.items import Picture, Sound, Video, film, frames_of, kind_of, waveform_of
from equiav.inference.model import LoadedModel
from equiav.inference.text import embed_text
from equiav.inference.windows import Vector, Window, audible
from equiav.media import (
    CLIP_SECONDS,
    HOP_SECONDS,
    LEAST_SECONDS,
    ROUNDING,
    Excerpt,
    Limits,
    Workers,
    decoded_in,
    excerpt,
    read_windows,
    square,
    stacked,
    streamed_in,
)
from equiav.types import AUDIO, VISUAL

Item = TypeVar("Item")
Shown = tuple[Tensor | None, Tensor | None]  # what the encoders want of one item: spectrogram (1, T, F), pictures


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


Errors = Literal["raise", "collect"]


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
    def audio(self, items: Sound, *, sample_rate: int | None = None, start: float = 0.0) -> Vector: ...
    @overload
    def audio(
        self, items: list[Any], *, sample_rate: int | None = None, start: float = 0.0, errors: Literal["collect"]
    ) -> Embedded: ...
    @overload
    def audio(self, items: list[Any], *, sample_rate: int | None = None, start: float = 0.0) -> Vector: ...
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
            return self._spectrogram(wave), None

        return self._all(items, read, errors)

    @overload
    def image(self, items: Picture, *, start: float = 0.0) -> Vector: ...
    @overload
    def image(self, items: list[Any], *, start: float = 0.0, errors: Literal["collect"]) -> Embedded: ...
    @overload
    def image(self, items: list[Any], *, start: float = 0.0) -> Vector: ...
    def image(self, items: Any, *, start: float = 0.0, errors: Errors = "raise") -> Vector | Embedded:
        """Pictures: files, or arrays (H, W, 3) or (3, H, W), uint8 or floats in [0, 1]; or a list of these.

        Of a film it is the direction of the mean of its ten pictures' unit vectors, as in evaluation with all frames.
        """

        def read(item: Any) -> Shown:
            return None, self._square(frames_of(item, **self._window(start)))

        return self._all(items, read, errors)

    @overload
    def video(self, items: Video, *, start: float = 0.0) -> Vector: ...
    @overload
    def video(self, items: list[Any], *, start: float = 0.0, errors: Literal["collect"]) -> Embedded: ...
    @overload
    def video(self, items: list[Any], *, start: float = 0.0) -> Vector: ...
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
            return self._spectrogram(cut), self._square(film(frames))

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
        self.check_seconds(seconds)
        found: list[tuple[Excerpt, Shown]] = []
        for piece in streamed_in(
            self.workers, read_windows, Path(path), seconds=seconds or self.seconds, overlap=overlap, rate=self.rate,
            span=span, most=self._most, limits=self.limits,
        ):  # fmt: skip
            found.append((piece, self._shown(piece)))
            if len(found) >= self.batch:
                yield from self._windows(found)
                found = []
        yield from self._windows(found)

    def excerpt(self, path: Path, *, start: float = 0.0) -> Excerpt:
        """The window of a file that is embedded: the sound and the pictures it has."""
        how = {"start": start, "seconds": self.seconds, "rate": self.rate, "limits": self.limits}
        return decoded_in(self.workers, excerpt, path, **how)

    def _window(self, start: float) -> dict[str, Any]:
        return {"start": start, "seconds": self.seconds, "limits": self.limits, "workers": self.workers}

    def check_seconds(self, seconds: float | None) -> None:
        """Refuses windows of which the model would hear only a part."""
        if seconds is not None and not LEAST_SECONDS <= seconds <= self.seconds + ROUNDING:
            least, most = f"{LEAST_SECONDS:g}", f"{self.seconds:g}"
            raise DataError(f"windows of {seconds:g} s: choose {least} to {most} s, which is what the model hears")

    def clips(self, clips: Sequence[tuple[Tensor | None, Tensor | None]]) -> list[tuple[Vector | None, Vector | None]]:
        """Sound and picture vectors of clips already read: waveforms at the model's rate, frames (K, 3, H, W) uint8.

        A sound longer than the model hears has the direction of the mean over windows spread evenly across all of it,
        as pictures have that of the mean over frames.
        """
        pieces = [[] if w is None else [self._spectrogram(piece) for piece in self._pieces(w)] for w, _ in clips]
        heard = iter(self._heard([piece for some in pieces for piece in some]))
        sounds = [[z for z in islice(heard, len(some)) if z is not None] for some in pieces]
        seen = self._seen([None if frames is None else self._square(frames) for _, frames in clips])
        return [(_mean(some) if some else None, visual) for some, visual in zip(sounds, seen, strict=True)]

    def _pieces(self, wave: Tensor) -> list[Tensor]:
        """As few windows as cover a sound; what the model hears whole is one."""
        length = round(self.seconds * self.rate)
        if len(wave) <= (self._most + ROUNDING) * self.rate:
            return [wave]
        starts = np.linspace(0, len(wave) - length, math.ceil(len(wave) / length)).round().astype(int)
        return [wave[start : start + length] for start in starts]

    def _windows(self, found: Sequence[tuple[Excerpt, Shown]]) -> Iterator[Window]:
        heard, seen = self._heard([s[0] for _, s in found]), self._seen([s[1] for _, s in found])
        for (piece, _), audio, visual in zip(found, heard, seen, strict=True):
            middle = piece.frames[len(piece.frames) // 2] if piece.frames else None
            yield Window(piece.cut.start, piece.cut.stop, audio, visual, middle)

    def _all(self, items: Any, read: Callable[[Any], Shown], errors: Errors) -> Vector | Embedded:
        """One vector for one item; for a list every item is tried before anything is said about the bad ones."""
        if not isinstance(items, list):
            return next(self._joined([read(items)]))
        bad: list[ItemError] = []
        rows: list[int] = []
        vectors: list[Vector] = []
        for start in range(0, len(items), self.batch):
            shown = list(_readable(items, range(start, min(start + self.batch, len(items))), read, bad))
            rows += [row for row, _ in shown]
            vectors += self._joined([parts for _, parts in shown])
        stack = np.stack(vectors) if vectors else np.zeros((0, self.model.width), np.float32)
        result = Embedded(stack, tuple(rows), tuple(bad))
        if errors == "collect":
            return result
        if bad:
            raise EmbeddingError(result)
        return result.vectors

    def _joined(self, shown: Sequence[Shown]) -> Iterator[Vector]:
        """Per item the direction of the sum of what it has."""
        for audio, visual in zip(self._heard([s[0] for s in shown]), self._seen([s[1] for s in shown]), strict=True):
            yield _mean([part for part in (audio, visual) if part is not None])

    def _shown(self, piece: Excerpt) -> Shown:
        heard = seen = None
        if piece.waveform is not None and audible(piece.waveform, self.rate):
            heard = self._spectrogram(torch.from_numpy(piece.waveform.astype(np.float32) / 32768))
        if piece.frames:
            seen = self._square(stacked(piece.frames))
        return heard, seen

    def _spectrogram(self, wave: Tensor) -> Tensor:
        # Alone and on the processor: beside longer sounds its mean would be summed in another order, which shows in
        # the logarithms of quiet bands.
        spectrogram = self._inputs[AUDIO].prepare(wave[None])[0]
        if not bool(spectrogram.isfinite().all()):
            raise ShapeError(f"a waveform of values up to {float(wave.abs().max()):.3g} is too extreme to embed")
        return spectrogram

    def _square(self, frames: Tensor) -> Tensor:
        return square(frames, self.model.config.visual.size)

    def _heard(self, spectrograms: Sequence[Tensor | None]) -> list[Vector | None]:
        stacks = [None if x is None else x[None] for x in spectrograms]
        return [
            None if z is None else z[0]
            for z in self._embedded(stacks, lambda x: self.model.embed(AUDIO, self._inputs[AUDIO].finish(x)))
        ]

    def _seen(self, films: Sequence[Tensor | None]) -> list[Vector | None]:
        transform = self._inputs[VISUAL]
        found = self._embedded(films, lambda x: self.model.embed(VISUAL, transform.finish(transform.prepare(x))))
        return [None if z is None else joint(*z) for z in found]

    def _embedded(self, stacks: Sequence[Tensor | None], embed: Callable[[Tensor], Tensor]) -> list[Vector | None]:
        """Unit vectors of stacks of inputs, batched across stacks; None stays None."""
        there = [x for x in stacks if x is not None]
        if not there:
            return [None] * len(stacks)
        portions = torch.split(torch.cat(there), self.batch)
        rows = torch.cat([F.normalize(embed(x.to(self.model.device)).float(), dim=1).cpu() for x in portions])
        if not bool(rows.isfinite().all()):
            raise DataError("the model gives vectors that are not finite; its weights may be damaged")
        parts = iter(torch.split(rows, [len(x) for x in there]))
        return [None if x is None else next(parts).numpy() for x in stacks]


def joint(*vectors: NDArray[np.float32]) -> Vector:
    """The direction of the mean of unit vectors."""
    total = np.sum(np.stack(vectors).astype(np.float64), axis=0)
    unit: Vector = (total / max(float(np.linalg.norm(total)), 1e-12)).astype(np.float32)
    return unit


def _mean(vectors: Sequence[Vector]) -> Vector:
    return vectors[0] if len(vectors) == 1 else joint(*vectors)


def _readable(
    items: Sequence[Any], rows: Iterable[int], read: Callable[[Any], Shown], bad: list[ItemError]
) -> Iterator[tuple[int, Shown]]:
    """What could be read of some items; the others are noted in `bad`."""
    for row in rows:
        try:
            yield row, read(items[row])
        except EquiAVError as error:
            item = items[row]
            name = str(item) if isinstance(item, str | Path) else f"item {row}"
            reason = str(error) if isinstance(item, str | Path) else f"{name}: {error}"
            bad.append(ItemError(row, name, reason))
