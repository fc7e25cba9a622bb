"""The command line: parses, calls, prints; bad input becomes one line and exit code 2."""

from __future__ import annotations

import json
import os
import shutil
import sys
from pathlib import Path
from typing import Annotated, Any, cast

import typer

from equiav import __version__
from equiav.errors import EquiAVError

# Rooms are imported inside the commands: torch alone would make `--help` take seconds.
app = typer.Typer(
    name="equiav",
    help="Learn a shared space of sound and picture from your own videos, and use it (EquiAV, ICML 2024).",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
)
evaluate = typer.Typer(help="Measure a model, or what it costs.", no_args_is_help=True)
app.add_typer(evaluate, name="evaluate")


def _version(asked: bool) -> None:
    if asked:
        print(f"equiav {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print and exit.")
    ] = False,
) -> None:
    pass


def _say(line: str) -> None:
    """Progress: one living line on a terminal, plain lines elsewhere."""
    if sys.stderr.isatty():
        width = shutil.get_terminal_size().columns - 1
        print(f"\r{line[:width]:<{width}}", end="", file=sys.stderr, flush=True)
    else:
        print(line, file=sys.stderr, flush=True)


def _end_line() -> None:
    """Leaves the living line of a terminal."""
    if sys.stderr.isatty():
        print(file=sys.stderr)


@app.command()
def demo(
    overrides: Annotated[list[str] | None, typer.Argument(help="key=value, such as train.steps=100.")] = None,
    out: Annotated[Path, typer.Option(help="Where everything goes.")] = Path("runs/demo"),
) -> None:
    """Train a very small model on generated clips, in minutes, and write a report to look at.

    Run it again to resume an interrupted demo. Writes checkpoints/, results.json and report.html.
    """
    from equiav.demo import run_demo

    report = run_demo(out, tuple(overrides or ()), _say)
    _end_line()
    results = json.loads((out / "results.json").read_text(encoding="utf-8"))
    for way, name in (("audio_to_video", "sound to picture"), ("video_to_audio", "picture to sound")):
        values = results["retrieval"][way]
        print(f"{name}: " + ", ".join(f"R@{k} {values[f'R@{k}']:.1f} %" for k in (1, 5, 10)), end="")
        print(f" among {values['pool']} held-out scenes (chance R@10 {results['chance']['R@10']:.1f} %)")
    print(f"Look at {report}")


@app.command()
def world(
    out: Annotated[Path, typer.Option(help="The page to write.")] = Path("world.html"),
    count: Annotated[int, typer.Option(min=1, max=500, help="How many scenes.")] = 24,
    start: Annotated[int, typer.Option(min=0, help="Number of the first scene.")] = 0,
    seed: Annotated[int, typer.Option(min=0, help="Which world.")] = 0,
    size: Annotated[int, typer.Option(min=16, max=512, help="Side of the pictures in pixels.")] = 48,
) -> None:
    """Show scenes of the generated world with their sounds, as one page."""
    from equiav.data.world import World
    from equiav.gallery import write_gallery

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
    need: Annotated[str | None, typer.Option(help="audio, video or both: what a clip must have.")] = None,
    split: Annotated[
        int, typer.Option(min=1, help="Which published split (UCF101, HMDB51) or test fold (ESC-50).")
    ] = 1,
    engine: Annotated[str, typer.Option(help="local, or ray for a cluster (pip install equiav[ray]).")] = "local",
) -> None:
    """Turn videos into training data: shards, an index, and a list of what could not be used.

    Killed and started again it carries on. Published datasets by name, in the layout their publishers give:
    `equiav prepare esc50 ESC-50-master data/esc50`. Then `equiav inspect OUT` shows what came out.
    """
    from equiav.data.benchmarks import NAMES, NEEDS, read_benchmark
    from equiav.data.prepare import find_sources
    from equiav.data.prepare import prepare as run

    if source in NAMES:
        if out is None:
            raise EquiAVError(f"{source} is a published dataset: give its folder and OUT")
        found = read_benchmark(source, place, split=split)
        print(found.line(), file=sys.stderr)
        sources = found.sources
        needed = _need(need or NEEDS.get(source, "both"))
    else:
        if out is not None:
            raise EquiAVError(f"{source}: not a published dataset; those are {', '.join(NAMES)}")
        sources, out, needed = find_sources(Path(source)), place, _need(need or "both")
    summary = run(
        sources, out, workers=workers or os.cpu_count() or 1, part=_part(part), clip_seconds=seconds,
        overlap=overlap, need=needed, engine=_engine(engine), say=_say,
    )  # fmt: skip
    _end_line()
    print(f"{summary.clips} clips of {summary.used} files; {summary.skipped} files left out: {out / 'skipped.csv'}")


