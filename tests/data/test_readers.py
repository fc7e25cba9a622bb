"""Readers of published datasets, each on a miniature of its published layout and on the real label files."""

import json
import wave
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest

from equiav.data import PUBLISHED, Coverage, read_published, read_retrieval_list, read_vocabulary, select
from equiav.errors import DataError


def touch(root: Path, *names: str) -> None:
    for name in names:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).touch()


def write(root: Path, name: str, text: str) -> None:
    (root / name).parent.mkdir(parents=True, exist_ok=True)
    (root / name).write_text(text)


def splits_of(coverage: Coverage) -> dict[str, str | None]:
    return {s.id: s.split for s in coverage.clips}


CLASSES = 'index,mid,display_name\n0,/m/09x0r,"Speech"\n1,/m/05zppz,"Male speech, man speaking"\n2,/m/0k4j,"Car"\n'
SEGMENTS = """# Segments csv created Sun Mar  5 10:54:31 2017
# num_ytids=22160, num_segs=22160, num_unique_labels=527, num_positive_labels=52882
# YTID, start_seconds, end_seconds, positive_labels
--4gqARaEJE, 0.000, 10.000, "/m/09x0r,/m/05zppz"
-0BIyqJj9ZU, 30.000, 40.000, "/m/0k4j"
00W1lcxW-WU, 40.000, 50.000, "/m/0k4j"
zzzzzzzzzzz, 7.000, 17.000, "/m/0k4j"
"""


def audioset(root: Path) -> None:
    write(root, "class_labels_indices.csv", CLASSES)
    write(root, "balanced_train_segments.csv", SEGMENTS)
    write(root, "unbalanced_train_segments.csv", SEGMENTS.split("--4g")[0] + 'AAAAAAAAAAA, 5.000, 15.000, "/m/09x0r"\n')
    write(root, "eval_segments.csv", SEGMENTS.split("--4g")[0] + 'BBBBBBBBBBB, 5.000, 15.000, "/m/09x0r"\n')
    touch(root, "a/--4gqARaEJE.mp4", "b/-0BIyqJj9ZU_30.mp4", "b/c/00W1lcxW-WU_40.000.mp4", "b/AAAAAAAAAAA_000005.mp4")
    touch(root, "eval/BBBBBBBBBBB_5000_15000.mkv")


def test_audioset(tmp_path: Path) -> None:
    audioset(tmp_path)
    small = read_published("audioset-20k", tmp_path)
    assert small.listed == 4
    assert small.missing == ["zzzzzzzzzzz"]
    assert small.classes == ("Speech", "Male speech, man speaking", "Car")
    assert [s.path.name for s in small.clips] == ["--4gqARaEJE.mp4", "-0BIyqJj9ZU_30.mp4", "00W1lcxW-WU_40.000.mp4"]
    assert small.clips[0].labels == ("Speech", "Male speech, man speaking")
    assert small.line() == "4 listed, 3 found, 1 missing (75.0 % found)"
    whole = read_published("audioset-2m", tmp_path)
    assert set(splits_of(whole).values()) == {"train"}
    assert whole.listed == 5
    assert splits_of(read_published("audioset-eval", tmp_path)) == {"BBBBBBBBBBB": "test"}


def test_audioset_refuses_unknown_classes(tmp_path: Path) -> None:
    audioset(tmp_path)
    write(tmp_path, "class_labels_indices.csv", "index,mid,display_name\n0,/m/0k4j,Car\n")
    with pytest.raises(DataError, match=r"--4gqARaEJE has the class /m/09x0r, which class_labels_indices\.csv lacks"):
        read_published("audioset-20k", tmp_path)


def vggsound(root: Path) -> None:
    write(
        root,
        "vggsound.csv",
        '---g-f_I2yQ,1,"people marching",test\n--0PQM4-hqg,30,waterfall burbling,train\nx_y,7,"a, b",train\n',
    )
    touch(root, "video/---g-f_I2yQ_000001.mp4", "video/--0PQM4-hqg_000030.mp4", "audio/--0PQM4-hqg_000030.wav")


