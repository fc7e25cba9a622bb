"""Any media become training data: sources in, shards with an index out; in parallel, and resumable at any moment."""

from __future__ import annotations

import contextlib
import hashlib
import json
import shutil
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal, overload

from equiav.data.assembly import Assembly, Journal
from equiav.data.cutting import Cutter, Need, Outcome, Settings, split_for
from equiav.data.finish import Summary, finish, summary_of
from equiav.data.index import META, SHARDS, ClipRow, read_meta
from equiav.data.manifest import Source
from equiav.data.pool import Failure, run_isolated
from equiav.data.sources import find_sources, ordered
from equiav.errors import DataError
from equiav.files import locked
from equiav.media import CLIP_SECONDS, FRAMES, Limits
from equiav.progress import duration
from equiav.provenance import write_json

__all__ = ["Summary", "find_sources", "prepare"]

WORK, PLAN = "work", "plan.json"
SHARD_BYTES = 256 << 20
SAY_SECONDS = 2.0

Engine = Literal["local", "ray"]
Job = tuple[int, Source]


@dataclass(frozen=True)
class _Plan:
    """The work of one part: which sources, and which of them are copies of others."""

    sources: list[Source]
    numbers: list[int]
    copies: dict[int, str]


def prepare(
    sources: Iterable[Source],
    out: Path,
    *,
    workers: int,
    part: tuple[int, int] = (1, 1),
    clip_seconds: float = CLIP_SECONDS,
    overlap: float = 0.0,
    short_side: int = 256,
    frames: int = FRAMES,
    need: Need = ("audio", "video"),
    shard_bytes: int = SHARD_BYTES,
    wall: float = 120.0,
    engine: Engine = "local",
    say: Callable[[str], None] = lambda line: None,
) -> Summary:
    """Cuts sources into clips and stores them in `out`; called again after an interruption, it carries on.

    `part` (i, n) takes sources i, i + n, ... of the sorted list; `merge` joins the parts. Media that cannot be used
    are left out, with the reason in skipped.csv. `wall` bounds the seconds a file may take without giving a clip.
    """
    settings = Settings(clip_seconds, overlap, short_side, frames, need=need)
    _check(settings, part, shard_bytes)
    listed = ordered(sources)
    mark = fingerprint(listed, settings, shard_bytes)
    out.mkdir(parents=True, exist_ok=True)
    with locked(out):
        if (out / META).exists():
            return _finished(out, mark, part, say)
        plan = _plan(listed, out, mark, part, say)
        assembly = Assembly(out / SHARDS, out / WORK, part=part[0], limit=shard_bytes)
        cutter = Cutter(out / WORK, settings, Limits(wall=wall))
        outcomes = _work_through(plan, out, cutter, assembly, workers=workers, wall=wall, engine=engine, say=say)
        shards = assembly.close()
        rows = _Rows(plan, outcomes, shards)
        summary = finish(out, rows, _skipped(plan, outcomes), settings=settings, part=part, mark=mark)
        shutil.rmtree(out / WORK)
    say(f"{out}: {summary.clips} clips of {summary.used} files, {summary.skipped} files left out")
    return summary


def _check(settings: Settings, part: tuple[int, int], shard_bytes: int) -> None:
    if not 1 <= part[0] <= part[1]:
        raise DataError(f"part {part[0]}/{part[1]} does not exist; give 1/{part[1]} to {part[1]}/{part[1]}")
    if not 0.5 <= settings.clip_seconds <= 600 or not 0 <= settings.overlap < settings.clip_seconds:
        raise DataError(f"clips of {settings.clip_seconds:g} s overlapping by {settings.overlap:g} s make no sense")
    if not 16 <= settings.short_side <= 4096 or not 1 <= settings.frames <= 1000 or shard_bytes < 1:
        raise DataError("short_side must be 16 to 4096, frames 1 to 1000, and a shard more than no bytes")
    if not settings.need or not set(settings.need) <= {"audio", "video"}:
        raise DataError(f"need must name audio, video or both, not {settings.need}")


def fingerprint(sources: Sequence[Source], settings: Settings, shard_bytes: int) -> str:
    """The same for runs that must give the same clips, wherever their files lie."""
    digest = hashlib.sha256(json.dumps([asdict(settings), shard_bytes]).encode())
    for source in sources:
        digest.update(repr({k: v for k, v in asdict(source).items() if k != "path"}).encode())
    return digest.hexdigest()


def _finished(out: Path, mark: str, part: tuple[int, int], say: Callable[[str], None]) -> Summary:
    meta = read_meta(out)
    if meta.get("fingerprint") != mark or meta.get("part") != list(part):
        raise DataError(f"{out} was prepared from other sources or with other settings; choose another folder")
    say(f"{out}: already prepared, nothing left to do")
    # Killed between writing and tidying up.
    shutil.rmtree(out / WORK, ignore_errors=True)
    return summary_of(meta)


def _plan(listed: list[Source], out: Path, mark: str, part: tuple[int, int], say: Callable[[str], None]) -> _Plan:
    """Made once and kept, so that a run carried on does not read files again to compare them."""
    path = out / WORK / PLAN
    identity = {"fingerprint": mark, "part": list(part)}
    try:
        kept = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        copies = _copies(listed, say)
        write_json(path, {**identity, "copies": copies})
    else:
        if {k: kept.get(k) for k in identity} != identity:
            raise DataError(f"{out} holds unfinished work on other sources or settings; choose another folder")
        copies = {int(k): v for k, v in kept["copies"].items()}
    return _Plan(listed, list(range(part[0] - 1, len(listed), part[1])), copies)


