"""The paper's experiments as files that run: tables of rows over one recipe, their runs, statistics and rendering."""

from equiav.reproduction.document import csv_text, markdown, shipped_tables, table_plot, write_reproduction, write_table
from equiav.reproduction.plan import (
    Folders,
    finetune_folder,
    finetune_recipe,
    missing,
    plan,
    portable,
    row_run,
    run_key,
    split_rows,
    task_facts,
    training_recipe,
)
from equiav.reproduction.runner import BUSY, Runner, perform, resumable, worker_arguments
from equiav.reproduction.statistics import (
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
    "Column",
    "Folders",
    "Results",
    "RetrievalSet",
    "Row",
    "Runner",
    "Table",
    "collect",
    "csv_text",
    "finetune_folder",
    "finetune_recipe",
    "load_table",
    "load_tables",
    "markdown",
    "missing",
    "paired_difference",
    "perform",
    "plan",
    "portable",
    "resumable",
    "row_run",
    "run_key",
    "shipped_tables",
    "split_rows",
    "summary",
    "table_plot",
    "task_facts",
    "training_recipe",
    "value_at",
    "verdict",
    "worker_arguments",
    "write_reproduction",
    "write_table",
]
