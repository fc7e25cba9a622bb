"""Where clips come from: generated, prepared or published."""

from equiav.data.boxes import picture_boxes, squared
from equiav.data.cavmae import CavMaeDataset, read_cavmae, read_weights
from equiav.data.cutting import key_of
from equiav.data.dataset import Chosen, ClipDataset, WorldDataset, collate, evenly_spaced
from equiav.data.inspection import write_inspection
from equiav.data.labelled import LabelledClips, Targets, hold_out, read_classes
from equiav.data.labels import Labels, label_names, multi_hot, one_each, vocabulary
from equiav.data.loader import Schedule, apart, balanced_weights, evaluation_batches, training_batches
from equiav.data.paired import Images, PairedDataset, PairedSet, Sounds, loudest, read_paired
from equiav.data.paired_manifest import MANIFEST, SPLITS, Entry, assign_splits, open_files, read_manifest
from equiav.data.prepare import Summary, merge, prepare
from equiav.data.readers import (
    PUBLISHED,
    Coverage,
    read_published,
    read_retrieval_list,
    read_vocabulary,
    select,
)
from equiav.data.shards import (
    INDEX,
    META,
    SHARDS,
    SKIPPED,
    PreparedIndex,
    ShardDataset,
    flac,
    read_flac,
    read_meta,
    read_skipped,
)
from equiav.data.sources import COLUMNS, SUFFIXES, find_sources, split_of
from equiav.data.synthetic import (
    HUES,
    KINDS,
    PITCHES,
    RADII,
    TEMPI,
    Difficulty,
    Scene,
    SceneObject,
    World,
    attribute_similarity,
)
from equiav.data.workers import Failure, Workers, tick
from equiav.types import Split

__all__ = [
    "COLUMNS",
    "HUES",
    "INDEX",
    "KINDS",
    "MANIFEST",
    "META",
    "PITCHES",
    "PUBLISHED",
    "RADII",
    "SHARDS",
    "SKIPPED",
    "SPLITS",
    "SUFFIXES",
    "TEMPI",
    "CavMaeDataset",
    "Chosen",
    "ClipDataset",
    "Coverage",
    "Difficulty",
    "Entry",
    "Failure",
    "Images",
    "LabelledClips",
    "Labels",
    "PairedDataset",
    "PairedSet",
    "PreparedIndex",
    "Scene",
    "SceneObject",
    "Schedule",
    "ShardDataset",
    "Sounds",
    "Split",
    "Summary",
    "Targets",
    "Workers",
    "World",
    "WorldDataset",
    "apart",
    "assign_splits",
    "attribute_similarity",
    "balanced_weights",
    "collate",
    "evaluation_batches",
    "evenly_spaced",
    "find_sources",
    "flac",
    "hold_out",
    "key_of",
    "label_names",
    "loudest",
    "merge",
    "multi_hot",
    "one_each",
    "open_files",
    "picture_boxes",
    "prepare",
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
    "tick",
    "training_batches",
    "vocabulary",
    "write_inspection",
]
