"""Commands about checkpoints: what one is, converting foreign weights, giving a model away."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from equiav.cli.app import Model, app, choose, end_line, say


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