def _need(value: str) -> tuple[Any, ...]:
    if value not in ("audio", "video", "both"):
        raise EquiAVError(f"--need {value}: choose audio, video or both")
    return ("audio", "video") if value == "both" else (value,)


def _engine(value: str) -> Any:
    if value not in ("local", "ray"):
        raise EquiAVError(f"--engine {value}: choose local or ray")
    return value


def _part(value: str) -> tuple[int, int]:
    number, slash, total = value.partition("/")
    if not (slash and number.isdigit() and total.isdigit()):
        raise EquiAVError(f"--part {value}: give i/n, such as 2/8")
    return int(number), int(total)


@app.command()
def merge(
    parts: Annotated[list[Path], typer.Argument(help="The folders that --part 1/n ... n/n wrote.")],
    out: Annotated[Path, typer.Option(help="The folder to write.")],
) -> None:
    """Join the parts that several machines prepared into one folder, equal to a single run."""
    from equiav.data.finish import merge as join

    summary = join(parts, out)
    print(f"{summary.clips} clips of {summary.used} files in {out}")


@app.command()
def inspect(
    folder: Annotated[Path, typer.Argument(help="A prepared folder.")],
    out: Annotated[Path | None, typer.Option(help="The page to write; FOLDER/inspect.html without it.")] = None,
) -> None:
    """Show a prepared folder as one page: counts, durations, labels, what was left out, a contact sheet."""
    from equiav.data.inspection import write_inspection

    page = out or folder / "inspect.html"
    write_inspection(folder, page)
    print(f"Look at {page}")


@app.command()
def pretrain(
    recipe: Annotated[Path, typer.Argument(help="A recipe, such as configs/pretrain/world.yaml.")],
    overrides: Annotated[list[str] | None, typer.Argument(help="key=value, such as train.steps=100.")] = None,
    out: Annotated[Path | None, typer.Option(help="The run's folder; runs/<recipe> without it.")] = None,
) -> None:
    """Train a recipe. Run the same command again to resume; under torchrun, processes share each batch.

    Writes checkpoints/, log.jsonl and tensorboard/ into the run's folder. SIGTERM saves and exits with 143.
    """
    from equiav.build_data import resolve
    from equiav.config import load_config
    from equiav.distributed import rank, started, world_size
    from equiav.training.trainer import Trainer

    config = load_config(recipe, tuple(overrides or ()))
    out = out or Path("runs") / recipe.stem
    with started():
        config, notices = resolve(config, world_size())
        if rank() == 0:
            print("".join(f"note: {line}\n" for line in notices), end="", file=sys.stderr)
        trainer = Trainer(config, out, _say)
        if rank() == 0 and trainer.step:
            print(f"resuming {out} at step {trainer.step} of {trainer.total}", file=sys.stderr)
        outcome = trainer.run()
        if rank() == 0:
            _end_line()
            state = f"stopped at step {outcome.step} of" if outcome.interrupted else "finished"
            print(f"{state} {outcome.total} steps: {out}", file=sys.stderr)
    if outcome.interrupted:
        raise typer.Exit(143)


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
def augment(
    file: Annotated[Path, typer.Argument(help="A video, picture or sound.")],
    out: Annotated[Path, typer.Option(help="Where the image goes.")] = Path("augmentations.png"),
    count: Annotated[int, typer.Option(min=1, max=12, help="How many draws.")] = 6,
    seed: Annotated[int, typer.Option(help="Seed of the draws.")] = 0,
) -> None:
    """Show a file under drawn augmentations, each above the vector that describes it."""
    from equiav.config import Config
    from equiav.evaluation.augmentation import augmentation_figure
    from equiav.media.decode import decode
    from equiav.report.figures import save

    save(augmentation_figure(decode(file), Config(), count=count, seed=seed), out)
    print(f"{count} draws of {file.name}: {out}")


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


