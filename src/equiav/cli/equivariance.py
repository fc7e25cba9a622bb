"""The command that asks whether the predictor follows the augmentation."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from equiav.cli.app import end_line, evaluate, say, split_name


@evaluate.command()
def equivariance(
    model: Annotated[Path, typer.Argument(help="A run's folder or a checkpoint.")],
    data: Annotated[Path | None, typer.Option(help="Other data than the model was trained on.")] = None,
    split: Annotated[str, typer.Option(help="train, validation or test.")] = "test",
    count: Annotated[int, typer.Option(min=2, help="Clips, evenly spaced over the split.")] = 500,
    seed: Annotated[int, typer.Option(help="Seed of all augmentations drawn.")] = 0,
    out: Annotated[Path | None, typer.Option(help="The folder to write; MODEL/evaluation/equivariance.")] = None,
) -> None:
    """Whether the predictor follows the augmentation: cosines, augmentation by augmentation, and the centroid."""
    from equiav.build import build_dataset, with_data
    from equiav.evaluation import Equivariance, evaluation_folder
    from equiav.inference import load_model

    part = split_name(split)
    loaded = load_model(model)
    clips = build_dataset(with_data(loaded.config, data), part)
    results = Equivariance(count=count, seed=seed, split=part, report=say)(loaded, clips)
    end_line()
    print("\n".join(results.lines))
    print(f"Look at {results.write(out or evaluation_folder(model, 'equivariance'))}")