def test_vggsound(tmp_path: Path) -> None:
    vggsound(tmp_path)
    found = read_published("vggsound", tmp_path)
    assert splits_of(found) == {"---g-f_I2yQ_000001": "test", "--0PQM4-hqg_000030": "train"}
    assert found.missing == ["x_y_000007"]
    assert found.classes == ("a, b", "people marching", "waterfall burbling")
    # The video goes before the sound of the same name.
    assert found.clips[1].path == tmp_path / "video" / "--0PQM4-hqg_000030.mp4"
    assert found.clips[1].group == "--0PQM4-hqg"


def test_vggsound_real_test_list(shared: Path, tmp_path: Path) -> None:
    (tmp_path / "test.csv").symlink_to(shared / "annotations" / "vggsound" / "test.csv")
    touch(tmp_path, "test/glLQrEijrKg_000300.mp4")
    found = read_published("vggsound", tmp_path)
    assert found.listed == 15446
    assert len(found.classes) == 309
    assert found.clips[0].labels == ("playing hammond organ",)
    assert found.clips[0].split == "test"
    vocabulary = read_vocabulary(shared / "annotations" / "vggsounder" / "classes.csv")
    assert set(vocabulary.values()) == set(found.classes)


def test_vggss_real_boxes(shared: Path, tmp_path: Path) -> None:
    (tmp_path / "vggss.json").symlink_to(shared / "annotations" / "localisation" / "vggss.json")
    entries = json.loads((tmp_path / "vggss.json").read_text())
    touch(tmp_path, *(f"clips/{entry['file']}.mp4" for entry in entries))
    found = read_published("vggss", tmp_path)
    assert found.listed == len(found.clips) == 5158
    boxes = [box for s in found.clips for box in s.boxes]
    assert all(0 <= x0 < x1 <= 1 and 0 <= y0 < y1 <= 1 for x0, y0, x1, y1 in boxes)
    # 18 published boxes are empty or overflowed.
    assert len(boxes) == 5941 - 18
    assert "18 of 5941 boxes have no area and are left out" in found.line()
    assert found.clips[0].boxes == ((0.403125, 0.253125, 0.6, 0.75),)
    assert found.clips[0].labels == ("elk bugling",)


def vggss(root: Path) -> None:
    write(
        root,
        "vggss.json",
        json.dumps([{"file": "a_b_000032", "class": "elk", "bbox": [[-0.1, 0.2, 1.2, 0.5], [1, 1, 1, 1]]}]),
    )
    touch(root, "a_b_000032.mp4")


def test_vggss(tmp_path: Path) -> None:
    vggss(tmp_path)
    (source,) = read_published("vggss", tmp_path).clips
    assert (source.boxes, source.split, source.group) == (((0.0, 0.2, 1.0, 0.5),), "test", "a_b")


def msrvtt(root: Path) -> None:
    videos = [
        {"id": i, "video_id": f"video{i}", "category": i % 2, "url": f"https://example.org/{i // 2}", "split": split}
        for i, split in enumerate(["train", "train", "validate", "test"])
    ]
    write(root, "train_val_videodatainfo.json", json.dumps({"info": {}, "videos": videos[:3], "sentences": []}))
    write(root, "test_videodatainfo.json", json.dumps({"info": {}, "videos": videos[3:], "sentences": []}))
    write(root, "category.txt", "music\t0\nfood and drink\t1\n")
    write(
        root, "MSRVTT_JSFUSION_test.csv", 'key,vid_key,video_id,sentence\nret0,msr3,video3,"a, b"\nret1,msr9,video9,c\n'
    )
    touch(
        root, "TrainValVideo/video0.mp4", "TrainValVideo/video1.mp4", "TrainValVideo/video2.mp4", "TestVideo/video3.mp4"
    )


def test_msrvtt(tmp_path: Path) -> None:
    msrvtt(tmp_path)
    found = read_published("msrvtt", tmp_path)
    assert splits_of(found) == {"video0": "train", "video1": "train", "video2": "validation", "video3": "test"}
    assert found.classes == ("food and drink", "music")
    assert len({s.group for s in found.clips}) == 2
    test = read_published("msrvtt-1ka", tmp_path)
    assert (splits_of(test), test.missing) == ({"video3": "test"}, ["video9"])


