"""A table with its results: figures by row, column and seed; differences to the reference; what it cost."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import combinations

from equiav.ablation.experiment import Column, Judged, Row, ScaleName
from equiav.ablation.plan import Experiment, row_run, row_seeds
from equiav.ablation.records import Folders, Record, figure, read_record
from equiav.ablation.statistics import Cell, Difference, Verdict, paired_difference, summary, verdict

Values = dict[int, float]


@dataclass(frozen=True)
class Comparison:
    """One column of two rows: the paper's difference, ours, and whether the paper's order is found here."""

    column: str
    papers: float | None
    ours: Difference | None
    verdict: Verdict | None


@dataclass(frozen=True)
class Results:
    """What has been measured of one table at one scale."""

    experiment: Experiment
    scale: ScaleName
    split: Judged
    values: dict[tuple[str, str], Values]  # by row and column
    records: dict[str, Record] = field(repr=False)  # by key; the distinct runs behind it
    wanted: int  # runs that the table asks for

    def cell(self, row: Row, column: Column) -> Cell | None:
        """Mean over the seeds; none where nothing was run."""
        return summary(list(self.values.get((row.name, column.name), {}).values()))

    def seeds(self, row: Row) -> int:
        """How many seeds of a row have been run."""
        return max((len(self.values.get((row.name, c.name), {})) for c in self.experiment.table.columns), default=0)

    def compare(self, row: str, other: str, column: Column) -> Comparison:
        """`row` minus `other`, paired over their seeds."""
        figures = {r.name: r.paper.get(column.name) for r in self.experiment.table.rows}
        a, b = figures[row], figures[other]
        papers = a - b if a is not None and b is not None else None
        both = (self.values.get((name, column.name), {}) for name in (row, other))
        ours = paired_difference(*both)
        judged = verdict(ours, papers) if ours and papers else None
        return Comparison(column.name, papers, ours, judged)

    def against_reference(self) -> Iterator[tuple[Row, str, list[Comparison]]]:
        """Every row with the one it is compared with."""
        for row in self.experiment.table.rows:
            other = self.experiment.table.compared_with(row)
            if other is not None:
                yield row, other, [self.compare(row.name, other, c) for c in self.experiment.table.columns]

    def orderings(self, *, all_pairs: bool) -> Counter[Verdict]:
        """How often the paper's order of two rows is found, over all columns with the paper's figures."""
        table = self.experiment.table
        if all_pairs:
            # Rows with another reference are another question: the same objectives at another length, for instance.
            groups = ((r.name, r.against or table.reference) for r in table.rows if not r.cited)
            pairs = [(a, b) for (a, x), (b, y) in combinations(groups, 2) if x == y]
            found = (self.compare(a, b, c).verdict for a, b in pairs for c in table.columns)
        else:
            found = (c.verdict for _, _, comparisons in self.against_reference() for c in comparisons)
        return Counter(v for v in found if v is not None)

    def seconds(self, kind: str) -> float:
        """Wall or processor time of all runs behind the table."""
        return sum(float(r["seconds"][kind]) for r in self.records.values())


def collect(
    experiment: Experiment,
    scale: ScaleName,
    folders: Folders,
    *,
    split: Judged | None = None,
    extra: tuple[str, ...] = (),
) -> Results:
    """Reads the results files of a table's runs; those that are not there leave their cells blank.

    Figures are those of the table's own split unless `split` names another.
    """
    table = experiment.table
    split = split or table.split
    values: dict[tuple[str, str], Values] = {}
    records: dict[str, Record] = {}
    keys = set()
    for row in table.rows:
        if scale not in table.scales or not row.runs_at(scale):
            continue
        for seed in row_seeds(row, scale, table.scales[scale], None):
            run = row_run(experiment, row, scale, seed, extra)
            assert run is not None
            keys.add(run.key)
            record = records.get(run.key) or read_record(folders.record(scale, run.key))
            if record is None:
                continue
            records[run.key] = record
            for column in table.columns:
                place = column.place(scale, row.key or row.name)
                value = figure(record, place, split) if place else None
                if value is not None:
                    values.setdefault((row.name, column.name), {})[seed] = value
    return Results(experiment, scale, split, values, records, len(keys))
