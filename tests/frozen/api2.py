"""What the frozen tests of search, results and help need of the library, in one place; and how values are compared.

A change of names or signatures inside `equiav` is an edit of this file; the JSON files beside it stay as they are.
`EQUIAV_REFREEZE=1 pytest tests/frozen` writes those files again: for changes of behaviour that are meant.
"""

import json
import math
import os
from pathlib import Path

import numpy as np
from typer.main import get_command
from typer.testing import CliRunner

import equiav
from equiav.build import build_model
from equiav.checkpoint import save_model
from equiav.cli import app
from equiav.config import load_config
from equiav.search import Entry, Query, store
from equiav.types import Clip
from tests.inference.models import random_model

HERE = Path(__file__).parent
ROOT = HERE.parents[1]

# Frozen values

# Stored with four digits: on the edge between two of them the last one depends on the processor.
ROUNDED = {"score": 1.01e-4}


def frozen(name, found, *, relative=0.0, absolute=0.0, may_grow=False):
    """Compares with the JSON file of that name, floating numbers within the tolerances; or writes it, if told to.

    With `may_grow`, keys that were not frozen may stand beside those that were.
    """
    path, found = HERE / name, json.loads(json.dumps(found), parse_float=lambda text: float(f"{float(text):.8g}"))
    if os.environ.get("EQUIAV_REFREEZE") == "1":
        if isinstance(found, dict):
            lines = [json.dumps({key: value}, ensure_ascii=False)[1:-1] for key, value in found.items()]
            text = "{\n" + ",\n".join(lines) + "\n}"
        else:
            text = "[\n" + ",\n".join(json.dumps(item, ensure_ascii=False) for item in found) + "\n]"
        path.write_text(text + "\n", encoding="utf-8")
    expected = json.loads(path.read_text(encoding="utf-8"))
    if may_grow:
        found = {key: value for key, value in found.items() if key in expected}
    differences = list(compare(expected, found, "", relative, absolute))
    assert not differences, f"{name}, {len(differences)} differences:\n" + "\n".join(differences[:20])


def compare(expected, found, place, relative, absolute):
    """Where two trees of plain data differ."""
    if isinstance(expected, dict) and isinstance(found, dict):
        yield from (f"{place}/{key}: is gone" for key in expected.keys() - found.keys())
        yield from (f"{place}/{key}: is new" for key in found.keys() - expected.keys())
        for key in [key for key in expected if key in found]:
            least = ROUNDED.get(key, 0.0)
            yield from compare(expected[key], found[key], f"{place}/{key}", relative, max(absolute, least))
    elif isinstance(expected, list) and isinstance(found, list):
        if len(expected) != len(found):
            yield f"{place}: {len(expected)} items were frozen, {len(found)} found"
        for i, (one, other) in enumerate(zip(expected, found, strict=False)):
            yield from compare(one, other, f"{place}/{i}", relative, absolute)
    elif isinstance(expected, float) and isinstance(found, float):
        both_nan = math.isnan(expected) and math.isnan(found)
        if not (both_nan or math.isclose(expected, found, rel_tol=relative, abs_tol=absolute)):
            yield f"{place}: {expected} was frozen, {found} found"
    elif type(expected) is not type(found) or expected != found:
        yield f"{place}: {expected!r} was frozen, {found!r} found"


# The command line


def run(*arguments):
    """An `equiav` command in this process; its output."""
    said = CliRunner().invoke(app, [str(a) for a in arguments], catch_exceptions=False)
    assert said.exit_code == 0, said.output
    return said.stdout


def root_command():
    """The command `equiav`, as click sees it."""
    return get_command(app)


# Checkpoints


def save_checkpoint(path, recipe, *overrides):
    """A checkpoint of a recipe with seeded random weights."""
    config = load_config(ROOT / "configs" / recipe, overrides)
    save_model(path, config, build_model(config).state_dict(), {"step": 0})
    return path


def demo(out, overrides, monkeypatch):
    """`equiav demo`, its training in this process instead of in processes of its own."""

    def train(recipe, overrides, out, **how):
        run("pretrain", recipe, *overrides, "--out", out)

    monkeypatch.setattr("equiav.demo.train_on_cores", train)
    run("demo", *overrides, "--out", out)


# Search


def create_index(folder, store):
    """An empty index for vectors of 16 numbers; `store` as in `equiav index --store`."""
    return equiav.Index.create(folder, random_model(), store=store)


def open_index(folder):
    return equiav.Index.open(folder)


def add(index, entries):
    """Adds entries given as plain records; says how many were new."""
    made = [
        Entry(
            Clip(
                id=e["id"], source=e["source"], path=e["path"] and Path(e["path"]), start=e["start"],
                seconds=e["end"] - e["start"], labels=tuple(e["labels"]), metadata=e["metadata"],
            ),
            e["vectors"],
        )
        for e in entries
    ]  # fmt: skip
    return index.add(made, made_by=index.digest)


def search(index, kind, vector, *, among=None, filters=(), k=10):
    """Ids, scores and sides of the nearest, best first."""
    modality = {"audio": "audio", "image": "visual", "video": None}[kind]
    hits = index.search(Query(vector, modality, index.digest), k=k, among=among, filters=filters)
    return [[hit.clip.id, hit.score, hit.side] for hit in hits]


def like(index, id, *, among=None, filters=(), k=10):
    """The same for the question "what is like this entry?"."""
    hits = index.search(index.like(id), k=k, among=among, filters=filters)
    return [[hit.clip.id, hit.score, hit.side] for hit in hits]


def compress(index, monkeypatch, *, limit, few, tail, probes, candidates):
    """Makes an index use inverted lists and product codes from `limit` vectors on, as large collections do."""
    monkeypatch.setattr(store, "FEW", few)
    monkeypatch.setattr(store, "TAIL", tail)
    index.store.limit, index.store.probes, index.store.candidates = limit, probes, candidates


def compressed_rows(index):
    """How many vectors of each side are in inverted lists."""
    return {side: part.covered for side, part in index.store.state.parts.items() if part.file is not None}


def unit(vectors):
    return (vectors / np.linalg.norm(vectors, axis=-1, keepdims=True)).astype(np.float32)
