"""Readers of published video datasets: AudioSet, VGGSound, VGG-SS, MSR-VTT, UCF101, HMDB51, Kinetics-400."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path, PurePosixPath

from equiav.data.readers.files import (
    SPLIT_WORDS,
    Coverage,
    Tree,
    cover,
    listed,
    number,
    read_entries,
    read_lines,
    read_rows,
    read_table,
    read_vocabulary,
    split_word,
)
from equiav.errors import DataError
from equiav.types import Box, Split


def stretch_names(video: str, start: int, end: int) -> tuple[str, ...]:
    """How downloaders name a stretch of a video: by its start, or start and end, in seconds or milliseconds."""
    return (
        f"{video}_{start:06d}",
        f"{video}_{start}",
        f"{video}_{start}.000",
        f"{video}_{start:06d}_{end:06d}",
        f"{video}_{start}_{end}",
        f"{video}_{start}.000_{end}.000",
        f"{video}_{start * 1000}",
        f"{video}_{start * 1000}_{end * 1000}",
    )


def read_audioset(tree: Tree, *, lists: Sequence[str], split: Split) -> Coverage:
    """AudioSet by its segment lists (`<list>_segments.csv`) and class_labels_indices.csv.

    A list has one segment of each video, so a clip is called by its video, and its file may be, too.
    """
    names = read_vocabulary(tree.label_file("class_labels_indices.csv"))
    clips = []
    for path in [tree.label_file(f"{name}_segments.csv") for name in lists]:
        for video, start, end, mids, *_ in read_rows(path, 4):
            if unknown := [mid for mid in mids.split(",") if mid not in names]:
                raise DataError(f"{path}: {video} has the class {unknown[0]}, which class_labels_indices.csv lacks")
            labels = tuple(names[mid] for mid in mids.split(","))
            stems = (*stretch_names(video, number(start, path), number(end, path)), video)
            clips.append(listed(video, stems, labels=labels, split=split, group=video))
    return cover(tree, clips, names.values())


def read_vggsound(tree: Tree) -> Coverage:
    """VGGSound by vggsound.csv (video, start, label, split), or by train.csv and test.csv (file, label)."""
    rows = []
    if whole := tree.label_files("vggsound.csv"):
        for video, second, label, word, *_ in read_rows(whole[0], 4):
            rows.append((video, number(second, whole[0]), label, split_word(word, whole[0])))
    else:
        for path in tree.label_files("train.csv", "test.csv", expected="vggsound.csv"):
            for name, label, *_ in read_rows(path, 2):
                rows.append((*video_and_start(name, path), label, split_word(path.stem, path)))
    clips = (
        listed(f"{v}_{s:06d}", stretch_names(v, s, s + 10), labels=(label,), split=split, group=v)
        for v, s, label, split in rows
    )
    return cover(tree, clips, sorted({label for _, _, label, _ in rows}))


def video_and_start(name: str, path: Path) -> tuple[str, int]:
    """The video and the second of a file called <video>_<second>, with or without suffix."""
    video, _, start = name.removesuffix(".mp4").rpartition("_")
    if not video or not start.isdigit():
        raise DataError(f"{path}: {name!r} is not of the form <video>_<second>.mp4")
    return video, int(start)


def read_vggss(tree: Tree) -> Coverage:
    """VGG-SS by vggss.json: a class and boxes for each of 5,158 test clips of VGGSound.

    Boxes are cut to the frame; some published ones are empty or overflowed and are left out, which is remarked on.
    """
    path = tree.label_file("vggss.json")
    entries = read_entries(path, None, ("file", "class", "bbox"))
    clips, published, kept, bare = [], 0, 0, 0
    for entry in entries:
        video, start = video_and_start(entry["file"], path)
        boxes: list[Box] = []
        for corners in entry["bbox"]:
            x0, y0, x1, y1 = (min(max(float(value), 0.0), 1.0) for value in corners)
            if x0 < x1 and y0 < y1:
                boxes.append((x0, y0, x1, y1))
        published, kept, bare = published + len(entry["bbox"]), kept + len(boxes), bare + (not boxes)
        name, stems = f"{video}_{start:06d}", stretch_names(video, start, start + 10)
        clips.append(listed(name, stems, labels=(entry["class"],), split="test", group=video, boxes=tuple(boxes)))
    remark = f"{published - kept} of {published} boxes have no area and are left out, {bare} clips have none"
    return cover(tree, clips, sorted({e["class"] for e in entries}), remarks=(remark,) if kept < published else ())


def read_msrvtt(tree: Tree) -> Coverage:
    """MSR-VTT by its *videodatainfo*.json (or MSRVTT_data.json); classes are named by category.txt if it is there."""
    paths = tree.label_files("*videodatainfo*.json", "MSRVTT_data.json", expected="train_val_videodatainfo.json")
    categories = [line for path in tree.label_files("category.txt") for line in read_lines(path)]
    names = {number: name.strip() for name, number in (line.rsplit(maxsplit=1) for line in categories if line.strip())}
    clips = []
    for path in paths:
        for video in read_entries(path, "videos", ("video_id", "split")):
            category = str(video.get("category", ""))
            labels = (names.get(category, category),) if category else ()
            split, name = split_word(video["split"], path), video["video_id"]
            # Several clips are cut from one video of the net.
            clips.append(listed(name, (name,), labels=labels, split=split, group=video.get("url", name)))
    return cover(tree, clips, sorted({label for clip, _ in clips for label in clip.labels}))


def read_msrvtt_1ka(tree: Tree) -> Coverage:
    """The 1,000 test videos of MSR-VTT's 1k-A split, by MSRVTT_JSFUSION_test.csv; they carry no classes."""
    rows = read_table(tree.label_file("MSRVTT_JSFUSION_test.csv"), ("video_id",))
    names = [row["video_id"] for row in rows]
    return cover(tree, (listed(n, (n,), labels=(), split="test", group=n) for n in names), ())


