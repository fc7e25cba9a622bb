"""Records of the search index: entries, queries, hits; filters on clips; and what a store has to do."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, Literal, Protocol, cast, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from equiav.errors import DataError
from equiav.types import Clip

Vector = NDArray[np.float32]
Progress = Callable[[str], None]
SIDES: tuple[str, ...] = ("audio", "visual")  # the modalities every index can be searched by

PREPARED = "prepared"  # the column that names the prepared folder a clip was indexed from
FILE = ".file"  # the column, not shown, that tells whether a file has changed: size, time of change, SHA-256

Operator = Literal["=", "!=", ">=", "<="]
TIMES = ("start", "end", "seconds")
NEAR = 5e-4  # times are compared to the millisecond
_FORM = re.compile(r"\s*([^<>=!]+?)\s*(!=|>=|<=|=)\s*(.*?)\s*", re.DOTALL)


@dataclass(frozen=True)
class Entry:
    """A clip with a unit vector for each modality it has, by the modality's name.

    `picture` is for people: (H, W, 3), or a small JPEG file of it.
    """

    clip: Clip
    vectors: Mapping[str, Vector] = field(default_factory=dict)
    picture: NDArray[np.uint8] | bytes | None = None


@dataclass(frozen=True)
class Query:
    """A unit vector to search with; `exclude` is the id of an entry that is never an answer.

    `modality` is what the vector was made of, None for several modalities together; `made_by` the model's digest.
    """

    vector: Vector
    modality: str | None
    made_by: str
    exclude: str | None = None


@dataclass(frozen=True)
class Hit:
    """A clip that was found: the cosine, and the modality (`side`) of the vector it was found by."""

    clip: Clip
    score: float
    side: str
    thumbnail: Path | None = None

    def record(self) -> dict[str, Any]:
        """As plain data, for JSON."""
        clip = self.clip
        return {
            "id": clip.id,
            "score": self.score,
            "side": self.side,
            "source": clip.source,
            "start": clip.start,
            "end": round(clip.end, 6),
            "labels": list(clip.labels),
            "metadata": columns(clip),
            "path": None if clip.path is None else str(clip.path),
            "thumbnail": None if self.thumbnail is None else str(self.thumbnail),
        }


@runtime_checkable
class Store(Protocol):
    """Keeps entries and finds the nearest; a change is there once its call returns; one cut short can be repeated."""

    def sides(self) -> tuple[str, ...]:
        """Modalities that there may be vectors of."""
        ...

    def generation(self) -> int:
        """Another number after a change, as far as the store can tell."""
        ...

    def __len__(self) -> int: ...

    def known(self, ids: Sequence[str]) -> dict[str, Clip]:
        """The clips of those of the ids that are there."""
        ...

    def paths(self) -> set[str]:
        """The files that entries are of."""
        ...

    def of_file(self, path: str) -> list[Clip]:
        """The clips of the entries of a file."""
        ...

    def add(self, entries: Sequence[Entry]) -> None:
        """Adds entries whose ids are new."""
        ...

    def remove(self, ids: Sequence[str]) -> int:
        """Removes entries and returns how many there were."""
        ...

    def get(self, id: str) -> Entry | None:
        """An entry with its vectors."""
        ...

    def clips(self) -> Iterator[Clip]:
        """The clips of all entries."""
        ...

    def vectors(self, side: str, most: int | None = None) -> tuple[list[str], Vector]:
        """Ids and vectors (n, D) of the entries that have one on a side: all, or `most` evenly spaced ones."""
        ...

    def search(self, vector: Vector, side: str, k: int, filters: Sequence[Filter]) -> list[tuple[Clip, float]]:
        """The nearest k clips on a side that meet all filters, and their cosines, best first."""
        ...

    def close(self) -> None:
        """Releases files and connections."""
        ...


@dataclass(frozen=True)
class Filter:
    """One condition: `>=` and `<=` compare numbers; `=` and `!=` texts, with `*` for anything, and times as numbers."""

    key: str
    operator: Operator
    value: str

    def accepts(self, clip: Clip) -> bool:
        """Does the clip meet it? One that lacks the key meets only `!=`."""
        values = values_of(clip, self.key)
        match self.operator:
            case "=":
                return any(self._equals(value) for value in values)
            case "!=":
                return not any(self._equals(value) for value in values)
            case ">=":
                return any(n >= float(self.value) for value in values if (n := number_of(value)) is not None)
            case "<=":
                return any(n <= float(self.value) for value in values if (n := number_of(value)) is not None)

    @property
    def plain(self) -> bool:
        """Is its value a text without wildcards?"""
        return not set("*?[") & set(self.value)

    def _equals(self, value: str) -> bool:
        if self.key in TIMES:
            return abs(float(value) - float(self.value)) <= NEAR
        return matches(value, self.value)


def matches(text: str, pattern: str) -> bool:
    """Is it the pattern's text, or what its wildcards stand for? A name with brackets is found by itself."""
    return text == pattern or fnmatchcase(text, pattern)


