"""Commands about classifiers: training one on top of the encoders, and measuring it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from equiav.cli.app import OtherData, OutFolder, Overrides, SplitName, app, end_line, evaluate, finish, say, split_name


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


@evaluate.command()
def classification(
    model: Annotated[Path, typer.Argument(help="A fine-tuning run's folder or a fine-tuned checkpoint.")],
    data: OtherData = None,
    split: SplitName = "test",
    all_frames: Annotated[
        bool | None,
        typer.Option(
            "--all-frames/--middle-frame", help="Scores averaged over all frames, or of one (default: as the recipe)."
        ),
    ] = None,
    classes: Annotated[Path | None, typer.Option(help="Names of the classes, for imported classifiers.")] = None,
    out: OutFolder = None,
) -> None:
    """Measure a classifier on labelled clips: mAP, accuracy, d', class by class, with confusions and examples."""
    from equiav.build import build_labelled, with_data
    from equiav.data import read_classes
    from equiav.evaluation import Classification, evaluation_folder
    from equiav.inference import load_classifier

    part = split_name(split)
    loaded = load_classifier(model)
    if classes:
        loaded = loaded.named(read_classes(classes))
    clips = build_labelled(with_data(loaded.config, data), part, loaded.classes)
    results = Classification(split=part, all_frames=all_frames, own_data=data is None)(loaded, clips)
    finish(results, out or evaluation_folder(model, "classification"))
