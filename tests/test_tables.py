"""Tables in README and docs are what the results files say."""

import runpy
import subprocess
import sys
from pathlib import Path

from equiav.config import Config

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
