"""Learning rate: linear warm-up, then half a cosine."""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(frozen=True)
class WarmupCosine:
    """From `start` up to `peak` in `warmup` steps, then down to `final` at `total` steps."""

    peak: float
    total: int
    warmup: int = 0
    start: float = 1e-6
    final: float = 1e-6

    def __call__(self, step: int) -> float:
        """The rate of a step, counted from 0."""
        if step < self.warmup:
            return self.start + (self.peak - self.start) * step / self.warmup
        progress = min(1.0, (step - self.warmup) / max(1, self.total - self.warmup))
        return self.final + (self.peak - self.final) * 0.5 * (1 + math.cos(math.pi * progress))