def esc50(root: Path) -> None:
    rows = [
        f"{fold}-10{fold}-A-{target}.wav,{fold},{target},class{target},True,10{fold},A"
        for fold in range(1, 6)
        for target in (0, 3)
    ]
    write(root, "meta/esc50.csv", "\n".join(["filename,fold,target,category,esc10,src_file,take", *rows]))
    touch(root, *(f"audio/{row.split(',')[0]}" for row in rows))


def test_esc50(tmp_path: Path) -> None:
    esc50(tmp_path)
    found = read_published("esc50", tmp_path, split=2)
    assert found.classes == ("class0", "class3")
    assert {s.fold for s in found.clips if s.split == "test"} == {2}
    assert {s.fold for s in found.clips if s.split == "train"} == {1, 3, 4, 5}


def test_esc50_real_clips(shared: Path) -> None:
    found = read_published("esc50", shared / "data" / "esc50_mini")
    assert (found.listed, len(found.clips), found.missing) == (50, 50, [])
    assert Counter(s.fold for s in found.clips) == dict.fromkeys(range(1, 6), 10)
    assert len(found.classes) == 10
    assert found.classes[0] == "dog"
    assert all(s.path.is_file() for s in found.clips)


def speech(root: Path) -> None:
    touch(
        root,
        "yes/aa_nohash_0.wav",
        "yes/bb_nohash_0.wav",
        "yes/bb_nohash_1.wav",
        "no/aa_nohash_0.wav",
        "no/cc_nohash_0.wav",
    )
    touch(root, "_background_noise_/running_tap.wav")
    write(root, "validation_list.txt", "yes/bb_nohash_0.wav\nyes/bb_nohash_1.wav\n")
    write(root, "testing_list.txt", "no/cc_nohash_0.wav\nno/dd_nohash_0.wav\n")


@pytest.mark.parametrize(("name", "words"), [("speech-commands-35", 35), ("speech-commands-30", 30)])
def test_speech_commands_word_by_word(tmp_path: Path, name: str, words: int) -> None:
    speech(tmp_path)
    touch(tmp_path, "learn/aa_nohash_0.wav", "nonsense/aa_nohash_0.wav")
    found = read_published(name, tmp_path)
    assert len(found.classes) == words
    assert {"no", "yes", "zero"} < set(found.classes)
    new = {"learn_aa_nohash_0": "train"} if words == 35 else {}
    assert splits_of(found) == {
        "no_aa_nohash_0": "train",
        "no_cc_nohash_0": "test",
        "yes_aa_nohash_0": "train",
        "yes_bb_nohash_0": "validation",
        "yes_bb_nohash_1": "validation",
        **new,
    }
    assert found.missing == ["no_dd_nohash_0"]
    path = {clip.id: clip.path for clip in found.clips}["no_aa_nohash_0"]
    assert path == tmp_path / "no" / "aa_nohash_0.wav"
    assert found.clips[-1].group in ("aa", "bb")
    assert f"{3 if words == 35 else 2} of {words} words are there" in found.line()


def write_wav(path: Path, seconds: float) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with wave.open(str(path), "wb") as file:
        file.setparams((1, 2, 16000, 0, "NONE", ""))
        file.writeframes(bytes(round(seconds * 32000)))


