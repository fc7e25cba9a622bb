"""Commands that train a model or a classifier, and the recipes that come with the package."""

from __future__ import annotations

import signal
import sys
from pathlib import Path
from typing import Annotated

import typer

from equiav.cli.app import Overrides, app, choose, end_line, say
from equiav.errors import EquiAVError


@app.command()
def demo(
    overrides: Overrides = None,
    out: Annotated[Path, typer.Option(help="Where everything goes.")] = Path("runs/demo"),
) -> None:
    """Train a very small model on generated clips, in minutes, and write a report to look at.

    Run it again to resume an interrupted demo. Writes checkpoints/, results.json and report.html.
    """
    from equiav.demo import run_demo
    from equiav.training import STOPPED, Stopped

    try:
        results = run_demo(out, tuple(overrides or ()), say)
    except Stopped as error:
        end_line()
        print(f"stopped: {out}; run it again to go on", file=sys.stderr)
        raise typer.Exit(STOPPED) from error
    end_line()
    print("\n".join(results.lines))
    print(f"Look at {out / 'report.html'}")


@app.command()
def pretrain(
    recipe: Annotated[Path, typer.Argument(help="A recipe: a file, or a name that `equiav recipes` lists (world).")],
    overrides: Overrides = None,
    out: Annotated[Path | None, typer.Option(help="The run's folder; runs/<recipe> without it.")] = None,
) -> None:
    """Train a recipe. Run the same command again to resume; under torchrun, processes share each batch.

    Writes checkpoints/, log.jsonl and tensorboard/ into the run's folder. SIGTERM saves and exits with 143.
    """
    from equiav.build import resolve
    from equiav.config import find_recipe, load_config
    from equiav.distributed import rank, started, world_size
    from equiav.training import STOPPED, Trainer, run_lock

    config = load_config(find_recipe(recipe, "pretrain"), tuple(overrides or ()))
    out = out or Path("runs") / recipe.stem
    with started(config.train.timeout):
        config, notices = resolve(config, world_size())
        if rank() == 0:
            print("".join(f"note: {line}\n" for line in notices), end="", file=sys.stderr)
        with run_lock(out):
            trainer = Trainer(config, out, say)
            if rank() == 0 and trainer.step:
                print(f"resuming {out} at step {trainer.step} of {trainer.total}", file=sys.stderr)
            outcome = trainer.run()
        if rank() == 0:
            end_line()
            state = f"stopped at step {outcome.step} of" if outcome.interrupted else "finished"
            print(f"{state} {outcome.total} steps: {out}", file=sys.stderr)
    if outcome.interrupted:
        raise typer.Exit(STOPPED)


@app.command()
def recipes(
    action: Annotated[str, typer.Argument(help="list, show or copy.")] = "list",
    name: Annotated[str | None, typer.Argument(help="A recipe's name, such as pretrain/world.")] = None,
    out: Annotated[Path | None, typer.Argument(help="For copy: the file to write, such as my.yaml.")] = None,
) -> None:
    """List the recipes that come with the package, `show NAME`, or `copy NAME my.yaml` to change one."""
    from equiav.config import find_recipe, shipped_recipes
    from equiav.io import write_whole

    wanted = ["list", "show", "copy"].index(choose("recipes", action, "list", "show", "copy"))
    if sum(part is not None for part in (name, out)) != wanted:
        raise EquiAVError("give `equiav recipes`, `equiav recipes show NAME` or `equiav recipes copy NAME my.yaml`")
    if name is None:
        for known, path in shipped_recipes().items():
            print(f"{known:<26} {path.read_text(encoding='utf-8').splitlines()[0].lstrip('# ')}")
        return
    source = find_recipe(name)
    text = source.read_text(encoding="utf-8")
    if out is None:
        print(text, end="")
        return
    kind = source.parent.name
    if kind == "ablation":
        raise EquiAVError(
            f"{name}: a table needs the recipes beside it; run it where it is by `equiav ablate {source}`"
        )
    if out.exists():
        raise EquiAVError(f"{out}: is there already; choose another file")
    write_whole(out, text)
    print(f"Written: {out}; use it by `equiav {kind} {out}`")


