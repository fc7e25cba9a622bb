"""Any media become training data: sources in, shards with an index out; in parallel, and resumable at any moment."""

from __future__ import annotations

import hashlib
import heapq
import json
import math
import os
import shutil
import sqlite3
import stat
import time
from array import array
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from dataclasses import asdict, dataclass, fields
from importlib import import_module
from itertools import chain
from pathlib import Path
from typing import Any, Literal

import numpy as np

from equiav import __version__
from equiav.data.cutting import SHORT, SILENT, Channels, Cutter, Job, Need, Outcome, Settings, fragment_path, path_of
from equiav.data.shards import (
    END,
    INDEX,
    MANIFEST,
    META,
    SHARDS,
    SKIPPED,
    SUMS,
    VERSION,
    IndexWriter,
    PreparedIndex,
    StoredClip,
    read_meta,
    read_skipped,
    read_sums,
)
from equiav.data.sources import Clips, temporary_files
from equiav.errors import DataError
from equiav.io import Progress, locked, make_folder, replacing, sha256, write_json, write_whole
from equiav.media import CLIP_SECONDS, CRASHED, FRAMES, Failure, Limits, Workers
from equiav.types import SPLITS, Clip

WORK, PLAN, JOURNAL = "work", "plan.json", "journal.jsonl"
SHARD_BYTES = 256 << 20
COMPARED = 1000  # files whose content is compared in one go
IN_FLIGHT = 4  # tasks of Ray waiting for each processor: enough to keep it busy, few enough to hold in memory
REMARKS = (SHORT, SILENT, "copies")

Engine = Literal["local", "ray"]


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
    kept: dict[str, int]  # of a published dataset: how many clips are short, silent, copies

    @staticmethod
    def of(meta: Mapping[str, Any]) -> Summary:
        """What meta.json says, in few words."""
        sources, spectrogram = meta["sources"], meta["spectrogram"]
        counts = meta["clips"], meta["seconds"], sources["used"], sources["skipped"]
        return Summary(*counts, meta["splits"], spectrogram["mean"], spectrogram["std"], meta.get("kept", {}))

    def line(self) -> str:
        """One line: what came out, and what of a published dataset was kept that would otherwise be left out."""
        kept = [f"{what} {count}" for what, count in self.kept.items() if count]
        more = f"; kept as published: {', '.join(kept)}" if kept else ""
        return f"{self.clips} clips of {self.used} files; {self.skipped} files left out{more}"


def prepare(
    clips: Iterable[Clip],
    out: Path,
    *,
    workers: int,
    part: tuple[int, int] = (1, 1),
    clip_seconds: float = CLIP_SECONDS,
    overlap: float = 0.0,
    short_side: int = 256,
    frames: int = FRAMES,
    need: Need = ("audio", "video"),
    channels: Channels | None = None,
    partial: bool = False,
    published: bool = False,
    shard_bytes: int = SHARD_BYTES,
    wall: float = 120.0,
    engine: Engine = "local",
    progress: Callable[[str], None] = lambda line: None,
) -> Summary:
    """Cuts sources into clips and stores them in `out`; called again after an interruption, it carries on.

    A source with `seconds` is one clip, the others are cut. `part` (i, n) takes sources i, i + n, ... of the sorted
    list; `merge` joins the parts. Media that cannot be used are left out, with the reason in skipped.csv. Audio is the
    mean of its channels; of `published` datasets, of which nothing is left out that can be decoded, the first one.
    `partial` keeps what lacks a needed modality. `wall` bounds the seconds a file may take without giving a clip.
    """
    channels = channels or ("first" if published else "mean")
    settings = Settings(
        clip_seconds, overlap, short_side, frames, need=need, channels=channels, partial=partial, published=published
    )
    if not 1 <= part[0] <= part[1]:
        raise DataError(f"part {part[0]}/{part[1]} does not exist; give 1/{part[1]} to {part[1]}/{part[1]}")
    if shard_bytes < 1:
        raise DataError("a shard holds more than no bytes")
    sources = clips if isinstance(clips, Clips) else Clips(clips)
    mark = fingerprint(sources, settings, shard_bytes)
    with locked(out), _writing(out):
        if (out / META).exists():
            return _finished(out, mark, part, progress)
        for draft in (*out.glob(".*.tmp"), *out.glob("*/.*.tmp")):  # of a run that was killed
            shutil.rmtree(draft) if draft.is_dir() else draft.unlink()
        copies = _plan(sources, out, mark, part, progress)
        numbers = range(part[0] - 1, len(sources), part[1])
        cutter = Cutter(out / WORK, settings, Limits(wall=wall))
        # Files look at their own watch; the parent's is for those that hang where no watch is looked at.
        processes = Workers(workers, patience=1.5 * wall + 5, preload=(__name__, "equiav.media.spectrogram"))
        with processes, Journal(out / WORK / JOURNAL, sources, {} if published else copies) as journal:
            jobs = ((n, sources[n]) for n in numbers if n not in journal)
            if engine == "ray":
                outcomes = _on_ray(cutter, jobs)
            else:
                results = processes.map(cutter, jobs)
                outcomes = (Outcome(n, r.reason) if isinstance(r, Failure) else r for (n, _), r in results)
            in_order = _in_order(numbers, journal, outcomes, progress)
            digests = _write_shards(_placed(in_order, part[0], shard_bytes), out)
            kept = Counter(dict.fromkeys(REMARKS, 0))
            with IndexWriter(out, digests) as index:
                for outcome, placed in _placed(map(journal.read, numbers), part[0], shard_bytes):
                    name = sources[outcome.number].id
                    for stored in placed:
                        index.add(stored)
                    if outcome.reason:
                        index.skip(name, "", outcome.reason)
                    for start, reason in outcome.dropped:
                        index.skip(name, f"{start:.3f}", reason)
                    kept.update(outcome.remarks)
        kept["copies"] = sum(n in copies for n in numbers)
        summary = _finish(out, index, digests, settings, part=part, mark=mark, kept=kept)
        shutil.rmtree(out / WORK)
    progress(f"{out}: {summary.line()}")
    return summary


