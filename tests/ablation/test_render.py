"""The finished table, letter by letter; blank where nothing was run; CSV and plot."""

import csv
import io

import pytest

from equiav.ablation import Folders, collect, csv_text, figure, markdown, table_figure, write_table
from tests.ablation.small import experiment, pretend, table

FIGURES = {"plain": (20.0, 50.0, None), "full": (21.0, 47.0, 0.8)}
WHOLE = """\
# Table 0: small

| row | from | seeds | V2A | A | sim A |
|---|---|---|---|---|---|
| plain | paper |  | 25.2 | 40.1 |  |
|  | world | 3 | 21.0 ± 1.0 | 51.0 ± 1.0 |  |
| full | paper |  | 30.1 | 42.4 | 0.90 |
|  | world | 3 | 22.0 ± 1.5 | 48.0 ± 1.0 | 0.80 ± 0.00 |
| other | paper |  |  | 39.0 |  |

| minus full | from | V2A | A | sim A |
|---|---|---|---|---|
| plain | paper | −4.9 | −2.3 |  |
|  | world, 3 seeds | −1.0 (−2.2 to +0.2) | **+3.0** (+3.0 to +3.0) |  |
|  | paper's order | not told apart | reversed |  |

Of the paper's 2 orderings against full: 1 not told apart, 1 reversed. \
Of all 2 between pairs of rows: 1 not told apart, 1 reversed.

6 of 6 runs, together 9 min 0 s of wall-clock and 6 min 0 s of processor time \
(2 cores of a processor; threads per run: 1; 2026-01-02).
"""


def figures(row, seed):
    v2a, a, similarity = FIGURES[row]
    return v2a + seed + (0.5 * (seed - 1) if row == "full" else 0), a + seed, similarity


@pytest.fixture
def folders(tmp_path):
    return Folders(tmp_path / "results", tmp_path / "runs")


def test_whole_table(tmp_path, folders):
    found = experiment(tmp_path)
    pretend(found, folders, figures)
    assert markdown(collect(found, "world", folders)) == WHOLE


def test_nothing_run_leaves_blanks(tmp_path, folders):
    text = markdown(collect(experiment(tmp_path), "world", folders))
    assert "|  | world |  |  |  |  |" in text
    assert "not run (0 of 6 runs)" in text
    assert "minus full" not in text
    assert table_figure(collect(experiment(tmp_path), "world", folders)) is None


def test_one_seed_has_no_spread_and_no_verdict(tmp_path, folders):
    found = experiment(tmp_path)
    pretend(found, folders, lambda row, seed: figures(row, seed) if seed == 0 else None)
    text = markdown(collect(found, "world", folders))
    assert "| world | 1 | 20.0 | 50.0 |  |" in text
    assert "| world, 1 seed | −0.5 | +3.0 |  |" in text
    assert "2 one seed" in text


def test_rows_are_compared_with_their_own_reference(tmp_path, folders):
    rows = [
        {"name": "plain", "overrides": {"objective.representations": 2}, "paper": {"V2A": 1}, "against": "full"},
        {"name": "full", "paper": {"V2A": 2}, "against": "full"},
        {"name": "plain, long", "overrides": {"data.used": 32}, "paper": {"V2A": 1}, "against": "full, long"},
        {"name": "full, long", "overrides": {"train.steps": 6}, "paper": {"V2A": 2}, "against": "full, long"},
    ]  # fmt: skip
    found = experiment(tmp_path, table(rows=rows, reference=None))
    pretend(found, folders, lambda row, seed: (seed + (5.0 if "full" in row else 0.0) + len(row), 1.0, None))
    results = collect(found, "world", folders)
    assert [(row.name, other) for row, other, _ in results.against_reference()] == [
        ("plain", "full"),
        ("plain, long", "full, long"),
    ]
    assert sum(results.orderings(all_pairs=True).values()) == 2  # not across lengths
    text = markdown(results)
    assert "| plain − full | world, 3 seeds |" in text
    assert "orderings each against its own reference" in text
    assert "| paper |" not in text, "the paper ran none of these rows"
    assert ",paper," not in csv_text(results)


def test_files(tmp_path, folders):
    found = experiment(tmp_path)
    pretend(found, folders, figures)
    results = collect(found, "world", folders)
    path = write_table(results, tmp_path / "tables")
    assert path.read_text() == WHOLE + "\n![small](small.png)\n"
    assert path.with_suffix(".png").read_bytes().startswith(b"\x89PNG")
    rows = list(csv.DictReader(io.StringIO(path.with_suffix(".csv").read_text())))
    assert csv_text(results) == path.with_suffix(".csv").read_text()
    ours = next(r for r in rows if r["row"] == "plain" and r["column"] == "A" and r["from"] == "world")
    assert (ours["mean"], ours["values"], ours["difference"], ours["verdict"]) == (
        "51",
        "0:50 1:51 2:52",
        "3",
        "reversed",
    )
    assert any(r["row"] == "other" and r["from"] == "paper" for r in rows)


def test_a_difference_never_seems_to_hold_zero(tmp_path, folders):
    """An end that rounds to 0.0 gets another digit, and the other end with it."""
    found = experiment(tmp_path)
    by_seed = {"plain": (1.0, 1.1, 1.2), "full": (0.94, 1.02, 1.13)}
    pretend(found, folders, lambda row, seed: (by_seed[row][seed], 0.0, None))
    assert "**+0.1** (+0.05 to +0.09)" in markdown(collect(found, "world", folders))


def test_validation_split_says_so(tmp_path, folders):
    found = experiment(tmp_path)
    pretend(found, folders, figures)
    results = collect(found, "world", folders, split="validation")
    assert "Figures of the validation split." in markdown(results)
    assert write_table(results, tmp_path / "tables").name == "small-validation.md"
    assert not (tmp_path / "tables/small.csv").exists(), "the table of the test split is left alone"


def test_a_table_for_choosing_shows_its_own_split(tmp_path, folders):
    found = experiment(tmp_path, table(split="validation"))
    pretend(found, folders, figures)
    results = collect(found, "world", folders)
    assert results.split == "validation"
    assert "Figures of the validation split." in markdown(results)
    assert write_table(results, tmp_path / "tables").name == "small.md"


def test_what_was_measured_elsewhere_is_of_the_test_split():
    elsewhere = {"transfer": {"x": {"R@1": 1.0}}, "cost": {"audio": 2.0}}
    record = {"elsewhere": elsewhere, "validation": {"probe": {"audio": 3.0}}}
    places = ("transfer.x.R@1", "cost.audio")
    assert [figure(record, place, "test") for place in places] == [1.0, 2.0]
    assert [figure(record, place, "validation") for place in places] == [None, 2.0]