def test_speech_commands_as_superb(tmp_path: Path) -> None:
    """Ten words, the others as one class, and silence; with the test archive its folders are the test split."""
    speech(tmp_path / "v1")
    touch(tmp_path, "v1/zero/aa_nohash_0.wav", "v1/zero/cc_nohash_0.wav", "v1/learn/aa_nohash_0.wav")
    write(tmp_path / "v1", "testing_list.txt", "no/cc_nohash_0.wav\nzero/cc_nohash_0.wav\n")
    write_wav(tmp_path / "v1/_background_noise_/pink.wav", 20.5)
    found = read_published("speech-commands", tmp_path)
    assert found == read_published("speech-commands-12", tmp_path)
    assert " ".join(found.classes) == "yes no up down left right on off stop go _unknown_ _silence_"
    labels = {clip.id: (clip.labels[0], clip.split) for clip in found.clips}
    assert labels["zero_aa_nohash_0"] == ("_unknown_", "train")
    assert labels["zero_cc_nohash_0"] == ("_unknown_", "test")
    assert "learn_aa_nohash_0" not in labels  # no word of version 0.01
    noise = [clip for clip in found.clips if clip.path.name == "pink.wav"]
    assert [(clip.start, clip.seconds) for clip in noise] == [(float(k), 1.0) for k in range(20)]
    assert [clip.split for clip in noise] == ["train"] * 18 + ["validation"] * 2
    assert "no test archive" in found.line()
    touch(tmp_path, "test/_silence_/x.wav", "test/_unknown_/zero_cc.wav", "test/no/cc_nohash_0.wav")
    with_archive = read_published("speech-commands", tmp_path)
    test = {clip.id: clip.labels for clip in with_archive.clips if clip.split == "test"}
    assert test == {
        "_silence__x": ("_silence_",), "_unknown__zero_cc": ("_unknown_",), "no_cc_nohash_0": ("no",)
    }  # fmt: skip
    assert "archive" not in with_archive.line()


def fsd50k(root: Path) -> None:
    truth = "FSD50K.ground_truth"
    write(root, f"{truth}/vocabulary.csv", "0,Accelerating_and_revving_and_vroom,/m/07q2z82\n1,Guitar,/m/0342h\n")
    write(
        root,
        f"{truth}/dev.csv",
        'fname,labels,mids,split\n64760,"Guitar,Accelerating_and_revving_and_vroom","/m/0342h,/m/07q2z82",train\n16399,Guitar,/m/0342h,val\n',
    )
    write(root, f"{truth}/eval.csv", "fname,labels,mids\n37199,Guitar,/m/0342h\n64760,Guitar,/m/0342h\n")
    touch(root, "FSD50K.dev_audio/64760.wav", "FSD50K.dev_audio/16399.wav", "FSD50K.eval_audio/37199.wav")


def test_fsd50k(tmp_path: Path) -> None:
    fsd50k(tmp_path)
    found = read_published("fsd50k", tmp_path)
    assert splits_of(found) == {"64760": "train", "16399": "validation", "37199": "test"}
    assert found.clips[0].labels == ("Guitar", "Accelerating_and_revving_and_vroom")
    assert found.classes == ("Accelerating_and_revving_and_vroom", "Guitar")


def ucf101(root: Path) -> None:
    write(root, "ucfTrainTestlist/classInd.txt", "1 Archery\n2 HandstandPushups\n")
    for n in (1, 2, 3):
        write(
            root,
            f"ucfTrainTestlist/trainlist0{n}.txt",
            "Archery/v_Archery_g08_c01.avi 1\nArchery/v_Archery_g08_c02.avi 1\n",
        )
        write(root, f"ucfTrainTestlist/testlist0{n}.txt", f"HandstandPushups/v_HandStandPushups_g0{n}_c01.avi\n")
        touch(root, f"UCF-101/HandstandPushups/v_HandStandPushups_g0{n}_c01.avi")
    touch(root, "UCF-101/Archery/v_Archery_g08_c01.avi")


def test_ucf101(tmp_path: Path) -> None:
    ucf101(tmp_path)
    found = read_published("ucf101", tmp_path, split=2)
    assert splits_of(found) == {"v_Archery_g08_c01": "train", "v_HandStandPushups_g02_c01": "test"}
    assert found.missing == ["v_Archery_g08_c02"]
    assert found.clips[0].group == "v_Archery_g08"


