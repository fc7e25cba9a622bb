"""The end of a preparation: statistics, index and meta.json; and joining parts into one folder."""

from __future__ import annotations

import math
import os
import shutil
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from equiav import __version__
from equiav.data.cutting import Settings
from equiav.data.index import META, SHARDS, VERSION, ClipRow, Index, read_meta, read_skipped, write_index
from equiav.errors import DataError
from equiav.provenance import write_json

Skipped = tuple[str, str, str]  # source, start, reason


@dataclass(frozen=True)
class Summary:
    """What a preparation gave."""

    clips: int
    seconds: float
    used: int  # files with at least one clip
    skipped: int  # files without
    splits: dict[str, int]
    mean: float | None
    std: float | None


def spectrogram_statistics(rows: Sequence[ClipRow]) -> tuple[float | None, float | None]:
    """Mean and deviation of the spectrograms of the training clips, of all where there are none.

    Sums are exact, so the figure depends neither on the order of the clips nor on how they were shared out.
    """
    chosen = [row.statistics for row in rows if row.split == "train"] or [row.statistics for row in rows]
    total, squares, count = (math.fsum(column) for column in zip(*chosen, strict=True)) if chosen else (0.0, 0.0, 0.0)
    if not count:
        return None, None
    mean = total / count
    return mean, math.sqrt(max(0.0, squares / count - mean * mean))


def finish(
    out: Path,
    rows: Sequence[ClipRow],
    skipped: Sequence[Skipped],
    *,
    settings: Settings,
    part: tuple[int, int],
    mark: str,
) -> Summary:
    """Writes all that is not shards; meta.json comes last and says that the folder is whole."""
    mean, std = spectrogram_statistics(rows)
    meta = {
        "format": VERSION,
        "equiav": __version__,
        "modalities": list(settings.need),
        **{k: v for k, v in asdict(settings).items() if k != "need"},
        "clips": len(rows),
        "seconds": math.fsum(row.seconds for row in rows),
        "splits": dict(sorted(Counter(row.split for row in rows).items())),
        "sources": {"used": len({r.name for r in rows}), "skipped": sum(not start for _, start, _ in skipped)},
        "labels": len({label for row in rows for label in row.labels}),
        "spectrogram": {"mean": mean, "std": std},
        "shards": len({row.shard for row in rows}),
        "part": list(part),
        "fingerprint": mark,
    }
    write_index(out, rows, skipped)
    write_json(out / META, meta)
    return summary_of(meta)


def summary_of(meta: dict[str, Any]) -> Summary:
    """The same in few words."""
    return Summary(
        clips=meta["clips"],
        seconds=meta["seconds"],
        used=meta["sources"]["used"],
        skipped=meta["sources"]["skipped"],
        splits=meta["splits"],
        mean=meta["spectrogram"]["mean"],
        std=meta["spectrogram"]["std"],
    )


def merge(parts: Sequence[Path], out: Path) -> Summary:
    """Joins the folders of all parts into one with the clips and statistics of a single run.

    Shards are linked where the file system can, and copied otherwise; the parts stay as they are.
    """
    metas = [read_meta(part) for part in parts]
    _check_parts(parts, metas, out)
    rows: list[ClipRow] = []
    skipped: list[Skipped] = []
    shards: dict[str, Path] = {}
    for part in parts:
        found = list(Index(part).rows())
        for shard in {row.shard for row in found}:
            # A second file of that name would be written through the link into the first part.
            if shards.setdefault(shard, part) is not part:
                raise DataError(f"{part} and {shards[shard]} both have a shard {shard} and cannot be merged")
        rows += found
        skipped += read_skipped(part)
    draft = out.with_name(f".{out.name}.{os.getpid()}.tmp")
    shutil.rmtree(draft, ignore_errors=True)
    (draft / SHARDS).mkdir(parents=True)
    for shard, part in sorted(shards.items()):
        _link(part / SHARDS / shard, draft / SHARDS / shard)
    rows.sort(key=lambda row: (row.name, row.key))
    # Stable: the stretches of one source stay in order.
    skipped.sort(key=lambda line: line[0])
    fields = {k: metas[0][k] for k in ("clip_seconds", "overlap", "short_side", "frames", "sample_rate")}
    settings = Settings(**fields, need=tuple(metas[0]["modalities"]))
    summary = finish(draft, rows, skipped, settings=settings, part=(1, 1), mark=metas[0]["fingerprint"])
    if out.exists():
        out.rmdir()
    draft.rename(out)
    return summary


def _check_parts(parts: Sequence[Path], metas: Sequence[dict[str, Any]], out: Path) -> None:
    if not parts:
        raise DataError("there are no parts to merge")
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise DataError(f"{out} exists already; choose another folder for the merged data")
    for part, meta in zip(parts, metas, strict=True):
        if meta["fingerprint"] != metas[0]["fingerprint"] or meta["part"][1] != metas[0]["part"][1]:
            raise DataError(f"{part} and {parts[0]} come from other sources or settings and cannot be merged")
    numbers, wanted = sorted(meta["part"][0] for meta in metas), metas[0]["part"][1]
    if numbers != list(range(1, wanted + 1)):
        raise DataError(f"merging needs each of the {wanted} parts once; given are {', '.join(map(str, numbers))}")


def _link(source: Path, target: Path) -> None:
    try:
        os.link(source, target)
    except OSError:
        shutil.copyfile(source, target)