def parse_filters(texts: Sequence[str | Filter]) -> tuple[Filter, ...]:
    """Conditions such as `label=dog`, `source=*.mp4`, `start>=60`; all must hold."""
    return tuple(text if isinstance(text, Filter) else _parse(text) for text in texts)


def _parse(text: str) -> Filter:
    found = _FORM.fullmatch(text)
    if found is None:
        raise DataError(f"{text!r} is no filter; write key=value, key!=value, key>=number or key<=number")
    key, operator, value = found.groups()
    if (operator in (">=", "<=") or key in TIMES) and number_of(value) is None:
        raise DataError(f"{text!r}: {value!r} is not a number")
    return Filter("label" if key == "labels" else key, cast(Operator, operator), value)


def columns(clip: Clip) -> dict[str, Any]:
    """What is known of a clip beside its place and labels: metadata; split, group, fold and text where it has them."""
    more = {name: getattr(clip, name) for name in ("split", "group", "fold", "text")}
    known = {**clip.metadata, **{name: value for name, value in more.items() if value not in (None, "")}}
    return {name: value for name, value in known.items() if name != FILE}


def values_of(clip: Clip, key: str) -> list[str]:
    """The values of a key that filters compare: label, source, path, start, end, seconds, id, or one of `columns`."""
    match key:
        case "label":
            return list(clip.labels)
        case "source" | "id":
            return [str(getattr(clip, key))]
        case "path":
            return [] if clip.path is None else [str(clip.path)]
        case "start" | "end":
            return [f"{getattr(clip, key):.6f}"]
        case "seconds":
            return [f"{clip.seconds or 0.0:.6f}"]
        case _:
            return _texts(columns(clip).get(key))


def _texts(value: Any) -> list[str]:
    """The value of a column, which may be a list, as filters compare it."""
    listed = [] if value is None else value if isinstance(value, list) else [value]
    return [str(one).lower() if isinstance(one, bool) else str(one) for one in listed]


def facts(clip: Clip) -> list[tuple[str, str]]:
    """Every key and value that a filter can ask for, but the id."""
    fixed = ("label", "source", "path", *TIMES)
    known = [(key, text) for key in fixed for text in values_of(clip, key)]
    more = [(key, text) for key, value in columns(clip).items() if key not in (*fixed, "id") for text in _texts(value)]
    return list(dict.fromkeys([*known, *more]))


def number_of(text: str) -> float | None:
    """A text as a number, if it is one."""
    try:
        return float(text)
    except ValueError:
        return None


def clip_record(clip: Clip) -> dict[str, Any]:
    """A clip as plain data for a store, without what is empty."""
    known = {**vars(clip), "path": None if clip.path is None else str(clip.path)}
    return {name: value for name, value in known.items() if value not in (None, "", (), {})}


def read_clip(record: Mapping[str, Any]) -> Clip:
    """The opposite of `clip_record`; the first format wrote `end` in place of `seconds`."""
    known = dict(record)
    if "end" in known:
        known["seconds"] = known.pop("end") - known["start"]
    if known.get("path") is not None:
        known["path"] = Path(known["path"])
    known["labels"] = tuple(known.get("labels", ()))
    known["boxes"] = tuple(tuple(box) for box in known.get("boxes", ()))
    return Clip(**known)


def spacing(count: int, most: int | None) -> int:
    """Which step through `count` rows meets at most `most` of them."""
    return 1 if most is None else max(1, -(-count // most))
