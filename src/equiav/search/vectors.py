"""Vectors on disk: files that only grow, exact comparison, and the compressed index of large collections.

The compressed index holds inverted lists of 4-bit product codes (FAISS) that propose candidates to compare exactly.
Every vector has a checksum in a file of its own, compared when the vector is used first.
"""

from __future__ import annotations

import importlib
import math
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from equiav.errors import DataError, EquiAVError
from equiav.io import replacing, sha256

LIMIT = 100_000  # vectors up to which all are compared
PER_LIST = 20  # training vectors for each inverted list
ROUNDS = 4  # of k-means
LISTED = 48  # vectors of a list, about: finer than the clusters of most collections, or lists would mix several
MOST_LISTS = 1 << 16  # learning them takes time that grows with their square
PROBES = 512  # lists looked into
FORMER_PROBES = 1024  # of indexes whose lists were fewer and longer: half of them at a million vectors
CANDIDATES = 160  # re-ranked with the vectors themselves, and four more for every result wanted
BLOCK = 20_000  # vectors read at a time
WIDEN = 8  # how much further a filter may make it look
SEED = 20_240
FACTOR = 0x9E3779B97F4A7C15  # odd: its powers are too, and an odd multiple of a flipped bit is never 0 in 64 bits
DRAFT = ".tmp"

Numbers = NDArray[np.int64]


@dataclass(frozen=True)
class Rows:
    """Rows of `width` numbers in one file; how many of them count stands in the database, once they are on the disk."""

    path: Path
    dtype: str
    width: int = 1

    @property
    def row_bytes(self) -> int:
        """Bytes of a row."""
        return np.dtype(self.dtype).itemsize * self.width

    def append(self, rows: NDArray[Any], count: int) -> None:
        """Writes rows behind the first `count`, over what a killed process may have left there."""
        with self.path.open("r+b" if self.path.exists() else "w+b") as file:
            file.seek(count * self.row_bytes)
            file.write(np.ascontiguousarray(rows, self.dtype).tobytes())
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


def side_files(folder: Path, side: str, width: int) -> tuple[Rows, Rows, Rows]:
    """Vectors of a side, the numbers of the entries that they belong to, and the checksums of the vectors."""
    files = {"vectors": ("<f4", width), "owners": ("<i8", 1), "sums": ("<u8", 1)}
    stored, owners, sums = (Rows(folder / f"{side}.{name}", *form) for name, form in files.items())
    return stored, owners, sums


def row_sums(vectors: NDArray[np.float32]) -> NDArray[np.uint64]:
    """A checksum of 64 bits for each vector: its bits as whole numbers times powers of an odd one, summed.

    Far faster than a hash of each; one flipped bit always shows, and other damage goes unseen once in 2^64.
    """
    words = (
        np.ascontiguousarray(vectors, "<f4")
        .view("<u4" if vectors.shape[1] % 2 else "<u8")
        .astype(np.uint64, copy=False)
    )
    factors = np.multiply.accumulate(np.full(words.shape[1], FACTOR, np.uint64))
    sums: NDArray[np.uint64] = words @ factors + np.uint64(FACTOR)
    return sums


def _faiss() -> Any:
    """FAISS, whose own annotations leave out half of what it can do."""
    return importlib.import_module("faiss")


def lists_for(count: int) -> int:
    """A power of two, such that a list holds about `LISTED` vectors."""
    return min(MOST_LISTS, 1 << max(4, round(math.log2(count / LISTED))))


