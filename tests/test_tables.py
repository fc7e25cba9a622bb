"""Tables in README and docs are what the results files say."""

import runpy
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from equiav.config import Config
from equiav.reproduction import load_table, summary

ROOT = Path(__file__).parents[1]


def test_tables_are_up_to_date():
    run = subprocess.run(
        [sys.executable, str(ROOT / "benchmarks/tables.py"), "--check"], capture_output=True, text=True
    )
    assert run.returncode == 0, run.stdout


def test_every_record_keeps_its_origin(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    tables = runpy.run_path(str(ROOT / "benchmarks/tables.py"))
    record = {"provenance": {"cores": 2, "cpu": "X", "torch": "2", "commit": "abc", "utc": "2026-01-02T03:04:05"}}
    other = {"provenance": {**record["provenance"], "commit": "def"}}
    one = "2 cores of X, torch 2, commit abc, 2026-01-02"
    assert tables["origins"]({"a": record, "b": record}) == one
    assert tables["origins"]({"a": record, "b": other}) == f"a: {one}; b: {one.replace('abc', 'def')}"


def test_several_records_are_named_together(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    together = runpy.run_path(str(ROOT / "benchmarks/tables.py"))["together"]
    made = {"cores": 2, "cpu": "X", "torch": "2"}
    days = [("abc", "2026-01-03"), ("def", "2026-01-02"), ("abc", "2026-01-04")]
    records = [{"provenance": {**made, "commit": commit, "utc": f"{day}T03:04:05"}} for commit, day in days]
    assert together(records) == "2 cores of X, torch 2, commits abc, def, 2026-01-02 to 2026-01-04"


@pytest.mark.parametrize(
    ("differences", "expected", "said"),
    [
        (([1.0, 1.1], [2.0, 2.1]), "ahead", "confirmed"),
        (([1.0, 1.1], [2.0, -2.1]), "ahead", "confirmed in one direction"),
        (([-1.0, -1.1], [-2.0, -2.1]), "ahead", "contradicted"),
        (([1.0, -1.1], [2.0, -2.1]), "ahead", "not significant"),
        (([1.0, 1.1], [-2.0, -2.1]), "ahead", "differs between directions"),
        (([1.0, -1.1], [2.0, -2.1]), "not behind", "not contradicted"),
        (([1.0, 1.1], [-2.0, -2.1]), "not behind", "contradicted"),
        (([1.0, -1.1], [2.0, -1.9]), "positive", "fails"),
        (([1.0, -0.9], [2.0, -1.9]), "positive", "not significant"),
        (([-1.0, -1.1], [-2.0, -2.1]), "positive", "contradicted"),
        (([-1.0, -1.1], [-2.0, -2.1]), "lead", "behind"),
        (([1.0], [2.0]), "ahead", "one seed"),
    ],
)
def test_outcome_of_a_hypothesis(differences, expected, said):
    tables = runpy.run_path(str(ROOT / "benchmarks/ablation_tables.py"))
    assert tables["outcome"]([summary(values) for values in differences], expected) == said


def test_leads_are_compared_seed_by_seed():
    tables = runpy.run_path(str(ROOT / "benchmarks/ablation_tables.py"))
    more, less = tables["gap"](("a", "b"), ("c", "d"))  # (a - b) - (c - d)
    values = {"a": {0: 9.0, 1: 8.0, 2: 5.0}, "b": {0: 2.0, 1: 3.0}, "c": {0: 4.0, 1: 5.0}, "d": {0: 1.0, 1: 1.0}}
    found = SimpleNamespace(values={(row, "MRR"): of for row, of in values.items()}, former={})
    estimate = tables["combined"](found, "MRR", more, less)
    assert (estimate.mean, estimate.seeds) == ((4.0 + 1.0) / 2, 2)
    found.former["d"] = ("other defaults",)
    assert tables["combined"](found, "MRR", more, less) is None


def test_hypotheses_name_rows_that_exist():
    tables = runpy.run_path(str(ROOT / "benchmarks/ablation_tables.py"))
    for text, name, more, less, _ in tables["HYPOTHESES"]:
        rows = {row.name for row in load_table(ROOT / f"configs/ablation/{name}.yaml").rows}
        assert {*more, *less} <= rows, text


def test_every_key_of_a_recipe_is_documented():
    page = (ROOT / "docs/reference/recipes.md").read_text()

    def keys(section, place=""):
        for key, value in section.items():
            if isinstance(value, dict) and value and key != "data":
                yield from keys(value, f"{place}{key}.")
            elif key != "data":
                yield place.rstrip("."), key

    for place, key in keys(Config().model_dump()):
        part = page.partition(f"## {place}\n")[2].partition("\n## ")[0] if place else page
        named = f"`{key}`" in part or f"\n## {key}" in part  # a section that is empty by default
        assert named or (place, key) == ("model.visual", "encoder"), f"{place}.{key}"
