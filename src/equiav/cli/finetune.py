"""Commands about classifiers: training one on top of the encoders, and measuring it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from equiav.cli.app import app, end_line, evaluate, say, split_name


@app.command()
def finetune(
    recipe: Annotated[Path, typer.Argument(help="A recipe, such as configs/finetune/world.yaml.")],
    overrides: Annotated[
        list[str] | None, typer.Argument(help="key=value, such as weights=runs/demo classifier.mode=audio.")
    ] = None,
    out: Annotated[Path | None, typer.Option(help="The run's folder; runs/finetune/<recipe> without it.")] = None,
    folds: Annotated[
        bool, typer.Option("--folds", help="One classifier per published fold (ESC-50), and their mean.")
    ] = False,
) -> None:
    """Train a classifier on sound, pictures or both, from pre-trained weights or from scratch.

    Run the same command again to resume; under torchrun, processes share each batch. Writes checkpoints/, best/ (the
    weights that validation chose), log.jsonl, and at the end results.json and report.html of the test split.
    """
    from equiav.config import load_config
    from equiav.distributed import rank, started
    from equiav.training import STOPPED, finetune_folds
    from equiav.training import finetune as run

    config = load_config(recipe, tuple(overrides or ()))
    out = out or Path("runs") / "finetune" / recipe.stem
    with started():
        if folds:
            record = finetune_folds(config, out, say)
            lines, interrupted = _fold_lines(record), record is None
        else:
            done = run(config, out, say)
            lines, interrupted = _result_lines(done), done.outcome.interrupted
        if rank() == 0:
            end_line()
            print("\n".join([*lines, f"stopped: {out}" if interrupted else f"Look at {out / 'report.html'}"]))
    if interrupted:
        raise typer.Exit(STOPPED)


def _figures(values: dict[str, Any]) -> str:
    shown = {"mAP": "{:.1f} %", "accuracy": "{:.1f} %", "d_prime": "{:.2f}"}
    return ", ".join(f"{k} {form.format(values[k])}" for k, form in shown.items() if values.get(k) is not None)


def _fold_lines(record: dict[str, Any] | None) -> list[str]:
    if record is None:
        return []
    return [f"fold {k}: {_figures(v)}" for k, v in record["folds"].items()] + [f"mean: {_figures(record['mean'])}"]


def _result_lines(done: Any) -> list[str]:
    lines = []
    if done.best:
        lines.append(f"validation, chosen at step {done.best['step']}: {_figures(done.best['validation'])}")
    if done.results:
        lines.append(f"test, {done.results['metrics']['clips']} clips: {_figures(done.results['metrics'])}")
    return lines


@evaluate.command()
def classification(
    model: Annotated[Path, typer.Argument(help="A fine-tuning run's folder or a fine-tuned checkpoint.")],
    data: Annotated[Path | None, typer.Option(help="Other data than the classifier was trained on.")] = None,
    split: Annotated[str, typer.Option(help="train, validation or test.")] = "test",
    all_frames: Annotated[
        bool | None,
        typer.Option(
            "--all-frames/--middle-frame", help="Scores averaged over all frames, or of one (default: as the recipe)."
        ),
    ] = None,
    classes: Annotated[Path | None, typer.Option(help="Names of the classes, for imported classifiers.")] = None,
    out: Annotated[
        Path | None, typer.Option(help="Folder for results and report (default: evaluation/classification).")
    ] = None,
) -> None:
    """A classifier on labelled clips: mAP, accuracy, d', class by class, with confusions and examples."""
    from equiav.build import build_inputs
    from equiav.build_data import with_data
    from equiav.build_labelled import build_labelled
    from equiav.data import read_classes
    from equiav.evaluation import (
        classification_page,
        classification_record,
        classify_dataset,
        evaluation_folder,
        write_evaluation,
    )
    from equiav.inference.classifier import load_classifier

    part = split_name(split)
    loaded = load_classifier(model)
    if classes:
        loaded = loaded.named(read_classes(classes))
    config = with_data(loaded.config, data)
    clips = build_labelled(config, part, loaded.classes)
    every = (config.finetune is not None and config.finetune.all_frames) if all_frames is None else all_frames
    inputs = build_inputs(config.audio)
    found = classify_dataset(loaded.model, clips, inputs, single=loaded.single, all_frames=every)
    record = classification_record(loaded, found, split=part, all_frames=every)
    print(f"{part}, {len(clips)} clips: {_figures(record['metrics'])}")
    folder = out or evaluation_folder(model, "classification")
    page = classification_page(loaded, clips, found, record, own=data is None)
    print(f"Report: {write_evaluation(folder, record, page)}")
