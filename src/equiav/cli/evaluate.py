"""Commands that measure: `equiav evaluate ...`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from equiav.cli.app import Model, OtherData, OutFolder, RetrievalList, SplitName, evaluate, finish, say, split_name


@evaluate.command()
def cost(
    recipe: Annotated[Path | None, typer.Argument(help="A recipe; the paper's base model without one.")] = None,
    out: Annotated[Path | None, typer.Option(help="Also write the numbers as JSON.")] = None,
    repeats: Annotated[int, typer.Option(min=0, help="Timed runs; 0 only counts.")] = 5,
) -> None:
    """Parameters, multiply-adds and milliseconds for S = 1, 4, 8, 16, beside the paper's table."""
    from equiav.config import Config, find_recipe, load_config
    from equiav.evaluation import cost_results
    from equiav.io import write_json

    config = load_config(find_recipe(recipe, "pretrain")) if recipe else Config()
    results = cost_results(config, repeats=repeats)
    print("\n".join(results.lines))
    if out:
        write_json(out, results.record)
        print(f"Written: {out}")


@evaluate.command()
def retrieval(
    model: Model,
    data: OtherData = None,
    split: SplitName = "test",
    listed: RetrievalList = None,
    all_frames: Annotated[
        bool, typer.Option("--all-frames", help="The mean of all frames, not the middle one.")
    ] = False,
    banks: Annotated[
        int, typer.Option(min=0, help="Further banks of augmentation vectors, to state the spread over them.")
    ] = 5,
    out: OutFolder = None,
) -> None:
    """Find a clip's video by its audio and its audio by its video: R@1, R@5, R@10; precision where only classes pair.

    A data file of CAV-MAE or EquiAV (--data list.json) is measured whole.
    """
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
    finish(results, out or evaluation_folder(model, "retrieval"))


@evaluate.command()
def reconstruction(
    model: Annotated[Path, typer.Argument(help="A run's folder or a checkpoint, of kind masked or cavmae.")],
    data: OtherData = None,
    split: SplitName = "test",
    examples: Annotated[int, typer.Option(min=0, help="Clips to show, evenly spaced.")] = 12,
    seed: Annotated[int, typer.Option(help="Seed of the masks.")] = 0,
    out: OutFolder = None,
) -> None:
    """How well removed patches are reconstructed: the loss on held-out clips, and examples to look at."""
    from equiav.build import build_dataset, with_data
    from equiav.evaluation import Reconstruction, evaluation_folder
    from equiav.inference import load_model

    part = split_name(split)
    loaded = load_model(model, shared_space=False)
    clips = build_dataset(with_data(loaded.config, data), part)
    results = Reconstruction(examples=examples, seed=seed, split=part, report=say)(loaded, clips)
    finish(results, out or evaluation_folder(model, "reconstruction"))


@evaluate.command()
def probe(
    model: Model,
    data: OtherData = None,
    test: Annotated[
        Path | None, typer.Option(help="The test clips, where they are apart: a prepared folder or a data file (JSON).")
    ] = None,
    listed: RetrievalList = None,
    limit: Annotated[
        int, typer.Option(min=0, help="Labelled clips of each split, evenly spaced; 0 takes all of them.")
    ] = 5000,
    out: OutFolder = None,
) -> None:
    """What the frozen encoders know: a linear classifier and nearest neighbours on labelled data, mAP and accuracy.

    With data files of CAV-MAE or EquiAV, --data is the list to train on and --test the one to test on.
    """
    from equiav.build import listed_clips, with_data
    from equiav.data import read_retrieval_list
    from equiav.evaluation import Probe, evaluation_folder, probe_splits
    from equiav.inference import load_model

    loaded = load_model(model, shared_space=False)
    splits, validation = probe_splits(with_data(loaded.config, data, test=test))
    if listed:
        splits["test"], line = listed_clips(splits["test"], listed)
        print(line, file=sys.stderr)
    evaluator = Probe(
        splits["train"],
        splits["validation"],
        limit=limit or None,
        validation_part=validation,
        listed=len(read_retrieval_list(listed)) if listed else None,
        report=say,
    )
    finish(evaluator(loaded, splits["test"]), out or evaluation_folder(model, "probe"))
