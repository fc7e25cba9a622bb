"""Commands that measure: `equiav evaluate ...`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from equiav.cli.app import end_line, evaluate, say, split_name


@evaluate.command()
def cost(
    recipe: Annotated[Path | None, typer.Argument(help="A recipe; the paper's base model without one.")] = None,
    out: Annotated[Path | None, typer.Option(help="Also write the figures as JSON.")] = None,
    repeats: Annotated[int, typer.Option(min=0, help="Timed runs; 0 only counts.")] = 5,
) -> None:
    """Parameters, multiply-adds and milliseconds for S = 1, 4, 8, 16, beside the paper's table."""
    from equiav.config import Config, load_config
    from equiav.evaluation import cost_of, cost_record, cost_table
    from equiav.io import provenance, write_json
    from equiav.types import AUDIO, VISUAL

    config = load_config(recipe) if recipe else Config()
    costs = [cost_of(config, m, repeats=repeats) for m in (AUDIO, VISUAL)]
    print(cost_table(costs))
    record = cost_record(costs)
    print(f"\nParameters: {sum(c.parameters for c in costs) / 1e6:.1f} M. Convention: {record['convention']}.")
    if out:
        write_json(out, {**record, "provenance": provenance()})
        print(f"Written: {out}")


@evaluate.command()
def retrieval(
    model: Annotated[Path, typer.Argument(help="A run's folder or a checkpoint.")],
    data: Annotated[Path | None, typer.Option(help="Other data than the model was trained on.")] = None,
    split: Annotated[str, typer.Option(help="train, validation or test.")] = "test",
    listed: Annotated[Path | None, typer.Option("--list", help="A published retrieval list (JSON).")] = None,
    all_frames: Annotated[
        bool, typer.Option("--all-frames", help="The mean of all frames, not the middle one.")
    ] = False,
    banks: Annotated[
        int, typer.Option(min=0, help="Further banks of augmentation vectors, to state the spread over them.")
    ] = 5,
    out: Annotated[
        Path | None, typer.Option(help="Folder for results and report (default: evaluation/retrieval of the model).")
    ] = None,
) -> None:
    """Find the picture of a sound and the sound of a picture: R@1, R@5, R@10, or precision where only classes pair."""
    from equiav.build import build_dataset, listed_clips, with_data
    from equiav.data import read_retrieval_list
    from equiav.evaluation import Retrieval, evaluation_folder
    from equiav.inference import load_model

    part = split_name(split)
    loaded = load_model(model)
    clips = build_dataset(with_data(loaded.config, data), part)
    if listed:
        clips, line = listed_clips(clips, listed)
        print(line, file=sys.stderr)
    total = len(read_retrieval_list(listed)) if listed else None
    results = Retrieval(banks=banks, all_frames=all_frames, split=part, listed=total, report=say)(loaded, clips)
    end_line()
    print("\n".join(results.lines))
    print(f"Report: {results.write(out or evaluation_folder(model, 'retrieval'))}")


@evaluate.command()
def probe(
    model: Annotated[Path, typer.Argument(help="A run's folder or a checkpoint.")],
    data: Annotated[Path | None, typer.Option(help="Other data than the model was trained on.")] = None,
    limit: Annotated[
        int, typer.Option(min=0, help="Labelled clips of each split, evenly spaced; 0 takes all of them.")
    ] = 5000,
    out: Annotated[
        Path | None, typer.Option(help="Folder for results and report (default: evaluation/probe of the model).")
    ] = None,
) -> None:
    """What the frozen encoders know: a linear classifier and nearest neighbours on labelled data, mAP and accuracy."""
    from equiav.build import with_data
    from equiav.evaluation import Probe, evaluation_folder, probe_splits
    from equiav.inference import load_model

    loaded = load_model(model)
    splits, validation = probe_splits(with_data(loaded.config, data))
    evaluator = Probe(
        splits["train"], splits["validation"], limit=limit or None, validation_part=validation, report=say
    )
    results = evaluator(loaded, splits["test"])
    end_line()
    print("\n".join(results.lines))
    print(f"Report: {results.write(out or evaluation_folder(model, 'probe'))}")
