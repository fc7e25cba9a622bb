"""The finished table, letter by letter; what was not run, and under which defaults; CSV and plot."""

import csv
import io
import json

import pytest

from equiav.config import CHANGED, Config, load_config
from equiav.reproduction import (
    Folders,
    collect,
    csv_text,
    markdown,
    missing,
    plan,
    portable,
    table_plot,
    training_recipe,
    value_at,
    write_table,
)
from tests.reproduction.small import SMOKE, TINY, loaded, pretend, table

METRICS = {"plain": (20.0, 50.0, None), "full": (21.0, 47.0, 0.8)}
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
|  | world, 3 seeds | −1.0 (−2.2 to +0.2) | **+3.0** (+2.8 to +3.1) |  |
|  | paper's order | not significant | reversed |  |

Of the paper's 2 orderings against full: 1 not significant, 1 reversed. \
Of all 2 between pairs of rows: 1 not significant, 1 reversed.

6 of 6 runs, together 9 min 0 s of wall-clock and 6 min 0 s of CPU time \
(2 cores of a processor; threads per run: 1; 2026-01-02).
"""


def metrics(row, seed):
    v2a, a, similarity = METRICS[row]
    full = row == "full"
    return v2a + seed + 0.5 * full * (seed - 1), a + seed + 0.1 * full * (seed % 2), similarity


@pytest.fixture
def folders(tmp_path):
    return Folders(tmp_path / "results", tmp_path / "runs")


def test_whole_table(tmp_path, folders):
    found = loaded(tmp_path)
    pretend(found, folders, metrics)
    assert markdown(collect(found, "world", folders)) == WHOLE


def test_what_was_not_run_says_so(tmp_path, folders):
    text = markdown(collect(loaded(tmp_path), "world", folders))
    assert "|  | world |  | not run | not run |  |" in text, "no predictor is trained, so no similarity is asked for"
    assert "|  | world |  | not run | not run | not run |" in text
    assert "not run (0 of 6 runs)" in text
    assert "minus full" not in text
    assert table_plot(collect(loaded(tmp_path), "world", folders)) is None


def test_one_seed_has_no_spread_and_no_verdict(tmp_path, folders):
    found = loaded(tmp_path)
    pretend(found, folders, lambda row, seed: metrics(row, seed) if seed == 0 else None)
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
    found = loaded(tmp_path, table(rows=rows, reference=None))
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
    found = loaded(tmp_path)
    pretend(found, folders, metrics)
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
        "2.96667",
        "reversed",
    )
    assert any(r["row"] == "other" and r["from"] == "paper" for r in rows)


def test_a_difference_never_seems_to_hold_zero(tmp_path, folders):
    """An end that rounds to 0.0 gets another digit, and the other end with it."""
    found = loaded(tmp_path)
    by_seed = {"plain": (1.0, 1.1, 1.2), "full": (0.94, 1.02, 1.13)}
    pretend(found, folders, lambda row, seed: (by_seed[row][seed], 0.0, None))
    assert "**+0.1** (+0.05 to +0.09)" in markdown(collect(found, "world", folders))


def test_validation_split_says_so(tmp_path, folders):
    found = loaded(tmp_path)
    pretend(found, folders, metrics)
    results = collect(found, "world", folders, split="validation")
    assert "Values of the validation split." in markdown(results)
    assert write_table(results, tmp_path / "tables").name == "small-validation.md"
    assert not (tmp_path / "tables/small.csv").exists(), "the table of the test split is left alone"


def test_a_table_for_choosing_shows_its_own_split(tmp_path, folders):
    found = loaded(tmp_path, table(split="validation"))
    pretend(found, folders, metrics)
    results = collect(found, "world", folders)
    assert results.split == "validation"
    assert "Values of the validation split." in markdown(results)
    assert write_table(results, tmp_path / "tables").name == "small.md"


def test_what_was_measured_elsewhere_is_of_the_test_split():
    elsewhere = {"transfer": {"x": {"R@1": 1.0}}, "cost": {"audio": 2.0}}
    record = {"elsewhere": elsewhere, "validation": {"probe": {"audio": 3.0}}}
    places = ("transfer.x.R@1", "cost.audio")
    assert [value_at(record, place, "test") for place in places] == [1.0, 2.0]
    assert [value_at(record, place, "validation") for place in places] == [None, 2.0]


NOTE = {"scale": "world", "text": "The plain row has the better probe."}
BETTER = {"better": "plain", "than": "full", "metric": "A"}  # by 3.0, without any spread


def noted(*claims, **changes):
    return table(notes=[{**NOTE, "claims": list(claims), **changes}])


def test_a_note_stands_at_its_scale_once_its_rows_are_complete(tmp_path, folders):
    same = {"not_significant": ["plain", "full"], "metric": ["V2A"]}
    found = loaded(tmp_path, noted(BETTER, {"worse": "full", "than": "plain", "metric": ["A"]}, same))
    assert NOTE["text"] not in markdown(collect(found, "world", folders)), "nothing run"
    pretend(found, folders, lambda row, seed: metrics(row, seed) if seed < 2 or row == "full" else None)
    assert collect(found, "world", folders).notes() == ([], []), "a seed is missing"
    pretend(found, folders, metrics)
    assert markdown(collect(found, "world", folders)).endswith(f"\n\n{NOTE['text']}\n")
    assert NOTE["text"] not in markdown(collect(found, "world", folders, split="validation"))
    scales = {"world": found.scales["world"].model_dump(), "real": found.scales["world"].model_dump()}
    elsewhere = loaded(tmp_path, {**noted(BETTER, scale="real"), "scales": scales})
    assert collect(elsewhere, "world", folders).notes() == ([], [])


@pytest.mark.parametrize(
    ("claim", "said"),
    [
        ({"worse": "plain", "than": "full", "metric": "A"}, "'plain' is worse, found +2.97 (+2.82 to +3.11, 3 seeds)"),
        (
            {"better": "plain", "than": "full", "metric": "V2A"},
            "is better, found -1 (-2.24 to +0.242, 3 seeds)",
        ),
        ({"not_significant": ["plain", "full"], "metric": ["V2A", "A"]}, "in A that the difference is not significant"),
    ],
)
def test_a_note_that_the_numbers_contradict_is_named_with_them(tmp_path, folders, claim, said):
    found = loaded(tmp_path, noted(BETTER, claim))
    pretend(found, folders, metrics)
    texts, (line,) = collect(found, "world", folders).notes()
    assert not texts
    assert line.startswith("small.yaml: the note 'The plain row has the better probe.' does not hold")
    assert said in line
    assert NOTE["text"] not in markdown(collect(found, "world", folders))


def test_cost_columns_are_shown_and_not_compared(tmp_path, folders):
    found = loaded(tmp_path, table(columns=["A", "V2A", "sim A", "passes", "CPU min"]))
    pretend(found, folders, metrics)
    results = collect(found, "world", folders)
    text = markdown(results)
    assert "|  | world | 3 | 51.0 ± 1.0 | 21.0 ± 1.0 |  | 1 | 1.0 |" in text
    assert "|  | world | 3 | 48.0 ± 1.0 | 22.0 ± 1.5 | 0.80 ± 0.00 | 2 | 1.0 |" in text
    assert "| minus full | from | A | V2A | sim A |\n" in text
    assert "small,plain,passes,world,3,1,0,0:1 1:1 2:1,,,,,," in csv_text(results)


def test_bank_of_s_is_not_run_until_measured(tmp_path, folders):
    scales = {**table()["scales"]}
    scales["world"] = {**scales["world"], "measure": ["retrieval", "retrieval_bank_s", "probe", "similarity"]}
    changed = table(columns=["V2A", "V2A (bank of S)", "A", "sim A"], scales=scales)
    found = loaded(tmp_path, changed)
    pretend(loaded(tmp_path, {**changed, "scales": table()["scales"]}), folders, metrics)
    assert "|  | world | 3 | 22.0 ± 1.5 | not run | 48.0 ± 1.0 |" in markdown(collect(found, "world", folders))
    full, plain = (
        next(run for run in plan([found], "world") if run.wanted_by == (f"small: {row}",)) for row in ("full", "plain")
    )
    assert missing(full, folders) == {"retrieval_bank_s"}
    assert missing(plain, folders) == set(), "it contrasts pooled tokens and has no bank"
    path = folders.record("world", full.key)
    record = json.loads(path.read_text())
    record["test"]["retrieval_bank_s"] = {"video_to_audio": {"R@1": 12.5}}
    path.write_text(json.dumps(record))
    assert "| 22.0 ± 1.5 | 12.5 (1 seed) |" in markdown(collect(found, "world", folders))


def test_what_has_no_meaning_for_a_row_is_blank(tmp_path, folders):
    """A direction from text, of a run without text."""
    text = {"name": "T2A", "world": "retrieval.text_to_audio.R@1"}
    found = loaded(tmp_path, table(columns=["V2A", text, "A", "sim A"]))
    assert "| not run | not run | not run |" in markdown(collect(found, "world", folders))
    pretend(found, folders, metrics)
    assert "|  | world | 3 | 22.0 ± 1.5 |  | 48.0 ± 1.0 |" in markdown(collect(found, "world", folders))


ASPECT = "augment.audio.crop_aspect"


@pytest.fixture
def another_default(monkeypatch):
    """As if the default of the crop's aspect had been another one when results were stored."""
    monkeypatch.setitem(CHANGED, ASPECT, [0.5, 2.0])


