"""The command that publishes a model."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Annotated

import typer

from equiav.cli.app import app, end_line, say


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
