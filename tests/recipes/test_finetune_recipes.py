"""Every fine-tuning recipe loads, builds and carries the paper's values; ESC-50's folds run from one command."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from equiav.build import build_classifier, build_finetuning_pipelines
from equiav.checkpoint import load_checkpoint
from equiav.config import load_config

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "configs" / "finetune"
RECIPES = sorted(FOLDER.glob("*.yaml"))
SMALL = {"world", "class_paired", "av_mnist", "smoke"}

# Table of hyperparameters: rate, warm-up epochs, epochs, batch, balanced, mixup, loss, mean and std; score; GPUs.
PAPER = {
    "audioset20k": (1e-4, 1, 50, 256, False, True, "bce", -4.346, 4.332, ("42.4", "25.7", "46.6"), "8 A5000"),
    "audioset2m": (1e-4, 1, 50, 512, True, True, "bce", -4.346, 4.332, ("49.1", "30.1", "54.6"), "8 A6000"),
    "vggsound": (1e-4, 1, 50, 256, True, True, "ce", -4.956, 4.486, ("61.0", "50.7", "67.1"), "8 A5000"),
    "esc50": (5e-4, 4, 60, 64, False, False, "ce", -6.627, 5.359, ("96.0",), "8 A5000"),
    "speech_commands": (1e-3, 1, 10, 256, False, True, "bce", -6.702, 5.448, ("97.8",), "8 A5000"),
    "fsd50k": (5e-4, 4, 60, 64, False, False, "bce", -6.627, 5.359, ("62.6",), "8 A5000"),
    "ucf101": (1e-3, 0, 100, 32, False, False, "ce", None, None, ("89.7",), "8 A5000"),
    "hmdb51": (5e-4, 0, 100, 32, False, False, "ce", None, None, ("64.4",), "8 A5000"),
    "kinetics400": (5e-4, 4, 100, 512, False, True, "ce", None, None, ("57.3",), "8 A5000"),
}

# Mode, metric; width and depth of the encoders; tokens of sound and of a picture (None: not looked at); all frames.
BUILT = {
    "audioset20k": ("audiovisual", "mAP", 768, 12, 512, 196, False),
    "audioset2m": ("audiovisual", "mAP", 768, 12, 512, 196, False),
    "vggsound": ("audiovisual", "accuracy", 768, 12, 512, 196, False),
    "esc50": ("audio", "accuracy", 768, 12, 256, None, False),
    "speech_commands": ("audio", "accuracy", 768, 12, 64, None, False),
    "fsd50k": ("audio", "mAP", 768, 12, 512, None, False),
    "ucf101": ("visual", "accuracy", 768, 12, None, 196, True),
    "hmdb51": ("visual", "accuracy", 768, 12, None, 196, True),
    "kinetics400": ("visual", "accuracy", 768, 12, None, 196, True),
    "world": ("audiovisual", "mAP", 64, 2, 36, 36, False),
    "class_paired": ("audio", "accuracy", 96, 3, 76, None, False),
    "av_mnist": ("audio", "accuracy", 96, 3, 24, None, False),
    "smoke": ("audiovisual", "mAP", 32, 2, 8, 16, False),
}


def test_there_is_a_recipe_for_every_column():
    assert {p.stem for p in RECIPES} == {*PAPER, *SMALL} == set(BUILT)


@pytest.mark.parametrize("path", RECIPES, ids=lambda p: p.stem)
def test_recipe_builds_a_classifier(path):
    config = load_config(path, ("classifier.classes=7",))
    mode, metric, width, depth, *tokens, all_frames = BUILT[path.stem]
    assert (config.classifier.mode, config.finetune.metric, config.finetune.all_frames) == (mode, metric, all_frames)
    with torch.device("meta"):
        model = build_classifier(config)
        sound = torch.zeros(2, 1, config.audio.frames, config.audio.bins)
        picture = torch.zeros(2, 3, config.visual.size, config.visual.size)
        logits = model({"audio": sound, "visual": picture})
    assert logits.shape == (2, 7)
    seen = {m: count for m, count in zip(("audio", "visual"), tokens, strict=True) if count}
    assert set(model.encoders) == set(seen)
    assert model.head.in_features == width * len(seen)
    for m, count in seen.items():
        encoder = model.encoders[m]
        assert (encoder.width, len(encoder.blocks), len(encoder.pos_embed)) == (width, depth, count)
    pipelines = build_finetuning_pipelines(config.finetune)
    assert set(pipelines["audio"].parts) == {"shift", "specaugment"}
    assert pipelines["audio"].parts["specaugment"].p == config.finetune.audio.mask
    assert ("crop" in pipelines["visual"].parts) == (config.finetune.visual.crop_area is not None)
    assert pipelines["visual"].parts["flip"].p == config.finetune.visual.flip


@pytest.mark.parametrize("name", PAPER)
def test_recipe_has_the_papers_values(name):
    rate, warmup, epochs, batch, balanced, mixup, loss, mean, std, scores, gpus = PAPER[name]
    path = FOLDER / f"{name}.yaml"
    config = load_config(path)
    optim, train, tune = config.optim, config.train, config.finetune
    assert (optim.lr, optim.warmup_epochs, train.epochs, train.batch) == (rate, warmup, epochs, batch)
    assert (optim.start_lr, optim.weight_decay, optim.betas, optim.clip) == (1e-6, 1e-5, (0.9, 0.95), None)
    assert (config.data.balanced, tune.mixup > 0, tune.mixup_beta, tune.loss) == (balanced, mixup, 10, loss)
    if mean is not None:
        assert (config.audio.mean, config.audio.std) == (mean, std)
    header = "".join(line for line in path.read_text().splitlines(keepends=True) if line.startswith("#"))
    for text in (*scores, gpus, f"configs/finetune/{name}.yaml"):
        assert text in header


def fine(*arguments):
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "equiav.cli", "finetune", *map(str, arguments)]
    return subprocess.run(command, env=environment, capture_output=True, text=True)


@pytest.mark.process
def test_five_folds_of_esc50_from_one_command(shared, tmp_path):
    small = [
        "model.encoder={size: null, width: 32, depth: 1, heads: 2}",
        "audio.frames=128",
        "weights=null",
        "optim.warmup_epochs=0",
        "train={batch: 8, steps: 2, workers: 0}",
    ]
    command = [FOLDER / "esc50.yaml", f"data.path={shared / 'data/esc50_mini'}", *small, "--folds", "--out", tmp_path]
    done = fine(*command)
    assert done.returncode == 0, done.stderr
    record = json.loads((tmp_path / "results.json").read_text())
    assert list(record["folds"]) == ["1", "2", "3", "4", "5"]
    assert [f["clips"] for f in record["folds"].values()] == [10] * 5
    mean = sum(f["accuracy"] for f in record["folds"].values()) / 5
    assert record["mean"]["accuracy"] == pytest.approx(mean)
    assert f"mean: mAP {record['mean']['mAP']:.1f} %" in done.stdout
    assert (tmp_path / "report.html").is_file()
    for fold in range(1, 6):
        best = load_checkpoint(tmp_path / f"fold{fold}")
        assert best.config.data.fold == fold
        assert len(best.meta["classes"]) == 10
        results = json.loads((tmp_path / f"fold{fold}" / "results.json").read_text())
        assert results["metrics"] == record["folds"][str(fold)]
    times = {p: p.stat().st_mtime_ns for p in tmp_path.glob("fold*/best/weights.safetensors")}
    again = fine(*command)  # nothing is trained twice
    assert again.returncode == 0, again.stderr
    assert times == {p: p.stat().st_mtime_ns for p in times}
