"""Commands that measure a model, `equiav evaluate ...`, and `equiav localise`, which shows what it looks at."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from equiav.cli.app import (
    Model,
    OtherData,
    OutFolder,
    SplitName,
    app,
    choose,
    end_line,
    evaluate,
    finish,
    say,
    split_name,
)

if TYPE_CHECKING:
    from equiav.data import Dataset
    from equiav.inference import LoadedModel

RetrievalList = Annotated[
    Path | None, typer.Option("--list", help="Only the clips of a published retrieval list (JSON).")
]
Method = Annotated[str | None, typer.Option(help="blend, removal, centroid, projection or attention.")]


def _method(value: str | None) -> Any:
    from equiav.evaluation import METHODS

    return choose("--method", value, *METHODS)


def _opened(
    model: Path, data: Path | None, split: Any, listed: Path | None = None, *, shared_space: bool = True
) -> tuple[LoadedModel, Dataset]:
    """A model, and the clips to measure it on."""
    from equiav.build import build_dataset, with_data
    from equiav.inference import load_model

    loaded = load_model(model, shared_space=shared_space)
    return loaded, _listed(build_dataset(with_data(loaded.config, data), split), listed)


def _listed(clips: Dataset, path: Path | None) -> Dataset:
    """Those of the clips that a published list names, with a line on how many; all of them without a list."""
    from equiav.build import listed_clips

    if path is not None:
        clips, line = listed_clips(clips, path)
        print(line, file=sys.stderr)
    return clips


def _total(path: Path | None) -> int | None:
    """How many clips a published list names."""
    from equiav.data import read_retrieval_list

    return None if path is None else len(read_retrieval_list(path))


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
    from equiav.evaluation import Classification
    from equiav.inference import load_classifier

    part = split_name(split)
    loaded = load_classifier(model)
    if classes:
        loaded = loaded.named(read_classes(classes))
    clips = build_labelled(with_data(loaded.config, data), part, loaded.classes)
    results = Classification(split=part, all_frames=all_frames, own_data=data is None)(loaded, clips)
    finish(results, out, model, "classification")


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
    from equiav.evaluation import Localisation

    part, chosen = split_name(split), _method(method)
    loaded, clips = _opened(model, data, part, listed)
    total = _total(listed)
    results = Localisation(method=chosen, seed=seed, split=part, listed=total, report=say)(loaded, clips)
    finish(results, out, model, "localisation")


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
    from equiav.evaluation import Retrieval

    part = split_name(split)
    loaded, clips = _opened(model, data, part, listed)
    total = _total(listed)
    results = Retrieval(banks=banks, all_frames=all_frames, split=part, listed=total, report=say)(loaded, clips)
    finish(results, out, model, "retrieval")


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
    from equiav.evaluation import Reconstruction

    part = split_name(split)
    loaded, clips = _opened(model, data, part, shared_space=False)
    results = Reconstruction(examples=examples, seed=seed, split=part, report=say)(loaded, clips)
    finish(results, out, model, "reconstruction")


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
    from equiav.build import with_data
    from equiav.evaluation import Probe, probe_splits
    from equiav.inference import load_model

    loaded = load_model(model, shared_space=False)
    splits, validation = probe_splits(with_data(loaded.config, data, test=test))
    tested = _listed(splits["test"], listed)
    evaluator = Probe(
        splits["train"],
        splits["validation"],
        limit=limit or None,
        validation_part=validation,
        listed=_total(listed),
        report=say,
    )
    finish(evaluator(loaded, tested), out, model, "probe")


@evaluate.command()
def equivariance(
    model: Model,
    data: OtherData = None,
    split: SplitName = "test",
    count: Annotated[int, typer.Option(min=2, help="Clips, evenly spaced over the split.")] = 500,
    seed: Annotated[int, typer.Option(help="Seed of all augmentations drawn.")] = 0,
    out: OutFolder = None,
) -> None:
    """Whether the predictor follows the augmentation: cosines, augmentation by augmentation, and the centroid."""
    from equiav.evaluation import Equivariance

    part = split_name(split)
    loaded, clips = _opened(model, data, part)
    results = Equivariance(count=count, seed=seed, split=part, report=say)(loaded, clips)
    finish(results, out, model, "equivariance")
