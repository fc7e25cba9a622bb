"""What every evaluation leaves behind: one folder with results.json and a page to look at."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from equiav.provenance import provenance, write_json
from equiav.report import Page, table

RESULTS, REPORT = "results.json", "report.html"


def evaluation_folder(model: Path, task: str) -> Path:
    """Where the results of a task go if nobody says: beside the model they are about."""
    return model / "evaluation" / task


def write_evaluation(folder: Path, record: dict[str, Any], page: Page) -> Path:
    """Writes the record with its provenance, and the page with both at its end; returns the page's path.

    `record` holds `task`, what was measured, and what it was measured with (split, seeds, checkpoint).
    """
    record = {**record, "provenance": provenance()}
    write_json(folder / RESULTS, record)
    page.heading("Where the numbers come from")
    facts = {k: v for k, v in record.items() if isinstance(v, str | int | float) and k != "task"}
    facts |= {f"checkpoint: {k}": v for k, v in record.get("checkpoint", {}).items()} | record["provenance"]
    page.add(table(["fact", "value"], [[k, str(v)] for k, v in facts.items()]))
    page.write(folder / REPORT)
    return folder / REPORT
