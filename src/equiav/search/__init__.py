"""An index of clips by their embeddings, searched with audio, an image, a video or another clip."""

from equiav.search.build import index_folder
from equiav.search.embed import EmbeddedFiles, embed_files
from equiav.search.index import INDEX, Index, ask, verify_index
from equiav.search.milvus import ABOUT, MilvusStore
from equiav.search.records import PREPARED, SIDES, Entry, Filter, Hit, Query, Store, parse_filters
from equiav.search.results import Sound, as_table, sound_of, to_json, write_results
from equiav.search.store import LocalStore
from equiav.search.vectors import code_parts, lists_for

__all__ = [
    "ABOUT",
    "INDEX",
    "PREPARED",
    "SIDES",
    "EmbeddedFiles",
    "Entry",
    "Filter",
    "Hit",
    "Index",
    "LocalStore",
    "MilvusStore",
    "Query",
    "Sound",
    "Store",
    "as_table",
    "ask",
    "code_parts",
    "embed_files",
    "index_folder",
    "lists_for",
    "parse_filters",
    "sound_of",
    "to_json",
    "verify_index",
    "write_results",
]
