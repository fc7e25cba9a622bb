"""Entries with known vectors."""

from pathlib import Path

import numpy as np

from equiav.search import Entry

WIDTH = 16


def unit(seed: int, count: int, width: int = WIDTH) -> np.ndarray:
    rows = np.random.default_rng(seed).standard_normal((count, width)).astype(np.float32)
    return rows / np.linalg.norm(rows, axis=1, keepdims=True)


def entries(count: int, *, seed: int = 0, width: int = WIDTH, first: int = 0) -> list[Entry]:
    """Five windows per file, labels in turn; every third has no sound, every seventh no pictures."""
    audio, visual = unit(seed, count, width), unit(seed + 1000, count, width)
    return [
        Entry(
            f"clip-{first + i}",
            source=f"folder/{(first + i) // 5}.mp4",
            path=Path(f"/media/folder/{(first + i) // 5}.mp4"),
            start=10.0 * ((first + i) % 5),
            end=10.0 * ((first + i) % 5) + 10,
            audio=None if i % 3 == 2 else audio[i],
            visual=None if i % 7 == 6 and i % 3 != 2 else visual[i],
            labels=("dog", "loud") if i % 2 else ("cat",),
            metadata={"city": "Bonn" if i % 4 == 0 else "Köln", "year": 2000 + i},
        )
        for i in range(count)
    ]


def nearest(known: list[Entry], vector: np.ndarray, side: str, k: int) -> list[str]:
    scored = [(float(v @ vector), e.id) for e in known if (v := e.vector(side)) is not None]
    return [id for _, id in sorted(scored, key=lambda pair: -pair[0])[:k]]
