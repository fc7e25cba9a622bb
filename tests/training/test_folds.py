"""Cross-validation over the published splits of UCF101 and HMDB51, on miniatures of their layouts."""

import json
from itertools import count
from pathlib import Path
from statistics import fmean

import pytest

from equiav.config import load_config
from equiav.data import ShardDataset, prepare, read_published
from equiav.errors import DataError
from equiav.training import finetune_folds
from tests.media.making import write_media

ROOT = Path(__file__).parents[2]
FEW = ("classifier.mode=visual", "finetune.loss=ce", "finetune.metric=accuracy", "train.steps=1", "train.batch=2")
CLASSES = ("Archery", "Bowling")


def videos(folder: Path, names: list[str]) -> None:
    for number, name in enumerate(names):  # no two alike
        label = sum(map(ord, name.split("_")[1]))
        write_media(folder / name, seconds=0.6 + 0.1 * number, fps=10, audio=False, size=(32 + 2 * (label % 8), 32))


def ucf101(root: Path) -> None:
    """Two classes of four groups; group n is the test of split n, as published, and the fourth always trains."""
    (root / "ucfTrainTestlist").mkdir(parents=True)
    numbered = "".join(f"{n} {name}\n" for n, name in enumerate(CLASSES, 1))
    (root / "ucfTrainTestlist/classInd.txt").write_text(numbered)
    names = {group: [f"{c}/v_{c}_g0{group}_c0{i}.avi" for c in CLASSES for i in (1, 2)] for group in (1, 2, 3, 4)}
    for split in (1, 2, 3):
        test = "".join(f"{name}\n" for name in names[split])
        train = "".join(f"{name} 1\n" for group in names if group != split for name in names[group])
        (root / f"ucfTrainTestlist/testlist0{split}.txt").write_text(test)
        (root / f"ucfTrainTestlist/trainlist0{split}.txt").write_text(train)
    videos(root / "UCF-101", [name for of in names.values() for name in of])


def hmdb51(root: Path) -> None:
    """Two classes of five sources; test sets of splits overlap and each leaves another clip out, as published."""
    lists = root / "testTrainMulti_7030_splits"
    lists.mkdir(parents=True)
    uses = {1: "21110", 2: "12011", 3: "22101"}  # of each source: 1 train, 2 test, 0 unused
    for label in ("brush_hair", "wave"):
        names = [f"Film{i}_{label}_u_nm_np1_ba_goo_0.avi" for i in range(5)]
        for split, used in uses.items():
            text = "".join(f"{name} {use} \n" for name, use in zip(names, used, strict=True))
            (lists / f"{label}_test_split{split}.txt").write_text(text)
        videos(root / label, names)


def recipe(path: Path, *overrides: str):
    return load_config(ROOT / "configs/finetune/smoke.yaml", (*FEW, f"data={{kind: shards, path: {path}}}", *overrides))


@pytest.mark.parametrize(("make", "tests"), [(ucf101, [4, 4, 4]), (hmdb51, [2, 2, 4])])
def test_all_three_published_splits(tmp_path, make, tests):
    """From the published layout itself: every split is prepared, trained and tested, and the mean reported."""
    make(tmp_path / "set")
    results = finetune_folds(recipe(tmp_path / "set"), tmp_path / "run")
    assert results is not None
    assert [results["folds"][n]["clips"] for n in (1, 2, 3)] == tests
    each = [results["folds"][n]["accuracy"] for n in (1, 2, 3)]
    assert results["mean/accuracy"] == results.value == pytest.approx(fmean(each))
    record = json.loads((tmp_path / "run/fold3/results.json").read_text())
    assert record["split"] == "test"
    assert record["metrics"]["clips"] == tests[2]


def test_splits_that_were_prepared_before(tmp_path):
    ucf101(tmp_path / "set")
    for split, name in zip(count(1), ("first", "second", "third"), strict=False):
        prepare(
            read_published("ucf101", tmp_path / "set", split=split).clips, tmp_path / name, workers=1, need=("video",)
        )
    further = f"data.splits=[{tmp_path / 'second'}, {tmp_path / 'third'}]"
    results = finetune_folds(recipe(tmp_path / "first", further), tmp_path / "run")
    assert results is not None
    assert list(results["folds"]) == [1, 2, 3]
    for split, name in zip(count(1), ("first", "second", "third"), strict=False):
        test = ShardDataset(tmp_path / name, "test")
        assert all(f"-g0{split}-" in test.clip(i).id for i in range(len(test)))
        shown = json.loads((tmp_path / f"run/fold{split}/results.json").read_text())["examples"]
        assert {e["id"] for e in shown} == {test.clip(i).id for i in range(len(test))}
    with pytest.raises(DataError, match=r"no folds; .* name the folders of the others in data\.splits"):
        finetune_folds(recipe(tmp_path / "first"), tmp_path / "other")
