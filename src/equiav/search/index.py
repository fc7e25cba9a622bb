"""Index: clips by their embeddings, in a folder that remembers which checkpoint made them."""

from __future__ import annotations

import hashlib
import json
import logging
import os
import re
from collections.abc import Iterator, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from equiav.checkpoint import same_model
from equiav.errors import DataError, EquiAVError
from equiav.hub import on_hub
from equiav.inference import Embedder, LoadedModel, Picture, Sound, Video, joint
from equiav.io import SUMS, check_sums, sync_paths, write_json, write_whole
from equiav.media import thumbnail
from equiav.search.database import REMEDY
from equiav.search.milvus import MilvusStore, is_file, same_store
from equiav.search.records import (
    PREPARED,
    SIDES,
    Entry,
    Filter,
    Hit,
    Progress,
    Query,
    Store,
    Vector,
    matches,
    parse_filters,
)
from equiav.search.store import LocalStore
from equiav.types import Clip

logger = logging.getLogger(__name__)

INDEX, THUMBNAILS = "index.json", "thumbnails"
FORMAT = 3  # in format 1 a local store had no database, in format 2 nothing had a checksum
MARK = b"sha256"  # between a thumbnail and its checksum, where whoever shows it has stopped reading
UNIT = 1e-3  # how far a unit vector's length may be off
MOST = 10_000  # results of one search
SHOWN = 100_000  # thumbnails that are remembered as compared
ALL = ("both", "all")  # names of all modalities together


