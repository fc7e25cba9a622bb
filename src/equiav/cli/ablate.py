"""Commands that regenerate the paper's experiments: `equiav ablate`, `equiav reproduce`."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from equiav.cli.app import app, end_line, say
from equiav.errors import EquiAVError

RESULTS, RUNS = Path("results/ablation"), Path("runs/ablation")


@app.command()
def ablate(
    files: Annotated[list[Path], typer.Argument(help="Tables, such as configs/ablation/variants.yaml.")],
    scale: Annotated[str, typer.Option(help="world (two cores), real (small real data) or paper.")] = "world",
    processes: Annotated[int, typer.Option(min=1, help="Runs side by side, one thread each.")] = 2,
    seeds: Annotated[str | None, typer.Option(help="Only these, such as 0,1.")] = None,
    rows: Annotated[str | None, typer.Option(help="Only these rows, separated by commas.")] = None,
    change: Annotated[list[str] | None, typer.Option("--set", help="key=value for every row: data.path=...")] = None,
    listed: Annotated[bool, typer.Option("--list", help="Print one command per missing run; start nothing.")] = False,
    only: Annotated[str | None, typer.Option(help="Do one run, by its key, in this process.")] = None,
    results: Annotated[Path, typer.Option(help="Where results files and tables go.")] = RESULTS,
    runs: Annotated[Path, typer.Option(help="Where runs train; may be deleted afterwards.")] = RUNS,
    discard: Annotated[bool, typer.Option("--discard", help="Remove checkpoints once a run is measured.")] = False,
    split: Annotated[
        str | None, typer.Option(help="test, or validation while choosing recipes; else the table's own.")
    ] = None,
) -> None:
    """Run tables of the paper: rows over one recipe, several seeds, side by side, resumable.

    Finished runs are not repeated, rows of one configuration share their runs, a failed row is reported and the
    others go on (exit code 1 at the end). Run the same command again to carry on.
    """
    from equiav.ablation import Folders, Runner, collect, load_experiments, missing, plan, worker_arguments

    if split not in (None, "test", "validation"):
        raise EquiAVError(f"--split {split}: choose test or validation")
    experiments = [e for e in load_experiments(files) if _scale(scale) in e.table.scales]
    if not experiments:
        raise EquiAVError(f"--scale {scale}: none of these tables has it")
    folders, extra = Folders(results, runs), tuple(change or ())
    planned = plan(experiments, _scale(scale), seeds=_seeds(seeds), rows=_names(rows), extra=extra)
    if not planned:
        raise EquiAVError(f"nothing to run: no row has these seeds and names at scale {scale}; see --seeds and --rows")
    if only is not None:
        _only(only, planned, folders, discard)
        return
    command = partial(worker_arguments, experiments, folders=folders, extra=extra, discard=discard)
    if listed:
        for run in planned:
            if missing(run, folders):
                print(shlex.join(["equiav", *command(run)]))
        return
    # Runs that take several processes each take the whole machine.
    at_once = 1 if any(run.processes > 1 for run in planned) else processes
    outcome = Runner(folders, command, at_once, say).run(planned)
    end_line()
    for experiment in experiments:
        _show(collect(experiment, _scale(scale), folders, split=split, extra=extra), folders)  # type: ignore[arg-type]
    _conclude(outcome)


def _show(results: Any, folders: Any) -> None:
    from equiav.ablation import markdown, write_table

    path = write_table(results, folders.tables(results.scale))
    print(f"{markdown(results)}\nWritten: {path}\n")


def _conclude(outcome: Any) -> None:
    from equiav.training import STOPPED

    print(f"{outcome.before} runs were done before, {outcome.done} now, {len(outcome.failed)} failed")
    for label, reason in outcome.failed.items():
        print(f"failed: {label}: {reason}")
    if outcome.interrupted:
        raise typer.Exit(STOPPED)
    if outcome.failed:
        raise typer.Exit(1)


def _only(key: str, planned: Sequence[Any], folders: Any, discard: bool) -> None:
    """One run in this process, with the exit codes that the runner knows."""
    from equiav.ablation import BUSY, perform
    from equiav.errors import Busy
    from equiav.training import STOPPED, Stopped

    found = [run for run in planned if run.key == key]
    if not found:
        raise EquiAVError(f"--only {key}: these tables have no such run; have they, or their recipe, changed?")
    try:
        perform(found[0], folders, discard=discard, say=say)
    except Busy as error:
        say(str(error))
        raise typer.Exit(BUSY) from error
    except Stopped as error:
        raise typer.Exit(STOPPED) from error
    end_line()
    print(f"{found[0].label}: {folders.record(found[0].scale, key)}")


def _scale(value: str) -> Any:
    if value not in ("world", "real", "paper"):
        raise EquiAVError(f"--scale {value}: choose world, real or paper")
    return value


def _seeds(value: str | None) -> tuple[int, ...] | None:
    if value is None:
        return None
    parts = value.split(",")
    if not all(part.strip().isdigit() for part in parts):
        raise EquiAVError(f"--seeds {value}: give numbers such as 0,1,2")
    return tuple(int(part) for part in parts)


def _names(value: str | None) -> tuple[str, ...] | None:
    return None if value is None else tuple(part.strip() for part in value.split(","))


@app.command()
def reproduce(
    results: Annotated[Path, typer.Option(help="The results files of `equiav ablate`.")] = RESULTS,
    out: Annotated[Path, typer.Option(help="The document to write; plots go beside it.")] = Path(
        "docs/reproduction.md"
    ),
) -> None:
    """List every table and figure of the paper, what regenerates it, what has been run; write the document."""
    from equiav.ablation import Folders, write_reproduction

    for section in write_reproduction(out, Folders(results, RUNS)):
        done = ", ".join(f"{r.scale} {len(r.records)}/{r.wanted} runs" for r in section.results)
        print(f"{section.item.number}: {section.item.subject}" + (f" ({done})" if done else ""))
        for command in section.commands:
            print(f"    {command}")
    print(f"Written: {out}")
