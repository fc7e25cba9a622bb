"""The pages: every table and figure of the paper in order, blank where nothing was run, values where it was."""

import json
import re

import pytest
import yaml

from equiav.errors import ConfigError
from equiav.reproduction import Folders, load_table, shipped_tables, write_reproduction
from tests.reproduction.small import ROOT, pretend, write


@pytest.fixture
def folders(tmp_path):
    return Folders(tmp_path / "results", tmp_path / "runs")


@pytest.fixture
def without_notes(tmp_path):
    """The shipped tables without what they say of our results: the tests' numbers are made up."""
    (tmp_path / "pretrain").symlink_to(ROOT / "configs/pretrain")
    (tmp_path / "ablation").mkdir()
    made = {}
    for name, path in shipped_tables().items():
        tree = yaml.safe_load(path.read_text())
        tree.pop("notes", None)
        made[name] = write(tmp_path / "ablation" / path.name, tree)
    return made


def test_everything_of_the_paper_is_listed(tmp_path, folders):
    out = tmp_path / "docs" / "reproduction"
    found = write_reproduction(out, folders)
    index = (out / "index.md").read_text()
    headings = re.findall(r"^## (.*)$", index, re.MULTILINE)
    assert [h for h in headings if ":" in h] == [section.title for section in found if not section.table]
    for section in (s for s in found if s.table):
        page = (out / section.page).read_text()
        assert page.startswith(f"# {section.title}\n")
        assert f"[{section.number}]({section.page})" in index
        assert "![" not in page
    numbers = [section.number for section in found]
    assert [n for n in numbers if re.fullmatch(r"Table \d", n)] == [f"Table {i}" for i in range(1, 10)]
    assert {"Table A", "Table B", "Table C", "Table D", "Figure 1", "Figure 2", "Figure 3", "Algorithm 1"} <= set(
        numbers
    )
    for anchor in re.findall(r"\]\(#([^)]*)\)", index):
        assert anchor in {re.sub(r"[^a-z0-9 _-]", "", h.lower()).replace(" ", "-") for h in headings}
    assert "Nothing yet." in index
    assert "| 30.1 | 29.6 |" in (out / "table-5.md").read_text()  # the paper's values are there
    assert all(not r.records for s in found for r in s.results)


def test_results_show_with_cost_and_plot(tmp_path, folders, without_notes):
    found = load_table(without_notes["variants"])
    pretend(found, folders, lambda row, seed: (30.0 + seed + 0.1 * len(row), 40.0 + seed, None))
    out = tmp_path / "docs" / "reproduction"
    write_reproduction(out, folders, without_notes)
    table5 = (out / "table-5.md").read_text()
    assert "37 of 37 runs, together 55 min 30 s of wall-clock" in table5
    assert "![variants of pre-training](../images/reproduction/variants-world.png)" in table5
    assert (tmp_path / "docs/images/reproduction/variants-world.png").exists()
    assert "| invariant + original | paper |  | 25.2 | 24.3 |" in table5
    assert re.search(r"\|  \| world \| 5 \| 34\.0 ± 1\.6 \|", table5)
    assert "|  | paper's scale |  | not run | not run |" in table5
    assert "6 of 12 runs" in (out / "table-6.md").read_text()  # its S = 1 and S = 16 are rows of Table 5
    assert "World: 37 runs" in (out / "index.md").read_text()


def test_exploratory_orderings_are_marked(tmp_path, folders, without_notes):
    found = load_table(without_notes["length"])
    pretend(found, folders, lambda row, seed: (30.0 + seed + 0.1 * len(row), 40.0 + seed, None))
    write_reproduction(tmp_path / "reproduction.md", folders, without_notes)  # as --out was given before: the folder
    text = (tmp_path / "reproduction/index.md").read_text()
    assert "| training length, for the order of Table 5 (exploratory) | world |" in text
    assert "against None" not in text + (tmp_path / "reproduction/follow-up-1.md").read_text()


def test_a_note_that_the_numbers_contradict_is_an_error(tmp_path, folders):
    """Made-up numbers under which one vector retrieves as well as sixteen."""
    found = load_table(shipped_tables()["representations"])
    pretend(found, folders, lambda row, seed: (30.0 + seed, 40.0 + seed, None))
    for path in (folders.results / "world").glob("*.json"):
        record = json.loads(path.read_text())
        metrics = record["test"]["retrieval"]["video_to_audio"]
        metrics["R@10"] = metrics["R@1"]
        record["test"]["retrieval"]["audio_to_video"] = metrics
        path.write_text(json.dumps(record))
    message = (
        r"representations.yaml: the note 'As in the paper, one vector retrieves worse.*'S = 1' is worse, found \+0"
    )
    with pytest.raises(ConfigError, match=message) as caught:
        write_reproduction(tmp_path / "docs/reproduction", folders)
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "docs").exists(), "nothing is written"


def test_the_pages_are_up_to_date(tmp_path, monkeypatch):
    """Run `equiav reproduce` after new results."""
    monkeypatch.setattr("equiav.reproduction.document.png", lambda figure: b"")  # pages are compared, not pictures
    out = tmp_path / "reproduction"
    write_reproduction(out, Folders(ROOT / "results/ablation", tmp_path))
    pages = {page.name: page.read_text() for page in out.glob("*.md")}
    assert {page.name: page.read_text() for page in (ROOT / "docs/reproduction").glob("*.md")} == pages


def test_tables_and_list_must_agree(tmp_path, folders):
    tables = shipped_tables()
    del tables["cost"]
    with pytest.raises(ConfigError, match="do not agree on cost"):
        write_reproduction(tmp_path / "x", folders, tables)