class Index:
    """Entries with a vector for each modality they have (audio, visual, or any other), searched by cosine.

    The folder holds `index.json` (which model, which store), thumbnails, and the vectors unless Milvus keeps them.
    """

    def __init__(self, folder: Path, about: dict[str, Any], store: Store) -> None:
        self.folder, self.about, self.store = folder, about, store
        # A thumbnail is compared with its checksum when it is first shown, and again once its file is another.
        self._whole = lru_cache(SHOWN)(lambda place, modified, size: intact(place.read_bytes()))

    @classmethod
    def create(
        cls,
        folder: str | Path,
        model: LoadedModel,
        *,
        store: str | None = None,
        model_path: str | Path | None = None,
        sides: Sequence[str] = SIDES,
        progress: Progress = lambda line: None,
    ) -> Index:
        """A new index for vectors of `model`.

        Args:
            folder: where it goes; it must not hold one yet.
            model: whose vectors it will hold.
            store: None for FAISS in the folder, `milvus://host:port/collection`, or a .db file of milvus-lite.
            model_path: where the checkpoint lies, so that a search need not say it again.
            sides: modalities of the vectors; Milvus must know them now, a folder takes any later.
            progress: is told how the compressed index of a large collection comes along.
        """
        folder = Path(folder)
        if (folder / INDEX).exists():
            raise DataError(f"{folder} holds an index already; open it, or choose another folder")
        if folder.is_file():
            raise DataError(f"{folder} is a file; an index is a folder")
        for side in sides:
            check_side(side)
        store = settled_store(store)
        about = {
            "format": FORMAT,
            "digest": model.digest,
            "width": model.width,
            "store": store,
            "model": str(model_path if on_hub(model_path) else Path(model_path).resolve()) if model_path else None,
        }
        kept: Store
        if store is None:
            LocalStore.create(folder)
            kept = LocalStore(folder, model.width, progress=progress)
        else:
            kept = MilvusStore(store, model.width, model.digest, create=sides, named=True)
        write_about(folder, about)
        return cls(folder, about, kept)

    @classmethod
    def open(cls, folder: str | Path, *, store: str | None = None, progress: Progress = lambda line: None) -> Index:
        """An index made before, also by an earlier version: its entries are then converted first.

        `store` names the place of its vectors again; a Milvus server gets MILVUS_TOKEN only once it was named.
        """
        folder, store = Path(folder), settled_store(store)
        about = read_about(folder)
        if store is not None and not same_store(store, about["store"]):
            raise DataError(f"{folder} keeps its vectors in {about['store'] or 'its own folder'}, not in {store}")
        kept: Store
        if about["store"] is None:
            kept = LocalStore(folder, about["width"], progress=progress)
        else:
            address, named = store or about["store"], store is not None
            kept = MilvusStore(address, about["width"], about["digest"], named=named)
        if about["format"] < FORMAT and os.access(folder, os.W_OK):
            about["format"] = FORMAT
            write_about(folder, about)
        return cls(folder, about, kept)

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
        """Adds entries whose ids are new and returns how many those were.

        In a folder all of them are there, or none. Milvus may be left with some, all but the first of a file if any:
        adding the same again completes them.
        """
        self.check_model(made_by)
        for entry in entries:
            self.check_entry(entry)
        known = self.store.known([entry.clip.id for entry in entries])
        new = list({entry.clip.id: entry for entry in entries if entry.clip.id not in known}.values())
        if new:
            places = []
            for entry in new:
                if entry.picture is not None:
                    content = entry.picture if isinstance(entry.picture, bytes) else thumbnail(entry.picture)
                    checked = content + MARK + hashlib.sha256(content).digest()
                    places.append(self._thumbnail(entry.clip.id))
                    write_whole(places[-1], checked, sync=False)
            # All on the disk before the entries are, and folders once: nobody asks for a picture without an entry.
            folders = {folder for place in places for folder in (place.parent, place.parents[1], self.folder)}
            sync_paths((*places, *folders))
            self.store.add(new)
        return len(new)

    def remove(self, ids: Sequence[str] = (), sources: Sequence[str] = ()) -> int:
        """Removes entries by id, and those of sources by name or path (`*` for anything); returns how many.

        Where a source is called what a pattern says, only that is removed: `[1] a.mp4` is not `1 a.mp4` then.
        """
        gone = list(ids)
        if sources:
            called = {name for clip in self.store.clips() for name in _names(clip) if name in sources}
            for clip in self.store.clips():
                for name in _names(clip):
                    if name in called or any(matches(name, p) for p in sources if p not in called):
                        gone.append(clip.id)
                        break
        count = self.store.remove(gone)
        for id in gone:
            self._thumbnail(id).unlink(missing_ok=True)
        return count

    def vanished(self) -> list[Clip]:
        """The clips of entries whose files are no longer where they were; those of prepared folders need none."""
        gone = {path for path in self.store.paths() if not Path(path).exists()}
        clips = self.store.clips() if gone else ()
        return [clip for clip in clips if str(clip.path) in gone and PREPARED not in clip.metadata]

    def entry(self, id: str) -> Entry:
        """An entry with its vectors."""
        found = self.store.get(id)
        if found is None:
            raise DataError(f"{self.folder} holds no clip called {id!r}")
        return found

    def thumbnail(self, id: str) -> Path | None:
        """Where the thumbnail of an entry is, if it has one; a damaged one is none, and is told of in the log."""
        place = self._thumbnail(id)
        try:
            status = place.stat()
            if self._whole(place, status.st_mtime_ns, status.st_size):
                return place
        except OSError:
            return None
        logger.warning("%s is damaged and not shown; --remove-source FILE, then index that file again", place)
        return None

    def clips(self) -> Iterator[Clip]:
        """The clips of all entries."""
        return self.store.clips()

    def vectors(self, side: str, most: int | None = None) -> tuple[list[str], Vector]:
        """Ids and vectors (n, D) of the entries that have one on a side: all, or `most` evenly spaced ones."""
        return self.store.vectors(side, most)

    def like(self, id: str) -> Query:
        """The question "what is like this entry?", all its modalities together."""
        vectors = self.entry(id).vectors
        return Query(joint(*(vectors[side] for side in sorted(vectors))), None, self.digest, exclude=id)

    def sides(self, among: str | None = None, modality: str | None = None) -> tuple[str, ...]:
        """Modalities to look among: the one named, or all; without a name all but the query's own."""
        every = tuple(sorted({*SIDES, *self.store.sides()}))
        if among is None:
            return tuple(side for side in every if side != modality)
        if among not in (*every, *ALL):
            raise DataError(f"--among {among}: choose {', '.join(every)} or both")
        return every if among in ALL else (among,)

    def search(
        self, query: Query, *, k: int = 10, among: str | None = None, filters: Sequence[str | Filter] = ()
    ) -> list[Hit]:
        """The k nearest entries, best first.

        Args:
            query: from `ask` or `like`.
            k: how many.
            among: a modality, or "both" (also "all") for all of them; without it a query of one modality is looked for
                among the others, one of several among all. An entry counts by the nearest of its vectors.
            filters: `key=value`, `key!=value`, `key>=number`, `key<=number`; keys are label, source, path, start, end,
                seconds and columns of metadata, and `*` in a value stands for anything.
        """
        self.check_model(query.made_by)
        if not 1 <= k <= MOST:
            raise DataError(f"{k} results: ask for 1 to {MOST:,}")
        if query.vector.shape != (self.width,):
            raise DataError(f"a query of shape {query.vector.shape} for vectors of {self.width}")
        if not np.isfinite(query.vector).all():
            raise DataError("the query's vector holds numbers that are not finite")
        parsed = parse_filters(filters)
        best: dict[str, tuple[float, Clip, str]] = {}
        for side in self.sides(among, query.modality):
            for clip, score in self.store.search(query.vector, side, k + (query.exclude is not None), parsed):
                if clip.id != query.exclude and (clip.id not in best or score > best[clip.id][0]):
                    best[clip.id] = score, clip, side
        ranked = sorted(best.values(), key=lambda found: -found[0])[:k]
        return [Hit(clip, score, side, self.thumbnail(clip.id)) for score, clip, side in ranked]

    def close(self) -> None:
        """Releases files and connections."""
        self.store.close()

    def _thumbnail(self, id: str) -> Path:
        name = hashlib.sha256(id.encode("utf-8", "backslashreplace")).hexdigest()[:24]  # ids may hold anything
        return self.folder / f"{THUMBNAILS}/{name[:2]}/{name}.jpg"

    def check_entry(self, entry: Entry) -> None:
        """Refuses what cannot be compared: vectors of other lengths, or with numbers that are none."""
        name = entry.clip.source or entry.clip.id
        if not entry.vectors:
            raise DataError(f"{name}: an entry needs a vector of at least one modality")
        for side, vector in entry.vectors.items():
            check_side(side)
            if not np.isfinite(vector).all():
                raise DataError(f"{name}: its {side} vector holds numbers that are not finite")
            if vector.shape != (self.width,) or abs(float(np.linalg.norm(vector)) - 1) > UNIT:
                raise DataError(f"{name}: its vectors must be of length 1 and of {self.width} numbers")