@contextmanager
def _writing(out: Path) -> Iterator[None]:
    """Errors of a disk that is full or cannot be written as one line."""
    try:
        yield
    except OSError as error:
        raise DataError(f"{out}: cannot be written ({error.strerror or error})") from error


def fingerprint(sources: Sequence[Clip], settings: Settings, shard_bytes: int) -> str:
    """The same for runs that must give the same clips, wherever their files lie."""
    digest = hashlib.sha256(json.dumps([settings.identity(), shard_bytes]).encode())
    fields = ("labels", "split", "group", "start", "seconds", "boxes", "fold")
    for source in sources:
        digest.update(repr({"name": source.id, **{field: getattr(source, field) for field in fields}}).encode())
    return digest.hexdigest()


def _finished(out: Path, mark: str, part: tuple[int, int], progress: Callable[[str], None]) -> Summary:
    meta = read_meta(out)
    if meta.get("fingerprint") != mark or meta.get("part") != list(part):
        raise DataError(f"{out} was prepared from other sources or with other settings; choose another folder")
    progress(f"{out}: already prepared, nothing left to do")
    # Killed between writing and tidying up.
    shutil.rmtree(out / WORK, ignore_errors=True)
    return Summary.of(meta)


def _plan(
    sources: Sequence[Clip], out: Path, mark: str, part: tuple[int, int], progress: Callable[[str], None]
) -> dict[int, str]:
    """Which sources are copies of others; found once and kept, so that a run carried on does not read files again."""
    path = out / WORK / PLAN
    identity = {"fingerprint": mark, "part": list(part)}
    try:
        kept = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        copies = _copies(sources, progress)
        write_json(path, {**identity, "copies": copies})
        return copies
    if {k: kept.get(k) for k in identity} != identity:
        raise DataError(f"{out} holds unfinished work on other sources or settings; choose another folder")
    return {int(k): v for k, v in kept["copies"].items()}


