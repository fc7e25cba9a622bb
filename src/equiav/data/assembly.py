"""Fragments into shards, and the journal: what is finished stays finished, whenever the process is killed."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType

from equiav.data.cutting import Outcome, fragment_path
from equiav.data.shards import END
from equiav.errors import DataError

JOURNAL = "journal.jsonl"


class Journal:
    """One line for each source that is finished; a line a kill cut short is as if it had not been written."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / JOURNAL

    def __enter__(self) -> Journal:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self._file = self.path.open("a+", encoding="utf-8")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._file.flush()
        os.fsync(self._file.fileno())
        self._file.close()

    def read(self) -> dict[int, Outcome]:
        """The outcomes so far, by number of the source; what follows them is cut off."""
        outcomes: dict[int, Outcome] = {}
        content = self.path.read_bytes()
        whole = 0
        for line in content.splitlines(keepends=True):
            try:
                outcome = Outcome.from_json(line.decode())
            except ValueError:
                break
            if not line.endswith(b"\n"):
                break
            outcomes[outcome.number] = outcome
            whole += len(line)
        if whole < len(content):
            os.truncate(self.path, whole)
        return outcomes

    def write(self, outcome: Outcome) -> None:
        """Adds a line; its fragment is on disk already."""
        self._file.write(outcome.to_json() + "\n")
        self._file.flush()


@dataclass
class _Shard:
    """A shard that is filling: pieces of fragments (source, offset, length) one after another."""

    number: int = 0
    size: int = 0
    pieces: list[tuple[int, int, int]] = field(default_factory=list)


class Assembly:
    """Puts clips into shards in the order of the sources, so that where a clip goes depends on nothing else.

    A shard is written in one go once it is full, beside its place, and moved there; the fragments it was made of
    are deleted only then. A shard that stands there already was finished by an earlier run.
    """

    def __init__(self, shards: Path, work: Path, *, part: int, limit: int) -> None:
        self.folder, self.work, self.part, self.limit = shards, work, part, limit
        self.places: dict[str, tuple[str, int]] = {}
        self.filling: dict[str, _Shard] = {}
        self.uses: dict[int, int] = {}  # clips of a fragment that wait for their shard
        shards.mkdir(parents=True, exist_ok=True)
        for draft in (*shards.glob(".*.tmp"), *work.glob(".*.tmp")):
            draft.unlink(missing_ok=True)

    def add(self, split: str, outcome: Outcome) -> None:
        """The clips of the next source; `places` then says in which shard each lies, and at which offset."""
        offset = 0
        self.uses[outcome.number] = len(outcome.clips)
        for clip in outcome.clips:
            shard = self.filling.setdefault(split, _Shard())
            if shard.pieces and shard.size + clip.length > self.limit:
                self._write(split, shard)
                shard = self.filling[split] = _Shard(shard.number + 1)
            self.places[clip.key] = (self._name(split, shard), shard.size)
            shard.pieces.append((outcome.number, offset, clip.length))
            shard.size += clip.length
            offset += clip.length

    def close(self) -> dict[str, tuple[str, int]]:
        """Writes the last shards and gives the places of all clips."""
        for split, shard in self.filling.items():
            self._write(split, shard)
        self.filling.clear()
        return self.places

    def _name(self, split: str, shard: _Shard) -> str:
        return f"{split}-{self.part:03d}-{shard.number:06d}.tar"

    def _write(self, split: str, shard: _Shard) -> None:
        path = self.folder / self._name(split, shard)
        if not (path.exists() and path.stat().st_size == shard.size + len(END)):
            draft = path.with_name(f".{path.name}.tmp")
            with draft.open("wb") as file:
                for content in self._contents(shard):
                    file.write(content)
                file.write(END)
                file.flush()
                os.fsync(file.fileno())
            draft.replace(path)
            _sync_folder(self.folder)
        for number, _, _ in shard.pieces:
            self.uses[number] -= 1
            if not self.uses[number]:
                del self.uses[number]
                fragment_path(self.work, number).unlink(missing_ok=True)

    def _contents(self, shard: _Shard) -> Iterator[bytes]:
        for number, offset, length in shard.pieces:
            path = fragment_path(self.work, number)
            try:
                with path.open("rb") as file:
                    file.seek(offset)
                    content = file.read(length)
            except FileNotFoundError:
                content = b""
            if len(content) != length:
                raise DataError(f"{path} is missing or damaged; delete {self.work.parent} and prepare it again")
            yield content


def _sync_folder(folder: Path) -> None:
    """Makes a renaming last."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
