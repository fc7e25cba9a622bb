"""The command that serves the page."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Annotated

import typer

from equiav.cli.app import app, end_line, say

DEMO = Path("runs/demo")


@app.command()
def serve(
    index: Annotated[Path, typer.Argument(help="An index, or a run trained on the generated world.")] = DEMO,
    model: Annotated[Path | None, typer.Option(help="The checkpoint that made the index, if it has moved.")] = None,
    port: Annotated[int, typer.Option(min=0, max=65535, help="0 takes any that is free.")] = 7860,
    host: Annotated[str, typer.Option(help="0.0.0.0 lets other machines in, with a token.")] = "127.0.0.1",
    token: Annotated[
        str | None, typer.Option(envvar="EQUIAV_TOKEN", help="What visitors must know; made up where one is needed.")
    ] = None,
    allow_host: Annotated[
        list[str] | None, typer.Option(help="A further name by which the page is called; may be repeated.")
    ] = None,
    megabytes: Annotated[int, typer.Option(min=1, help="Largest upload.")] = 64,
    seconds: Annotated[float, typer.Option(min=1, help="Longest sound or video.")] = 600,
    waiting: Annotated[int, typer.Option(min=1, help="Requests that may wait; more are refused.")] = 16,
    keep: Annotated[float, typer.Option(min=1, help="Seconds after which an upload is deleted.")] = 600,
    api_only: Annotated[bool, typer.Option("--api-only", help="The HTTP API without the page.")] = False,
) -> None:
    """Serve a page on this machine: search by sound, picture or video, and see where a sound comes from.

    Beside it there is an HTTP API: /v1/docs describes it. Without INDEX it shows held-out scenes of the demo (after
    `make demo`). Needs `pip install equiav[web]`, or `equiav[api]` for the API alone.
    """
    from equiav.web import Service, UploadLimits, open_collection, require_packages
    from equiav.web import serve as run

    require_packages(page=not api_only)
    opened, embedder = open_collection(index, model, say)
    end_line()
    limits = UploadLimits(megabytes=megabytes, seconds=seconds, waiting=waiting, keep=keep)
    try:
        run(
            Service(opened, embedder, limits),
            host=host,
            port=port,
            token=token,
            allow_hosts=allow_host or [],
            page=not api_only,
            say=lambda line: print(line, flush=True),
            warn=lambda line: print(line, file=sys.stderr, flush=True),
        )
    except SystemExit as end:  # terminated, all cleaned up: tearing the interpreter down would take seconds more
        os._exit(int(end.code or 0))
    print("stopped", file=sys.stderr)
