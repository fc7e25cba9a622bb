"""A table with its results: means over seeds, paired differences with Student's 95 % interval, what notes may say."""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations
from typing import Any, Literal, get_args

from scipy.stats import t as student

from equiav.evaluation import encoder_passes
from equiav.reproduction.plan import Folders, Record, former_defaults, read_record, row_run, row_seeds
from equiav.reproduction.tables import Claim, Column, HeldOut, Row, ScaleName, Table

CONFIDENCE = 0.95
Verdict = Literal["holds", "reversed", "not significant", "one seed"]
VERDICTS: tuple[Verdict, ...] = get_args(Verdict)
Values = dict[int, float]  # by seed


@dataclass(frozen=True)
class Estimate:
    """A mean over seeds, its standard deviation (none for one seed), and how many there were."""

    mean: float
    std: float | None
    seeds: int

    @property
    def half_width(self) -> float | None:
        """Half the width of the mean's 95 % interval, by Student's t; none for one seed."""
        if self.std is None:
            return None
        return float(student.ppf((1 + CONFIDENCE) / 2, self.seeds - 1)) * self.std / math.sqrt(self.seeds)

    @property
    def interval(self) -> tuple[float, float]:
        """Both ends; NaN for one seed."""
        half = math.nan if self.half_width is None else self.half_width
        return self.mean - half, self.mean + half

    @property
    def significant(self) -> bool:
        """Called a difference only if its interval excludes zero.

        Never where all values are equal: a coarse metric on few seeds, of which no interval can be given.
        """
        return self.half_width is not None and 1e-9 < self.half_width < abs(self.mean)


def summary(values: Sequence[float]) -> Estimate | None:
    """Mean and standard deviation; none without values."""
    if not values:
        return None
    std = statistics.stdev(values) if len(values) > 1 else None
    return Estimate(statistics.fmean(values), std, len(values))


def paired_difference(a: Mapping[int, float], b: Mapping[int, float]) -> Estimate | None:
    """a - b by seed; none where no seed is common."""
    return summary([a[seed] - b[seed] for seed in sorted(a.keys() & b.keys())])


def verdict(ours: Estimate, papers: float) -> Verdict:
    """Whether the sign of the paper's difference is found here."""
    if ours.half_width is None:
        return "one seed"
    if not ours.significant:
        return "not significant"
    return "holds" if (ours.mean > 0) == (papers > 0) else "reversed"


@dataclass(frozen=True)
class Comparison:
    """One column of two rows: the paper's difference, ours, and whether the paper's order is found here."""

    column: Column
    papers: float | None
    ours: Estimate | None
    verdict: Verdict | None


@dataclass(frozen=True)
class Results:
    """What has been measured of one table at one scale."""

    table: Table
    scale: ScaleName
    split: HeldOut
    values: dict[tuple[str, str], Values]  # by row and column
    records: dict[str, Record] = field(repr=False)  # by key; the distinct runs behind it
    wanted: int  # runs that the table asks for
    asked: frozenset[tuple[str, str]]  # rows and columns that are measured at this scale
    former: dict[str, tuple[str, ...]]  # rows measured under defaults that changed since, and those

    def cell(self, row: Row, column: Column) -> Estimate | None:
        """Mean over the seeds; none where nothing was run."""
        return summary(list(self.values.get((row.name, column.name), {}).values()))

    def seeds(self, row: Row) -> int:
        """How many seeds of a row have been run."""
        return max((len(self.values.get((row.name, c.name), {})) for c in self.table.columns), default=0)

    def compare(self, row: str, other: str, column: Column) -> Comparison:
        """`row` minus `other`, paired over their seeds."""
        a, b = (self.table.row(name).paper.get(column.name) for name in (row, other))
        papers = a - b if a is not None and b is not None else None
        ours = None
        if self.former.get(row) == self.former.get(other):  # else they differ in more than the table says
            ours = paired_difference(*(self.values.get((name, column.name), {}) for name in (row, other)))
        return Comparison(column, papers, ours, verdict(ours, papers) if ours and papers else None)

    def against_reference(self) -> Iterator[tuple[Row, str, list[Comparison]]]:
        """Every row with the one it is compared with."""
        for row in self.table.rows:
            other = self.table.compared_with(row)
            if other is not None:
                yield row, other, [self.compare(row.name, other, c) for c in self.table.columns if c.compared]

    def orderings(self, *, all_pairs: bool) -> Counter[Verdict]:
        """How often the paper's order of two rows is found, over all columns with the paper's values."""
        if all_pairs:
            # Rows with another reference are another question: the same objectives at another length, for instance.
            groups = ((r.name, r.against or self.table.reference) for r in self.table.rows if not r.cited)
            pairs = [(a, b) for (a, x), (b, y) in combinations(groups, 2) if x == y]
            found = (self.compare(a, b, c).verdict for a, b in pairs for c in self.table.columns)
        else:
            found = (c.verdict for _, _, comparisons in self.against_reference() for c in comparisons)
        return Counter(v for v in found if v is not None)

    def seconds(self, kind: str) -> float:
        """Wall or CPU time of all runs behind the table."""
        return sum(run_seconds(record, kind) for record in self.records.values())

    def notes(self) -> tuple[list[str], list[str]]:
        """The notes on this scale that the numbers bear out, and for each of the others what contradicts it.

        A note waits until the rows it speaks of have all their seeds under the same defaults, and is about the table's
        own split only.
        """
        said, contradicted = [], []
        for note in self.table.notes:
            claims = [(claim, column) for claim in note.claims for column in claim.metric]
            complete = all(
                set(row_seeds(self.table, self.table.row(row), self.scale)) <= self.values.get((row, column), {}).keys()
                for claim, column in claims
                for row in claim.rows
            ) and all(self.former.get(a) == self.former.get(b) for a, b in (claim.rows for claim in note.claims))
            if note.scale != self.scale or self.split != self.table.split or not complete:
                continue
            wrong = [text for claim, column in claims if (text := self._contradiction(claim, column))]
            if wrong:
                start = " ".join(note.text.split())[:60]
                contradicted.append(f"{self.table.path.name}: the note {start!r} does not hold: {'; '.join(wrong)}")
            else:
                said.append(note.text)
        return said, contradicted

    def _contradiction(self, claim: Claim, name: str) -> str | None:
        """What the numbers say instead of a claim about one column."""
        a, b = claim.rows
        ours = paired_difference(*(self.values.get((row, name), {}) for row in (a, b)))
        if ours is None:
            return f"it compares {a!r} with {b!r} in {name}, which share no seed"
        if claim.not_significant:
            said, holds = "the difference is not significant", not ours.significant and ours.seeds > 1
        else:
            said = f"{a!r} is {'better' if claim.better else 'worse'}"
            holds = ours.significant and (ours.mean > 0) == bool(claim.better)
        if holds:
            return None
        low, high = ours.interval
        found = f"{ours.mean:+.3g} ({low:+.3g} to {high:+.3g}, {ours.seeds} seeds)"
        return f"it claims of {a!r} against {b!r} in {name} that {said}, found {found}"