@pytest.mark.parametrize(("split", "train", "test"), [(1, 9537, 3783), (2, 9586, 3734), (3, 9624, 3696)])
def test_ucf101_real_lists(shared: Path, tmp_path: Path, split: int, train: int, test: int) -> None:
    lists = shared / "annotations" / "action" / "data" / "ucf101_splits"
    (tmp_path / "ucfTrainTestlist").symlink_to(lists)
    names = [
        line.split()[0]
        for word in ("train", "test")
        for line in (lists / f"{word}list0{split}.txt").read_text().splitlines()
    ]
    touch(tmp_path, *(f"UCF-101/{name}" for name in names))
    found = read_published("ucf101", tmp_path, split=split)
    assert Counter(splits_of(found).values()) == {"train": train, "test": test}
    assert len(found.classes) == 101
    groups = {word: {s.group for s in found.clips if s.split == word} for word in ("train", "test")}
    assert not groups["train"] & groups["test"]


def hmdb51(root: Path) -> None:
    used = "April_09_brush_hair_u_nm_np1_ba_goo_0.avi 1 \nBeauty_brush_hair_u_nm_np1_ba_goo_0.avi 2 \n"
    text = used + "Unused_brush_hair_u_0.avi 0 \n"
    write(root, "testTrainMulti_7030_splits/brush_hair_test_split1.txt", text)
    write(root, "testTrainMulti_7030_splits/wave_test_split1.txt", "Gone_wave_u_nm_np1_fr_goo_0.avi 1 \n")
    touch(
        root,
        "brush_hair/April_09_brush_hair_u_nm_np1_ba_goo_0.avi",
        "brush_hair/Beauty_brush_hair_u_nm_np1_ba_goo_0.avi",
    )
    touch(root, "brush_hair/Unused_brush_hair_u_0.avi")


def test_hmdb51(tmp_path: Path) -> None:
    hmdb51(tmp_path)
    found = read_published("hmdb51", tmp_path)
    assert [(s.group, s.split) for s in found.clips] == [("April_09", "train"), ("Beauty", "test")]
    assert found.classes == ("brush_hair", "wave")
    assert found.listed == 3
    with pytest.raises(DataError, match=r"no brush_hair_test_split2\.txt; expected as .*testTrainMulti_7030_splits"):
        read_published("hmdb51", tmp_path, split=2)


@pytest.mark.parametrize("split", [1, 2, 3])
def test_hmdb51_real_lists(shared: Path, tmp_path: Path, split: int) -> None:
    lists = shared / "annotations" / "action" / "data" / "hmdb51_splits"
    (tmp_path / "testTrainMulti_7030_splits").symlink_to(lists)
    for path in lists.glob(f"*_test_split{split}.txt"):
        label = path.name.removesuffix(f"_test_split{split}.txt")
        touch(tmp_path, *(f"{label}/{line.split()[0]}" for line in path.read_text().splitlines() if line.strip()))
    found = read_published("hmdb51", tmp_path, split=split)
    assert Counter(splits_of(found).values()) == {"train": 3570, "test": 1530}
    assert len(found.classes) == 51
    assert found.missing == []


def kinetics(root: Path) -> None:
    header = "label,youtube_id,time_start,time_end,split\n"
    write(
        root,
        "annotations/train.csv",
        header + '"testifying",---QUuC4vJs,84,94,train\n"tap dancing",--3ouPhoy2A,20,30,train\n',
    )
    write(root, "annotations/validate.csv", header + '"abseiling",0wR5jVB-WPk,417,427,val\n')
    write(root, "annotations/test.csv", header[6:] + "--0edUL8zmA,92,102,test\n")
    touch(root, "train/testifying/---QUuC4vJs_000084_000094.mp4", "val/0wR5jVB-WPk_000417_000427.mp4")
    touch(root, "test/--0edUL8zmA_000092_000102.mp4")


def test_kinetics400(tmp_path: Path) -> None:
    kinetics(tmp_path)
    found = read_published("kinetics400", tmp_path)
    assert splits_of(found) == {
        "--0edUL8zmA_000092_000102": "test",
        "---QUuC4vJs_000084_000094": "train",
        "0wR5jVB-WPk_000417_000427": "validation",
    }
    assert found.missing == ["--3ouPhoy2A_000020_000030"]
    assert found.classes == ("abseiling", "tap dancing", "testifying")
    assert [s.labels for s in found.clips] == [(), ("testifying",), ("abseiling",)]


