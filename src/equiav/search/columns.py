"""Files that only grow: appended to first, counted afterwards, so that a kill in between changes nothing."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from equiav.errors import DataError


@dataclass(frozen=True)
class Column:
    """Rows of `width` numbers in one file; how many of them count is written elsewhere, once they are on the disk."""

    path: Path
    dtype: str
    width: int = 1

    @property
    def row_bytes(self) -> int:
        """Bytes of a row."""
        return np.dtype(self.dtype).itemsize * self.width

    def append(self, rows: NDArray[Any], count: int) -> None:
        """Puts rows behind the first `count`; what a killed process left behind those is overwritten."""
        content = np.ascontiguousarray(rows, self.dtype)
        if content.size % self.width:
            raise ValueError(f"{self.path.name}: {content.shape} are no rows of {self.width}")
        with self.path.open("r+b" if self.path.exists() else "w+b") as file:
            file.seek(count * self.row_bytes)
            file.write(content.tobytes())
            file.flush()
            os.fsync(file.fileno())

    def view(self, count: int) -> NDArray[Any]:
        """The first `count` rows, memory-mapped; (count,) for rows of one number, else (count, width)."""
        shape = (count,) if self.width == 1 else (count, self.width)
        if not count:
            return np.zeros(shape, self.dtype)
        try:
            if self.path.stat().st_size < count * self.row_bytes:
                raise DataError(f"{self.path} is damaged: shorter than the index says; make the index again")
            # The map itself, not numpy's subclass of arrays: that one costs microseconds at every touch.
            return np.asarray(np.memmap(self.path, self.dtype, "r", shape=shape))
        except OSError as error:
            raise DataError(f"{self.path} cannot be read ({error.strerror}); make the index again") from error
