"""An index of clips by their embeddings, and searching it with a sound, a picture, a video or another clip."""

from equiav.search.build import index_folder, index_media, index_prepared
from equiav.search.compressed import code_parts, lists_for
from equiav.search.filters import parse_filters
from equiav.search.index import INDEX, Index, settled_store
from equiav.search.media import PREPARED, Sound, sound_of
from equiav.search.page import asked, write_results
from equiav.search.query import ask
from equiav.search.records import SIDES, Entry, Hit, Query, Side
from equiav.search.state import read_state
from equiav.search.store_local import LocalStore
from equiav.search.store_milvus import ABOUT, MilvusStore, parse_address
from equiav.search.text import as_table, to_json

__all__ = [
    "ABOUT",
    "INDEX",
    "PREPARED",
    "SIDES",
    "Entry",
    "Hit",
    "Index",
    "LocalStore",
    "MilvusStore",
    "Query",
    "Side",
    "Sound",
    "as_table",
    "ask",
    "asked",
    "code_parts",
    "index_folder",
    "index_media",
    "index_prepared",
    "lists_for",
    "parse_address",
    "parse_filters",
    "read_state",
    "settled_store",
    "sound_of",
    "to_json",
    "write_results",
]