def code_parts(width: int) -> int:
    """Parts that a vector is cut into, each told by 4 bits: of four numbers where that divides the width."""
    return next(width // size for size in (4, 2, 1) if width % size == 0)


def _codes(width: int) -> Any:
    """An index of product codes alone: compares with many centres for a fraction of what whole vectors cost."""
    faiss = _faiss()
    codes = faiss.IndexPQFastScan(width, code_parts(width), 4, faiss.METRIC_INNER_PRODUCT)
    codes.pq.cp.min_points_per_centroid = 1  # or FAISS prints its doubts
    return codes


def train(vectors: NDArray[np.float32], progress: Callable[[str], None] = lambda line: None) -> Any:
    """Learns lists and codes from a spread of the vectors, and puts all of them in.

    The centres of the lists are compared by product codes too, in k-means and in every search: lists are so many that
    comparing with the centres themselves would take longer than looking into the lists.
    """
    faiss = _faiss()
    count, width = vectors.shape
    lists = lists_for(count)
    wanted = min(count, PER_LIST * lists)
    progress(f"learning {lists:,} lists from {wanted:,} of {count:,} vectors")
    # Spread evenly and read in order: memory-mapped rows are wanted one after another. Eight bits a number are enough
    # to learn from, and take a quarter of the memory.
    rows = np.linspace(0, count - 1, wanted).astype(np.int64)
    bytewise = faiss.IndexScalarQuantizer(width, faiss.ScalarQuantizer.QT_8bit)
    bytewise.train(vectors[rows[:: max(1, wanted // BLOCK)]])
    spread = np.empty((wanted, width), np.uint8)
    for start in range(0, wanted, BLOCK):
        spread[start : start + BLOCK] = bytewise.sa_encode(vectors[rows[start : start + BLOCK]])
    learnt = faiss.Clustering(width, lists)
    learnt.niter, learnt.seed, learnt.max_points_per_centroid, learnt.spherical = ROUNDS, SEED, PER_LIST, True
    learnt.min_points_per_centroid = 1
    learnt.train_encoded(spread, bytewise, _codes(width))
    centres = faiss.vector_to_array(learnt.centroids).reshape(lists, width)
    quantizer = _codes(width)
    quantizer.train(centres)
    quantizer.add(centres)
    index = faiss.IndexIVFPQFastScan(quantizer, width, lists, code_parts(width), 4, faiss.METRIC_INNER_PRODUCT)
    index.by_residual = False
    index.pq.cp.min_points_per_centroid = 1
    index.train(bytewise.sa_decode(spread[:: max(1, wanted // BLOCK)]))
    extend(index, vectors, 0, progress)
    return index


def extend(
    index: Any, vectors: NDArray[np.float32], first: int, progress: Callable[[str], None] = lambda line: None
) -> None:
    """Puts the rows from `first` on into a trained index, a block at a time."""
    for start in range(first, len(vectors), BLOCK):
        index.add(np.ascontiguousarray(vectors[start : start + BLOCK]))
        progress(f"{min(start + BLOCK, len(vectors)):,} of {len(vectors):,} vectors in the compressed index")


def candidates(
    index: Any,
    vector: NDArray[np.float32],
    *,
    allowed: NDArray[np.bool_] | None = None,
    probes: int | None = None,
    count: int = CANDIDATES,
) -> Numbers:
    """Rows worth comparing exactly; `allowed` says for every row whether it may be one of them."""
    faiss = _faiss()
    if probes is None:
        former = isinstance(faiss.downcast_index(index.quantizer), faiss.IndexFlat)
        probes = FORMER_PROBES if former else PROBES
    settings: dict[str, Any] = {"nprobe": min(probes, index.nlist)}
    if allowed is not None:
        # Where few rows may be found, more lists must be looked into to find as many.
        share = max(float(allowed.mean()), 1 / WIDEN)
        bits = np.packbits(allowed, bitorder="little")
        settings = {"nprobe": min(round(probes / share), index.nlist), "sel": faiss.IDSelectorBitmap(bits)}
    _, rows = index.search(vector[None], count, params=faiss.SearchParametersIVF(**settings))
    found: Numbers = rows[0][rows[0] >= 0]
    return found


def exact(
    vectors: NDArray[np.float32], vector: NDArray[np.float32], rows: Numbers | Literal["all"]
) -> NDArray[np.float32]:
    """Inner products with some rows or all of them, read where they lie."""
    faiss = _faiss()
    vector = np.ascontiguousarray(vector, np.float32)
    scores = np.empty(len(vectors) if isinstance(rows, str) else len(rows), np.float32)
    out, x, y = (faiss.swig_ptr(a) for a in (scores, vector, vectors))
    if isinstance(rows, str):
        faiss.fvec_inner_products_ny(out, x, y, len(vector), len(vectors))
    else:
        chosen = np.ascontiguousarray(rows, np.int64)
        faiss.fvec_inner_products_by_idx(out, x, y, faiss.swig_ptr(chosen), len(vector), 1, len(chosen))
    return scores


def save(index: Any, path: Path) -> str:
    """Writes the compressed index beside its place, and moves it there once all of it is on the disk; its SHA-256."""
    try:
        with replacing(path) as draft:
            _faiss().write_index(index, str(draft))
            return sha256(draft)
    except (OSError, RuntimeError) as error:
        # FAISS puts its own source line in front of what the system said.
        reason = (error.strerror if isinstance(error, OSError) else None) or str(error).strip().splitlines()[-1]
        raise EquiAVError(f"{path}: cannot be written ({reason})") from error


def load(path: Path, rows: int, width: int, digest: str | None) -> Any:
    """Reads a compressed index of so many vectors, if it is the one written; `digest` None: that is not known."""
    try:
        intact = digest is None or sha256(path) == digest
        index = _faiss().read_index(str(path)) if intact else None
    except (OSError, RuntimeError, MemoryError) as error:
        raise DataError(f"{path} cannot be read; make the index again") from error
    if index is None or (index.ntotal, index.d) != (rows, width) or not hasattr(index, "nlist"):
        raise DataError(f"{path} is damaged: not the {rows:,} vectors it should hold; make the index again")
    return index
