"""Models with random weights: small enough for many tests, or of real input sizes."""

from functools import lru_cache
from pathlib import Path

from equiav.build import build_bank, build_model
from equiav.checkpoint import save_model
from equiav.config import parse_config
from equiav.inference import LoadedModel

MICRO = {
    "model": {
        "encoder": {"size": None, "width": 32, "depth": 1, "heads": 2},
        "predictor": {"query_width": 16, "heads": 2, "head_width": 8},
        "heads": {"hidden": 32, "inter": 16, "intra": 16},
    },
    "audio": {"frames": 192, "bins": 32},
    "visual": {"size": 32},
    "bank": {"size": 4},
}
REAL = {"model": {"encoder": {"size": "tiny"}, "heads": {"hidden": 256, "inter": 128, "intra": 128}}}


@lru_cache(maxsize=4)
def random_model(kind: str = "micro", seed: int = 0) -> LoadedModel:
    config = parse_config({**(MICRO if kind == "micro" else REAL), "seed": seed}, "test")
    banks = {m: build_bank(config, m) for m in ("audio", "visual")}
    return LoadedModel(build_model(config).eval(), config, banks, {})


def saved_model(path: Path, seed: int = 0) -> Path:
    loaded = random_model(seed=seed)
    save_model(path, loaded.config, dict(loaded.model.state_dict()), {})
    return path