def test_rows_measured_under_a_former_default_are_shown_and_marked(tmp_path, folders, another_default):
    found = loaded(tmp_path)
    before = loaded(tmp_path, table(scales={"world": {**table()["scales"]["world"], "overrides": OLD}}), "before")
    pretend(before, folders, metrics)
    text = markdown(collect(found, "world", folders))
    today = json.dumps(Config().augment.audio.crop_aspect)
    said = f"All values were taken before a default changed: with {ASPECT}=[0.5, 2.0], which is {ASPECT}={today} now."
    assert text.removesuffix(f"\n\n{said}\n") + "\n" == WHOLE
    assert all(missing(run, folders) for run in plan([found], "world")), "they are to be measured again"


def test_rows_of_two_defaults_are_not_compared(tmp_path, folders, another_default):
    found = loaded(tmp_path, noted(BETTER))
    before = loaded(tmp_path, table(scales={"world": {**table()["scales"]["world"], "overrides": OLD}}), "before")
    pretend(before, folders, metrics)
    assert NOTE["text"] in markdown(collect(found, "world", folders))
    pretend(found, folders, lambda row, seed: metrics(row, seed) if row == "full" and seed == 0 else None)
    results = collect(found, "world", folders)
    text = markdown(results)
    assert "|  | world | 1 | 20.5 | 47.0 | 0.80 |" in text, "former seeds do not mix with new ones"
    assert "The values of plain were taken before a default changed" in text
    assert "minus full" not in text
    assert results.notes() == ([], [])


