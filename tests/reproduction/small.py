"""Tables small enough for tests: rows over the smoke recipe, and records as runs would write them."""

from pathlib import Path

import yaml

from equiav.io import write_json
from equiav.reproduction import Folders, Table, load_tables, plan, portable

ROOT = Path(__file__).parents[2]
SMOKE = ROOT / "configs/pretrain/smoke.yaml"
PLAIN = {"objective.intra": "none", "objective.inter": "original"}
TINY = {"train.steps": 4, "train.evaluate_every": 2, "train.checkpoint_every": 2}


def table(**changes):
    """A table as plain data; `changes` replace whole keys."""
    return {
        "title": "small",
        "paper": "Table 0",
        "reference": "full",
        "columns": ["V2A", "A", "sim A"],
        "scales": {"world": {"base": str(SMOKE), "seeds": [0, 1, 2], "overrides": TINY}},
        "rows": [
            {"name": "plain", "overrides": PLAIN, "paper": {"V2A": 25.2, "A": 40.1}},
            {"name": "full", "paper": {"V2A": 30.1, "A": 42.4, "sim A": 0.9}},
            {"name": "other", "cited": True, "paper": {"A": 39.0}},
        ],
        **changes,
    }


def write(path: Path, tree) -> Path:
    path.write_text(yaml.safe_dump(tree), encoding="utf-8")
    return path


def loaded(folder: Path, tree=None, name: str = "small") -> Table:
    return load_tables([write(folder / f"{name}.yaml", tree or table())])[0]


PROVENANCE = {
    "commit": "abc", "utc": "2026-01-02T03:04:05+00:00", "torch": "2", "cpu": "a processor", "cores": 2, "threads": 1,
}  # fmt: skip


def pretend(found: Table, folders: Folders, metrics) -> None:
    """Results files as runs would leave them; `metrics` gives V2A, A and sim A of a row and seed, or None."""
    for run in plan([found], "world"):
        values = metrics(run.wanted_by[0].split(": ")[1], run.seed)
        if values is None:
            continue
        v2a, a, similarity = values
        test = {"retrieval": {"video_to_audio": {"R@1": v2a}}, "probe": {"audio": a}}
        if similarity is not None:
            test["similarity"] = {"audio": similarity}
        record = {
            "key": run.key, "scale": "world", "seed": run.seed, "rows": list(run.wanted_by),
            "config": portable(run.config), "steps": 4, "test": test, "validation": test, "tasks": sorted(run.tasks),
            "seconds": {"wall": 90.0, "cpu": 60.0}, "provenance": PROVENANCE,
        }  # fmt: skip
        write_json(folders.record("world", run.key), record)
