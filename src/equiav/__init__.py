"""equiav: a shared space of sound and picture, learnt from unlabelled videos (EquiAV, ICML 2024)."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from equiav.inference import Embedder, load_model
    from equiav.search import Index

__version__ = "0.1.0"
__all__ = ["Embedder", "Index", "__version__", "load_model"]

# torch takes a second to import: public names are resolved when first used, so `equiav --help` stays quick.
_HOME = {"load_model": "equiav.inference", "Embedder": "equiav.inference", "Index": "equiav.search"}


def __getattr__(name: str) -> Any:
    if name in _HOME:
        return getattr(import_module(_HOME[name]), name)
    raise AttributeError(f"module 'equiav' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