def read_about(folder: Path) -> dict[str, Any]:
    """What index.json says, if it is as it was written."""
    place = folder / INDEX
    try:
        about = json.loads(place.read_text(encoding="utf-8"))
    except (FileNotFoundError, NotADirectoryError):
        raise DataError(f"{folder} is no index; make one with `equiav index CLIPS {folder}`") from None
    except (OSError, ValueError, RecursionError) as error:
        raise DataError(f"{place} cannot be read ({error}); {REMEDY}") from error
    if not isinstance(about, dict):
        raise DataError(f"{place} is damaged: not as it was written; {REMEDY}")
    written = about.pop("checksum", None)
    if (written is not None or about.get("format") == FORMAT) and written != _checksum(about):
        raise DataError(f"{place} is damaged: not as it was written; {REMEDY}")
    if about.get("format") not in range(1, FORMAT + 1):
        raise DataError(f"{folder} is an index of another format; make it again with this version")
    if not {"digest", "width", "store", "model"} <= about.keys() or type(about["width"]) is not int:
        raise DataError(f"{place} is damaged: it does not say enough; {REMEDY}")
    return about


def write_about(folder: Path, about: dict[str, Any]) -> None:
    """Writes index.json with a checksum of what it says."""
    write_json(folder / INDEX, {**about, "checksum": _checksum(about)})


def _checksum(about: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(about, sort_keys=True).encode()).hexdigest()


def verify_index(folder: str | Path, progress: Progress = lambda line: None) -> list[str]:
    """Compares all of an index with its checksums: one line for each problem, none if it is as it was written.

    Of vectors in Milvus the server takes care; here the folder is looked at. Thumbnails that earlier versions wrote
    have no checksum, only an end that must be there.
    """
    folder, problems = Path(folder), list[str]()
    try:
        about = read_about(folder)
        if about["store"] is None:
            store = LocalStore(folder, about["width"], progress=progress)
            problems = store.verify(progress)
            store.close()
    except EquiAVError as error:
        problems.append(str(error))
    pictures = sorted((folder / THUMBNAILS).rglob("*.jpg"))
    problems += [f"{place} is damaged; remove it" for place in pictures if not intact(place.read_bytes())]
    progress(f"{folder}: {len(pictures):,} thumbnails compared with their checksums")
    for sums in folder.glob(f"*/{SUMS}"):  # a bridge from text
        problems += [f"{problem}; fit the bridge again (equiav bridge {folder})" for problem in check_sums(sums.parent)]
    return problems


def intact(thumbnail: bytes) -> bool:
    """Is a thumbnail as it was written? Those of earlier versions have no checksum behind them."""
    content, mark, digest = thumbnail[: -32 - len(MARK)], thumbnail[-32 - len(MARK) : -32], thumbnail[-32:]
    if mark == MARK:
        return hashlib.sha256(content).digest() == digest
    return thumbnail.endswith(b"\xff\xd9")


def ask(
    embedder: Embedder,
    *,
    audio: Sound | None = None,
    image: Picture | None = None,
    video: Video | None = None,
    start: float = 0.0,
) -> Query:
    """One of audio, an image or a video (path or array) as a query; `start` is where in it to begin, in seconds.

    Of a long file one window counts: the first 10 s from `start`, or as much as the model hears.
    """
    given = {name: x for name, x in (("audio", audio), ("image", image), ("video", video)) if x is not None}
    if len(given) != 1:
        raise DataError(f"give one of a sound, a picture or a video, not {' and '.join(given) or 'none'}")
    ((kind, item),) = given.items()
    vector: Vector = getattr(embedder, kind)(item, start=start)
    return Query(vector, {"audio": "audio", "image": "visual"}.get(kind), embedder.digest)


def check_side(name: str) -> None:
    """Refuses names of modalities that no file or column could have."""
    if not re.fullmatch(r"[a-z][a-z0-9_]{0,63}", name) or name in ALL:
        raise DataError(f"{name!r} names no modality: lower-case letters, digits and _, not both or all")


def settled_store(store: str | None) -> str | None:
    """A store's address as an index remembers it: files by their whole path, whatever the current folder."""
    return str(Path(store).absolute()) if store is not None and is_file(store) else store


def _names(clip: Clip) -> list[str]:
    return [clip.source, *([] if clip.path is None else [str(clip.path)])]
