"""Commands that measure: `equiav evaluate ...`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Any, cast

import typer

from equiav.cli.app import evaluate
from equiav.errors import EquiAVError


@evaluate.command()
def cost(
    recipe: Annotated[Path | None, typer.Argument(help="A recipe; the paper's base model without one.")] = None,
    out: Annotated[Path | None, typer.Option(help="Also write the figures as JSON.")] = None,
    repeats: Annotated[int, typer.Option(min=0, help="Timed runs; 0 only counts.")] = 5,
) -> None:
    """Parameters, multiply-adds and milliseconds for S = 1, 4, 8, 16, beside the paper's table."""
    from equiav.config import Config, load_config
    from equiav.evaluation.cost import cost_of, cost_record, cost_table
    from equiav.provenance import provenance, write_json
    from equiav.types import Modality

    config = load_config(recipe) if recipe else Config()
    costs = [cost_of(config, m, repeats=repeats) for m in Modality]
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
    out: Annotated[Path | None, typer.Option(help="Also write the figures as JSON.")] = None,
) -> None:
    """Find the picture of a sound and the sound of a picture: R@1, R@5, R@10, or precision where only classes pair."""
    from equiav.build import build_inputs
    from equiav.build_data import build_clips, listed_clips, with_data
    from equiav.evaluation.benchmark import retrieval_record
    from equiav.inference import load_model
    from equiav.provenance import provenance, write_json

    if split not in ("train", "validation", "test"):
        raise EquiAVError(f"--split {split}: choose train, validation or test")
    loaded = load_model(model)
    config = with_data(loaded.config, data)
    clips = build_clips(config, cast(Any, split))
    if listed:
        clips, line = listed_clips(clips, listed)
        print(line, file=sys.stderr)
    record = retrieval_record(
        loaded.model, clips, build_inputs(config.audio), loaded.banks, config.objective.representation,
        all_frames=all_frames,
    )  # fmt: skip
    for way, values in record.items():
        print(
            f"{way}: "
            + ", ".join(
                f"{k} {v:.1f}" if k not in ("pool", "queries", "gallery") else f"{k} {v}" for k, v in values.items()
            )
        )
    if out:
        facts = {"split": split, "frames": "all" if all_frames else "middle", "bank_seed": config.bank.seed}
        write_json(
            out,
            {"task": "retrieval", **facts, "retrieval": record, "checkpoint": loaded.meta, "provenance": provenance()},
        )
        print(f"Written: {out}")
