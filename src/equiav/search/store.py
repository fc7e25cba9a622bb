"""What an index needs of the place that keeps its vectors: the local folder, or a server."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from equiav.search.filters import Filter
from equiav.search.records import Entry, Side, Vector


@dataclass(frozen=True)
class Found:
    """An entry (without its vectors) and its cosine with the query."""

    entry: Entry
    score: float


@runtime_checkable
class Store(Protocol):
    """Keeps entries and finds the nearest; a change is there once its call returns; one cut short can be repeated."""

    def __len__(self) -> int: ...

    def known(self, ids: Sequence[str]) -> set[str]:
        """Those of the ids that are there."""
        ...

    def add(self, entries: Sequence[Entry]) -> None:
        """Adds entries whose ids are new."""
        ...

    def remove(self, ids: Sequence[str]) -> int:
        """Removes entries; says how many there were."""
        ...

    def get(self, id: str) -> Entry | None:
        """An entry with its vectors."""
        ...

    def entries(self) -> Iterator[Entry]:
        """All entries, without vectors."""
        ...

    def vectors(self, side: Side, most: int | None = None) -> tuple[list[str], NDArray[np.float32]]:
        """Ids and vectors (n, D) of the entries that have one on a side: all, or `most` evenly spaced ones."""
        ...

    def search(self, vector: Vector, side: Side, k: int, filters: Sequence[Filter]) -> list[Found]:
        """The nearest k entries on a side that meet all filters, best first."""
        ...

    def close(self) -> None:
        """Lets go of files and connections."""
        ...


def spacing(count: int, most: int | None) -> int:
    """Which step through `count` rows meets at most `most` of them."""
    return 1 if most is None else max(1, -(-count // most))
