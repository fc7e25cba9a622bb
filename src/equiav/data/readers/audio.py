"""Readers of published audio datasets: ESC-50, Speech Commands, FSD50K."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path, PurePosixPath

from equiav.data.readers.files import Coverage, Tree, cover, listed, number, read_rows, read_table
from equiav.errors import DataError
from equiav.types import Split

NOISE_FOLDER = "_background_noise_"


def read_esc50(root: Path, *, fold: int) -> Coverage:
    """ESC-50 by meta/esc50.csv: `fold` is the test split, the other four train; every clip keeps its own fold."""
    tree = Tree(root)
    path = tree.label_file("esc50.csv", folder="meta")
    rows = list(read_table(path, ("filename", "fold", "target", "category", "src_file")))
    clips = []
    for row in rows:
        stem, own = PurePosixPath(row["filename"]).stem, number(row["fold"], path)
        split: Split = "test" if own == fold else "train"
        labels, group = (row["category"],), row["src_file"]
        clips.append(listed(stem, (f"audio/{stem}",), labels=labels, split=split, group=group, fold=own))
    numbers = {number(row["target"], path): row["category"] for row in rows}
    return cover(tree, clips, [numbers[n] for n in sorted(numbers)])


def read_speech_commands(root: Path) -> Coverage:
    """Speech Commands: a folder per word, validation_list.txt and testing_list.txt; what is in neither list trains.

    The folder of background noise is no word. Training clips are known only by being there, so only the other two
    splits can have missing ones.
    """
    tree = Tree(root)
    home = tree.label_file("validation_list.txt").parent
    splits: dict[str, Split] = {}
    lists: dict[str, Split] = {"validation_list.txt": "validation", "testing_list.txt": "test"}
    for name, split in lists.items():
        lines = tree.label_file(name).read_text().splitlines()
        splits |= {line.strip(): split for line in lines if line.strip()}
    words = sorted(p.name for p in home.iterdir() if p.is_dir() and p.name != NOISE_FOLDER and any(p.glob("*.wav")))
    present = [f"{word}/{p.name}" for word in words for p in sorted((home / word).glob("*.wav"))]
    known = dict.fromkeys([*present, *splits])
    classes = sorted({name.partition("/")[0] for name in known})
    clips = []
    for name in known:
        word, _, file = name.partition("/")
        stem = PurePosixPath(file).stem
        speaker = stem.partition("_nohash_")[0]
        split = splits.get(name, "train")
        clips.append(listed(f"{word}_{stem}", (f"{word}/{stem}",), labels=(word,), split=split, group=speaker))
    return cover(tree, clips, classes)


def read_fsd50k(root: Path) -> Coverage:
    """FSD50K by FSD50K.ground_truth: dev.csv (whose split column says train or val), eval.csv, vocabulary.csv."""
    tree = Tree(root)
    folder = "FSD50K.ground_truth"
    vocabulary = [label for _, label, *_ in read_rows(tree.label_file("vocabulary.csv", folder=folder), 3)]
    words: Mapping[str, Split] = {"train": "train", "val": "validation"}
    clips = []
    for part in ("dev", "eval"):
        path = tree.label_file(f"{part}.csv", folder=folder)
        columns = ("fname", "labels", "split") if part == "dev" else ("fname", "labels")
        for row in read_table(path, columns):
            labels, name = tuple(row["labels"].split(",")), row["fname"]
            if unknown := [label for label in labels if label not in vocabulary]:
                raise DataError(f"{path}: {name} has the class {unknown[0]}, which vocabulary.csv lacks")
            if part == "dev" and row["split"] not in words:
                raise DataError(f"{path}: {name} has the split {row['split']!r}; known: train, val")
            split: Split = "test" if part == "eval" else words[row["split"]]
            clips.append(listed(name, (f"FSD50K.{part}_audio/{name}",), labels=labels, split=split, group=name))
    return cover(tree, clips, vocabulary)