def _copies(sources: Sequence[Clip], progress: Callable[[str], None]) -> dict[int, str]:
    """Sources whose content is that of an earlier one, with its name. Only files of equal size are compared."""

    def size(source: Clip) -> int | None:
        try:
            status = path_of(source).stat()
        except (OSError, ValueError):
            return None  # the worker will say why
        # Reading a pipe or a device to compare it would never end.
        return status.st_size if stat.S_ISREG(status.st_mode) else None

    def digest(path: Path) -> bytes | None:
        try:
            return bytes.fromhex(sha256(path))
        except OSError:
            return None  # unreadable: the worker will say why

    # A database without a name is on disk: in memory, what is known of a million files would fill it.
    with temporary_files(), closing(sqlite3.connect("")) as known, ThreadPoolExecutor(4) as threads:
        known.execute("CREATE TABLE files (number INTEGER PRIMARY KEY, start, seconds, size, content)")
        facts = ((n, source.start, source.seconds, size(source)) for n, source in enumerate(sources))
        known.executemany("INSERT INTO files VALUES (?, ?, ?, ?, NULL)", facts)
        alike = "SELECT number, {} OVER (PARTITION BY {}, start, seconds) AS found FROM files WHERE {} IS NOT NULL"
        sizes = alike.format("count(*)", "size", "size")
        suspects = array("q", (n for (n,) in known.execute(f"SELECT number FROM ({sizes}) WHERE found > 1 ORDER BY 1")))
        if suspects:
            progress(f"comparing {len(suspects)} files of equal size")
        for begin in range(0, len(suspects), COMPARED):
            portion = suspects[begin : begin + COMPARED]
            digests = threads.map(digest, [path_of(sources[n]) for n in portion])
            known.executemany("UPDATE files SET content = ? WHERE number = ?", zip(digests, portion, strict=True))
        first = alike.format("min(number)", "content", "content")
        copies = known.execute(f"SELECT number, found FROM ({first}) WHERE number > found ORDER BY 1")
        return {number: sources[original].id for number, original in copies}


class Journal:
    """One line for each source that is finished, read again by its number: outcomes are not held in memory.

    A line a kill cut short is as if it had not been written. Copies of other sources are finished from the start.
    """

    def __init__(self, path: Path, sources: Sequence[Clip], copies: Mapping[int, str]) -> None:
        self.path, self.sources, self.copies = path, sources, copies
        self.places = array("q", [-1]) * len(sources)  # offset of the line of each source

    def __enter__(self) -> Journal:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self._written, self._read = self.path.open("ab"), self.path.open("rb")
        whole = 0
        for line in self._read:
            try:
                number = Outcome.from_json(line, self.sources).number
            except ValueError:
                break
            if not line.endswith(b"\n"):
                break
            self.places[number] = whole
            whole += len(line)
        self._written.truncate(whole)
        return self

    def __exit__(self, *_: object) -> None:
        self._written.flush()
        os.fsync(self._written.fileno())
        self._written.close()
        self._read.close()

    def __contains__(self, number: int) -> bool:
        return self.places[number] >= 0 or number in self.copies

    def write(self, outcome: Outcome) -> None:
        """Adds a line; its fragment is on disk already."""
        self.places[outcome.number] = self._written.seek(0, os.SEEK_END)
        self._written.write(outcome.to_json().encode() + b"\n")
        self._written.flush()

    def read(self, number: int) -> Outcome:
        """What became of a source that is finished."""
        if self.places[number] < 0:
            return Outcome(number, f"same content as {self.copies[number]}")
        self._read.seek(self.places[number])
        return Outcome.from_json(self._read.readline(), self.sources)


def _placed(outcomes: Iterable[Outcome], part: int, limit: int) -> Iterator[tuple[Outcome, list[StoredClip]]]:
    """Outcomes with their clips in shards: decided by the order of the clips and their lengths alone."""
    numbers: Counter[str] = Counter()
    sizes: Counter[str] = Counter()
    for outcome in outcomes:
        clips = []
        for stored in outcome.clips:
            split = str(stored.clip.split)
            if sizes[split] and sizes[split] + stored.length > limit:
                numbers[split] += 1
                sizes[split] = 0
            offset = sizes[split]
            clips.append(stored.placed(f"{split}-{part:03d}-{numbers[split]:06d}.tar", offset))
            sizes[split] += stored.length
        yield outcome, clips