@evaluate.command()
def cost(
    recipe: Annotated[Path | None, typer.Argument(help="A recipe; the paper's base model without one.")] = None,
    out: Annotated[Path | None, typer.Option(help="Also write the figures as JSON.")] = None,
    repeats: Annotated[int, typer.Option(min=0, help="Timed runs; 0 only counts.")] = 5,
) -> None:
    """Parameters, multiply-adds and milliseconds for S = 1, 4, 8, 16, beside the paper's table."""
    from equiav.config import Config, load_config
    from equiav.evaluation.cost import cost_of, cost_record, cost_table
    from equiav.provenance import provenance, write_json
    from equiav.types import Modality

    config = load_config(recipe) if recipe else Config()
    costs = [cost_of(config, m, repeats=repeats) for m in Modality]
    print(cost_table(costs))
    record = cost_record(costs)
    print(f"\nParameters: {sum(c.parameters for c in costs) / 1e6:.1f} M. Convention: {record['convention']}.")
    if out:
        write_json(out, {**record, "provenance": provenance()})
        print(f"Written: {out}")


@evaluate.command()
def retrieval(
    model: Annotated[Path, typer.Argument(help="A run's folder or a checkpoint.")],
    data: Annotated[Path | None, typer.Option(help="Other data than the model was trained on.")] = None,
    split: Annotated[str, typer.Option(help="train, validation or test.")] = "test",
    listed: Annotated[Path | None, typer.Option("--list", help="A published retrieval list (JSON).")] = None,
    all_frames: Annotated[
        bool, typer.Option("--all-frames", help="The mean of all frames, not the middle one.")
    ] = False,
    out: Annotated[Path | None, typer.Option(help="Also write the figures as JSON.")] = None,
) -> None:
    """Find the picture of a sound and the sound of a picture: R@1, R@5, R@10, or precision where only classes pair."""
    from equiav.build import build_inputs
    from equiav.build_data import build_clips, listed_clips, with_data
    from equiav.evaluation.benchmark import retrieval_record
    from equiav.inference import load_model
    from equiav.provenance import provenance, write_json

    if split not in ("train", "validation", "test"):
        raise EquiAVError(f"--split {split}: choose train, validation or test")
    loaded = load_model(model)
    config = with_data(loaded.config, data)
    clips = build_clips(config, cast(Any, split))
    if listed:
        clips, line = listed_clips(clips, listed)
        print(line, file=sys.stderr)
    record = retrieval_record(
        loaded.model, clips, build_inputs(config.audio), loaded.banks, config.objective.representation,
        all_frames=all_frames,
    )  # fmt: skip
    for way, values in record.items():
        print(
            f"{way}: "
            + ", ".join(
                f"{k} {v:.1f}" if k not in ("pool", "queries", "gallery") else f"{k} {v}" for k, v in values.items()
            )
        )
    if out:
        facts = {"split": split, "frames": "all" if all_frames else "middle", "bank_seed": config.bank.seed}
        write_json(
            out,
            {"task": "retrieval", **facts, "retrieval": record, "checkpoint": loaded.meta, "provenance": provenance()},
        )
        print(f"Written: {out}")


def main() -> None:
    """Entry point: one line for bad input, a traceback for a bug."""
    try:
        app()
    except EquiAVError as error:
        rank = os.environ.get("RANK", "0")
        print(f"equiav: {'' if rank == '0' else f'process {rank}: '}{error}", file=sys.stderr)
        sys.exit(2)
    except KeyboardInterrupt:
        sys.exit(130)


if __name__ == "__main__":
    main()
