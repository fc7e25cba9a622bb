"""Readers of published sets of sounds: ESC-50, Speech Commands, FSD50K."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path, PurePosixPath

from equiav.data.benchmark_files import CLIP_SECONDS, Coverage, Listed, Tree, cover, number, read_rows, read_table
from equiav.data.manifest import Source, Split
from equiav.errors import DataError

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
        source = Source(stem, Path(), labels=labels, split=split, group=group, seconds=CLIP_SECONDS, fold=own)
        clips.append(Listed(source, (f"audio/{stem}",)))
    numbers = {number(row["target"], path): row["category"] for row in rows}
    return cover(tree, clips, [numbers[n] for n in sorted(numbers)])


def read_speech_commands(root: Path) -> Coverage:
    """Speech Commands: a folder per word, validation_list.txt and testing_list.txt; what is in neither list trains.

    The folder of background noise is no word. Training clips are known only by being there, so only the other two
    splits can have missing ones.
    """
    tree = Tree(root)
    home = tree.label_file("validation_list.txt").parent
    splits: dict[str, Split] = dict.fromkeys(_lines(tree.label_file("validation_list.txt")), "validation")
    splits |= dict.fromkeys(_lines(tree.label_file("testing_list.txt")), "test")
    words = sorted(p.name for p in home.iterdir() if p.is_dir() and p.name != NOISE_FOLDER and any(p.glob("*.wav")))
    present = [f"{word}/{p.name}" for word in words for p in sorted((home / word).glob("*.wav"))]
    known = dict.fromkeys([*present, *splits])
    classes = sorted({name.partition("/")[0] for name in known})
    return cover(tree, _speech_clips(known, splits), classes)


def _lines(path: Path) -> list[str]:
    return [line.strip() for line in path.read_text().splitlines() if line.strip()]


def _speech_clips(names: Mapping[str, None], splits: Mapping[str, Split]) -> Iterator[Listed]:
    for name in names:
        word, _, file = name.partition("/")
        stem = PurePosixPath(file).stem
        speaker = stem.partition("_nohash_")[0]
        split = splits.get(name, "train")
        source = Source(f"{word}_{stem}", Path(), labels=(word,), split=split, group=speaker, seconds=CLIP_SECONDS)
        yield Listed(source, (f"{word}/{stem}",))


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
            source = Source(name, Path(), labels=labels, split=split, group=name, seconds=CLIP_SECONDS)
            clips.append(Listed(source, (f"FSD50K.{part}_audio/{name}",)))
    return cover(tree, clips, vocabulary)
