"""Where clips come from: generated, prepared or published."""

from equiav.data.assembly import Assembly
from equiav.data.benchmark_files import Coverage, read_vocabulary
from equiav.data.benchmarks import NAMES, NEEDS, read_benchmark, read_retrieval_list, select
from equiav.data.boxes import picture_boxes, squared
from equiav.data.cavmae import CavMaeDataset, read_cavmae, read_weights
from equiav.data.cutting import key_of
from equiav.data.dataset import Chosen, ClipDataset, WorldDataset, collate, evenly_spaced
from equiav.data.finish import merge
from equiav.data.index import INDEX, META, SHARDS, SKIPPED, Index, read_meta, read_skipped
from equiav.data.inspection import write_inspection
from equiav.data.labelled import LabelledClips, Targets, hold_out, read_classes
from equiav.data.labels import Labels, label_names, multi_hot, one_each, vocabulary
from equiav.data.loader import Schedule, apart, balanced_weights, evaluation_batches, training_batches
from equiav.data.manifest import Source, Split, split_of
from equiav.data.paired import Images, PairedDataset, PairedSet, Sounds, loudest, read_paired
from equiav.data.paired_manifest import MANIFEST, SPLITS, Entry, assign_splits, open_files, read_manifest
from equiav.data.pool import CRASHED, SLOW, Failure, run_isolated
from equiav.data.prepare import prepare
from equiav.data.shards import ShardDataset, flac, read_flac
from equiav.data.sources import COLUMNS, SUFFIXES, find_sources, further_columns
from equiav.data.things import HUES, KINDS, PITCHES, RADII, TEMPI, Scene, Thing
from equiav.data.world import Difficulty, World, attribute_similarity

__all__ = [
    "COLUMNS",
    "CRASHED",
    "HUES",
    "INDEX",
    "KINDS",
    "MANIFEST",
    "META",
    "NAMES",
    "NEEDS",
    "PITCHES",
    "RADII",
    "SHARDS",
    "SKIPPED",
    "SLOW",
    "SPLITS",
    "SUFFIXES",
    "TEMPI",
    "Assembly",
    "CavMaeDataset",
    "Chosen",
    "ClipDataset",
    "Coverage",
    "Difficulty",
    "Entry",
    "Failure",
    "Images",
    "Index",
    "LabelledClips",
    "Labels",
    "PairedDataset",
    "PairedSet",
    "Scene",
    "Schedule",
    "ShardDataset",
    "Sounds",
    "Source",
    "Split",
    "Targets",
    "Thing",
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
    "further_columns",
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
    "read_benchmark",
    "read_cavmae",
    "read_classes",
    "read_flac",
    "read_manifest",
    "read_meta",
    "read_paired",
    "read_retrieval_list",
    "read_skipped",
    "read_vocabulary",
    "read_weights",
    "run_isolated",
    "select",
    "split_of",
    "squared",
    "training_batches",
    "vocabulary",
    "write_inspection",
]