MINIATURES: dict[str, Callable[[Path], None]] = {
    "audioset-2m": audioset,
    "audioset-20k": audioset,
    "audioset-eval": audioset,
    "vggsound": vggsound,
    "vggss": vggss,
    "msrvtt": msrvtt,
    "msrvtt-1ka": msrvtt,
    "esc50": esc50,
    "speech-commands": speech,
    "speech-commands-12": speech,
    "speech-commands-30": speech,
    "speech-commands-35": speech,
    "fsd50k": fsd50k,
    "ucf101": ucf101,
    "hmdb51": hmdb51,
    "kinetics400": kinetics,
}
LABEL_FILES = {
    "audioset-2m": "class_labels_indices.csv",
    "audioset-20k": "class_labels_indices.csv",
    "audioset-eval": "class_labels_indices.csv",
    "vggsound": "vggsound.csv",
    "vggss": "vggss.json",
    "msrvtt": "train_val_videodatainfo.json",
    "msrvtt-1ka": "MSRVTT_JSFUSION_test.csv",
    "esc50": "meta/esc50.csv",
    **dict.fromkeys(
        ("speech-commands", "speech-commands-12", "speech-commands-30", "speech-commands-35"), "validation_list.txt"
    ),
    "fsd50k": "FSD50K.ground_truth/vocabulary.csv",
    "ucf101": "ucfTrainTestlist/classInd.txt",
    "hmdb51": "testTrainMulti_7030_splits/brush_hair_test_split1.txt",
    "kinetics400": "annotations/train.csv",
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_every_reader(tmp_path: Path, name: str) -> None:
    """Names are unique and stable, paths exist, every source has a split and a group; the reader refuses by name."""
    with pytest.raises(DataError, match=f"expected as {tmp_path / LABEL_FILES[name]}"):
        read_published(name, tmp_path)
    MINIATURES[name](tmp_path)
    found = read_published(name, tmp_path)
    assert found == read_published(name, tmp_path)
    assert len({s.id for s in found.clips}) == len(found.clips) == found.listed - len(found.missing)
    assert all(s.path.is_file() and s.split and s.group for s in found.clips)
    assert {label for s in found.clips for label in s.labels} <= set(found.classes)
    for path in media_of(tmp_path):
        path.unlink()
    with pytest.raises(DataError, match=r"none of the|expected as") as refusal:
        read_published(name, tmp_path)
    assert str(tmp_path) in str(refusal.value)


def media_of(root: Path) -> Iterable[Path]:
    return [p for p in root.rglob("*") if p.suffix in (".mp4", ".avi", ".wav", ".mkv")]


def test_refusals(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no reader for 'imagenet'; known datasets: audioset-2m, "):
        read_published("imagenet", tmp_path)
    with pytest.raises(DataError, match="ucf101 has 3 splits; there is no split 4"):
        read_published("ucf101", tmp_path, split=4)
    with pytest.raises(DataError, match="vggsound has 1 split; there is no split 2"):
        read_published("vggsound", tmp_path, split=2)
    with pytest.raises(DataError, match="no such folder"):
        read_published("esc50", tmp_path / "absent")
    write(tmp_path, "vggsound.csv", "a,b\n")
    with pytest.raises(DataError, match=r"vggsound\.csv: entry 1 has 2 columns where 4 are expected"):
        read_published("vggsound", tmp_path)
    write(tmp_path, "vggsound.csv", "a,1,b,dev\n")
    with pytest.raises(DataError, match="unknown split 'dev'"):
        read_published("vggsound", tmp_path)
    write(tmp_path, "vggsound.csv", "a,one,b,test\n")
    with pytest.raises(DataError, match="'one' stands where a number is expected"):
        read_published("vggsound", tmp_path)
    write(tmp_path, "vggss.json", "[{")
    with pytest.raises(DataError, match=r"vggss\.json: cannot be read as JSON"):
        read_published("vggss", tmp_path)
    write(tmp_path, "meta/esc50.csv", "filename,fold\n")
    with pytest.raises(DataError, match="does not name the columns target, category, src_file"):
        read_published("esc50", tmp_path)


LONG, DEEP = f'a,1,"{"x" * 200_000}",test\n', "[" * 100_000
BOX = '[{"file": "a_1", "class": "x", "bbox": [[%s, 0, 1, 1]]}]'
ABSURD = {
    "vggsound": ("vggsound.csv", ["a,1e999,b,test\n", "a,nan,b,test\n", LONG, "\0\n", b"\xff\xfe"]),
    "vggss": ("vggss.json", ['[{"file": 5, "class": "x", "bbox": []}]', BOX % "null", BOX % f"1{'0' * 400}", DEEP]),
    "esc50": ("meta/esc50.csv", ["filename,fold,target,category,src_file\na.wav,1e999,0,c,s\n", b"\xff\xfe\0"]),
    "msrvtt": ("category.txt", ["music\n"]),
    "speech-commands": ("testing_list.txt", [b"\xff\xfe\n"]),
}


@pytest.mark.parametrize("name", ABSURD)
def test_absurd_label_files_get_one_line(tmp_path: Path, name: str) -> None:
    MINIATURES[name](tmp_path)
    file, contents = ABSURD[name]
    for content in contents:
        (tmp_path / file).write_bytes(content if isinstance(content, bytes) else content.encode())
        with pytest.raises(DataError) as refusal:
            read_published(name, tmp_path)
        assert "\n" not in str(refusal.value)
        assert str(tmp_path) in str(refusal.value)


def test_vocabulary(shared: Path) -> None:
    audio = read_vocabulary(shared / "annotations" / "audioset" / "class_labels_indices.csv")
    assert len(audio) == 527
    assert list(audio.items())[1] == ("/m/05zppz", "Male speech, man speaking")
    assert len(read_vocabulary(shared / "annotations" / "retrieval" / "class_labels_indices_vgg.csv")) == 309


def test_vocabulary_refusals(tmp_path: Path) -> None:
    write(tmp_path, "labels.csv", "index,mid,display_name\n0,a,A\n2,b,B\n")
    with pytest.raises(DataError, match="its indices are not 0 to 1, each once"):
        read_vocabulary(tmp_path / "labels.csv")


def test_real_retrieval_lists(shared: Path) -> None:
    vgg = read_retrieval_list(shared / "annotations" / "retrieval" / "vgg_test_5_per_class_for_retrieval_template.json")
    audio = read_retrieval_list(shared / "annotations" / "audioset" / "cavmae_sample_json_as.json")
    assert len(vgg) == len(set(vgg)) == 1545
    assert len(audio) == len(set(audio)) == 1725
    assert vgg[0] == "glLQrEijrKg_000300"
    lines = (shared / "annotations" / "vggsound" / "test.csv").read_text().splitlines()
    names = [line.split(".mp4,")[0] for line in lines]
    rows, missing = select(names, vgg)
    assert missing == []
    assert [names[row] for row in rows] == vgg


def test_retrieval_list_refusals(tmp_path: Path) -> None:
    write(tmp_path, "list.json", '{"data": [{"id": 1}]}')
    with pytest.raises(DataError, match="of records with video_id"):
        read_retrieval_list(tmp_path / "list.json")
    write(tmp_path, "list.json", '{"data": [{"video_id": "a"}, {"video_id": "a"}]}')
    with pytest.raises(DataError, match="1 of its 2 ids are repeated"):
        read_retrieval_list(tmp_path / "list.json")
    with pytest.raises(DataError, match="cannot be read as JSON"):
        read_retrieval_list(tmp_path / "absent.json")


def test_select_by_video_id() -> None:
    names = ["b_000010-1", "b_000010-0", "a-b_c", "a-b_c_000030", "d"]
    assert select(names, ["a-b_c", "b_000010", "d", "gone", "a-b"]) == ([2, 1, 4, 2], ["gone"])
