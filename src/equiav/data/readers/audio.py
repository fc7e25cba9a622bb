"""Readers of published audio datasets: ESC-50, Speech Commands, FSD50K."""

from __future__ import annotations

import wave
from collections.abc import Collection, Iterator
from dataclasses import replace
from pathlib import Path, PurePosixPath

from equiav.data.readers.files import (
    SPLIT_WORDS,
    Coverage,
    Listed,
    Tree,
    cover,
    listed,
    number,
    read_lines,
    read_rows,
    read_table,
)
from equiav.errors import DataError
from equiav.types import Split

NOISE_FOLDER, SILENCE, UNKNOWN = "_background_noise_", "_silence_", "_unknown_"
KEYWORDS = ("yes", "no", "up", "down", "left", "right", "on", "off", "stop", "go")
WORDS_30 = frozenset(
    f"{' '.join(KEYWORDS)} zero one two three four five six seven eight nine bed bird cat dog happy house marvin "
    "sheila tree wow".split()
)
WORDS_35 = WORDS_30 | {"backward", "follow", "forward", "learn", "visual"}
NOISE_VALIDATION = 10  # of the seconds of a noise recording the last tenth


def read_esc50(tree: Tree, *, split: int) -> Coverage:
    """ESC-50 by meta/esc50.csv: fold `split` is the test split, the other four train; every clip keeps its own fold."""
    path = tree.label_file("esc50.csv", folder="meta")
    rows = list(read_table(path, ("filename", "fold", "target", "category", "src_file")))
    clips = []
    for row in rows:
        stem, fold = PurePosixPath(row["filename"]).stem, number(row["fold"], path)
        use: Split = "test" if fold == split else "train"
        labels, group = (row["category"],), row["src_file"]
        clips.append(listed(stem, (f"audio/{stem}",), labels=labels, split=use, group=group, fold=fold))
    numbers = {number(row["target"], path): row["category"] for row in rows}
    return cover(tree, clips, [numbers[n] for n in sorted(numbers)])


def _spoken(tree: Tree) -> Iterator[tuple[str, str, Split]]:
    """Word, file and split of every recording: validation_list.txt, testing_list.txt, and what is in neither trains."""
    home = tree.label_file("validation_list.txt").parent
    splits: dict[str, Split] = {}
    lists: dict[str, Split] = {"validation_list.txt": "validation", "testing_list.txt": "test"}
    for name, split in lists.items():
        splits |= {line.strip(): split for line in read_lines(tree.label_file(name)) if line.strip()}
    folders = sorted(p for p in home.iterdir() if p.is_dir() and p.name != NOISE_FOLDER)
    present = (f"{folder.name}/{p.name}" for folder in folders for p in sorted(folder.glob("*.wav")))
    for name in dict.fromkeys([*present, *splits]):
        word, _, file = name.partition("/")
        yield word, PurePosixPath(file).stem, splits.get(name, "train")


def _command(word: str, stem: str, split: Split, label: str) -> Listed:
    speaker = stem.partition("_nohash_")[0]
    return listed(f"{word}_{stem}", (f"{word}/{stem}",), labels=(label,), split=split, group=speaker)


def read_speech_commands(tree: Tree, *, words: Collection[str]) -> Coverage:
    """Speech Commands, a class for each word: a folder per word; 35 words in its version 0.02, 30 in 0.01.

    The folder of background noise is no word. Training clips are known only by being there, so only the other two
    splits can have missing ones.
    """
    clips = [_command(word, stem, split, word) for word, stem, split in _spoken(tree) if word in words]
    present = {clip.labels[0] for clip, _ in clips}
    remark = f"{len(present)} of {len(words)} words are there"
    return cover(tree, clips, sorted(words), remarks=(remark,) if len(present) < len(words) else ())


def read_superb_commands(tree: Tree) -> Coverage:
    """The keyword spotting of SUPERB, on version 0.01: ten words, all others as _unknown_, and _silence_.

    Silence is the background noise, second by second; the last tenth of each recording is for validation. The test
    split is the published test archive (folders _silence_ and _unknown_), unpacked beside, and without it those of
    testing_list.txt, which hold no silence.
    """
    spoken = list(_spoken(tree))
    home = tree.label_file("validation_list.txt").parent
    archive = next((p.parent for p in tree.folders(SILENCE) if p.parent != home), None)
    clips = [
        _command(word, stem, split, word if word in KEYWORDS else UNKNOWN)
        for word, stem, split in spoken
        if word in WORDS_30 and not (archive and split == "test")
    ]
    for noise in tree.folders(NOISE_FOLDER):
        for path in sorted(noise.glob("*.wav")):
            seconds = _seconds(path)
            for second in range(seconds):
                name, late = f"{SILENCE}{path.stem}_{second:03d}", second >= seconds - seconds // NOISE_VALIDATION
                split: Split = "validation" if late else "train"
                clip, stems = listed(name, (f"{noise.name}/{path.stem}",), labels=(SILENCE,), split=split, group=name)
                clips.append((replace(clip, start=float(second), seconds=1.0), stems))
    if archive is not None:
        for path in sorted(archive.glob("*/*.wav")):
            label = path.parent.name
            clips.append(_command(label, path.stem, "test", label))
    remark = f"no test archive (a folder {SILENCE}): the test split is testing_list.txt, without silence"
    return cover(tree, clips, [*KEYWORDS, UNKNOWN, SILENCE], remarks=() if archive else (remark,))


def _seconds(path: Path) -> int:
    """Whole seconds of a WAV file; 1 for one that cannot be read, which `prepare` then refuses with the reason."""
    try:
        if path.is_file():  # a pipe would be waited for
            with wave.open(str(path), "rb") as file:
                return max(1, file.getnframes() // file.getframerate())
    except (OSError, wave.Error, EOFError, ArithmeticError):
        pass
    return 1


def read_fsd50k(tree: Tree) -> Coverage:
    """FSD50K by FSD50K.ground_truth: dev.csv (whose split column says train or val), eval.csv, vocabulary.csv."""
    folder = "FSD50K.ground_truth"
    vocabulary = [label for _, label, *_ in read_rows(tree.label_file("vocabulary.csv", folder=folder), 3)]
    clips = []
    for part in ("dev", "eval"):
        path = tree.label_file(f"{part}.csv", folder=folder)
        columns = ("fname", "labels", "split") if part == "dev" else ("fname", "labels")
        for row in read_table(path, columns):
            labels, name = tuple(row["labels"].split(",")), row["fname"]
            if unknown := [label for label in labels if label not in vocabulary]:
                raise DataError(f"{path}: {name} has the class {unknown[0]}, which vocabulary.csv lacks")
            if part == "dev" and row["split"] not in ("train", "val"):
                raise DataError(f"{path}: {name} has the split {row['split']!r}; known: train, val")
            split = SPLIT_WORDS["test" if part == "eval" else row["split"]]
            clips.append(listed(name, (f"FSD50K.{part}_audio/{name}",), labels=labels, split=split, group=name))
    return cover(tree, clips, vocabulary)
