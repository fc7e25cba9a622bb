"""The public names, and how little importing them costs."""

import json
import os
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

import equiav

NAMES = Path(__file__).with_name("public_names.json")
ROOMS = (
    "augment", "data", "evaluation", "inference", "losses", "media", "models", "objectives", "report", "reproduction",
    "search", "text", "training", "web",
)  # fmt: skip


def test_public_names_are_pinned():
    assert sorted(equiav.__all__) == ["Embedder", "Index", "__version__", "load_model"]
    assert dir(equiav) == sorted(equiav.__all__)
    assert all(callable(getattr(equiav, name)) for name in ("Embedder", "Index", "load_model"))


@pytest.mark.parametrize("room", ROOMS)
def test_the_names_of_every_subpackage_are_pinned(room):
    """A name that appears or goes is a decision: EQUIAV_REFREEZE=1 writes the list again."""
    module = import_module(f"equiav.{room}")
    assert sorted(module.__all__) == sorted(set(module.__all__))
    assert all(hasattr(module, name) for name in module.__all__)
    pinned = json.loads(NAMES.read_text()) if NAMES.exists() else {}
    if os.environ.get("EQUIAV_REFREEZE"):
        NAMES.write_text(json.dumps({**pinned, room: sorted(module.__all__)}, indent=1, sort_keys=True) + "\n")
        return
    assert sorted(module.__all__) == pinned[room]


def loaded_after(code):
    """Modules that a fresh process holds after running the code."""
    run = [sys.executable, "-c", f"import sys; {code}; print(*sys.modules)"]
    return set(subprocess.run(run, check=True, capture_output=True, text=True).stdout.split())


def test_nothing_heavy_before_it_is_needed():
    assert not {"torch", "matplotlib", "av", "pydantic", "transformers"} & loaded_after("import equiav, equiav.cli")


def test_inference_pulls_in_no_training():
    modules = loaded_after("import equiav; equiav.load_model; equiav.Embedder")
    unwanted = ("equiav.training", "equiav.search", "equiav.web", "equiav.report", "matplotlib", "tensorboard", "faiss",
                "transformers", "peft", "huggingface_hub")  # fmt: skip
    assert not [m for m in modules if m.startswith(unwanted)]
