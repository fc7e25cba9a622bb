"""The public names, and how little importing them costs."""

import subprocess
import sys

import equiav


def test_public_names_are_pinned():
    assert sorted(equiav.__all__) == ["Embedder", "Index", "__version__", "load_model"]
    assert dir(equiav) == sorted(equiav.__all__)
    assert all(callable(getattr(equiav, name)) for name in ("Embedder", "Index", "load_model"))


def loaded_after(code):
    """Modules that a fresh process holds after running the code."""
    run = [sys.executable, "-c", f"import sys; {code}; print(*sys.modules)"]
    return set(subprocess.run(run, check=True, capture_output=True, text=True).stdout.split())


def test_nothing_heavy_before_it_is_needed():
    assert not {"torch", "matplotlib", "av", "pydantic"} & loaded_after("import equiav, equiav.cli")


def test_inference_pulls_in_no_training():
    modules = loaded_after("import equiav; equiav.load_model; equiav.Embedder")
    unwanted = ("equiav.training", "equiav.search", "equiav.web", "equiav.report", "matplotlib", "tensorboard", "faiss")
    assert not [m for m in modules if m.startswith(unwanted)]
