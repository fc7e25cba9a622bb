"""The paper's experiments as files that run: tables of rows over one recipe, their runs, statistics and rendering."""

from equiav.reproduction.document import (
    Section,
    csv_text,
    markdown,
    shipped_tables,
    table_plot,
    write_reproduction,
    write_table,
)
from equiav.reproduction.measure import measure_own, measure_retrieval
from equiav.reproduction.plan import Folders, Run, finetune_recipe, missing, plan, portable, row_run, run_key
from equiav.reproduction.runner import BUSY, Runner, perform, resumable, worker_arguments
from equiav.reproduction.statistics import (
    Cell,
    Comparison,
    PairedDifference,
    Results,
    collect,
    paired_difference,
    summary,
    value_at,
    verdict,
)
from equiav.reproduction.tables import Column, RetrievalSet, Row, Table, load_table, load_tables

__all__ = [
    "BUSY",
    "Cell",
    "Column",
    "Comparison",
    "Folders",
    "PairedDifference",
    "Results",
    "RetrievalSet",
    "Row",
    "Run",
    "Runner",
    "Section",
    "Table",
    "collect",
    "csv_text",
    "finetune_recipe",
    "load_table",
    "load_tables",
    "markdown",
    "measure_own",
    "measure_retrieval",
    "missing",
    "paired_difference",
    "perform",
    "plan",
    "portable",
    "resumable",
    "row_run",
    "run_key",
    "shipped_tables",
    "summary",
    "table_plot",
    "value_at",
    "verdict",
    "worker_arguments",
    "write_reproduction",
    "write_table",
]
