"""Commands that show and measure where a sound comes from."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from equiav.cli.app import (
    Model,
    OtherData,
    OutFolder,
    RetrievalList,
    SplitName,
    app,
    choose,
    end_line,
    evaluate,
    finish,
    say,
    split_name,
)

Method = Annotated[str | None, typer.Option(help="blend, removal, centroid, projection or attention.")]


def _method(value: str | None) -> Any:
    from equiav.evaluation import METHODS

    return choose("--method", value, *METHODS)


@app.command()
def localise(
    model: Model,
    source: Annotated[Path, typer.Argument(help="A video, or a folder of them.")],
    out: Annotated[Path, typer.Option(help="The folder for overlays and page.")] = Path("localised"),
    audio: Annotated[Path | None, typer.Option(help="Look for the audio of another file than the video's own.")] = None,
    frames: Annotated[int, typer.Option(min=1, max=10, help="Frames per clip.")] = 3,
    nearest: Annotated[
        bool, typer.Option("--nearest", help="Also the paper's figure: the transformation nearest to the centroid.")
    ] = False,
    method: Method = None,
    seed: Annotated[int, typer.Option(help="Seed of the vectors drawn for --nearest.")] = 0,
    video: Annotated[
        Path | None, typer.Option(help="Write the whole video with the map over it and its sound here (.mp4).")
    ] = None,
) -> None:
    """Show where in the frame the sound comes from: heat-map overlays and a page, or the video with the map over it.

    Looks at the beginning of each file, as much as the model hears at once. Files that cannot be used are skipped and
    listed; one file given alone that cannot be used is an error, and so is a folder without any that can.
    """
    from equiav.evaluation import localise_files, localise_video
    from equiav.inference import load_model
    from equiav.media import Workers

    chosen, loaded, workers = _method(method), load_model(model), Workers()
    if video is not None:
        with workers:
            seconds = localise_video(loaded, source, video, audio=audio, method=chosen, workers=workers, report=say)
        end_line()
        print(f"{seconds:.1f} s of video: {video}")
        return
    with workers:
        results = localise_files(
            loaded, source, out,
            audio=audio, frames=frames, nearest=nearest, method=chosen, seed=seed, workers=workers, report=say,
        )  # fmt: skip
    end_line()
    for skipped in results["skipped"]:
        print(f"skipped {skipped['path']}: {skipped['reason']}", file=sys.stderr)
    print(f"{results.lines[0]} Look at {out / 'report.html'}")


@evaluate.command()
def localisation(
    model: Model,
    data: OtherData = None,
    split: SplitName = "test",
    listed: RetrievalList = None,
    method: Method = None,
    seed: Annotated[int, typer.Option(help="Seed that gives every clip another's audio.")] = 0,
    out: OutFolder = None,
) -> None:
    """Pointing, area-adaptive IoU, cIoU and AUC on boxes, beside a centre prior and another clip's audio.

    The data need boxes: VGG-SS as prepared, or a data file (JSON) whose records have `boxes`.
    """
    from equiav.build import build_dataset, listed_clips, with_data
    from equiav.evaluation import Localisation, evaluation_folder
    from equiav.inference import load_model

    part, chosen = split_name(split), _method(method)
    loaded = load_model(model)
    clips = build_dataset(with_data(loaded.config, data), part)
    if listed:
        clips, line = listed_clips(clips, listed)
        print(line, file=sys.stderr)
    results = Localisation(method=chosen, seed=seed, split=part, report=say)(loaded, clips)
    finish(results, out or evaluation_folder(model, "localisation"))
