"""What one visitor may cost: size and length of uploads, how many wait, how long uploads stay."""

from __future__ import annotations

from dataclasses import dataclass

from equiav.io import duration

MEGABYTE = 1 << 20
BROKEN = "Something went wrong on the server; its log says what."


@dataclass(frozen=True)
class UploadLimits:
    """Limits of the page; each refusal names the one that was met.

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