OLD = {**TINY, ASPECT: [0.5, 2.0]}


def test_results_of_today_say_what_they_were_trained_with(another_default):
    config = load_config(SMOKE)
    assert training_recipe(config)["augment"]["audio"]["crop_aspect"] == list(config.augment.audio.crop_aspect)
    before = portable(config)
    del before["augment"]["audio"]["crop_aspect"]
    assert training_recipe(load_config(SMOKE, (f"{ASPECT}=[0.5, 2.0]",))) == before


def test_clips_found_of_published_lists_are_counted(tmp_path, folders):
    sets = {"audioset": {"data": "here", "list": "list.json"}}
    scales = {"world": {**table()["scales"]["world"], "sets": sets, "seeds": [0]}}
    columns = ["A", {"name": "AS", "world": "transfer.audioset.video_to_audio.R@1"}]
    found = loaded(tmp_path, table(columns=columns, scales=scales, rows=[{"name": "full"}]))
    (run,) = plan([found], "world")
    pretend(found, folders, metrics)
    path = folders.record("world", run.key)
    record = json.loads(path.read_text())
    clips = {"found": 1650, "listed": 1722}
    record["elsewhere"] = {"transfer": {"audioset": {"video_to_audio": {"R@1": 30.0}, "clips": clips}}}
    path.write_text(json.dumps(record))
    text = markdown(collect(found, "world", folders))
    assert "| full | world | 1 | 47.0 | 30.0 |" in text
    assert "Clips found of those on the published lists: audioset 1,650 of 1,722." in text


def test_runs_that_found_different_clips_say_so(tmp_path, folders):
    sets = {"audioset": {"data": "here", "list": "list.json"}}
    scales = {"world": {**table()["scales"]["world"], "sets": sets, "seeds": [0, 1]}}
    columns = ["A", {"name": "AS", "world": "transfer.audioset.video_to_audio.R@1"}]
    found = loaded(tmp_path, table(columns=columns, scales=scales, rows=[{"name": "full"}]))
    pretend(found, folders, metrics)
    for run, count in zip(plan([found], "world"), (1650, 1601), strict=True):
        path = folders.record("world", run.key)
        record = json.loads(path.read_text())
        of_set = {"video_to_audio": {"R@1": 30.0}, "clips": {"found": count, "listed": 1722}}
        path.write_text(json.dumps({**record, "elsewhere": {"transfer": {"audioset": of_set}}}))
    assert "audioset 1,601 of 1,722 or 1,650 of 1,722." in markdown(collect(found, "world", folders))
