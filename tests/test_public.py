"""The public names, and how little importing them costs."""

import ast
import json
import os
import subprocess
import sys
from importlib import import_module
from importlib.util import find_spec
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


@pytest.mark.parametrize("folder", ["benchmarks", "tools", "examples"])
def test_scripts_import_names_that_exist(folder):
    """No test runs most of them: a renamed part would show months later."""
    gone = []
    for path in sorted((NAMES.parents[1] / folder).rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("equiav"):
                module = import_module(node.module)
                for name in (alias.name for alias in node.names if not hasattr(module, alias.name)):
                    if find_spec(f"{node.module}.{name}") is None:
                        gone.append(f"{path.name}: {node.module}.{name}")
    assert not gone


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
