"""What one visitor may cost: size and length of uploads, how many wait, how long uploads stay."""

from __future__ import annotations

from dataclasses import dataclass

from equiav.io import duration

MEGABYTE = 1 << 20


@dataclass(frozen=True)
class UploadLimits:
    """Limits of the page; each refusal names the one that was met.

    `waiting` requests stand in the queue while `at_once` are worked on; more are refused. Uploads are deleted after
    `keep` seconds; `wall` is what decoding one file may take.
    """

    megabytes: int = 64
    seconds: float = 600.0
    waiting: int = 16
    at_once: int = 2
    keep: float = 600.0
    wall: float = 20.0

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
