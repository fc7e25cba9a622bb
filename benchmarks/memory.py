"""Peak memory of a training step against the number of clips in it, four ways, each in a process of its own.

    python benchmarks/memory.py        # about 35 minutes on two idle cores; results/memory.json, docs/images/memory.png
    python benchmarks/memory.py --ways cached --batches 16 32 --results benchmarks/results/memory_cached.json
                                       # 10 minutes; what of the gradient cache's peak is in use

`whole` keeps all activations, `checkpointed` only the inputs of blocks (train.checkpoint_activations), `cached` takes
the batch in portions of 4 clips through the gradient cache (train.micro_batch), `both` does both. What would not fit
into this machine's memory is left out and said so. Memory in use is what the C library has handed out, looked at all
through the step; the rest of the peak is freed memory that it keeps. Results that are there already are not repeated;
--again does.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import resource
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from base_step import SIZES, Stepper, config_of
from equiav.io import provenance, write_json
from equiav.report import curves, new_figure, save

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks" / "results" / "memory.json"
PLOT = ROOT / "docs" / "images" / "memory.png"
WAYS = ("whole", "checkpointed", "cached", "both")
CLIP_GB = {"base": 0.9, "small": 0.45, "tiny": 0.25, "micro": 0.1}  # of activations, to foresee what does not fit


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", choices=SIZES, default="base")
    parser.add_argument("--batches", type=int, nargs="+", default=[4, 8, 16, 32])
    parser.add_argument("--portion", type=int, default=4)
    parser.add_argument("--ways", nargs="+", choices=WAYS, default=list(WAYS))
    parser.add_argument("--results", type=Path, default=RESULTS)
    parser.add_argument("--plot", type=Path, default=PLOT)
    parser.add_argument("--again", action="store_true")
    parser.add_argument("--one", choices=WAYS, help=argparse.SUPPRESS)  # what the processes are started with
    return parser.parse_args()


def one(size: str, way: str, batch: int, portion: int) -> dict[str, Any]:
    """One step in this process, with AdamW's moments in place as in all steps but the first."""
    options: dict[str, Any] = {"checkpoint_activations": way in ("checkpointed", "both")}
    if way in ("cached", "both"):
        options["micro_batch"] = portion
    stepper = Stepper(config_of(size, **options), batch)
    stepper.allocate_moments()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with most_in_use() as in_use:
        cpu, wall = stepper.timed(stepper.draws(0))
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    assert peak > before, "the step must be what needs most"
    found = {"peak_gb": peak * 1024 / 1e9, "in_use_gb": max(in_use, default=None)}
    return {**found, "cpu_seconds": cpu, "seconds": wall, "state_gb": stepper.state_gb}


class Mallinfo(ctypes.Structure):
    """glibc's `struct mallinfo2`."""

    _fields_ = [(name, ctypes.c_size_t) for name in (
        "arena", "ordblks", "smblks", "hblks", "hblkhd", "usmblks", "fsmblks", "uordblks", "fordblks", "keepcost",
    )]  # fmt: skip


@contextmanager
def most_in_use() -> Iterator[list[float]]:
    """GB in use, some times a second while the block runs; nothing where the C library does not tell."""
    library, found, done = ctypes.CDLL(None), [], threading.Event()
    if not hasattr(library, "mallinfo2"):
        yield found
        return
    library.mallinfo2.restype = Mallinfo

    def look() -> None:
        while not done.wait(0.1):
            info = library.mallinfo2()
            found.append((info.uordblks + info.hblkhd) / 1e9)

    watcher = threading.Thread(target=look)
    watcher.start()
    yield found
    done.set()
    watcher.join()


def available_gb() -> float:
    text = Path("/proc/meminfo").read_text()
    return int(text.split("MemAvailable:")[1].split()[0]) * 1024 / 1e9


def started(args: argparse.Namespace, way: str, batch: int) -> dict[str, Any]:
    """The same in a fresh process: memory that an earlier step needed would count."""
    if way == "whole" and 4 + CLIP_GB[args.size] * batch > 0.9 * available_gb():
        return {"left_out": f"would not fit into {available_gb():.0f} GB"}
    command = [sys.executable, __file__, "--one", way, "--size", args.size, "--batches", str(batch)]
    command += ["--portion", str(args.portion)]
    return json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout)  # type: ignore[no-any-return]


def plot(record: dict[str, Any], path: Path) -> None:
    names = {"whole": "whole batch", "checkpointed": "activation checkpointing",
             "cached": f"gradient cache, portions of {record['portion']}", "both": "both"}  # fmt: skip
    series = {}
    for way, runs in record["ways"].items():
        held = {int(b): run["peak_gb"] for b, run in runs.items() if "peak_gb" in run}
        series[names[way]] = (sorted(held), [held[b] for b in sorted(held)])
    figure = new_figure(6.4, 3.8)
    axis = figure.add_subplot()
    curves(axis, series, "clips of a step", "peak memory, GB")
    axis.axhline(record["state_gb"], color="#606060", linestyle="--", linewidth=1)
    axis.annotate("parameters, gradients, optimiser", (1, record["state_gb"]), xycoords=("axes fraction", "data"),
                  xytext=(-4, -11), textcoords="offset points", ha="right", fontsize=8, color="#606060")  # fmt: skip
    axis.set_xticks(record["batches"])
    axis.set_ylim(bottom=0)
    save(figure, path)


def main() -> None:
    args = arguments()
    if args.one:
        print(json.dumps(one(args.size, args.one, args.batches[0], args.portion)))
        return
    record = json.loads(args.results.read_text()) if args.results.exists() and not args.again else {"ways": {}}
    facts = {"size": args.size, "portion": args.portion}
    if record["ways"] and any(record[k] != v for k, v in facts.items()):
        raise SystemExit(f"{args.results} holds other settings; use --again")
    for way in args.ways:
        runs = record["ways"].setdefault(way, {})
        for batch in args.batches:
            if "peak_gb" in runs.get(str(batch), {}):
                continue
            runs[str(batch)] = started(args, way, batch)
            print(f"{way}, {batch} clips: {runs[str(batch)]}", flush=True)
            state = [r["state_gb"] for way in record["ways"].values() for r in way.values() if "state_gb" in r]
            record |= {**facts, "batches": args.batches, "state_gb": state[0] if state else 0.0}
            write_json(args.results, {**record, "provenance": provenance()})
    if args.results == RESULTS:
        plot(record, args.plot)


if __name__ == "__main__":
    main()
