"""What of a prepared folder trains and what is held out: `data.validation`, `finetune.validation_share`."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from equiav.build import build_dataset, build_labelled, build_splits, present_splits
from equiav.checkpoint import BEST, checkpoints_of, load_checkpoint
from equiav.config import load_config
from equiav.data import find_sources, prepare
from equiav.errors import ConfigError, DataError
from equiav.inference import load_classifier
from equiav.training import Trainer, finetune
from tests.media.making import sine, write_media

pytestmark = pytest.mark.process
CONFIGS = Path(__file__).parents[2] / "configs"


def silent(line):
    pass


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """Twelve training clips of six videos and two for test; and four others in a folder of their own."""
    root = tmp_path_factory.mktemp("media")
    for k in range(18):
        write_media(root / f"{k:02d}.mp4", seconds=1, fps=10, size=(48, 32), sound=sine(1, 16000, 200 + 30 * k))
    sources = [
        replace(s, labels=("low", "high")[i % 2 :][:1], group=f"video {i // 2}")
        for i, s in enumerate(find_sources(root))
    ]
    out = tmp_path_factory.mktemp("prepared")
    own = [replace(s, split="test" if i >= 12 else "train") for i, s in enumerate(sources[:14])]
    prepare(own, out / "own", workers=1)
    prepare([replace(s, split="test") for s in sources[14:]], out / "other", workers=1)
    return out


def pretraining(folders, *overrides):
    data = f"data={{kind: shards, path: {folders / 'own'}}}"
    return load_config(
        CONFIGS / "pretrain/smoke.yaml", (data, "train.batch=4", "train.steps=2", "train.evaluate_every=1", *overrides)
    )


def ids(clips):
    return [clips.clip(i).id for i in range(len(clips))]


def test_a_share_of_the_sources_is_held_out(folders):
    config = pretraining(folders, "data.validation=0.3")
    train, validation = (build_dataset(config, split) for split in ("train", "validation"))
    assert sorted([*ids(train), *ids(validation)]) == sorted(ids(build_dataset(pretraining(folders), "train")))
    groups = [{clips.group(i) for i in range(len(clips))} for clips in (train, validation)]
    assert groups[1]
    assert not groups[0] & groups[1], "by source"
    assert len(build_dataset(config, "test")) == 2
    assert present_splits(config) == {"train", "validation", "test"}
    assert present_splits(pretraining(folders)) == {"train", "test"}


def test_another_folder_is_taken_whole(folders):
    config = pretraining(folders, f"data.validation={folders / 'other'}")
    assert len(build_dataset(config, "validation")) == 4
    assert len(build_dataset(config, "train")) == 12


@pytest.mark.parametrize("validation", ["0.3", "other"])
def test_pretraining_logs_retrieval_on_it(folders, tmp_path, validation):
    value = folders / validation if validation == "other" else validation
    Trainer(pretraining(folders, f"data.validation={value}"), tmp_path, silent).run()
    records = [json.loads(line) for line in (tmp_path / "log.jsonl").read_text().splitlines()]
    checks = [r for r in records if r["kind"] == "validation"]
    assert [r["step"] for r in checks] == [1, 2]
    assert all(0 <= r["audio_to_video/R@1"] <= 100 for r in checks)


def test_without_it_nothing_is_logged_and_that_is_said(folders, tmp_path):
    said = []
    Trainer(pretraining(folders, "train.steps=1"), tmp_path, said.append).run()
    assert any("no validation in this run" in line for line in said)
    assert "validation" not in (tmp_path / "log.jsonl").read_text()


def finetuning(folders, *overrides):
    data = f"data={{kind: shards, path: {folders / 'own'}}}"
    return load_config(CONFIGS / "finetune/smoke.yaml", (data, "train.batch=4", "train.steps=2", *overrides))


def test_fine_tuning_without_validation_trains_on_everything_and_keeps_the_last(folders, tmp_path):
    some = build_splits(finetuning(folders))
    assert len(some.train) + len(some.validation) == 12
    said = []
    done = finetune(finetuning(folders, "finetune.validation_share=0"), tmp_path, said.append)
    assert any("all 12 training clips train, and the last weights are kept" in line for line in said)
    assert load_checkpoint(checkpoints_of(tmp_path)[-1][1]).meta["clips"] == 12
    assert not (tmp_path / BEST).exists()
    assert load_checkpoint(tmp_path).meta["step"] == 2
    assert load_classifier(tmp_path).classes == ("high", "low")
    assert done.best is None
    assert done.results["metrics"]["clips"] == 2
    assert done.lines()[0].startswith("test, 2 clips")
    everything = finetuning(folders, "finetune.validation_share=0")
    with pytest.raises(DataError, match="validation_share=0 holds no clips out"):
        build_labelled(everything, "validation", ("high", "low"))


def test_fine_tuning_takes_the_validation_of_the_data(folders):
    splits = build_splits(finetuning(folders, f"data.validation={folders / 'other'}"))
    assert (len(splits.train), len(splits.validation), len(splits.test)) == (12, 4, 2)


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (("data.validation=1.5",), "data"),
        (("data.validation=0.1", "data.fold=1"), "leave out data.validation"),
        (("data.validation=0.1", "finetune.test_split=validation"), "leave out data.validation"),
    ],
)
def test_refusals(folders, overrides, message):
    with pytest.raises(ConfigError, match=message):
        build_splits(finetuning(folders, *overrides))
