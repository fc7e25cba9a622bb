"""Commands about data: the generated world, preparing and inspecting clips, a look at augmentations."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from equiav.cli.app import app, choose, end_line, say
from equiav.errors import EquiAVError
from equiav.types import Clip


@app.command()
def world(
    out: Annotated[Path, typer.Option(help="The page to write.")] = Path("world.html"),
    count: Annotated[int, typer.Option(min=1, max=500, help="How many scenes.")] = 24,
    start: Annotated[int, typer.Option(min=0, help="Number of the first scene.")] = 0,
    seed: Annotated[int, typer.Option(min=0, help="Which world.")] = 0,
    size: Annotated[int, typer.Option(min=16, max=512, help="Side of the pictures in pixels.")] = 48,
) -> None:
    """Show scenes of the generated world with their sounds, as one page."""
    from equiav.data import World
    from equiav.inspection import write_gallery

    write_gallery(World(seed=seed, size=size), out, count=count, start=start)
    print(f"{count} scenes: {out}")


@app.command()
def prepare(
    source: Annotated[str, typer.Argument(help="A folder, a list (.txt), a .csv or .jsonl; or a published dataset.")],
    place: Annotated[Path, typer.Argument(help="OUT; for a published dataset its ROOT, and then OUT.")],
    out: Annotated[Path | None, typer.Argument(help="OUT, for a published dataset.")] = None,
    workers: Annotated[int | None, typer.Option(min=1, help="Processes; one per core without it.")] = None,
    part: Annotated[str, typer.Option(help="i/n: this machine does the i-th of n parts; see `equiav merge`.")] = "1/1",
    seconds: Annotated[float, typer.Option(help="Length of a clip.")] = 10.0,
    overlap: Annotated[float, typer.Option(help="Seconds that neighbouring clips share.")] = 0.0,
    need: Annotated[
        str | None,
        typer.Option(help="audio, video or both: what a clip must have; any: keep what has one, images too."),
    ] = None,
    channels: Annotated[
        str | None, typer.Option(help="Audio is the mean of its channels, or the first; published datasets: first.")
    ] = None,
    split: Annotated[
        int, typer.Option(min=1, help="Which published split (UCF101, HMDB51) or test fold (ESC-50).")
    ] = 1,
    engine: Annotated[str, typer.Option(help="local, or ray for a cluster (pip install equiav[ray]).")] = "local",
) -> None:
    """Turn videos into training data: shards, an index, and a list of what could not be used.

    Killed and started again it carries on. Published datasets by name, in the layout their publishers give:
    `equiav prepare esc50 ESC-50-master data/esc50`. Then `equiav inspect OUT` shows what came out.
    """
    from equiav.data import IMAGE_SUFFIXES, PUBLISHED, SUFFIXES, find_sources, read_published
    from equiav.data import prepare as run
    from equiav.io import cores

    published = source in PUBLISHED
    if published != (out is not None):
        what = "a published dataset: give its folder and OUT" if published else "not a published dataset; those are "
        raise EquiAVError(f"{source}: {what}{'' if published else ', '.join(PUBLISHED)}")
    needed = need or PUBLISHED.get(source, "both")
    choose("--need", needed, "audio", "video", "both", "any")
    choose("--channels", channels, "mean", "first")
    choose("--engine", engine, "local", "ray")
    number, slash, total = part.partition("/")
    if not (slash and number.isdigit() and total.isdigit()):
        raise EquiAVError(f"--part {part}: give i/n, such as 2/8")
    clips: Sequence[Clip]
    if published:
        found = read_published(source, place, split=split)
        print(found.line(), file=sys.stderr)
        clips = found.clips
    else:
        clips = find_sources(Path(source), suffixes=SUFFIXES | IMAGE_SUFFIXES if needed == "any" else SUFFIXES)
    out = out or place
    both = needed in ("both", "any")
    options: dict[str, Any] = {"need": ("audio", "video") if both else (needed,), "partial": needed == "any"}
    options |= {"channels": channels, "engine": engine, "published": published}
    summary = run(
        clips, out, workers=workers or cores(), part=(int(number), int(total)), clip_seconds=seconds,
        overlap=overlap, progress=say, **options,
    )  # fmt: skip
    end_line()
    print(f"{summary.line()}: {out / 'skipped.csv'}")


@app.command()
def merge(
    parts: Annotated[list[Path], typer.Argument(help="The folders that --part 1/n ... n/n wrote.")],
    out: Annotated[Path, typer.Option(help="The folder to write.")],
) -> None:
    """Join the parts that several machines prepared into one folder, equal to a single run."""
    from equiav.data import merge as join

    summary = join(parts, out)
    print(f"{summary.clips} clips of {summary.used} files in {out}")


@app.command()
def inspect(
    folder: Annotated[Path, typer.Argument(help="A prepared folder.")],
    out: Annotated[Path | None, typer.Option(help="The page to write; FOLDER/inspect.html without it.")] = None,
) -> None:
    """Show a prepared folder as one page: counts, durations, labels, what was left out, a contact sheet."""
    from equiav.inspection import write_inspection

    page = out or folder / "inspect.html"
    write_inspection(folder, page)
    print(f"Look at {page}")


@app.command()
def augment(
    file: Annotated[Path, typer.Argument(help="A video, picture or sound.")],
    out: Annotated[Path, typer.Option(help="Where the image goes.")] = Path("augmentations.png"),
    count: Annotated[int, typer.Option(min=1, max=12, help="How many draws.")] = 6,
    seed: Annotated[int, typer.Option(help="Seed of the draws.")] = 0,
) -> None:
    """Show a file under drawn augmentations, each above the vector that describes it."""
    from equiav.config import Config
    from equiav.inspection import augmentation_figure
    from equiav.media import Workers, decode, decoded_in
    from equiav.report import save

    with Workers() as workers:
        clip = decoded_in(workers, decode, file)
    save(augmentation_figure(clip, Config(), count=count, seed=seed), out)
    print(f"{count} draws of {file.name}: {out}")
