"""Where clips come from: generated, prepared or published.

What needs torch is imported when it is first used: preparing and merging hardly do.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from equiav.data.cutting import key_of
from equiav.data.prepare import Summary, merge, prepare
from equiav.data.readers import PUBLISHED, read_published, read_retrieval_list, select
from equiav.data.readers.files import Coverage, read_vocabulary
from equiav.data.remote import is_address, prepared_folder
from equiav.data.shards import (
    INDEX,
    MANIFEST,
    META,
    SHARDS,
    SKIPPED,
    IndexWriter,
    PreparedIndex,
    cell,
    flac,
    read_flac,
    read_meta,
    read_skipped,
    verify_prepared,
)
from equiav.data.sources import IMAGE_SUFFIXES, SUFFIXES, find_sources, split_of
from equiav.types import SPLITS

if TYPE_CHECKING:
    from equiav.data.cavmae import CavMaeDataset, read_cavmae, read_weights
    from equiav.data.datasets import (
        Dataset,
        LabelledDataset,
        Labels,
        Subset,
        WorldDataset,
        collate,
        evenly_spaced,
        hold_out,
        labels_of,
        multi_hot,
        read_classes,
        squared,
        vocabulary,
    )
    from equiav.data.loader import Schedule, apart, balanced_weights, evaluation_batches, training_batches
    from equiav.data.paired import (
        PairedDataset,
        PairedSet,
        assign_splits,
        loudest,
        open_files,
        read_manifest,
        read_paired,
    )
    from equiav.data.prepared import ShardDataset
    from equiav.data.synthetic.world import Difficulty, World

__all__ = [
    "IMAGE_SUFFIXES",
    "INDEX",
    "MANIFEST",
    "META",
    "PUBLISHED",
    "SHARDS",
    "SKIPPED",
    "SPLITS",
    "SUFFIXES",
    "CavMaeDataset",
    "Coverage",
    "Dataset",
    "Difficulty",
    "IndexWriter",
    "LabelledDataset",
    "Labels",
    "PairedDataset",
    "PairedSet",
    "PreparedIndex",
    "Schedule",
    "ShardDataset",
    "Subset",
    "Summary",
    "World",
    "WorldDataset",
    "apart",
    "assign_splits",
    "balanced_weights",
    "cell",
    "collate",
    "evaluation_batches",
    "evenly_spaced",
    "find_sources",
    "flac",
    "hold_out",
    "is_address",
    "key_of",
    "labels_of",
    "loudest",
    "merge",
    "multi_hot",
    "open_files",
    "prepare",
    "prepared_folder",
    "read_cavmae",
    "read_classes",
    "read_flac",
    "read_manifest",
    "read_meta",
    "read_paired",
    "read_published",
    "read_retrieval_list",
    "read_skipped",
    "read_vocabulary",
    "read_weights",
    "select",
    "split_of",
    "squared",
    "training_batches",
    "verify_prepared",
    "vocabulary",
]

_LAZY = ("datasets", "prepared", "loader", "synthetic.world", "paired", "cavmae")


def __getattr__(name: str) -> Any:
    if name in __all__:
        for module in (import_module(f"equiav.data.{place}") for place in _LAZY):
            if hasattr(module, name):
                return getattr(module, name)
    raise AttributeError(f"module 'equiav.data' has no attribute {name!r}")