def _write_shards(outcomes: Iterable[tuple[Outcome, list[StoredClip]]], out: Path) -> dict[str, str]:
    """Puts fragments into shards in the order of the sources; gives the SHA-256 of each.

    A shard is written in one go once it is full, beside its place, and moved there; the fragments it was made of
    are deleted only then. A shard that stands there already was finished by an earlier run.
    """
    make_folder(out / SHARDS)
    digests: dict[str, str] = {}
    # By split the shard that is filling, and its pieces in a row: source, offset, length, and if they are its last.
    filling: dict[str, tuple[str, array[int]]] = {}
    for outcome, clips in outcomes:
        begin = 0
        for unplaced, stored in zip(outcome.clips, clips, strict=True):
            split = str(stored.clip.split)
            if split in filling and filling[split][0] != stored.shard:
                name, pieces = filling.pop(split)
                digests[name] = _write_shard(out / SHARDS / name, out / WORK, pieces)
            last = stored is clips[-1]
            pieces = filling.setdefault(split, (stored.shard, array("q")))[1]
            pieces.extend((outcome.number, begin, unplaced.length, last))
            begin += unplaced.length
    return digests | {name: _write_shard(out / SHARDS / name, out / WORK, pieces) for name, pieces in filling.values()}


def _write_shard(path: Path, work: Path, pieces: array[int]) -> str:
    if path.exists() and path.stat().st_size == sum(pieces[2::4]) + len(END):
        digest = sha256(path)
    else:
        hashed = hashlib.sha256()
        with replacing(path) as draft, draft.open("wb") as file:
            for content in chain(_contents(work, pieces), [END]):
                hashed.update(content)
                file.write(content)
        digest = hashed.hexdigest()
    for number, last in zip(pieces[::4], pieces[3::4], strict=True):
        if last:  # its earlier clips are in this shard or in those before it
            fragment_path(work, number).unlink(missing_ok=True)
    return digest


def _contents(work: Path, pieces: array[int]) -> Iterator[bytes]:
    for number, offset, length in zip(pieces[::4], pieces[1::4], pieces[2::4], strict=True):
        path = fragment_path(work, number)
        try:
            with path.open("rb") as file:
                file.seek(offset)
                content = file.read(length)
        except FileNotFoundError:
            content = b""
        if len(content) != length:
            raise DataError(f"{path} is missing or damaged; delete {work.parent} and prepare it again")
        yield content


def _on_ray(cutter: Cutter, jobs: Iterable[Job]) -> Iterator[Outcome]:
    """The same work on a Ray cluster, where one machine is not enough; `out` must be on storage all machines share.

    A task whose process died twice is a file left out.
    """
    try:
        ray: Any = import_module("ray")
    except ImportError:
        raise DataError("engine='ray' needs Ray: pip install 'equiav[ray]', or leave the engine out") from None
    if not ray.is_initialized():
        ray.init(log_to_driver=False)
    remote: Any = ray.remote(max_retries=1)(Cutter.__call__)
    waiting, running = iter(jobs), dict[Any, int]()
    limit = IN_FLIGHT * max(1, int(ray.cluster_resources().get("CPU", 1)))
    while True:
        while len(running) < limit and (job := next(waiting, None)) is not None:
            running[remote.remote(cutter, job)] = job[0]
        if not running:
            return
        for reference in ray.wait(list(running))[0]:
            number = running.pop(reference)
            try:
                outcome: Outcome = ray.get(reference)
            except ray.exceptions.WorkerCrashedError:
                outcome = Outcome(number, CRASHED)
            yield outcome


def _in_order(
    numbers: Sequence[int], journal: Journal, outcomes: Iterator[Outcome], progress: Callable[[str], None]
) -> Iterator[Outcome]:
    """Enters outcomes in the journal as they come, and gives those of all sources in their order."""
    done = clips = skipped = due = 0
    for outcome in (journal.read(n) for n in numbers if n in journal):
        done, clips, skipped = done + 1, clips + len(outcome.clips), skipped + bool(outcome.reason)
    clips_before = clips
    if done:
        progress(f"{done} of {len(numbers)} files are done already")
    progressing = Progress(len(numbers), progress, "files", start=done)
    for outcome in outcomes:
        journal.write(outcome)
        while due < len(numbers) and numbers[due] in journal:
            yield journal.read(numbers[due])
            due += 1
        done, clips, skipped = done + 1, clips + len(outcome.clips), skipped + bool(outcome.reason)
        rate = (clips - clips_before) / max(time.monotonic() - progressing.began, 1e-9)
        progressing.update(done, f"{clips} clips, {skipped} left out, {rate:.1f} clips/s")
    yield from map(journal.read, numbers[due:])


