"""Entries with known vectors."""

from pathlib import Path

import numpy as np

from equiav.search import Entry
from equiav.types import Clip

WIDTH = 16


def unit(seed: int, count: int, width: int = WIDTH) -> np.ndarray:
    rows = np.random.default_rng(seed).standard_normal((count, width)).astype(np.float32)
    return rows / np.linalg.norm(rows, axis=1, keepdims=True)


def entries(count: int, *, seed: int = 0, width: int = WIDTH, first: int = 0) -> list[Entry]:
    """Five windows per file, labels in turn; every third has no sound, every seventh no pictures."""
    audio, visual = unit(seed, count, width), unit(seed + 1000, count, width)
    return [
        Entry(
            Clip(
                f"clip-{first + i}",
                source=f"folder/{(first + i) // 5}.mp4",
                path=Path(f"/media/folder/{(first + i) // 5}.mp4"),
                start=10.0 * ((first + i) % 5),
                seconds=10.0,
                labels=("dog", "loud") if i % 2 else ("cat",),
                metadata={"city": "Bonn" if i % 4 == 0 else "Köln", "year": 2000 + i},
            ),
            ({} if i % 3 == 2 else {"audio": audio[i]}) | ({} if i % 7 == 6 and i % 3 != 2 else {"visual": visual[i]}),
        )
        for i in range(count)
    ]


def nearest(known: list[Entry], vector: np.ndarray, side: str, k: int) -> list[str]:
    scored = [(float(e.vectors[side] @ vector), e.clip.id) for e in known if side in e.vectors]
    return [id for _, id in sorted(scored, key=lambda pair: -pair[0])[:k]]
