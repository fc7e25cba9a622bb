"""Under which keys the runs of the paper's tables are stored, and what every shipped recipe says in full.

Results on disk are found by run keys: a key that changes makes finished runs strangers. Recipes are pinned by a digest
of each section written out with its defaults; whoever changes one on purpose edits recipes.json by hand.
"""

import hashlib
import json

import pytest

from tests.frozen.api import CONFIGS, frozen, recipe_sections, run_keys, tables

RECIPES = sorted(path for kind in ("pretrain", "finetune") for path in (CONFIGS / kind).glob("*.yaml"))
TABLES = sorted((CONFIGS / "ablation").glob("*.yaml"))


def name_of(path):
    return path.relative_to(CONFIGS).as_posix()


def digest(value):
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:16]


def test_no_recipe_is_lost():
    frozen("recipes", "all", [name_of(path) for path in (*RECIPES, *TABLES)])


@pytest.mark.parametrize("path", RECIPES, ids=name_of)
def test_recipe(path):
    frozen("recipes", name_of(path), {key: digest(value) for key, value in recipe_sections(path).items()})


@pytest.mark.parametrize("path", TABLES, ids=name_of)
def test_table(path):
    (table,) = tables([path]).values()
    frozen("recipes", name_of(path), digest(table))


@pytest.mark.parametrize("path", TABLES, ids=name_of)
def test_run_keys(path):
    frozen("run_keys", path.stem, run_keys(path))
