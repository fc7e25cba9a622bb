"""How far long work is and how long it will take, as people write it."""

from __future__ import annotations

import time
from collections.abc import Callable


def duration(seconds: float) -> str:
    """45 s, 3 min 20 s, 2 h 5 min."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3600} h {whole % 3600 // 60} min"


class Countdown:
    """Says every few seconds how much of a known amount of work is done and how long the rest will take."""

    def __init__(self, total: int, say: Callable[[str], None], what: str, every: float = 2.0) -> None:
        self.total, self.say, self.what, self.every = total, say, what, every
        self.began = self.said = time.monotonic()

    def update(self, done: int) -> None:
        """Called after every portion; speaks when it is time, and at the end."""
        now = time.monotonic()
        if now - self.said < self.every and done < self.total:
            return
        self.said = now
        left = duration((now - self.began) / max(done, 1) * (self.total - done))
        self.say(f"{self.what}: {done} of {self.total}, {left} left")
