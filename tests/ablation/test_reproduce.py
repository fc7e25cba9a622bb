"""The document: every table and figure of the paper in order, blank where nothing was run, figures where it was."""

import re

import pytest

from equiav.ablation import ITEMS, Folders, load_experiments, shipped_tables, write_reproduction
from equiav.errors import ConfigError
from tests.ablation.small import ROOT, pretend


@pytest.fixture
def folders(tmp_path):
    return Folders(tmp_path / "results", tmp_path / "runs")


def test_everything_of_the_paper_is_listed(tmp_path, folders):
    out = tmp_path / "docs" / "reproduction.md"
    found = write_reproduction(out, folders)
    text = out.read_text()
    headings = re.findall(r"^## (.*)$", text, re.MULTILINE)
    assert [h for h in headings if ":" in h] == [f"{i.number}: {i.subject}" for i in ITEMS]
    numbers = [i.number for i in ITEMS]
    assert [n for n in numbers if re.fullmatch(r"Table \d", n)] == [f"Table {i}" for i in range(1, 10)]
    assert {"Table A", "Table B", "Table C", "Table D", "Figure 1", "Figure 2", "Figure 3", "Algorithm 1"} <= set(
        numbers
    )
    for anchor in re.findall(r"\]\(#([^)]*)\)", text):
        assert anchor in {re.sub(r"[^a-z0-9 _-]", "", h.lower()).replace(" ", "-") for h in headings}
    assert "Nothing yet." in text
    assert "| 30.1 | 29.6 |" in text  # the paper's figures are there
    assert "![" not in text
    assert all(not r.records for s in found for r in s.results)


def test_results_show_with_cost_and_plot(tmp_path, folders):
    path = shipped_tables()["variants"]
    found = load_experiments([path])[0]
    pretend(found, folders, lambda row, seed: (30.0 + seed + 0.1 * len(row), 40.0 + seed, None))
    out = tmp_path / "docs" / "reproduction.md"
    write_reproduction(out, folders)
    text = out.read_text()
    assert "26 of 26 runs, together 39 min 0 s of wall-clock" in text
    assert "![variants of pre-training](images/reproduction/variants-world.png)" in text
    assert (tmp_path / "docs/images/reproduction/variants-world.png").exists()
    table5 = text.split("## Table 5")[1].split("\n## ")[0]
    assert "| invariant + original | paper |  | 25.2 | 24.3 |" in table5
    assert re.search(r"\|  \| world \| 5 \| 34\.0 ± 1\.6 \|", table5)
    assert "|  | paper's scale |  |  |" in table5  # not run: blank
    assert "6 of 12 runs" in text.split("## Table 6")[1]  # its S = 1 and S = 16 are rows of Table 5
    assert "World: 26 runs" in text


def test_exploratory_orderings_are_marked(tmp_path, folders):
    found = load_experiments([shipped_tables()["length"]])[0]
    pretend(found, folders, lambda row, seed: (30.0 + seed + 0.1 * len(row), 40.0 + seed, None))
    write_reproduction(tmp_path / "reproduction.md", folders)
    text = (tmp_path / "reproduction.md").read_text()
    assert "| training length, for the order of Table 5 (exploratory) | world |" in text
    assert "against None" not in text


def test_the_document_is_up_to_date(tmp_path):
    """Run `equiav reproduce` after new results."""
    out = tmp_path / "reproduction.md"
    write_reproduction(out, Folders(ROOT / "results/ablation", tmp_path))
    assert (ROOT / "docs/reproduction.md").read_text() == out.read_text()


def test_tables_and_list_must_agree(tmp_path, folders):
    tables = shipped_tables()
    del tables["cost"]
    with pytest.raises(ConfigError, match="do not agree on cost"):
        write_reproduction(tmp_path / "x.md", folders, tables)
