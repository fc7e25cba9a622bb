"""The command that writes vectors for other tools."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from equiav.cli.app import app, end_line, say
from equiav.errors import EquiAVError


@app.command()
def embed(
    sources: Annotated[list[Path], typer.Argument(help="Media files; or one folder, list or prepared folder.")],
    model: Annotated[Path, typer.Option(help="A run's folder, a checkpoint, or hf:owner/name.")],
    out: Annotated[Path, typer.Option(help="The file to write: .parquet, .npz or .jsonl.")],
    seconds: Annotated[float | None, typer.Option(min=0.5, help="Length of a window in long files.")] = None,
    overlap: Annotated[float, typer.Option(min=0, help="Seconds that neighbouring windows share.")] = 0.0,
    workers: Annotated[int | None, typer.Option(min=1, help="Processes that decode; one per core without it.")] = None,
    device: Annotated[str, typer.Option(help="cpu, cuda or mps.")] = "cpu",
) -> None:
    """Write the vectors of audio and frames: one row per window and modality, for pandas or a vector database.

    `equiav embed my_videos/ --model runs/mine --out vectors.parquet`. After an interruption the same command goes on.
    Files that cannot be read are listed beside the output, with the reason.
    """
    from equiav.inference import Embedder, load_model
    from equiav.search import embed_files

    embedder = Embedder(load_model(model, device))
    done = embed_files(embedder, sources, out, seconds=seconds, overlap=overlap, workers=workers, progress=say)
    end_line()
    left = f"; {done.skipped} left out: {done.reasons}" if done.reasons else ""
    print(f"{done.rows} vectors of {done.clips} clips in {out}{left}")
    if done.skipped and not done.rows:
        raise EquiAVError(f"nothing could be embedded: {done.reasons} says why")