def _copies(listed: Sequence[Source], say: Callable[[str], None]) -> dict[int, str]:
    """Sources whose content is that of an earlier one, with its name. Only files of equal size are compared."""
    alike: dict[tuple[int, float, float | None], list[int]] = {}
    for number, source in enumerate(listed):
        with contextlib.suppress(OSError):
            alike.setdefault((source.path.stat().st_size, source.start, source.seconds), []).append(number)
    suspects = [number for group in alike.values() if len(group) > 1 for number in group]
    if suspects:
        say(f"comparing {len(suspects)} files of equal size")
    with ThreadPoolExecutor(4) as threads:
        digests = dict(zip(suspects, threads.map(lambda n: _digest(listed[n].path), suspects), strict=True))
    first: dict[Any, str] = {}
    copies: dict[int, str] = {}
    for number in sorted(suspects):
        source, digest = listed[number], digests[number]
        if digest:
            name = first.setdefault((digest, source.start, source.seconds), source.name)
            if name != source.name:
                copies[number] = name
    return copies


def _digest(path: Path) -> str:
    try:
        digest = hashlib.sha256()
        with path.open("rb") as file:
            while block := file.read(1 << 20):
                digest.update(block)
        return digest.hexdigest()
    except OSError:
        return ""  # unreadable: the worker will say why


def _work_through(
    plan: _Plan,
    out: Path,
    cutter: Cutter,
    assembly: Assembly,
    *,
    workers: int,
    wall: float,
    engine: Engine,
    say: Callable[[str], None],
) -> dict[int, Outcome]:
    """Outcomes of all sources: those of the journal, and those of the work left."""
    with Journal(out / WORK) as journal:
        outcomes = journal.read()
        for number in plan.numbers:
            if number in plan.copies and number not in outcomes:
                outcomes[number] = Outcome(number, f"same content as {plan.copies[number]}")
        progress = _Progress(len(plan.numbers), outcomes, say)
        order = iter(plan.numbers)
        due = next(order, None)
        jobs = ((n, plan.sources[n]) for n in plan.numbers if n not in outcomes)
        for outcome in _outcomes(cutter, list(jobs), workers=workers, wall=wall, engine=engine):
            journal.write(outcome)
            outcomes[outcome.number] = outcome
            progress.update(outcome)
            while due is not None and due in outcomes:
                assembly.add(split_for(plan.sources[due]), outcomes[due])
                due = next(order, None)
        while due is not None:
            assembly.add(split_for(plan.sources[due]), outcomes[due])
            due = next(order, None)
    return outcomes


def _outcomes(cutter: Cutter, jobs: list[Job], *, workers: int, wall: float, engine: Engine) -> Iterator[Outcome]:
    if engine == "ray":
        from equiav.data.cluster import run_on_ray

        yield from run_on_ray(cutter, jobs)
        return
    # Files look at their own watch; the parent's is for those that hang where no watch is looked at.
    results = run_isolated(cutter, jobs, workers=min(workers, max(1, len(jobs))), patience=1.5 * wall + 5)
    for (number, _), result in results:
        yield Outcome(number, result.reason) if isinstance(result, Failure) else result


class _Rows(Sequence[ClipRow]):
    """What the index says of each clip, in the order of the sources; made when asked for, so that one is held."""

    def __init__(self, plan: _Plan, outcomes: dict[int, Outcome], shards: dict[str, tuple[str, int]]) -> None:
        self.plan, self.outcomes, self.shards = plan, outcomes, shards
        self.at = [(number, i) for number in plan.numbers for i in range(len(outcomes[number].clips))]

    def __len__(self) -> int:
        return len(self.at)

    @overload
    def __getitem__(self, index: int) -> ClipRow: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[ClipRow]: ...
    def __getitem__(self, index: int | slice) -> ClipRow | Sequence[ClipRow]:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        number, i = self.at[index]
        source, clip = self.plan.sources[number], self.outcomes[number].clips[i]
        shard, offset = self.shards[clip.key]
        return ClipRow(
            key=clip.key,
            name=source.name,
            path=str(source.path),
            split=split_for(source),
            group=source.group or source.name,
            labels=source.labels,
            start=clip.start,
            seconds=clip.seconds,
            shard=shard,
            members=clip.placed(offset),
            statistics=clip.statistics,
        )


def _skipped(plan: _Plan, outcomes: dict[int, Outcome]) -> list[tuple[str, str, str]]:
    """Source, start (empty: all of it) and reason."""
    found = []
    for number in plan.numbers:
        name, outcome = plan.sources[number].name, outcomes[number]
        if outcome.reason:
            found.append((name, "", outcome.reason))
        found += [(name, f"{start:.3f}", reason) for start, reason in outcome.dropped]
    return found


class _Progress:
    """Says every few seconds how far it is and how long it will take."""

    def __init__(self, files: int, outcomes: dict[int, Outcome], say: Callable[[str], None]) -> None:
        self.files, self.say = files, say
        self.done = self.before = len(outcomes)
        self.clips = self.clips_before = sum(len(outcome.clips) for outcome in outcomes.values())
        self.skipped = sum(bool(outcome.reason) for outcome in outcomes.values())
        self.began = self.said = time.monotonic()
        if self.done:
            say(f"{self.done} of {files} files are done already")

    def update(self, outcome: Outcome) -> None:
        """Counts a source; speaks when it is time, and at the end."""
        self.done += 1
        self.clips += len(outcome.clips)
        self.skipped += bool(outcome.reason)
        now = time.monotonic()
        if now - self.said < SAY_SECONDS and self.done < self.files:
            return
        self.said = now
        passed = max(now - self.began, 1e-9)
        left = duration(passed / (self.done - self.before) * (self.files - self.done))
        self.say(
            f"{self.done}/{self.files} files  {self.clips} clips  {self.skipped} left out  "
            f"{(self.clips - self.clips_before) / passed:.1f} clips/s  {left} left"
        )
