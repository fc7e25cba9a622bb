"""Conditions on what is known about a clip: `label=dog`, `source=*.mp4`, `start>=60`."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any, Literal, cast

from equiav.errors import DataError
from equiav.search.records import Entry

Operator = Literal["=", "!=", ">=", "<="]
TIMES = ("start", "end", "seconds")
NEAR = 5e-4  # times are told to the millisecond
_FORM = re.compile(r"\s*([^<>=!]+?)\s*(!=|>=|<=|=)\s*(.*?)\s*", re.DOTALL)


@dataclass(frozen=True)
class Filter:
    """One condition: `>=` and `<=` compare numbers; `=` and `!=` texts, with `*` for anything, and times as numbers."""

    key: str
    operator: Operator
    value: str

    def accepts(self, entry: Entry) -> bool:
        """Does the entry meet it? One that lacks the key meets only `!=`."""
        values = values_of(entry, self.key)
        match self.operator:
            case "=":
                return any(self._equals(value) for value in values)
            case "!=":
                return not any(self._equals(value) for value in values)
            case ">=":
                return any(number >= float(self.value) for number in _numbers(values))
            case "<=":
                return any(number <= float(self.value) for number in _numbers(values))

    @property
    def exact(self) -> bool:
        """Is it plain equality of texts, which an index can look up?"""
        return self.operator == "=" and self.key not in ("id", *TIMES) and not set("*?[") & set(self.value)

    def _equals(self, value: str) -> bool:
        if self.key in TIMES:
            return abs(float(value) - float(self.value)) <= NEAR
        return fnmatchcase(value, self.value)


def parse_filters(texts: Sequence[str | Filter]) -> tuple[Filter, ...]:
    """Conditions as people write them; all must hold."""
    return tuple(text if isinstance(text, Filter) else _parse(text) for text in texts)


def _parse(text: str) -> Filter:
    found = _FORM.fullmatch(text)
    if found is None:
        raise DataError(f"{text!r} is no filter; write key=value, key!=value, key>=number or key<=number")
    key, operator, value = found.groups()
    if operator in (">=", "<=") or key in TIMES:
        try:
            float(value)
        except ValueError:
            raise DataError(f"{text!r}: {value!r} is not a number") from None
    return Filter("label" if key == "labels" else key, cast(Operator, operator), value)


def values_of(entry: Entry, key: str) -> list[str]:
    """What an entry says under a key: label, source, path, start, end, seconds, id, or a column of its metadata."""
    match key:
        case "label":
            return list(entry.labels)
        case "source" | "id":
            return [str(getattr(entry, key))]
        case "path":
            return [] if entry.path is None else [str(entry.path)]
        case "start" | "end":
            return [f"{getattr(entry, key):.6f}"]
        case "seconds":
            return [f"{entry.end - entry.start:.6f}"]
        case _:
            value = entry.metadata.get(key)
            return [] if value is None else [_text(v) for v in value] if isinstance(value, list) else [_text(value)]


def _text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _numbers(values: list[str]) -> list[float]:
    found = []
    for value in values:
        try:
            found.append(float(value))
        except ValueError:
            continue
    return found


def tags(entry: Entry) -> list[str]:
    """Every key=value of an entry that an index can look up without reading it."""
    keys = ["label", "source", "path", *entry.metadata]
    return [f"{key}={value}" for key in keys for value in values_of(entry, key)]
