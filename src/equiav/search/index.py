"""Index: clips by their embeddings, in a folder that remembers which checkpoint made them."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from equiav.checkpoint import same_model
from equiav.errors import DataError
from equiav.inference import LoadedModel
from equiav.inference.embedder import joint
from equiav.io import write_json
from equiav.search.filters import Filter, parse_filters
from equiav.search.records import SIDES, Among, Entry, Hit, Query, Side, default_among
from equiav.search.store import Found, Store
from equiav.search.store_local import LocalStore
from equiav.search.store_milvus import MilvusStore, is_file, parse_address
from equiav.search.thumbnails import Thumbnails

INDEX, THUMBNAILS, FORMAT = "index.json", "thumbnails", 1
UNIT = 1e-3  # how far a unit vector's length may be off
MOST = 10_000  # results of one search

Say = Callable[[str], None]


class Index:
    """Entries with up to two vectors each (sound, pictures), searched by cosine.

    The folder holds `index.json` (which model, which store), thumbnails, and the vectors unless Milvus keeps them.
    """

    def __init__(self, folder: Path, about: dict[str, Any], store: Store) -> None:
        self.folder, self.about, self.store = folder, about, store
        self.thumbnails = Thumbnails(folder / THUMBNAILS)

    @classmethod
    def create(
        cls,
        folder: str | Path,
        model: LoadedModel,
        *,
        store: str | None = None,
        model_path: str | Path | None = None,
        say: Say = lambda line: None,
    ) -> Index:
        """A new index for vectors of `model`.

        Args:
            folder: where it goes; it must not hold one yet.
            model: whose vectors it will hold.
            store: None for FAISS in the folder, `milvus://host:port/collection`, or a .db file of milvus-lite.
            model_path: where the checkpoint lies, so that a search need not say it again.
            say: is told how the compressed index of a large collection comes along.
        """
        folder = Path(folder)
        if (folder / INDEX).exists():
            raise DataError(f"{folder} holds an index already; open it, or choose another folder")
        if folder.is_file():
            raise DataError(f"{folder} is a file; an index is a folder")
        store = settled_store(store)
        about = {
            "format": FORMAT,
            "digest": model.digest,
            "width": model.width,
            "store": store,
            "model": None if model_path is None else str(Path(model_path).resolve()),
        }
        if store is None:
            LocalStore.create(folder)
        kept = _store(folder, about, create=True, say=say)
        write_json(folder / INDEX, about)
        return cls(folder, about, kept)

    @classmethod
    def open(cls, folder: str | Path, *, say: Say = lambda line: None) -> Index:
        """An index made before."""
        folder = Path(folder)
        try:
            about = json.loads((folder / INDEX).read_text(encoding="utf-8"))
        except (FileNotFoundError, NotADirectoryError):
            raise DataError(f"{folder} is no index; make one with `equiav index CLIPS {folder}`") from None
        except (OSError, ValueError) as error:
            raise DataError(f"{folder / INDEX} cannot be read: {error}") from error
        if not isinstance(about, dict) or about.get("format") != FORMAT:
            raise DataError(f"{folder} is an index of another format; make it again with this version")
        return cls(folder, about, _store(folder, about, create=False, say=say))

    def __len__(self) -> int:
        return len(self.store)

    def __contains__(self, id: object) -> bool:
        return isinstance(id, str) and bool(self.store.known([id]))

    @property
    def width(self) -> int:
        """Length of a vector."""
        return int(self.about["width"])

    @property
    def digest(self) -> str:
        """Which model made the vectors."""
        return str(self.about["digest"])

    @property
    def model_path(self) -> Path | None:
        """Where that model's checkpoint lay when the index was made, if that was said."""
        return None if self.about["model"] is None else Path(self.about["model"])

    def check_model(self, digest: str) -> None:
        """Refuses vectors of another checkpoint: they lie in another space."""
        if not same_model(digest, self.digest):
            raise DataError(
                f"{self.folder} was made by checkpoint {self.digest[:12]}, these vectors by {digest[:12]}; "
                "use that checkpoint (--model), or make a new index"
            )

    def add(self, entries: Sequence[Entry], *, made_by: str) -> int:
        """Adds entries whose ids are new and says how many those were.

        In a folder all of them are there, or none. Milvus may be left with some, all but the first of a file if any:
        adding the same again completes them.
        """
        self.check_model(made_by)
        for entry in entries:
            self._check_entry(entry)
        known = self.store.known([entry.id for entry in entries])
        new = list({entry.id: entry for entry in entries if entry.id not in known}.values())
        if new:
            for entry in new:
                self.thumbnails.write(entry)
            self.store.add(new)
        return len(new)

    def remove(self, ids: Sequence[str] = (), sources: Sequence[str] = ()) -> int:
        """Removes entries by id, and those of sources by name or path (`*` for anything); says how many."""
        gone = list(ids)
        if sources:
            for entry in self.store.entries():
                names = [entry.source, *([] if entry.path is None else [str(entry.path)])]
                if any(fnmatchcase(name, pattern) for name in names for pattern in sources):
                    gone.append(entry.id)
        count = self.store.remove(gone)
        for id in gone:
            self.thumbnails.remove(id)
        return count

    def entry(self, id: str) -> Entry:
        """An entry with its vectors."""
        found = self.store.get(id)
        if found is None:
            raise DataError(f"{self.folder} holds no clip called {id!r}")
        return found

    def entries(self) -> Iterator[Entry]:
        """All entries, without vectors."""
        return self.store.entries()

    def vectors(self, side: Side, most: int | None = None) -> tuple[list[str], NDArray[np.float32]]:
        """Ids and vectors (n, D) of the entries that have one on a side: all, or `most` evenly spaced ones."""
        return self.store.vectors(side, most)

    def like(self, id: str) -> Query:
        """The question "what is like this entry?", sound and picture together."""
        entry = self.entry(id)
        parts = [vector for vector in (entry.audio, entry.visual) if vector is not None]
        return Query("like", joint(*parts), self.digest, exclude=id)

    def search(
        self, query: Query, *, k: int = 10, among: Among | None = None, filters: Sequence[str | Filter] = ()
    ) -> list[Hit]:
        """The k nearest entries, best first.

        Args:
            query: from `equiav.search.query.ask` or `like`.
            k: how many.
            among: "audio" (sounds), "visual" (pictures) or "both"; without it sounds are looked for among pictures,
                pictures among sounds, videos and entries among both.
            filters: `key=value`, `key!=value`, `key>=number`, `key<=number`; keys are label, source, path, start, end,
                seconds and columns of metadata, and `*` in a value stands for anything.
        """
        self.check_model(query.made_by)
        if not 1 <= k <= MOST:
            raise DataError(f"{k} results: ask for 1 to {MOST:,}")
        if query.vector.shape != (self.width,):
            raise DataError(f"a query of shape {query.vector.shape} for vectors of {self.width}")
        parsed = parse_filters(filters)
        among = among or default_among(query.kind)
        sides = SIDES if among == "both" else (among,)
        best: dict[str, tuple[Found, Side]] = {}
        for side in sides:
            for found in self.store.search(query.vector, side, k + (query.exclude is not None), parsed):
                other = best.get(found.entry.id)
                if found.entry.id != query.exclude and (other is None or found.score > other[0].score):
                    best[found.entry.id] = (found, side)
        ranked = sorted(best.values(), key=lambda pair: -pair[0].score)[:k]
        return [self._hit(found, side) for found, side in ranked]

    def close(self) -> None:
        """Lets go of files and connections."""
        self.store.close()

    def _hit(self, found: Found, side: Side) -> Hit:
        e = found.entry
        picture = self.thumbnails.path(e.id)
        return Hit(e.id, found.score, side, e.source, e.path, e.start, e.end, e.labels, e.metadata, picture)

    def _check_entry(self, entry: Entry) -> None:
        vectors = [vector for vector in (entry.audio, entry.visual) if vector is not None]
        if not vectors:
            raise DataError(f"{entry.id}: an entry needs a vector of its sound or of its pictures")
        for vector in vectors:
            if vector.shape != (self.width,) or not abs(float(np.linalg.norm(vector)) - 1) <= UNIT:
                raise DataError(f"{entry.id}: its vectors must be of length 1 and of {self.width} numbers")


def settled_store(store: str | None) -> str | None:
    """A store's address as an index remembers it: files by their whole path, whatever the current folder."""
    return str(Path(store).absolute()) if store is not None and is_file(store) else store


def _store(folder: Path, about: dict[str, Any], *, create: bool, say: Say) -> Store:
    if about["store"] is None:
        return LocalStore(folder, about["width"], say=say)
    return MilvusStore(parse_address(about["store"]), about["width"], about["digest"], create=create)
