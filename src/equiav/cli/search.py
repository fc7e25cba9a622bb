"""Commands that use a model: writing vectors, filling an index, searching it, serving it."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from equiav.cli.app import app, end_line, say
from equiav.cli.text import TextQuery, ask_text
from equiav.errors import EquiAVError
from equiav.hub import on_hub

DEMO = Path("runs/demo")


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


@app.command()
def index(
    source: Annotated[Path, typer.Argument(help="A prepared folder; or a folder, list or file of media.")],
    out: Annotated[Path | None, typer.Argument(help="The index's folder; left out with --remove.")] = None,
    model: Annotated[Path | None, typer.Option(help="A run's folder or a checkpoint; for a new index.")] = None,
    store: Annotated[
        str | None, typer.Option(help="milvus://host:port/collection, or a .db file of milvus-lite; FAISS without it.")
    ] = None,
    seconds: Annotated[float | None, typer.Option(min=0.5, help="Length of a window in long files.")] = None,
    overlap: Annotated[float, typer.Option(min=0, help="Seconds that neighbouring windows share.")] = 0.0,
    listed: Annotated[
        Path | None, typer.Option("--list", help="The table given to `prepare`: its columns become filters.")
    ] = None,
    workers: Annotated[int | None, typer.Option(min=1, help="Processes that decode; one per core without it.")] = None,
    remove: Annotated[list[str] | None, typer.Option(help="An entry to remove, by id.")] = None,
    remove_source: Annotated[list[str] | None, typer.Option(help="A file to remove, by name; * allowed.")] = None,
    prune: Annotated[bool, typer.Option("--prune", help="Remove entries whose files are gone.")] = False,
    device: Annotated[str, typer.Option(help="cpu, cuda or mps.")] = "cpu",
) -> None:
    """Make clips, videos, sounds and pictures searchable; run again, it adds what is new and what has changed.

    `equiav index my_videos/ library.index --model runs/mine`, then `equiav search library.index --audio bark.wav`.
    Files that cannot be read are listed in skipped.csv. `equiav index library.index --remove-source 'old/*'` removes.
    """
    from equiav.search import Index, index_folder

    if (remove or remove_source) and out is not None:
        raise EquiAVError("--remove goes with the index alone: equiav index INDEX --remove ID")
    if out is None and (remove or remove_source or prune):
        opened = Index.open(source, store=store)
        gone = [clip.id for clip in opened.vanished()] if prune else []
        count = opened.remove([*(remove or ()), *gone], remove_source or ())
        print(f"{count} entries removed; {len(opened)} left in {source}")
        return opened.close()
    if out is None:
        raise EquiAVError("give what to index and the index's folder: equiav index my_videos/ library.index")
    if not source.exists():  # before an index is made for it
        raise EquiAVError(f"{source}: no such folder or list of media")
    opened, embedder = _opened(out, model, store, device)
    done = index_folder(
        opened, embedder, source, table=listed, seconds=seconds, overlap=overlap, workers=workers, progress=say
    )
    end_line()
    known = f", {done.known} known already" if done.known else ""
    changed = f", {done.changed} files had changed" if done.changed else ""
    print(f"{done.added} entries added{known}{changed}; {done.skipped} left out: {out / 'skipped.csv'}")
    if gone := opened.vanished():
        files = sorted({str(clip.path) for clip in gone})
        named = ", ".join(files[:3]) + (", ..." if len(files) > 3 else "")
        what = f"{opened.remove([clip.id for clip in gone])} entries removed" if prune else "--prune removes them"
        print(f"{len(files)} files with {len(gone)} entries are gone ({named}); {what}")
    print(f"{len(opened)} entries in {out}")
    opened.close()
    if done.skipped and not done.added and not done.known:
        raise EquiAVError(f"nothing in {source} could be indexed: {out / 'skipped.csv'} says why")


def _opened(out: Path, model: Path | None, store: str | None, device: str) -> Any:
    """The index, made if there is none, and the embedder that fills it."""
    from equiav.inference import Embedder, load_model
    from equiav.search import INDEX, Index

    if (out / INDEX).exists():
        opened = Index.open(out, store=store, progress=say)
        return opened, Embedder(load_model(_model(opened, model), device))
    if model is None:
        raise EquiAVError(f"{out} is a new index: give the model that makes its vectors (--model)")
    loaded = load_model(model, device)
    return Index.create(out, loaded, store=store, model_path=model, progress=say), Embedder(loaded)


def _model(opened: Any, model: Path | None) -> Path:
    place = model or opened.model_path
    if place is None or not (on_hub(place) or place.exists()):
        raise EquiAVError(f"the checkpoint of {opened.folder} is not at {place}; say where it is (--model)")
    return Path(place)


@app.command()
def search(
    folder: Annotated[Path, typer.Argument(metavar="INDEX", help="What `equiav index` made.")],
    audio: Annotated[Path | None, typer.Option(help="A sound, or a video whose sound counts.")] = None,
    image: Annotated[Path | None, typer.Option(help="A picture, or a video whose pictures count.")] = None,
    video: Annotated[Path | None, typer.Option(help="A video: sound and pictures together.")] = None,
    text: TextQuery = None,
    like: Annotated[str | None, typer.Option(help="The id of an entry.")] = None,
    k: Annotated[int, typer.Option("--k", "-k", min=1, max=10_000, help="How many results.")] = 10,
    among: Annotated[
        str | None, typer.Option(help="audio, visual or both; without it sounds find pictures, pictures sounds.")
    ] = None,
    filters: Annotated[
        list[str] | None, typer.Option("--filter", help="label=dog, source=*.mp4, start>=60, or a column.")
    ] = None,
    start: Annotated[float, typer.Option(min=0, help="Where in the query's file to begin, in seconds.")] = 0.0,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    html: Annotated[Path | None, typer.Option(help="Also write a page with thumbnails and players.")] = None,
    model: Annotated[Path | None, typer.Option(help="The checkpoint, if it is no longer where it was.")] = None,
    store: Annotated[
        str | None, typer.Option(help="The index's Milvus server: it gets MILVUS_TOKEN once you have named it.")
    ] = None,
    device: Annotated[str, typer.Option(help="cpu, cuda or mps.")] = "cpu",
) -> None:
    """Find clips by a sound, a picture, a video, words or another clip.

    Sounds are looked for among pictures and pictures among sounds; `--among` looks elsewhere. Words, a video and an
    entry are compared with both, and an entry counts by the better of its two. Words need a model that has learnt text,
    or a bridge (`equiav bridge`).
    """
    from equiav.inference import Embedder, load_model
    from equiav.media import Workers
    from equiav.search import Index, as_table, ask, to_json, write_results

    given = {"audio": audio, "image": image, "video": video}
    if sum(item is not None for item in (*given.values(), text, like)) != 1:
        raise EquiAVError("give one of --audio, --image, --video, --text and --like")
    workers = Workers()  # nobody vouches for the file that is asked with
    opened = Index.open(folder, store=store)
    opened.sides(among)  # refused before a model is loaded
    if like is not None:
        query = opened.like(like)
    elif text is not None:
        query = ask_text(opened, load_model(_model(opened, model), device), text)
    else:
        loaded = load_model(_model(opened, model), device)
        query = ask(Embedder(loaded, workers=workers), start=start, **given)
    hits = opened.search(query, k=k, among=among, filters=filters or ())
    opened.close()
    print(to_json(hits) if as_json else as_table(hits))
    if html is not None:
        kind, path = next(((kind, path) for kind, path in given.items() if path is not None), ("like", None))
        title = f"Nearest to {like or (text or '')[:80] if path is None else path.name}"
        write_results(hits, html, title=title, query=path, kind=kind, start=start, workers=workers)
        print(f"Look at {html}", file=sys.stderr)


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
