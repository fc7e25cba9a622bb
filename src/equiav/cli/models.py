"""Commands about checkpoints: what one is, and converting foreign weights."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from equiav.cli.app import app
from equiav.errors import EquiAVError


@app.command()
def info(
    path: Annotated[Path, typer.Argument(help="A run's folder or a checkpoint.")],
    full: Annotated[bool, typer.Option("--full", help="Also print the whole recipe.")] = False,
) -> None:
    """What a checkpoint is: model, objective, data, step, where it came from."""
    from equiav.checkpoint import load_checkpoint
    from equiav.config import dump_config
    from equiav.describe import describe

    checkpoint = load_checkpoint(path)
    print(describe(checkpoint, path))
    if full:
        print("\n" + dump_config(checkpoint.config))


@app.command()
def convert(
    source: Annotated[Path, typer.Argument(help="A file of foreign weights, or one of our checkpoint folders.")],
    out: Annotated[Path, typer.Argument(help="The checkpoint folder (or released file) to write.")],
    mode: Annotated[str | None, typer.Option(help="For fine-tuned checkpoints: audio, visual or audiovisual.")] = None,
    heads: Annotated[int | None, typer.Option(min=1, help="Attention heads, where they are not 64 wide.")] = None,
    seed: Annotated[int, typer.Option(help="Seed of what a MAE checkpoint lacks (predictor, heads).")] = 0,
) -> None:
    """Bring in MAE or released EquiAV weights (.pth, .safetensors), or write ours in the released format."""
    from equiav import convert as conversion

    print(conversion.convert(source, out, mode=_mode(mode), heads=heads, seed=seed))


def _mode(value: str | None) -> Any:
    if value not in (None, "audio", "visual", "audiovisual"):
        raise EquiAVError(f"--mode {value}: choose audio, visual or audiovisual")
    return value
