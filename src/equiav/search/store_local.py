"""The local store: files that grow, memory-mapped, in one folder; FAISS compares.

Every entry has a number, the order in which it came. Files are appended to and then `state.json` is replaced, so
a process killed at any moment leaves the old state or the new one. Removing writes down numbers; nothing moves.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from equiav.errors import DataError
from equiav.io import locked
from equiav.search import compressed
from equiav.search.columns import Column
from equiav.search.filters import Filter, tags
from equiav.search.records import SIDES, Entry, Side, Vector, digest64
from equiav.search.state import Compressed, State, read_state, switch_state
from equiav.search.store import Found, spacing

logger = logging.getLogger(__name__)

FEW = 20_000  # rows that a filter leaves: so many are compared exactly, at any size of the index
TAIL = 8192  # vectors that may wait outside the compressed index; each search compares all of them
RETRAIN = 4  # growth since training that asks for new lists
MASKS = 32  # filters whose answers are remembered

Numbers = NDArray[np.int64]
Mask = NDArray[np.bool_]


class LocalStore:
    """Entries and vectors in a folder; one process writes at a time, any number read."""

    def __init__(
        self,
        folder: Path,
        width: int,
        *,
        limit: int = compressed.LIMIT,
        probes: int = compressed.PROBES,
        candidates: int = compressed.CANDIDATES,
        say: Callable[[str], None] = lambda line: None,
    ) -> None:
        self.folder, self.width, self.limit, self.say = folder, width, limit, say
        self.probes, self.candidates = probes, candidates
        self.text = Column(folder / "entries.jsonl", "u1")
        self.ends = Column(folder / "entries.ends", "<i8")
        self.ids = Column(folder / "entries.ids", "<u8")
        self.places = Column(folder / "entries.places", "<i8", 2)  # rows of the two vectors, -1 for none
        self.tags = Column(folder / "entries.tags", "<u8", 2)  # digest of key=value, number of the entry
        self.rows = {side: Column(folder / f"{side}.vectors", "<f4", width) for side in SIDES}
        self.owners = {side: Column(folder / f"{side}.owners", "<i8") for side in SIDES}
        self.state = read_state(folder)
        self._mask = lru_cache(maxsize=MASKS)(self._filtered)

    @staticmethod
    def create(folder: Path) -> None:
        """An empty store."""
        folder.mkdir(parents=True, exist_ok=True)
        switch_state(folder, State())

    def __len__(self) -> int:
        return self.state.entries - self.state.removed_count

    def known(self, ids: Sequence[str]) -> set[str]:
        """Those of the ids that are there."""
        return {id for id, numbers in self._numbers(ids).items() if numbers}

    def get(self, id: str) -> Entry | None:
        """An entry with its vectors."""
        for number in self._numbers([id])[id]:
            places = dict(zip(SIDES, self._places[number], strict=True))
            vectors = {s: np.array(self._vectors[s][row]) if row >= 0 else None for s, row in places.items()}
            return Entry.from_description(self._description(number), **vectors)
        return None

    def entries(self) -> Iterator[Entry]:
        """All entries, without vectors."""
        for number in range(self.state.entries):
            if self._alive is None or self._alive[number]:
                yield Entry.from_description(self._description(number))

    def vectors(self, side: Side, most: int | None = None) -> tuple[list[str], NDArray[np.float32]]:
        """Ids and vectors (n, D) of the entries that have one on a side: all, or `most` evenly spaced ones."""
        owners = self._owners[side]
        rows = np.arange(len(owners)) if self._alive is None else np.flatnonzero(self._alive[owners])
        rows = rows[:: spacing(len(rows), most)]
        return [self._description(int(n))["id"] for n in owners[rows]], np.array(self._vectors[side][rows])

    def search(self, vector: Vector, side: Side, k: int, filters: Sequence[Filter]) -> list[Found]:
        """The nearest k entries on a side that meet all filters, best first; ties in the order they came."""
        self._load()
        owners = self._owners[side]
        mask = self._mask(tuple(filters)) if filters else self._alive
        allowed = None if mask is None else mask[owners]
        rows = self._candidates(vector, side, k, allowed)
        if isinstance(rows, str):
            scores, rows = compressed.exact(self._vectors[side], vector, "all"), np.arange(len(owners))
        else:
            scores = compressed.exact(self._vectors[side], vector, rows)
        best = _best(scores, rows, k)
        found = [(int(owners[rows[i]]), float(scores[i])) for i in best]
        return [Found(Entry.from_description(self._description(number)), score) for number, score in found]

    def _candidates(self, vector: Vector, side: Side, k: int, allowed: Mask | None) -> Any:
        """Rows to compare exactly: all that may be found, or in a large index those the compressed one proposes."""
        count = len(self._owners[side]) if allowed is None else int(allowed.sum())
        index = self._compressed.get(side)
        if index is None or count <= FEW:
            return "all" if allowed is None else np.flatnonzero(allowed)
        covered = self.state.compressed[side].rows
        head = None if allowed is None else allowed[:covered]
        tail = np.arange(covered, len(self._owners[side])) if allowed is None else _from(allowed, covered)
        proposed = compressed.candidates(index, vector, allowed=head, probes=self.probes, count=self.candidates + 4 * k)
        return np.concatenate([proposed, tail])

    def add(self, entries: Sequence[Entry]) -> None:
        """Adds entries whose ids are new: appends, then switches."""
        with locked(self.folder):
            self._reopen()
            known = self.known([entry.id for entry in entries])  # another process may have been faster
            self._switch(self._compress(self._append([entry for entry in entries if entry.id not in known])))

    def remove(self, ids: Sequence[str]) -> int:
        """Writes down that entries are gone."""
        with locked(self.folder):
            self._reopen()
            found = self._numbers(list(dict.fromkeys(ids)))
            gone = [number for numbers in found.values() for number in numbers]
            if not gone:
                return 0
            alive = np.ones(self.state.entries, bool) if self._alive is None else self._alive.copy()
            alive[gone] = False
            removed = np.flatnonzero(~alive)
            name = f"removed-{self.state.generation + 1:06d}.i64"
            Column(self.folder / name, "<i8").append(removed, 0)
            self._switch(replace(self.state, removed=name, removed_count=len(removed)))
            return len(gone)

    def close(self) -> None:
        """Lets go of the maps."""
        self._forget()

    def _append(self, entries: Sequence[Entry]) -> State:
        state = self.state
        lines = [json.dumps(e.description(), separators=(",", ":")).encode() + b"\n" for e in entries]
        self.text.append(np.frombuffer(b"".join(lines), "u1"), state.text)
        self.ends.append(state.text + np.cumsum([len(line) for line in lines]), state.entries)
        self.ids.append(np.array([digest64(e.id) for e in entries], np.uint64), state.entries)
        pairs = [(digest64(tag), state.entries + i) for i, e in enumerate(entries) for tag in tags(e)]
        self.tags.append(np.array(pairs, np.uint64).reshape(-1, 2), state.tags)
        places = np.full((len(entries), 2), -1, np.int64)
        grown: dict[str, Any] = {}
        for column, side in enumerate(SIDES):
            chosen = [(i, v) for i, v in ((i, e.vector(side)) for i, e in enumerate(entries)) if v is not None]
            numbers = np.array([i for i, _ in chosen], np.int64)
            places[numbers, column] = state.rows(side) + np.arange(len(chosen))
            stack = np.stack([v for _, v in chosen]) if chosen else np.zeros((0, self.width), np.float32)
            self.rows[side].append(stack, state.rows(side))
            self.owners[side].append(state.entries + numbers, state.rows(side))
            grown[side] = state.rows(side) + len(chosen)
        self.places.append(places, state.entries)
        text, count = state.text + sum(map(len, lines)), state.entries + len(entries)
        return replace(state, entries=count, text=text, tags=state.tags + len(pairs), **grown)

    def _compress(self, state: State) -> State:
        """Brings the compressed indexes up to what was appended, where there is enough to make it worth while."""
        made = dict(state.compressed)
        for side in SIDES:
            rows, old = state.rows(side), made.get(side)
            if rows < self.limit or (old is not None and rows - old.rows <= TAIL):
                continue
            vectors = self.rows[side].view(rows)
            index = None if old is None or rows > RETRAIN * old.trained else self._intact(old)
            if old is None or index is None:
                index, trained = compressed.train(vectors, self.say), rows
            else:
                trained = old.trained
                compressed.extend(index, vectors, old.rows, self.say)
            name = f"{side}-{state.generation + 1:06d}.faiss"
            compressed.save(index, self.folder / name)
            made[side] = Compressed(name, rows, trained)
        return replace(state, compressed=made)

    def _switch(self, state: State) -> None:
        switch_state(self.folder, replace(state, generation=self.state.generation + 1))
        self._reopen()
        patterns = ("*.faiss", f".*.faiss.*{compressed.DRAFT}", "removed-*.i64")
        for path in [path for pattern in patterns for path in self.folder.glob(pattern)]:
            if path.name not in self.state.files():
                path.unlink(missing_ok=True)

    def _reopen(self) -> None:
        self._forget()
        self.state = read_state(self.folder)

    def _load(self) -> None:
        """Opens what is replaced rather than grown; a writer may have replaced it since the state was read.

        A compressed index that is damaged is left out: what it covers is compared exactly, which is slower.
        """
        while True:
            try:
                _ = self._alive, self._compressed
                return
            except DataError:
                before = self.state
                self._reopen()
                if self.state == before:
                    kept = {side: index for side, c in before.compressed.items() if (index := self._intact(c))}
                    self.__dict__["_compressed"] = kept
                    _ = self._alive
                    return

    def _intact(self, made: Compressed) -> Any:
        """A compressed index; None, and a notice, if its file is damaged."""
        try:
            return compressed.load(self.folder / made.file, made.rows, self.width)
        except DataError as error:
            logger.warning("%s; until then every vector is compared, which is slower", error)
            return None

    def _forget(self) -> None:
        for name in ("_text", "_ends", "_ids", "_places", "_tags", "_vectors", "_owners", "_alive"):
            self.__dict__.pop(name, None)
        self.__dict__.pop("_compressed", None)
        self._mask.cache_clear()

    @cached_property
    def _text(self) -> NDArray[Any]:
        return self.text.view(self.state.text)

    @cached_property
    def _ends(self) -> NDArray[Any]:
        return self.ends.view(self.state.entries)

    @cached_property
    def _ids(self) -> NDArray[Any]:
        return self.ids.view(self.state.entries)

    @cached_property
    def _places(self) -> NDArray[Any]:
        return self.places.view(self.state.entries)

    @cached_property
    def _tags(self) -> NDArray[Any]:
        return self.tags.view(self.state.tags)

    @cached_property
    def _vectors(self) -> dict[Side, NDArray[Any]]:
        return {side: self.rows[side].view(self.state.rows(side)) for side in SIDES}

    @cached_property
    def _owners(self) -> dict[Side, NDArray[Any]]:
        return {side: self.owners[side].view(self.state.rows(side)) for side in SIDES}

    @cached_property
    def _alive(self) -> Mask | None:
        """For every entry whether it is still there; None if all are."""
        if self.state.removed is None:
            return None
        alive = np.ones(self.state.entries, bool)
        alive[Column(self.folder / self.state.removed, "<i8").view(self.state.removed_count)] = False
        return alive

    @cached_property
    def _compressed(self) -> dict[str, Any]:
        found = self.state.compressed.items()
        return {side: compressed.load(self.folder / c.file, c.rows, self.width) for side, c in found}

    def _description(self, number: int) -> dict[str, Any]:
        first = int(self._ends[number - 1]) if number else 0
        record: dict[str, Any] = json.loads(self._text[first : int(self._ends[number])].tobytes())
        return record

    def _numbers(self, ids: Sequence[str]) -> dict[str, list[int]]:
        """Numbers of the living entries that have an id: at most one each."""
        found: dict[str, list[int]] = {id: [] for id in ids}
        names = {digest64(id): id for id in found}
        for number in np.flatnonzero(np.isin(self._ids, np.array(list(names), np.uint64))):
            id = names[int(self._ids[number])]
            if (self._alive is None or self._alive[number]) and self._description(int(number))["id"] == id:
                found[id].append(int(number))
        return found

    def _filtered(self, filters: tuple[Filter, ...]) -> Mask:
        """For every entry whether it is there and meets all filters; only what no tag can tell is read."""
        mask = np.ones(self.state.entries, bool) if self._alive is None else self._alive.copy()
        for one in sorted(filters, key=lambda f: not f.exact):
            numbers = np.flatnonzero(mask)
            if one.exact:
                tagged = self._tags[self._tags[:, 0] == np.uint64(digest64(f"{one.key}={one.value}"))][:, 1]
                keep = np.zeros_like(mask)
                keep[tagged.astype(np.int64)] = True
                mask &= keep
            else:
                for number in numbers:
                    mask[number] = one.accepts(Entry.from_description(self._description(int(number))))
        return mask


def _from(allowed: Mask, first: int) -> Numbers:
    return first + np.flatnonzero(allowed[first:])


def _best(scores: NDArray[np.float32], rows: Numbers, k: int) -> Numbers:
    """Places of the k highest scores, best first; equal ones by row."""
    if k < len(scores):
        edge = np.partition(scores, len(scores) - k)[len(scores) - k]
        places = np.flatnonzero(scores >= edge)
    else:
        places = np.arange(len(scores))
    order: Numbers = places[np.lexsort((rows[places], -scores[places]))][:k]
    return order
