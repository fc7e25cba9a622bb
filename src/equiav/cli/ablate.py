"""Commands that regenerate the paper's experiments: `equiav ablate`, `equiav reproduce`."""

from __future__ import annotations

import shlex
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from equiav.cli.app import app, choose, end_line, say
from equiav.errors import EquiAVError

RESULTS, RUNS = Path("results/ablation"), Path("runs/ablation")


@app.command()
def ablate(
    files: Annotated[
        list[Path], typer.Argument(help="Tables: files, or names that `equiav recipes` lists (variants).")
    ],
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
    from equiav.config import find_recipe
    from equiav.reproduction import Folders, Runner, load_tables, missing, plan, split_rows, worker_arguments

    choose("--split", split, "test", "validation")
    choose("--scale", scale, "world", "real", "paper")
    if seeds is not None and not all(part.strip().isdigit() for part in seeds.split(",")):
        raise EquiAVError(f"--seeds {seeds}: give numbers such as 0,1,2")
    files = [find_recipe(file, "ablation") for file in files]
    tables = [table for table in load_tables(files) if scale in table.scales]
    if not tables:
        raise EquiAVError(f"--scale {scale}: none of these tables has it")
    folders, extra = Folders(results, runs), tuple(change or ())
    planned = plan(
        tables,
        scale,  # type: ignore[arg-type]
        seeds=None if seeds is None else tuple(int(part) for part in seeds.split(",")),
        rows=None if rows is None else split_rows(rows, tables),
        extra=extra,
    )
    if not planned:
        raise EquiAVError(f"nothing to run: no row has these seeds and names at scale {scale}; see --seeds and --rows")
    if only is not None:
        _only([run for run in planned if run.key == only], only, folders, discard)
        return
    command = partial(worker_arguments, tables, folders=folders, extra=extra, discard=discard)
    if listed:
        for run in planned:
            if missing(run, folders):
                print(shlex.join(["equiav", *command(run)]))
        return
    # Runs that take several processes each take the whole machine.
    runner = Runner(folders, command, 1 if any(run.processes > 1 for run in planned) else processes, say)
    runner.run(planned)
    end_line()
    _show(tables, folders, runner, scale=scale, split=split, extra=extra)


def _show(tables: Any, folders: Any, runner: Any, **chosen: Any) -> None:
    """The tables as they stand now, and how the session ended."""
    from equiav.reproduction import collect, markdown, write_table
    from equiav.training import STOPPED

    for table in tables:
        found = collect(table, folders=folders, **chosen)
        path = write_table(found, folders.results / chosen["scale"] / "tables")
        print(f"{markdown(found)}\nWritten: {path}\n")
        for line in found.notes()[1]:
            print(f"left out, {line}")
    print(f"{runner.before} runs were done before, {runner.done} now, {len(runner.failed)} failed")
    for label, reason in runner.failed.items():
        print(f"failed: {label}: {reason}")
    if runner.interrupted:
        raise typer.Exit(STOPPED)
    if runner.failed:
        raise typer.Exit(1)


def _only(found: Any, key: str, folders: Any, discard: bool) -> None:
    """One run in this process, with the exit codes that the runner knows."""
    from equiav.errors import Busy
    from equiav.reproduction import BUSY, perform
    from equiav.training import STOPPED, Stopped

    if not found:
        raise EquiAVError(f"--only {key}: these tables have no such run; have they, or their recipe, changed?")
    try:
        perform(found[0], folders, discard=discard, progress=say)
    except Busy as error:
        say(str(error))
        raise typer.Exit(BUSY) from error
    except Stopped as error:
        raise typer.Exit(STOPPED) from error
    end_line()
    print(f"{found[0].label}: {folders.record(found[0].scale, key)}")


@app.command()
def reproduce(
    results: Annotated[Path, typer.Option(help="The results files of `equiav ablate`.")] = RESULTS,
    out: Annotated[Path, typer.Option(help="The folder to write: an overview and a page per table.")] = Path(
        "docs/reproduction"
    ),
) -> None:
    """List every table and figure of the paper, what regenerates it, what has been run; write the pages."""
    from equiav.reproduction import Folders, write_reproduction

    for section in write_reproduction(out, Folders(results, RUNS)):
        done = ", ".join(f"{r.scale} {len(r.records)}/{r.wanted} runs" for r in section.results)
        print(section.title + (f" ({done})" if done else ""))
        for command in section.commands:
            print(f"    {command}")
    print(f"Written: {out}")
