"""Commands that show and measure where a sound comes from."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from equiav.cli.app import app, end_line, evaluate, say, split_name
from equiav.errors import EquiAVError


def _method(value: str | None) -> Any:
    from equiav.evaluation import METHODS

    if value is not None and value not in METHODS:
        raise EquiAVError(f"--method {value}: choose {', '.join(METHODS)}")
    return value


@app.command()
def localise(
    model: Annotated[Path, typer.Argument(help="A run's folder or a checkpoint.")],
    source: Annotated[Path, typer.Argument(help="A video, or a folder of them.")],
    out: Annotated[Path, typer.Option(help="The folder for overlays and page.")] = Path("localised"),
    audio: Annotated[Path | None, typer.Option(help="Ask for another sound than the video's own.")] = None,
    frames: Annotated[int, typer.Option(min=1, max=10, help="Pictures per clip.")] = 3,
    nearest: Annotated[
        bool, typer.Option("--nearest", help="Also the paper's figure: the transformation nearest to the centroid.")
    ] = False,
    method: Annotated[str | None, typer.Option(help="blend, removal, centroid, projection or attention.")] = None,
    seed: Annotated[int, typer.Option(help="Seed of the vectors drawn for --nearest.")] = 0,
) -> None:
    """Show where in the picture the sound comes from: heat-map overlays and a page.

    Looks at the beginning of each file, as much as the model hears at once. Files that cannot be used are skipped and
    listed; one file given alone that cannot be used is an error, and so is a folder without any that can.
    """
    from equiav.localising import localise_files

    done, skipped = localise_files(
        model, source, out, audio=audio, frames=frames, nearest=nearest, method=_method(method), seed=seed, say=say
    )
    end_line()
    for path, reason in skipped:
        print(f"skipped {path}: {reason}", file=sys.stderr)
    print(f"{done} clips, {len(skipped)} skipped. Look at {out / 'report.html'}")


@evaluate.command()
def localisation(
    model: Annotated[Path, typer.Argument(help="A run's folder or a checkpoint.")],
    data: Annotated[Path | None, typer.Option(help="A prepared set with boxes, such as VGG-SS.")] = None,
    split: Annotated[str, typer.Option(help="train, validation or test.")] = "test",
    method: Annotated[str | None, typer.Option(help="blend, removal, centroid, projection or attention.")] = None,
    seed: Annotated[int, typer.Option(help="Seed that gives every clip another's sound.")] = 0,
    out: Annotated[Path | None, typer.Option(help="The folder to write; MODEL/evaluation/localisation.")] = None,
) -> None:
    """Pointing, area-adaptive IoU, cIoU and AUC on boxes, beside a centre prior and another clip's sound."""
    from equiav.build_data import build_clips, with_data
    from equiav.evaluation import (
        evaluation_folder,
        localisation_page,
        localisation_record,
        localise_dataset,
        method_of,
        write_evaluation,
    )
    from equiav.inference import load_model

    loaded = load_model(model)
    config = with_data(loaded.config, data)
    clips = build_clips(config, split_name(split))
    chosen = method_of(loaded, _method(method))
    result = localise_dataset(loaded, clips, method=chosen, seed=seed, say=say)
    end_line()
    record = localisation_record(clips, result)
    for subset, values in record.items():
        points = ", ".join(f"{name} {values[name]['pointing']:.1f} %" for name in ("sound", "other sound", "centre"))
        print(f"{subset} ({values['sound']['pictures']} clips): pointing {points}")
    facts = {"split": split, "method": chosen, "seed": seed, "left_out_without_boxes": len(clips) - len(result.rows)}
    page = localisation_page(clips, result, record, config.audio.sample_rate, chosen)
    whole = {"task": "localisation", **facts, "localisation": record, "checkpoint": loaded.meta}
    print(f"Look at {write_evaluation(out or evaluation_folder(model, 'localisation'), whole, page)}")
