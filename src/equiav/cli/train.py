"""Commands that train: the demo, pre-training."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from equiav.cli.app import app, end_line, say


@app.command()
def demo(
    overrides: Annotated[list[str] | None, typer.Argument(help="key=value, such as train.steps=100.")] = None,
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
    recipe: Annotated[Path, typer.Argument(help="A recipe, such as configs/pretrain/world.yaml.")],
    overrides: Annotated[list[str] | None, typer.Argument(help="key=value, such as train.steps=100.")] = None,
    out: Annotated[Path | None, typer.Option(help="The run's folder; runs/<recipe> without it.")] = None,
) -> None:
    """Train a recipe. Run the same command again to resume; under torchrun, processes share each batch.

    Writes checkpoints/, log.jsonl and tensorboard/ into the run's folder. SIGTERM saves and exits with 143.
    """
    from equiav.build import resolve
    from equiav.config import load_config
    from equiav.distributed import rank, started, world_size
    from equiav.training import STOPPED, Trainer, run_lock

    config = load_config(recipe, tuple(overrides or ()))
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
