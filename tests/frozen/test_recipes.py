"""Under which keys the runs of the paper's tables are stored, and what every shipped recipe says in full.

Results on disk are found by run keys: a key that changes makes finished runs strangers. Recipes are pinned by a digest
of each section written out with its defaults; whoever changes one on purpose edits recipes.json by hand.
"""

import hashlib
import json

import pytest

from tests.frozen.api import CONFIGS, frozen, recipe_sections, run_keys, table

RECIPES = sorted(path for kind in ("pretrain", "finetune") for path in (CONFIGS / kind).glob("*.yaml"))
TABLES = sorted((CONFIGS / "ablation").glob("*.yaml"))


def name_of(path):
    return path.relative_to(CONFIGS).as_posix()


def digest(value):
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:16]


def test_no_recipe_is_lost():
    frozen("recipes", "all", [name_of(path) for path in (*RECIPES, *TABLES)])


def test_defaults():
    """Shipped recipes write most keys out: what is left out of a person's own is pinned here."""
    frozen("recipes", "defaults", recipe_sections({}))
    data = [{"kind": k, "path": "p"} for k in ("shards", "paired")]
    data.append({"kind": "cavmae", "train": "t", "validation": "v"})
    for given in data:
        frozen("recipes", f"defaults: {given['kind']}", recipe_sections({"data": given})["data"])
    tuned = recipe_sections({"finetune": {"loss": "bce", "metric": "mAP"}, "classifier": {"mode": "audio"}})
    frozen("recipes", "defaults: fine-tuning", {key: tuned[key] for key in ("finetune", "classifier")})


@pytest.mark.parametrize("path", RECIPES, ids=name_of)
def test_recipe(path):
    frozen("recipes", name_of(path), {key: digest(value) for key, value in recipe_sections(path).items()})


@pytest.mark.parametrize("path", TABLES, ids=name_of)
def test_table(path):
    frozen("recipes", name_of(path), digest(table(path)))


@pytest.mark.parametrize("path", TABLES, ids=name_of)
def test_run_keys(path):
    frozen("run_keys", path.stem, run_keys(path))
