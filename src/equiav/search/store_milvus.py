"""Milvus as the store, for collections beyond one machine: the same entries in one collection of a server.

`milvus://host:port/collection` is a server; a file ending in .db is milvus-lite, the same client on a local file. A
password or token is taken from the environment variable MILVUS_TOKEN, never written down.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

import numpy as np
from numpy.typing import NDArray

from equiav.errors import DataError
from equiav.search.filters import NEAR, Filter, tags
from equiav.search.records import SIDES, Entry, Side, Vector, digest64
from equiav.search.store import Found, spacing

COLLECTION, PORT = "equiav", 19530
ABOUT = ".about"  # the id of the row that says which model made the vectors
AT_ONCE = 1000  # rows of one request
MOST = 16_384  # what Milvus returns at most
FIELDS = ("id", "start", "end", "tags", "entry")  # and two for each side
LONGEST_ID = 512
MOST_TAGS = 4096


@dataclass(frozen=True)
class Address:
    """Where a collection is."""

    uri: str
    collection: str


def parse_address(text: str) -> Address:
    """`milvus://host:port/collection` or `file.db`, with `#collection` for another name than equiav."""
    if is_file(text):
        place, _, name = text.partition("#")
        return Address(place, _checked(name or COLLECTION, text))
    try:
        parts = urlsplit(text)
        port = parts.port or PORT
    except ValueError as error:
        raise DataError(f"--store {text}: give milvus://host:port/collection ({error})") from None
    if parts.scheme != "milvus" or not parts.hostname:
        raise DataError(f"--store {text}: give milvus://host:port/collection, or a file ending in .db for milvus-lite")
    if parts.username or parts.password:
        raise DataError("give Milvus' password in the environment variable MILVUS_TOKEN, as user:password")
    name = parts.path.strip("/") or COLLECTION
    return Address(f"http://{parts.hostname}:{port}", _checked(name, text))


def is_file(text: str) -> bool:
    """Is it a file of milvus-lite rather than a server?"""
    return "://" not in text and text.partition("#")[0].endswith(".db")


def _checked(name: str, text: str) -> str:
    if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]{0,254}", name):
        raise DataError(f"--store {text}: a collection's name is letters, digits and _, not {name!r}")
    return name


class MilvusStore:
    """Entries in a Milvus collection; sides without a vector hold zeros that no search looks at."""

    def __init__(self, address: Address, width: int, digest: str, *, create: bool = False) -> None:
        # With its own handling of fork() on, gRPC kills the children of a process that has a connection open.
        os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")
        try:
            from pymilvus import MilvusClient
        except ImportError as error:
            raise DataError("Milvus needs its client: pip install equiav[milvus]") from error
        self.width, self.name = width, address.collection
        connect = _told(MilvusClient, f"{address.uri}: no Milvus answers there")
        self.client: Any = _Client(connect(address.uri, token=os.environ.get("MILVUS_TOKEN", "")), address.uri)
        there = self.client.has_collection(self.name)
        if there and create and self._unfinished():
            self.client.drop_collection(self.name)
            there = False
        if not there:
            if not create:
                raise DataError(f"{address.uri} holds no collection {self.name}; make the index again")
            self._create(digest)
        elif self._about() != {"digest": digest, "width": width}:
            raise DataError(f"collection {self.name} holds vectors of another checkpoint; choose another collection")

    def _create(self, digest: str) -> None:
        from pymilvus import DataType

        schema = self.client.create_schema(auto_id=False, enable_dynamic_field=False)
        schema.add_field("id", DataType.VARCHAR, is_primary=True, max_length=LONGEST_ID)
        schema.add_field("start", DataType.DOUBLE)
        schema.add_field("end", DataType.DOUBLE)
        schema.add_field("tags", DataType.ARRAY, element_type=DataType.INT64, max_capacity=MOST_TAGS)
        schema.add_field("entry", DataType.JSON)
        indexes = self.client.prepare_index_params()
        for side in SIDES:
            schema.add_field(f"has_{side}", DataType.BOOL)
            schema.add_field(side, DataType.FLOAT_VECTOR, dim=self.width)
            indexes.add_index(field_name=side, index_type="AUTOINDEX", metric_type="IP")
        # Strong: what was added is found by whoever asks next.
        self.client.create_collection(self.name, schema=schema, index_params=indexes, consistency_level="Strong")
        about = Entry(ABOUT, "", None, 0.0, 0.0)
        row = {**self._row(about), "entry": {"digest": digest, "width": self.width}}
        self.client.upsert(self.name, [row])

    def _unfinished(self) -> bool:
        """Is it empty and of our form, but does not say whose vectors it is for? Its making was cut short."""
        fields = {field["name"] for field in self.client.describe_collection(self.name)["fields"]}
        return fields == {*FIELDS, *SIDES, *map("has_{}".format, SIDES)} and self._about() is None and not self._count()

    def _about(self) -> Any:
        rows = self.client.get(self.name, ids=[ABOUT], output_fields=["entry"])
        return rows[0]["entry"] if rows else None

    def __len__(self) -> int:
        return max(0, self._count() - 1)

    def _count(self) -> int:
        return int(self.client.query(self.name, filter="", output_fields=["count(*)"])[0]["count(*)"])

    def known(self, ids: Sequence[str]) -> set[str]:
        """Those of the ids that are there."""
        found: set[str] = set()
        for start in range(0, len(ids), AT_ONCE):
            rows = self.client.get(self.name, ids=list(ids[start : start + AT_ONCE]), output_fields=["id"])
            found |= {row["id"] for row in rows}
        return found

    def add(self, entries: Sequence[Entry]) -> None:
        """Adds entries, in several requests where they are many; cut short, it is made good by adding the same again.

        The last go first: a file counts as known by its first window, which is there once all others are.
        """
        rows = [self._row(entry) for entry in reversed(entries)]
        for start in range(0, len(rows), AT_ONCE):
            self.client.upsert(self.name, rows[start : start + AT_ONCE])

    def _row(self, entry: Entry) -> dict[str, Any]:
        if len(entry.id.encode()) > LONGEST_ID:
            raise DataError(f"{entry.id[:40]}...: an id has at most {LONGEST_ID} bytes in Milvus")
        row: dict[str, Any] = {"id": entry.id, "start": entry.start, "end": entry.end}
        row |= {"tags": [_number(tag) for tag in tags(entry)[:MOST_TAGS]], "entry": entry.description()}
        for side in SIDES:
            vector = entry.vector(side)
            row[f"has_{side}"] = vector is not None
            row[side] = np.zeros(self.width, np.float32) if vector is None else vector
        return row

    def remove(self, ids: Sequence[str]) -> int:
        """Removes entries; says how many there were. Cut short, it is made good by removing the same again."""
        there = sorted(self.known(ids) - {ABOUT})
        for start in range(0, len(there), AT_ONCE):
            self.client.delete(self.name, ids=there[start : start + AT_ONCE])
        return len(there)

    def get(self, id: str) -> Entry | None:
        """An entry with its vectors."""
        fields = ["entry", *SIDES, *(f"has_{side}" for side in SIDES)]
        rows = self.client.get(self.name, ids=[id], output_fields=fields) if id != ABOUT else []
        if not rows:
            return None
        row = rows[0]
        vectors = {s: np.array(row[s], np.float32) if row[f"has_{s}"] else None for s in SIDES}
        return Entry.from_description(row["entry"], **vectors)

    def entries(self) -> Iterator[Entry]:
        """All entries, without vectors."""
        for row in self._every(f'id != "{ABOUT}"', ["entry"]):
            yield Entry.from_description(row["entry"])

    def vectors(self, side: Side, most: int | None = None) -> tuple[list[str], NDArray[np.float32]]:
        """Ids and vectors (n, D) of the entries that have one on a side: all, or `most` evenly spaced ones."""
        if most is None:
            rows = list(self._every(f"has_{side} == true", ["id", side]))
        else:
            ids = [row["id"] for row in self._every(f"has_{side} == true", ["id"])]
            rows = self._some(ids[:: spacing(len(ids), most)], ["id", side])
        stack = np.array([row[side] for row in rows], np.float32).reshape(len(rows), self.width)
        return [row["id"] for row in rows], stack

    def _some(self, ids: list[str], fields: list[str]) -> list[dict[str, Any]]:
        rows: list[dict[str, Any]] = []
        for start in range(0, len(ids), AT_ONCE):
            rows += self.client.get(self.name, ids=ids[start : start + AT_ONCE], output_fields=fields)
        return rows

    def _every(self, condition: str, fields: list[str]) -> Iterator[dict[str, Any]]:
        pages = self.client.query_iterator(self.name, filter=condition, batch_size=AT_ONCE, output_fields=fields)
        try:
            while page := pages.next():
                yield from page
        finally:
            pages.close()

    def search(self, vector: Vector, side: Side, k: int, filters: Sequence[Filter]) -> list[Found]:
        """The nearest k; conditions the server cannot judge are judged here, on ever more of what it returns."""
        here = [f for f in filters if _expression(f) is None]
        condition = " and ".join([f"has_{side} == true", *(e for f in filters if (e := _expression(f)) is not None)])
        wanted = k if not here else 16 * k
        while True:
            limit = min(wanted, MOST)
            rows = self.client.search(
                self.name, data=[vector], anns_field=side, limit=limit, filter=condition, output_fields=["entry"],
                search_params={"metric_type": "IP"},
            )[0]  # fmt: skip
            found = [Found(Entry.from_description(row["entity"]["entry"]), float(row["distance"])) for row in rows]
            fit = [one for one in found if all(f.accepts(one.entry) for f in here)]
            if len(fit) >= k or len(rows) < limit or limit == MOST:
                return fit[:k]
            wanted *= 8

    def close(self) -> None:
        """Ends the connection."""
        self.client.close()


class _Client:
    """Milvus' client, or what it hands out to be asked on, with errors told as DataError."""

    def __init__(self, inner: Any, place: str) -> None:
        self._inner, self._place = inner, place

    def __getattr__(self, name: str) -> Any:
        return _told(getattr(self._inner, name), f"{self._place}: Milvus cannot {name.replace('_', ' ')}")

    def query_iterator(self, *given: Any, **named: Any) -> _Client:
        """Pages, which are asked for one by one."""
        return _Client(self.__getattr__("query_iterator")(*given, **named), self._place)


def _told(call: Callable[..., Any], what: str) -> Callable[..., Any]:
    """The same call, with what the client raises as one line."""
    from grpc import RpcError  # type: ignore[import-untyped]
    from pymilvus.exceptions import MilvusException

    def told(*given: Any, **named: Any) -> Any:
        try:
            return call(*given, **named)
        except (MilvusException, RpcError, OSError, ValueError) as error:
            reason = (str(error).strip() or type(error).__name__).splitlines()[0]
            raise DataError(f"{what} ({reason})") from error

    return told


def _number(text: str) -> int:
    """The digest of a text as a whole number of 63 bits: conditions are not always allowed a minus."""
    return digest64(text) >> 1


def _expression(one: Filter) -> str | None:
    """A condition in Milvus' words; None for what it cannot judge."""
    if one.exact:
        return f"ARRAY_CONTAINS(tags, {_number(f'{one.key}={one.value}')})"
    if one.operator in (">=", "<=") and one.key in ("start", "end"):
        return f"{one.key} {one.operator} {float(one.value)!r}"
    if one.operator == "=" and one.key in ("start", "end"):
        return f"{one.key} >= {float(one.value) - NEAR!r} and {one.key} <= {float(one.value) + NEAR!r}"
    return None
