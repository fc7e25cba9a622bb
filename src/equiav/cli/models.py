"""Commands about checkpoints: what one is, whether it is whole, converting foreign weights, giving a model away."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from typing import Annotated

import typer

from equiav.cli.app import Model, app, choose, end_line, say
from equiav.errors import EquiAVError


@app.command()
def info(
    path: Model,
    full: Annotated[bool, typer.Option("--full", help="Also print the whole recipe.")] = False,
) -> None:
    """What a checkpoint is: model, objective, data, step, where it came from."""
    from equiav import checkpoint as checkpoints
    from equiav.config import dump_config

    checkpoint = checkpoints.load_checkpoint(path)
    print(checkpoints.info(checkpoint, path))
    if full:
        print("\n" + dump_config(checkpoint.config))


@app.command()
def convert(
    source: Annotated[Path, typer.Argument(help="A file of foreign weights, or one of our checkpoint folders.")],
    out: Annotated[Path, typer.Argument(help="The checkpoint folder (or released file) to write.")],
    mode: Annotated[
        str | None,
        typer.Option(help="Of fine-tuned weights: audio, visual or audiovisual; of MAE's format: which encoder."),
    ] = None,
    heads: Annotated[int | None, typer.Option(min=1, help="Attention heads, where they are not 64 wide.")] = None,
    seed: Annotated[int, typer.Option(help="Seed of what MAE lacks: predictor, heads; training draws its own.")] = 0,
    class_token: Annotated[
        bool, typer.Option(help="Write MAE's format with a neutral class token, which most readers want.")
    ] = True,
) -> None:
    """Bring in MAE, CAV-MAE or released EquiAV weights (.pth, .safetensors), or write ours in those formats."""
    from equiav import convert as conversion

    chosen = choose("--mode", mode, "audio", "visual", "audiovisual")
    print(conversion.convert(source, out, mode=chosen, heads=heads, seed=seed, class_token=class_token))


@app.command()
def export(
    model: Model,
    out: Annotated[Path, typer.Argument(help="The folder to write.")],
    onnx: Annotated[bool, typer.Option(help="Also write both towers as ONNX (pip install equiav[onnx]).")] = True,
    licence: Annotated[str, typer.Option("--license", help="What the card's header says.")] = "apache-2.0",
) -> None:
    """Write a model to give away: weights, recipe, a model card, and both towers as ONNX, checked against the model.

    The folder is what `load_model` opens and what model hubs expect.
    """
    from equiav.export import export as write

    graphs = write(model, out, onnx=onnx, licence=licence, report=say)
    end_line()
    for graph in graphs:
        print(f"{graph.file}: within {graph.difference:.1e} of the model over {graph.compared} embeddings")
    print(f"Written: {out}")


@app.command()
def verify(
    path: Annotated[
        Path, typer.Argument(help="A checkpoint, a run's folder, an exported or prepared folder, an index.")
    ],
) -> None:
    """Compare every file with the checksum that was recorded when it was written.

    Exit code 0: all as written. 2: one line for each damaged file, with what to do.
    """
    from equiav.checkpoint import BEST, CHECKPOINTS, verify_checkpoint
    from equiav.data import INDEX as CLIPS
    from equiav.hub import fetch, on_hub
    from equiav.io import SUMS
    from equiav.search import INDEX

    path = fetch(path) if on_hub(path) else path
    folders, sums = [path], True
    if not path.is_dir():
        raise EquiAVError(f"{path}: no such folder")
    if (path / INDEX).is_file():
        from equiav.search import verify_index

        problems = verify_index(path, say)
    elif (path / CLIPS).is_dir():
        from equiav.data import verify_prepared

        problems = verify_prepared(path, say)
    else:
        problems = verify_checkpoint(path)
        if (path / CHECKPOINTS).is_dir():
            folders = [path / CHECKPOINTS, path / BEST]  # logs and pages of a run are not checked
        sums = all((meta.parent / SUMS).is_file() for folder in folders for meta in folder.rglob("meta.json"))
    end_line()
    for problem in problems:
        print(f"equiav: {problem}", file=sys.stderr)
    if problems:
        raise typer.Exit(2)
    files = [file for folder in folders for file in folder.rglob("*") if file.is_file() and file.name != SUMS]
    count = sum(1 for file in files if not file.name.startswith("."))
    if sums:
        print(f"all {count} files as written")
    else:
        print(f"all {count} files can be read; without {SUMS} (an earlier version wrote none) a change would not show")


@app.command()
def push(
    model: Annotated[Path, typer.Argument(help="What `equiav export` wrote; or a run's folder or a checkpoint.")],
    name: Annotated[str, typer.Argument(metavar="OWNER/NAME", help="The repository; @branch after it is allowed.")],
    private: Annotated[bool, typer.Option("--private", help="A new repository is seen by its owner alone.")] = False,
    licence: Annotated[str, typer.Option("--license", help="What the model card says.")] = "apache-2.0",
) -> None:
    """Publish a model on the Hugging Face Hub; `hf:OWNER/NAME` then names it wherever a checkpoint is asked for.

    Weights as safetensors, the recipe and a model card are uploaded in one commit. Log in once with `hf auth login`.
    """
    from equiav import hub
    from equiav.export import CARD, export

    with tempfile.TemporaryDirectory() as place:
        if not (model / CARD).is_file():
            written = Path(place) / name.rpartition("/")[2].partition("@")[0]
            export(model, written, onnx=False, licence=licence, report=say)
            end_line()
            model = written
        print(hub.push(model, name, private=private))
