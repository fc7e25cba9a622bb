"""Cutting a long file into clips, and the times of a clip's pictures."""

from __future__ import annotations

from dataclasses import dataclass

from equiav.errors import DataError

CLIP_SECONDS = 10.0
TAIL_SECONDS = 2.0
LEAST_SECONDS = 0.5
# Ends come from time stamps: a file of 19.99999 s is one of 20 s.
ROUNDING = 1e-3


@dataclass(frozen=True)
class Cut:
    """A stretch of a file, in seconds from its beginning."""

    start: float
    seconds: float

    @property
    def stop(self) -> float:
        """Where it ends."""
        return self.start + self.seconds


def cuts(begin: float, end: float, *, seconds: float = CLIP_SECONDS, overlap: float = 0.0) -> list[Cut]:
    """The clips of a file that lasts from `begin` to `end`: of `seconds` each, `overlap` seconds of them shared.

    What is left at the end becomes a shorter clip of its own if it brings at least 2 s, and is dropped otherwise. A
    file shorter than one clip is one clip if it lasts at least 0.5 s, and none otherwise.
    """
    if not 0 <= overlap < seconds:
        raise DataError(f"clips of {seconds:g} s cannot overlap by {overlap:g} s; overlap must be at least 0 and less")
    if end - begin < LEAST_SECONDS:
        return []
    step = seconds - overlap
    found: list[Cut] = []
    while begin + len(found) * step + seconds <= end + ROUNDING:
        start = begin + len(found) * step
        found.append(Cut(start, min(seconds, end - start)))
    covered = found[-1].stop if found else begin
    if not found:
        return [Cut(begin, end - begin)]
    if end - covered >= TAIL_SECONDS:
        start = begin + len(found) * step
        found.append(Cut(start, end - start))
    return found


def frame_times(cut: Cut, frames: int) -> tuple[float, ...]:
    """The middles of `frames` equal parts of a clip, in seconds from the beginning of the file."""
    return tuple(cut.start + (k + 0.5) * cut.seconds / frames for k in range(frames))