@app.command()
def finetune(
    recipe: Annotated[Path, typer.Argument(help="A recipe: a file, or a name that `equiav recipes` lists (world).")],
    overrides: Overrides = None,
    out: Annotated[Path | None, typer.Option(help="The run's folder; runs/finetune/<recipe> without it.")] = None,
    folds: Annotated[
        bool,
        typer.Option("--folds", help="One classifier per published fold or split (ESC-50, UCF101), and their mean."),
    ] = False,
) -> None:
    """Train a classifier on audio, frames or both, from pre-trained weights (weights=runs/demo) or from scratch.

    Run the same command again to resume; under torchrun, processes share each batch. Writes checkpoints/, best/ (the
    weights that validation chose), log.jsonl, and at the end results.json and report.html of the test split.
    """
    from equiav.config import find_recipe, load_config
    from equiav.distributed import rank, started
    from equiav.training import STOPPED, finetune_folds
    from equiav.training import finetune as run

    config = load_config(find_recipe(recipe, "finetune"), tuple(overrides or ()))
    out = out or Path("runs") / "finetune" / recipe.stem
    with started(config.train.timeout):
        if folds:
            results = finetune_folds(config, out, say)
            lines, interrupted = list(results.lines) if results else [], results is None
        else:
            done = run(config, out, say)
            lines, interrupted = done.lines(), done.outcome.interrupted
        if rank() == 0:
            end_line()
            print("\n".join([*lines, f"stopped: {out}" if interrupted else f"Look at {out / 'report.html'}"]))
    if interrupted:
        raise typer.Exit(STOPPED)


@app.command()
def benchmark(
    size: Annotated[str, typer.Option(help="Of the encoders: base (the paper's), small, tiny or micro.")] = "base",
    batch: Annotated[int | None, typer.Option(min=2, help="Clips of a step; 4 on a CPU, 64 a GPU without it.")] = None,
    steps: Annotated[int, typer.Option(min=1, help="Timed steps; the fastest counts.")] = 3,
    device: Annotated[str | None, typer.Option(help="cpu, cuda or mps; the one of training without it.")] = None,
    precision: Annotated[str, typer.Option(help="auto, float32 or bfloat16.")] = "auto",
    workers: Annotated[
        int | None, typer.Option(min=1, max=1024, help="Of each rank's loader; one a core in all without it.")
    ] = None,
    compiled: Annotated[
        bool, typer.Option("--compile", help="Compile the blocks of encoders (train.compile).")
    ] = False,
    data: Annotated[Path | None, typer.Option(help="A prepared folder to load; a generated video without it.")] = None,
    folder: Annotated[str, typer.Option(metavar="<path>", help="Where shards would lie: its disk is measured.")] = ".",
    out: Annotated[Path | None, typer.Option(help="Also write the numbers as JSON.")] = None,
) -> None:
    """How fast this machine trains and what limits it: step, memory, loader, ranks, disk, and advice.

    On two CPU cores `--size micro` takes half a minute, the base model some minutes. Under torchrun, ranks take part.
    """
    from equiav.benchmark import benchmark_config, benchmark_device, run_benchmark, table
    from equiav.distributed import first_rank, rank, started
    from equiav.io import check_writable, write_json

    choose("--size", size, "base", "small", "tiny", "micro")
    choose("--precision", precision, "auto", "float32", "bfloat16")
    if not folder:  # as a path it would be the current one
        raise EquiAVError("--folder is empty; name a folder, or leave it out for the current one")
    # Without a handler the process would end before it removes its files.
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    with started():
        if out:
            first_rank(lambda: check_writable(out), f"{out}: cannot be written")
        place = benchmark_device(choose("--device", device, "cpu", "cuda", "mps"))
        config = benchmark_config(
            place, size=size, batch=batch, precision=precision, workers=workers, compiled=compiled
        )
        quiet = rank() != 0
        record = run_benchmark(
            config,
            device=place,
            steps=steps,
            data=data,
            folder=Path(folder),
            report=(lambda line: None) if quiet else say,
        )
        if quiet:
            return
        end_line()
        print("\n".join([*table(record), "", *record["advice"]]))
        if out:
            write_json(out, record)
            print(f"Written: {out}")