def read_ucf101(tree: Tree, *, split: int) -> Coverage:
    """UCF101 by classInd.txt, trainlist0N.txt and testlist0N.txt; videos in folders named by class."""
    folder = "ucfTrainTestlist"
    numbered = "".join(read_lines(tree.label_file("classInd.txt", folder=folder))).split()
    clips = []
    for word in ("train", "test"):
        path = tree.label_file(f"{word}list0{split}.txt", folder=folder)
        for line in read_lines(path):
            if not line.strip():
                continue
            file = PurePosixPath(line.split()[0])
            label, stem = file.parent.name, file.stem
            if label not in numbered[1::2]:
                raise DataError(f"{path}: {line!r} is of no class that classInd.txt names")
            # v_<class>_g<video>_c<clip>
            group = stem.rpartition("_c")[0]
            clips.append(listed(stem, (f"{label}/{stem}",), labels=(label,), split=SPLIT_WORDS[word], group=group))
    return cover(tree, clips, numbered[1::2])


def read_hmdb51(tree: Tree, *, split: int) -> Coverage:
    """HMDB51 by <class>_test_splitN.txt (1 train, 2 test, 0 unused); videos in folders named by class."""
    ending = f"_test_split{split}.txt"
    paths = tree.label_files(f"*{ending}", expected=f"testTrainMulti_7030_splits/brush_hair{ending}")
    clips = []
    for path in paths:
        label = path.name.removesuffix(ending)
        for line in read_lines(path):
            name, _, use = line.strip().rpartition(" ")
            if line.strip() and use not in ("0", "1", "2"):
                raise DataError(f"{path}: {name} is marked {use}; known: 0, 1, 2")
            if use not in ("1", "2"):
                continue
            stem = PurePosixPath(name).stem
            group = stem.partition(f"_{label}_")[0]
            word = "train" if use == "1" else "test"
            clips.append(listed(stem, (f"{label}/{stem}",), labels=(label,), split=SPLIT_WORDS[word], group=group))
    return cover(tree, clips, [path.name.removesuffix(ending) for path in paths])


def read_kinetics400(tree: Tree) -> Coverage:
    """Kinetics-400 by its annotation files (train.csv, validate.csv or val.csv, test.csv); files in any folders.

    Some releases of the test list hold no labels; those clips then have none.
    """
    paths = tree.label_files("*train.csv", "*val.csv", "*validate.csv", "*test.csv", expected="annotations/train.csv")
    clips = []
    for path in paths:
        for row in read_table(path, ("youtube_id", "time_start", "time_end", "split")):
            video, start, end = row["youtube_id"], number(row["time_start"], path), number(row["time_end"], path)
            name = f"{video}_{start:06d}_{end:06d}"
            labels = (row["label"],) if row.get("label") else ()
            split = split_word(row["split"], path)
            stems = (name, *stretch_names(video, start, end))
            clips.append(listed(name, stems, labels=labels, split=split, group=video))
    return cover(tree, clips, sorted({label for clip, _ in clips for label in clip.labels}))
