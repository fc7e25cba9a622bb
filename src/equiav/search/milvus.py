"""Milvus as the store, for collections beyond one machine: the same entries in one collection of a server.

`milvus://host:port/collection` is a server, reached over TLS unless it is this machine; `milvus+http://` is one without
TLS; a file ending in .db is milvus-lite, the same client on a local file. A password or token is taken from the
environment variable MILVUS_TOKEN, never written down, and sent only to servers that the user has named: an index folder
may come from anybody, and must not choose who gets it.
"""

from __future__ import annotations

import hashlib
import ipaddress
import json
import logging
import os
import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import numpy as np

from equiav.errors import DataError, EquiAVError
from equiav.io import write_json
from equiav.search.records import NEAR, TIMES, Entry, Filter, Vector, clip_record, facts, read_clip, spacing
from equiav.types import Clip

logger = logging.getLogger(__name__)

COLLECTION, PORT = "equiav", 19530
ABOUT = ".about"  # the id of the row that says which model made the vectors
AT_ONCE = 1000  # rows of one request
MOST = 16_384  # what Milvus returns at most
FIELDS = ("id", "start", "end", "tags", "entry")  # and two for each side: its vector, and has_<side>
LONGEST_ID = 512
MOST_TAGS = 4096


def parse_address(text: str) -> tuple[str, str]:
    """Address and collection of `milvus://host:port/collection` or `file.db`, which may end in `#collection`."""
    if is_file(text):
        uri, _, name = text.partition("#")
    else:
        try:
            parts = urlsplit(text)
            host, port = parts.hostname or "", parts.port or PORT
        except ValueError as error:
            raise DataError(f"--store {text}: give milvus://host:port/collection ({error})") from None
        plain = parts.scheme == "milvus+http" or is_loopback(host)
        uri = f"{'http' if plain else 'https'}://{f'[{host}]' if ':' in host else host}:{port}"
        if parts.scheme not in ("milvus", "milvus+http") or not host:
            raise DataError(f"--store {text}: give milvus://host:port/collection, or a .db file of milvus-lite")
        if parts.username or parts.password:
            raise DataError("give Milvus' password in the environment variable MILVUS_TOKEN, as user:password")
        name = parts.path.strip("/")
    name = name or COLLECTION
    if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]{0,254}", name):
        raise DataError(f"--store {text}: a collection's name is letters, digits and _, not {name!r}")
    return uri, name


def is_file(text: str) -> bool:
    """Is it a file of milvus-lite rather than a server?"""
    return "://" not in text and text.partition("#")[0].endswith(".db")


def is_loopback(host: str) -> bool:
    """Is it this machine, by name or by number?"""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def same_store(one: str | None, other: str | None) -> bool:
    """Do two addresses mean the same collection, with or without TLS?"""
    if one is None or other is None or is_file(one) or is_file(other):
        return one == other
    return parse_address(one.replace("+http://", "://", 1)) == parse_address(other.replace("+http://", "://", 1))


def trusted_server(uri: str, address: str, *, named: bool) -> tuple[str, str]:
    """Where to connect, and the token to send there.

    Servers that were named are remembered in the user's own configuration, with or without TLS. One that only an index
    folder speaks of gets no token, and is not spoken to in plain text.
    """
    home = os.environ.get("XDG_CONFIG_HOME") or os.environ.get("APPDATA") or Path.home() / ".config"
    token, place = os.environ.get("MILVUS_TOKEN", ""), Path(home) / "equiav" / "milvus.json"
    try:
        known = [str(one) for one in json.loads(place.read_text(encoding="utf-8"))]
    except (OSError, ValueError, TypeError):
        known = []
    if named:
        if uri not in known:
            try:
                write_json(place, [*known, uri])
            except EquiAVError as error:
                logger.warning("%s; the server must be named again next time (--store)", error)
        return uri, token
    plain = uri.replace("https://", "http://")
    if uri in known or plain in known:
        return uri if uri in known else plain, token
    if token or (uri == plain and not is_loopback(urlsplit(uri).hostname or "")):
        raise DataError(
            f"the index keeps its vectors at {uri}, which you have not named yet; if you trust it, say so once: "
            f"equiav search INDEX --like ID --store {address}"
        )
    return uri, ""


