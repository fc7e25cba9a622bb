"""The paper's experiments as files that run: tables of rows over one recipe, their runs, statistics and rendering."""

from equiav.ablation.experiment import Column, RetrievalSet, Row, load_table
from equiav.ablation.paper import ITEMS
from equiav.ablation.plan import FINETUNING, Experiment, load_experiments, plan, portable, row_run, run_key
from equiav.ablation.plot import table_figure
from equiav.ablation.records import Folders, figure, missing
from equiav.ablation.render import csv_text, markdown, write_table
from equiav.ablation.reproduce import shipped_tables, write_reproduction
from equiav.ablation.runner import BUSY, Runner, worker_arguments
from equiav.ablation.statistics import paired_difference, student_quantile, summary, verdict
from equiav.ablation.summary import Results, collect
from equiav.ablation.tasks import finetune_recipe
from equiav.ablation.worker import perform, resumable

__all__ = [
    "BUSY",
    "FINETUNING",
    "ITEMS",
    "Column",
    "Experiment",
    "Folders",
    "Results",
    "RetrievalSet",
    "Row",
    "Runner",
    "collect",
    "csv_text",
    "figure",
    "finetune_recipe",
    "load_experiments",
    "load_table",
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
    "student_quantile",
    "summary",
    "table_figure",
    "verdict",
    "worker_arguments",
    "write_reproduction",
    "write_table",
]
