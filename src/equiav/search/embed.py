"""Vectors of whole collections as one file: parquet, npz or JSON lines, for whatever reads those."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from equiav.data import SKIPPED, read_skipped
from equiav.errors import DataError
from equiav.inference import Embedder
from equiav.io import replacing, sweep, write_json, write_whole
from equiav.search.build import index_folder
from equiav.search.index import INDEX, Index
from equiav.search.records import Progress

FORMATS = (".parquet", ".npz", ".jsonl")
SETTINGS = "embed.json"
PORTION = 8192  # rows written at a time


@dataclass(frozen=True)
class EmbeddedFiles:
    """What `embed_files` wrote: rows of vectors, of so many clips; files and clips left out, and the list of them."""

    rows: int
    clips: int
    skipped: int
    reasons: Path | None


def embed_files(
    embedder: Embedder,
    places: Sequence[Path],
    out: Path,
    *,
    seconds: float | None = None,
    overlap: float = 0.0,
    workers: int | None = None,
    progress: Progress = lambda line: None,
) -> EmbeddedFiles:
    """Embeds media and writes one row for every window and modality: id, source, start, end, modality, vector.

    Works in a folder beside `out` until the file is whole; run again after a kill, it goes on there. What cannot be
    read is listed with the reason in a file beside `out`.

    Args:
        embedder: makes the vectors.
        places: files; or one folder, list or prepared folder.
        out: NAME.parquet, NAME.npz or NAME.jsonl.
        seconds: length of a window, at most the default: 10, or what the model hears if that is less.
        overlap: seconds that neighbouring windows share.
        workers: processes that decode, one for each core without it.
        progress: is told how far it is and how long it will take.
    """
    if out.suffix not in FORMATS:
        raise DataError(f"{out}: vectors are written as {', '.join(FORMATS)}; name the file so")
    if out.suffix == ".parquet":
        _pyarrow()
    if len(places) > 1 and not all(p.is_file() for p in places):
        raise DataError("give several files, or one folder, list or prepared folder")
    work = out.with_name(f".{out.name}.partial")
    named, model = [str(p.absolute()) for p in places], str(embedder.digest)
    settings = {"places": named, "seconds": seconds, "overlap": overlap, "model": model}
    if work.exists():
        try:
            begun = json.loads((work / SETTINGS).read_text(encoding="utf-8"))
        except (OSError, ValueError):
            begun = None
        if begun != settings:
            shutil.rmtree(work)  # of another question
    index = Index.open(work) if (work / INDEX).is_file() else Index.create(work, embedder.model)
    write_json(work / SETTINGS, settings)
    place = places[0]
    if len(places) > 1:
        place = work / "files.jsonl"  # each is called what it was called in the question
        lines = (json.dumps({"name": str(p), "path": str(p.absolute())}) for p in dict.fromkeys(places))
        write_whole(place, "".join(f"{line}\n" for line in lines))
    try:
        index_folder(index, embedder, place, seconds=seconds, overlap=overlap, workers=workers, progress=progress)
        with replacing(out) as draft:
            rows = _write(index, draft, out.suffix)
        sweep(out)
        clips = len(index)
        index.close()
    except BaseException:
        begun = len(index) > 0
        index.close()
        if not begun:  # nothing to go on with
            shutil.rmtree(work)
        raise
    reasons = list(read_skipped(work)) if (work / SKIPPED).is_file() else []
    listed = out.with_name(f"{out.stem}.{SKIPPED}")
    if reasons:
        write_whole(listed, (work / SKIPPED).read_bytes())
    else:
        listed.unlink(missing_ok=True)  # of an earlier run
    (work / SETTINGS).unlink()  # first: half of a folder would be taken for unfinished work
    shutil.rmtree(work)
    return EmbeddedFiles(rows, clips, len(reasons), listed if reasons else None)


def _rows(index: Index) -> Iterator[tuple[str, str, float, float, str, Any]]:
    """All vectors, window by window in the order of sources and times."""
    found = {side: index.vectors(side) for side in index.sides("both")}
    place = {side: dict(zip(ids, range(len(ids)), strict=True)) for side, (ids, _) in found.items()}
    for clip in sorted(index.clips(), key=lambda c: (c.source, c.start, c.id)):
        for side, (_, vectors) in found.items():
            if (row := place[side].get(clip.id)) is not None:
                yield clip.id, clip.source, clip.start, clip.end, side, vectors[row]


def _write(index: Index, path: Path, suffix: str) -> int:
    """Writes the rows in one of FORMATS; how many."""
    names, count = ("id", "source", "start", "end", "modality", "vector"), 0
    if suffix == ".npz":
        values = list(zip(*_rows(index), strict=True)) or [()] * len(names)
        arrays: dict[str, Any] = {name: np.asarray(column) for name, column in zip(names, values, strict=True)}
        with path.open("wb") as file:
            np.savez(file, **arrays)
        return len(arrays["id"])
    if suffix == ".jsonl":
        with path.open("w", encoding="utf-8") as lines:
            for row in _rows(index):
                count += 1
                record = dict(zip(names, (*row[:5], [float(x) for x in row[5]]), strict=True))
                lines.write(json.dumps(record) + "\n")
        return count
    arrow = _pyarrow()
    kinds = [arrow.string(), arrow.string(), arrow.float64(), arrow.float64(), arrow.string()]
    vector = arrow.list_(arrow.float32(), index.width)
    fields = [arrow.field(name, kind) for name, kind in zip(names, [*kinds, vector], strict=True)]
    schema = arrow.schema(fields, metadata={"equiav.model": str(index.digest)})
    rows = _rows(index)
    with arrow.parquet.ParquetWriter(path, schema) as file:
        while portion := list(islice(rows, PORTION)):
            count += len(portion)
            *plain, vectors = zip(*portion, strict=True)
            flat = arrow.array(np.concatenate(vectors).astype(np.float32))
            columns = [arrow.array(values, kind) for values, kind in zip(plain, kinds, strict=True)]
            columns.append(arrow.FixedSizeListArray.from_arrays(flat, index.width))
            file.write_table(arrow.Table.from_arrays(columns, schema=schema))
    return count


def _pyarrow() -> Any:
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError as error:
        raise DataError("parquet needs pyarrow: pip install 'equiav[parquet]'; or write .npz or .jsonl") from error
    return pyarrow
