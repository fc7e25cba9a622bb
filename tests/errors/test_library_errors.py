"""Each refusal of the library by its message, as a user meets it: in a process without the tests' shape checks."""

import json
import subprocess
import sys

import pytest

SETUP = """
import json, sys, torch
from pathlib import Path
from equiav.config import parse_config, Config, load_config
from equiav.build import build_model
from equiav.convert import released_config
from equiav.errors import EquiAVError
from equiav.media import FilterBank
from equiav.augment import visual_pipeline
from equiav.losses import nt_xent, equimod
from equiav.evaluation import ranks
cfg = parse_config({"model": {"encoder": {"size": None, "width": 32, "depth": 1, "heads": 4},
    "predictor": {"query_width": 16, "heads": 2, "head_width": 8}, "heads": {"hidden": 16, "inter": 8, "intra": 8}},
    "audio": {"frames": 64, "bins": 32}, "visual": {"size": 32}}, "test")
model = build_model(cfg)
rng = torch.Generator().manual_seed(0)
h = model.visual.encode(torch.zeros(2, 3, 32, 32))
"""

CASES = {
    "one-dimensional waveform": ("FilterBank()(torch.zeros(500))", "waveforms must be (N, samples), got (500,)"),
    "too short a waveform": ("FilterBank()(torch.zeros(1, 399))", "399 samples is shorter than a window of 400"),
    "picture without batch": ("model.visual.encode(torch.zeros(3, 32, 32))", "wants (batch, 3, height, width)"),
    "spectrogram with three channels": ("model.audio.encode(torch.zeros(1, 3, 64, 32))", "wants (batch, 1,"),
    "size no patch divides": ("model.visual.encode(torch.zeros(1, 3, 30, 32))", "30 x 32 cannot be cut into patches"),
    "views of unequal size": (
        "model.visual.f.views(torch.zeros(1, 3, 32, 32), torch.zeros(2, 3, 32, 32))",
        "two views differ in shape",
    ),
    "vectors of another layout": ("model.visual.u(h, torch.zeros(2, 1, 24))", "must be (2 or 1, S, 18)"),
    "vectors for another batch": ("model.visual.u(h, torch.zeros(3, 1, 18))", "must be (2 or 1, S, 18)"),
    "NaN vectors": ("model.visual.u(h, torch.full((2, 1, 18), float('nan')))", "not finite"),
    "augmenting three dimensions": (
        "p = visual_pipeline(); p.apply(torch.zeros(3, 8, 8), p.sample(3, rng))",
        "wants a batch of shape (B, C, H, W)",
    ),
    "draws for another batch": (
        "p = visual_pipeline(); p.apply(torch.zeros(3, 3, 8, 8), p.sample(2, rng))",
        "2 augmentations were drawn for a batch of 3",
    ),
    "losses of unequal sides": ("nt_xent(torch.zeros(2, 4), torch.zeros(3, 4), 0.1)", "wants two (N, D) batches"),
    "EquiMod alone": ("equimod(torch.zeros(1, 4), torch.zeros(1, 4), 0.1)", "no negatives in a batch of one"),
    "NaN embeddings": (
        "ranks(torch.full((2, 4), float('nan')), torch.zeros(2, 4))",
        "not finite",
    ),
    "unknown key": ("parse_config({'model': {'hight': 3}}, 'r.yaml')", "r.yaml: model.hight: unknown key"),
    "patch that does not fit": ("parse_config({'visual': {'size': 100}}, 'r.yaml')", "100 is not a multiple of"),
    "size and width": ("parse_config({'model': {'encoder': {'width': 8}}}, 'r.yaml')", "need size: null"),
    "infinite epochs": ("parse_config({'train': {'epochs': float('inf')}}, 'r.yaml')", "train.epochs"),
    "betas of one": ("parse_config({'optim': {'betas': [1.0, 1.0]}}, 'r.yaml')", "optim.betas"),
    "an empty range": (
        "parse_config({'augment': {'visual': {'blur_sigma': [0, 0]}}}, 'r.yaml')",
        "is no range of positive numbers",
    ),
    "more than all of it": (
        "parse_config({'augment': {'audio': {'crop_area': [0.5, 5]}}}, 'r.yaml')",
        "cannot be more than the whole",
    ),
    "heads that do not divide": (
        "from equiav.models import ReleasedSizes, Size; released_config(ReleasedSizes(Size(64, 2, 5), 128, 64, 4.0))",
        "5 heads do not divide the width 64",
    ),
    "a recipe that is a list": ("parse_config([], 'r.yaml')", "a recipe is a mapping"),
    "no such recipe": ("load_config(Path('nowhere.yaml'))", "nowhere.yaml: cannot be read"),
    "an override that is none": ("load_config(Path(sys.argv[1]), ('seed',))", "an override is key=value"),
    "an override into a value": ("load_config(Path(sys.argv[1]), ('seed.x=1',))", "seed is a value, not a section"),
}


@pytest.fixture(scope="module")
def answers(tmp_path_factory):
    recipe = tmp_path_factory.mktemp("errors") / "recipe.yaml"
    recipe.write_text("seed: 1\n")
    lines = [SETUP, "answers = {}"]
    for name, (code, _) in CASES.items():
        lines += ["try:", f"    {code}", f"    answers[{name!r}] = 'no error'"]
        lines += ["except EquiAVError as e:", f"    answers[{name!r}] = str(e)"]
        lines += ["except Exception as e:", f"    answers[{name!r}] = 'BUG ' + repr(e)"]
    lines.append("print(json.dumps(answers))")
    run = subprocess.run(
        [sys.executable, "-c", "\n".join(lines), str(recipe)], capture_output=True, text=True, check=True
    )
    return json.loads(run.stdout.splitlines()[-1])


@pytest.mark.parametrize("name", CASES)
def test_refusal(name, answers):
    assert CASES[name][1] in answers[name]
    assert "\n" not in answers[name]