def run_seconds(record: Record, kind: str) -> float:
    """Wall or CPU time of a run, with that of measurements added later."""
    return sum(float(part["seconds"][kind]) for part in (record, *record.get("extended", [])) if "seconds" in part)


def value_at(record: Record, place: str, split: str) -> float | None:
    """The number at a place such as `retrieval.video_to_audio.R@1`, of a split of the run's data.

    Other datasets and fine-tunings were measured on their test split and belong to that only; cost has no split.
    """
    elsewhere = record.get("elsewhere", {})
    if split != "test":
        elsewhere = {"cost": elsewhere.get("cost")}
    tree: Any = {**elsewhere, **record.get(split, {}), "run": record.get("run")}
    for part in place.split("."):
        tree = tree.get(part) if isinstance(tree, dict) else None
    return float(tree) if isinstance(tree, int | float) else None


def collect(
    table: Table,
    scale: ScaleName,
    folders: Folders,
    *,
    split: HeldOut | None = None,
    extra: tuple[str, ...] = (),
) -> Results:
    """Reads the results files of a table's runs; those that are not there leave their cells without a value.

    Values are those of the table's own split unless `split` names another. A row of which nothing was run yet under
    today's defaults shows what was run under former ones.
    """
    split = split or table.split
    values: dict[tuple[str, str], Values] = {}
    records: dict[str, Record] = {}
    former: dict[str, tuple[str, ...]] = {}
    keys, asked = set(), set()
    for row in table.rows:
        runs = [row_run(table, row, scale, seed, extra) for seed in row_seeds(table, row, scale)]
        keys |= {run.key for run in runs}
        places = {column.name: column.place(scale, row.key or row.name) for column in table.columns}
        for name, place in places.items():
            if runs and place and any(f"{place}.".startswith(f"{task}.") for task in runs[0].tasks):
                asked.add((row.name, name))
        there = [run for run in runs if folders.record(scale, run.key).exists()]
        if runs and not there and (changes := former_defaults(runs[0].config)):
            runs = [row_run(table, row, scale, run.seed, (*extra, *changes)) for run in runs]
            there = [run for run in runs if folders.record(scale, run.key).exists()]
            former |= {row.name: changes} if there else {}
        for run in there:
            record = records.get(run.key) or read_record(folders.record(scale, run.key))
            assert record is not None
            # What a run costs: encoder passes a clip and modality, CPU time of training and measuring together.
            cost = {"encoder_passes": encoder_passes(run.config), "cpu_minutes": record["seconds"]["cpu"] / 60}
            records[run.key] = record = {**record, "run": cost}
            for name, place in places.items():
                value = value_at(record, place, split) if place else None
                if value is not None:
                    values.setdefault((row.name, name), {})[run.seed] = value
                elif place and place.partition(".")[0] in record["tasks"]:  # it has no meaning there: text without text
                    asked.discard((row.name, name))
    return Results(table, scale, split, values, records, len(keys), frozenset(asked), former)
