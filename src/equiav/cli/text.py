"""Commands about text: `equiav evaluate zeroshot`, `equiav where`, `equiav bridge`; and queries in words."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

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
from equiav.errors import EquiAVError

TextQuery = Annotated[str | None, typer.Option("--text", help="What you look for, in words.")]


def ask_text(index: Any, loaded: Any, text: str) -> Any:
    """A text as a query: by the model if it has learnt text, else through the bridge that the index remembers."""
    from equiav.bridge import Bridge
    from equiav.inference import Embedder
    from equiav.search import Query

    if "text" in loaded.modalities:
        return Query(Embedder(loaded).text(text), "text", loaded.digest)
    return Bridge.open(index.folder).query(text, loaded.digest)


@evaluate.command()
def zeroshot(
    model: Model,
    data: OtherData = None,
    split: SplitName = "test",
    template: Annotated[
        list[str] | None, typer.Option(help="A prompt with {} in place of the class; several are averaged.")
    ] = None,
    classes: Annotated[Path | None, typer.Option(help="A file with all classes, one a line.")] = None,
    limit: Annotated[int, typer.Option(min=0, help="Labelled clips, evenly spaced; 0 takes all of them.")] = 5000,
    bridge: Annotated[
        Path | None, typer.Option(help="An index whose bridge embeds the prompts, for a model without text.")
    ] = None,
    out: OutFolder = None,
) -> None:
    """Classify labelled clips by the nearest class name: mAP and accuracy of sound and frame, beside chance."""
    from equiav.bridge import Bridge
    from equiav.build import build_dataset, with_data
    from equiav.data import read_classes
    from equiav.evaluation import ZeroShot
    from equiav.inference import load_model

    part, loaded, texts = split_name(split), load_model(model), None
    if bridge is not None:
        opened = Bridge.open(bridge)
        opened.check_model(loaded.digest)
        texts = opened.text
    clips = build_dataset(with_data(loaded.config, data), part)
    evaluator = ZeroShot(
        templates=tuple(template) if template else None, classes=read_classes(classes) if classes else None,
        texts=texts, limit=limit or None, split=part, report=say,
    )  # fmt: skip
    finish(evaluator(loaded, clips), out, model, "zeroshot")


@app.command()
def where(
    model: Model,
    source: Annotated[Path, typer.Argument(help="A video or an image, or a folder of them.")],
    text: Annotated[str, typer.Argument(help="What to look for, in words: 'the ring'.")],
    out: Annotated[Path, typer.Option(help="The folder for overlays and page.")] = Path("where"),
    frames: Annotated[int, typer.Option(min=1, max=10, help="Frames per video.")] = 3,
    method: Annotated[str | None, typer.Option(help="blend, removal, centroid, projection or attention.")] = None,
) -> None:
    """Show where in the frame something is that you name: heat-map overlays and a page.

    Looks at the beginning of each file. The model must have learnt text.
    """
    from equiav.evaluation import METHODS, where_files
    from equiav.inference import Embedder, load_model

    chosen = choose("--method", method, *METHODS)
    if not source.exists():
        raise EquiAVError(f"{source}: no such file or folder")
    results = where_files(Embedder(load_model(model)), source, text, out, frames=frames, method=chosen, report=say)
    end_line()
    for skipped in results["skipped"]:
        say(f"skipped {skipped['path']}: {skipped['reason']}")
    print(f"{results.lines[0]} Look at {out / 'report.html'}")


@app.command()
def bridge(
    folder: Annotated[Path, typer.Argument(metavar="INDEX", help="What `equiav index` made.")],
    image_text: Annotated[
        str,
        typer.Option("--with", help="A CLIP or SigLIP: its name on the Hub or a folder; or a checkpoint with text."),
    ] = "openai/clip-vit-base-patch32",
    most: Annotated[int, typer.Option(min=16, help="Frames to fit on, drawn at random.")] = 5000,
    sentences: Annotated[
        Path | None, typer.Option(help="Sentences like your queries, one a line: their mean stands for that of text.")
    ] = None,
    seed: Annotated[int, typer.Option(help="Seed of the draw.")] = 0,
) -> None:
    """Make an index searchable by text without captions, through an image-text model such as CLIP.

    Fits a small map from that model's space into the index's, on the index's own frames, and keeps it with the index.
    """
    from equiav.bridge import fit_bridge, open_image_text
    from equiav.search import Index

    said = None
    if sentences is not None:
        try:
            lines = sentences.read_text(encoding="utf-8-sig").splitlines()
        except (OSError, UnicodeDecodeError) as error:
            raise EquiAVError(f"{sentences}: cannot be read as text ({error})") from error
        said = [line for line in lines if line.strip()]
    opened = Index.open(folder)
    fitted = fit_bridge(opened, open_image_text(image_text), most=most, texts=said, seed=seed, progress=say)
    opened.close()
    end_line()
    print("\n".join(fitted.facts.lines()))
    print(f"Written: {fitted.save(folder)}")