class MilvusStore:
    """Entries in a Milvus collection with a vector field for each side; no search looks at the zeros of missing ones.

    Args:
        address: where the collection is, as in `parse_address`.
        width: length of a vector.
        digest: which model made the vectors; a collection for another is refused.
        create: makes the collection if it is not there, for vectors of these sides; its schema cannot change later.
        named: the user gave the address, rather than an index folder: MILVUS_TOKEN may be sent there.
    """

    def __init__(
        self, address: str, width: int, digest: str, *, create: Sequence[str] | None = None, named: bool = False
    ) -> None:
        # With its own handling of fork() on, gRPC kills the children of a process that has a connection open.
        os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")
        try:
            from pymilvus import MilvusClient
        except ImportError as error:
            raise DataError("Milvus needs its client: pip install equiav[milvus]") from error
        uri, self.name = parse_address(address)
        self.width = width
        uri, token = (uri, "") if is_file(address) else trusted_server(uri, address, named=named)
        hint = "; one without TLS is milvus+http://host:port" if uri.startswith("https") else ""
        connect = _told(MilvusClient, f"{uri}: no Milvus answers there{hint}")
        self.client: Any = _Client(connect(uri, token=token), uri)
        there = self.client.has_collection(self.name)
        if there:  # one that another process made may not be in memory; of one that is, this changes nothing
            self.client.load_collection(self.name)
        if there and create is not None and self._unfinished():
            self.client.drop_collection(self.name)
            there = False
        if not there:
            if create is None:
                raise DataError(f"{uri} holds no collection {self.name}; make the index again")
            self._create(digest, create)
        elif self._about() != {"digest": digest, "width": width}:
            raise DataError(f"collection {self.name} holds vectors of another checkpoint; choose another collection")
        self._fields = self.sides()  # of a collection that is there they do not change

    def _create(self, digest: str, sides: Sequence[str]) -> None:
        from pymilvus import DataType

        schema = self.client.create_schema(auto_id=False, enable_dynamic_field=False)
        schema.add_field("id", DataType.VARCHAR, is_primary=True, max_length=LONGEST_ID)
        schema.add_field("start", DataType.DOUBLE)
        schema.add_field("end", DataType.DOUBLE)
        schema.add_field("tags", DataType.ARRAY, element_type=DataType.INT64, max_capacity=MOST_TAGS)
        schema.add_field("entry", DataType.JSON)
        indexes = self.client.prepare_index_params()
        for side in sides:
            if side in FIELDS or side.startswith("has_"):
                raise DataError(f"Milvus cannot keep vectors of {side!r}: its collection has a field of that name")
            schema.add_field(f"has_{side}", DataType.BOOL)
            schema.add_field(side, DataType.FLOAT_VECTOR, dim=self.width)
            indexes.add_index(field_name=side, index_type="AUTOINDEX", metric_type="IP")
        # Strong: what was added is found by whoever asks next.
        self.client.create_collection(self.name, schema=schema, index_params=indexes, consistency_level="Strong")
        row = {"id": ABOUT, "start": 0.0, "end": 0.0, "tags": [], "entry": {"digest": digest, "width": self.width}}
        for side in sides:
            row |= {f"has_{side}": False, side: np.zeros(self.width, np.float32)}
        self.client.upsert(self.name, [row])

    def sides(self) -> tuple[str, ...]:
        """Modalities that the collection has vector fields for."""
        names = [field["name"] for field in self.client.describe_collection(self.name)["fields"]]
        return tuple(sorted(name for name in names if f"has_{name}" in names))

    def _unfinished(self) -> bool:
        """Is it empty and of our form, but does not say whose vectors it is for? Its making was cut short."""
        names = {field["name"] for field in self.client.describe_collection(self.name)["fields"]}
        sides = self.sides()
        ours = bool(sides) and names == {*FIELDS, *sides, *map("has_{}".format, sides)}
        return ours and self._about() is None and not self._count()

    def _about(self) -> Any:
        rows = self.client.get(self.name, ids=[ABOUT], output_fields=["entry"])
        return rows[0]["entry"] if rows else None

    def generation(self) -> int:
        """A server keeps no number of changes for us: that of entries has to do."""
        return len(self)

    def __len__(self) -> int:
        return max(0, self._count() - 1)

    def _count(self) -> int:
        return int(self.client.query(self.name, filter="", output_fields=["count(*)"])[0]["count(*)"])

    def known(self, ids: Sequence[str]) -> dict[str, Clip]:
        """The clips of those of the ids that are there."""
        return {row["id"]: read_clip(row["entry"]) for row in self._some(ids, ["id", "entry"]) if row["id"] != ABOUT}

    def paths(self) -> set[str]:
        """The files that entries are of."""
        return {str(clip.path) for clip in self.clips() if clip.path is not None}

    def of_file(self, path: str) -> list[Clip]:
        """The clips of the entries of a file."""
        rows = self._every(f"ARRAY_CONTAINS(tags, {_number('path', path)})", ["entry"])
        return [clip for row in rows if str((clip := read_clip(row["entry"])).path) == path]

    def add(self, entries: Sequence[Entry]) -> None:
        """Adds entries, in several requests where they are many; cut short, it is made good by adding the same again.

        The last go first: a file counts as known by its first window, which is there once all others are.
        """
        rows = [self._row(entry) for entry in reversed(entries)]
        for start in range(0, len(rows), AT_ONCE):
            self.client.upsert(self.name, rows[start : start + AT_ONCE])

    def _row(self, entry: Entry) -> dict[str, Any]:
        clip = entry.clip
        if len(clip.id.encode()) > LONGEST_ID:
            raise DataError(f"{clip.id[:40]}...: an id has at most {LONGEST_ID} bytes in Milvus")
        for side in entry.vectors:
            if side not in self._fields:
                raise DataError(f"{clip.id}: collection {self.name} has no field for {side}; create it with that side")
        tags = [_number(key, value) for key, value in facts(clip) if key not in TIMES]
        row: dict[str, Any] = {"id": clip.id, "start": clip.start, "end": round(clip.end, 6)}
        row |= {"tags": tags[:MOST_TAGS], "entry": clip_record(clip)}
        for side in self._fields:
            row[f"has_{side}"] = side in entry.vectors
            row[side] = entry.vectors.get(side, np.zeros(self.width, np.float32))
        return row

    def remove(self, ids: Sequence[str]) -> int:
        """Removes entries and returns how many there were. Cut short, it is made good by removing the same again."""
        there = sorted(self.known(ids))
        for start in range(0, len(there), AT_ONCE):
            self.client.delete(self.name, ids=there[start : start + AT_ONCE])
        return len(there)

    def get(self, id: str) -> Entry | None:
        """An entry with its vectors."""
        fields = ["entry", *self._fields, *(f"has_{side}" for side in self._fields)]
        rows = self.client.get(self.name, ids=[id], output_fields=fields) if id != ABOUT else []
        if not rows:
            return None
        vectors = {s: np.array(rows[0][s], np.float32) for s in self._fields if rows[0][f"has_{s}"]}
        return Entry(read_clip(rows[0]["entry"]), vectors)

    def clips(self) -> Iterator[Clip]:
        """The clips of all entries."""
        for row in self._every(f'id != "{ABOUT}"', ["entry"]):
            yield read_clip(row["entry"])

    def vectors(self, side: str, most: int | None = None) -> tuple[list[str], Vector]:
        """Ids and vectors (n, D) of the entries that have one on a side: all, or `most` evenly spaced ones."""
        if side not in self._fields:
            rows = []
        elif most is None:
            rows = list(self._every(f"has_{side} == true", ["id", side]))
        else:
            ids = [row["id"] for row in self._every(f"has_{side} == true", ["id"])]
            rows = self._some(ids[:: spacing(len(ids), most)], ["id", side])
        stack = np.array([row[side] for row in rows], np.float32).reshape(len(rows), self.width)
        return [row["id"] for row in rows], stack

    def _some(self, ids: Sequence[str], fields: list[str]) -> list[dict[str, Any]]:
        rows: list[dict[str, Any]] = []
        for start in range(0, len(ids), AT_ONCE):
            rows += self.client.get(self.name, ids=list(ids[start : start + AT_ONCE]), output_fields=fields)
        return rows

    def _every(self, condition: str, fields: list[str]) -> Iterator[dict[str, Any]]:
        pages = self.client.query_iterator(self.name, filter=condition, batch_size=AT_ONCE, output_fields=fields)
        try:
            while page := pages.next():
                yield from page
        finally:
            pages.close()

    def search(self, vector: Vector, side: str, k: int, filters: Sequence[Filter]) -> list[tuple[Clip, float]]:
        """The nearest k; conditions the server cannot judge are judged here, on ever more of what it returns."""
        if side not in self._fields:
            return []
        here = [f for f in filters if _expression(f) is None]
        condition = " and ".join([f"has_{side} == true", *(e for f in filters if (e := _expression(f)) is not None)])
        wanted = k if not here else 16 * k
        while True:
            limit = min(wanted, MOST)
            rows = self.client.search(
                self.name, data=[vector], anns_field=side, limit=limit, filter=condition, output_fields=["entry"],
                search_params={"metric_type": "IP"},
            )[0]  # fmt: skip
            found = [(read_clip(row["entity"]["entry"]), float(row["distance"])) for row in rows]
            fit = [(clip, score) for clip, score in found if all(f.accepts(clip) for f in here)]
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


def _number(key: str, value: str) -> int:
    """The digest of key=value as a whole number of 63 bits: conditions are not always allowed a minus."""
    text = f"{key}={value}".encode("utf-8", "backslashreplace")
    return int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "little") >> 1


def _expression(one: Filter) -> str | None:
    """A condition in Milvus' words; None for what it cannot judge. Only numbers of the user's text enter it."""
    if one.operator == "=" and one.plain and one.key not in ("id", *TIMES):
        return f"ARRAY_CONTAINS(tags, {_number(one.key, one.value)})"
    if one.operator in (">=", "<=") and one.key in ("start", "end"):
        return f"{one.key} {one.operator} {float(one.value)!r}"
    if one.operator == "=" and one.key in ("start", "end"):
        return f"{one.key} >= {float(one.value) - NEAR!r} and {one.key} <= {float(one.value) + NEAR!r}"
    return None