def _finish(
    out: Path,
    index: IndexWriter,
    shards: Mapping[str, str],
    settings: Settings,
    *,
    part: tuple[int, int],
    mark: str,
    kept: Mapping[str, int],
) -> Summary:
    """Writes the checksums, and meta.json, which comes last and says that the folder is whole."""
    written = PreparedIndex(out, verify=False)

    def summed(column: str, k: int, splits: Sequence[int]) -> float:
        return math.fsum(
            value
            for mapped, rows in written.portions()
            for value in getattr(mapped, column)[rows, k][np.isin(mapped.split[rows], splits)]
        )

    # Sums are exact, so the statistics depend neither on the order of the clips nor on how they were shared out.
    counted = [SPLITS.index("train")] if index.splits["train"] else range(len(SPLITS))
    total, squares, count = (summed("statistics", k, counted) for k in range(3))
    mean = total / count if count else None
    std = math.sqrt(max(0.0, squares / count - mean * mean)) if mean is not None else None
    meta = {
        "format": VERSION,
        "equiav": __version__,
        "modalities": list(settings.need),
        **{k: v for k, v in asdict(settings).items() if k != "need"},
        "clips": len(written),
        "seconds": summed("times", 1, range(len(SPLITS))),
        "splits": dict(sorted((split, n) for split, n in index.splits.items() if n)),
        "sources": {"used": index.sources, "skipped": index.skipped},
        **({"kept": dict(kept)} if settings.published else {}),
        "labels": len(index.labels),
        "spectrogram": {"mean": mean, "std": std},
        "shards": len(index.shards),
        "part": list(part),
        "fingerprint": mark,
        "checksums": SUMS,
    }
    text = json.dumps(meta, indent=1) + "\n"
    names = [MANIFEST, SKIPPED, *(f"{INDEX}/{path.name}" for path in (out / INDEX).iterdir())]
    sums = {f"{SHARDS}/{name}": digest for name, digest in shards.items()} | {n: sha256(out / n) for n in names}
    sums[META] = hashlib.sha256(text.encode()).hexdigest()
    write_whole(out / SUMS, "".join(f"{digest}  {name}\n" for name, digest in sorted(sums.items())))
    write_whole(out / META, text)
    return Summary.of(meta)


def merge(parts: Sequence[Path], out: Path) -> Summary:
    """Joins the folders of all parts into one with the clips and statistics of a single run.

    Shards are linked where the file system can, and copied otherwise; the parts stay as they are.
    """
    metas = [read_meta(part) for part in parts]
    try:
        settings = _joint_settings(parts, metas, out)
    except (LookupError, TypeError, AttributeError) as error:
        raise DataError(f"{META} of {parts[0]} or another part lacks what merging needs ({error!r})") from error
    indexes = [PreparedIndex(part) for part in parts]
    shards: dict[str, Path] = {}
    for part, prepared in zip(parts, indexes, strict=True):
        for shard in prepared.shards:
            # A second file of that name would be written through the link into the first part.
            if shards.setdefault(shard, part) is not part:
                raise DataError(f"{part} and {shards[shard]} both have a shard {shard} and cannot be merged")
    recorded = {part: read_sums(part) or {} for part in parts}
    digests = {}
    with _writing(out), replacing(out) as draft:
        (draft / SHARDS).mkdir(parents=True)
        for shard, part in sorted(shards.items()):
            source, target = part / SHARDS / shard, draft / SHARDS / shard
            try:
                os.link(source, target)
            except OSError:
                shutil.copyfile(source, target)
            digests[shard] = recorded[part].get(f"{SHARDS}/{shard}") or sha256(target)
        with IndexWriter(draft, shards) as index:
            # Each part is sorted by the names of its sources, and a source is in one part only.
            for stored in heapq.merge(*(prepared.rows() for prepared in indexes), key=lambda row: row.clip.source):
                index.add(stored)
            for row in heapq.merge(*(read_skipped(part) for part in parts), key=lambda row: row[0]):
                index.skip(*row)
        kept = {what: sum(meta.get("kept", {}).get(what, 0) for meta in metas) for what in REMARKS}
        mark = metas[0]["fingerprint"]
        summary = _finish(draft, index, digests, settings, part=(1, 1), mark=mark, kept=kept)
    return summary


def _joint_settings(parts: Sequence[Path], metas: Sequence[dict[str, Any]], out: Path) -> Settings:
    """Those of all parts, which must be the parts of one preparation, each once."""
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
    names = {field.name for field in fields(Settings)} - {"need"}
    return Settings(**{k: v for k, v in metas[0].items() if k in names}, need=tuple(metas[0]["modalities"]))
