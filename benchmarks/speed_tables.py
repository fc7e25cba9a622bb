"""Tables of docs/explanation/performance.md on speed, memory and size: header, rows, and what is said below."""

from __future__ import annotations

from typing import Any

Made = tuple[list[str], list[list[str]], str]
WAYS = {
    "whole": "whole batch", "checkpointed": "activation checkpointing", "cached": "gradient cache", "both": "both",
}  # fmt: skip
# They stand below their table, so that a page never names one that no run has drawn.
PICTURES = {
    "memory": "![Peak memory against the clips of a step](../images/memory.png)",
    "scaling": "![Time per clip and memory against the number of clips](../images/scaling.png)",
}


def step_parts(r: dict[str, Any]) -> Made:
    rows = [[part, f"{100 * share:.1f} %"] for part, share in r.get("where_time_goes", {}).items()]
    return ["where the time of a step goes", "share"], rows, "By torch's profiler, each operator's own time."


def compiled(r: dict[str, Any]) -> Made:
    rows = [
        [size, *(f"{run['step_cpu_seconds'][way]:.2f}" for way in ("plain", "compiled")),
         f"{run['compiled_over_plain']:.2f}", f"{run['first_step_cpu_seconds']['compiled']:.0f}"]
        for size, run in r["sizes"].items()
    ]  # fmt: skip
    header = ["model", "a step, CPU-s", "compiled", "ratio", "the first compiled step, CPU-s"]
    clips = next(iter(r["sizes"].values()))
    return header, rows, f"{clips['clips']} clips a step, medians of {clips['repeats']}, taken in turns, one thread."


def memory(r: dict[str, Any], cached: dict[str, Any] | None = None) -> Made:
    rows = []
    for way, runs in r["ways"].items():
        held = [_held(runs.get(str(n))) for n in r["batches"]]
        clip = [run["cpu_seconds"] / int(n) for n, run in runs.items() if "cpu_seconds" in run]
        rows.append([WAYS[way], *held, f"{min(clip):.1f}-{max(clip):.1f}" if clip else ""])
    header = ["peak memory of a step, GB", *(f"{n} clips" for n in r["batches"]), "CPU-s per clip"]
    note = (
        f"{r['size'].capitalize()} model; {r['state_gb']:.1f} GB of it are parameters, gradients and AdamW's moments; "
        f"the gradient cache takes portions of {r['portion']} clips. Blank: not run. "
        "The same gradients every way (`tests/training/test_memory_options.py`)."
    )
    if cached:
        runs = cached["ways"]["cached"].items()
        in_use = ", ".join(f"{run['in_use_gb']:.1f} GB of {run['peak_gb']:.1f} with {n} clips" for n, run in runs)
        note += (
            f" Of the gradient cache's peak is in use {in_use} (commit {cached['provenance']['commit']}); "
            "the rest is freed memory that the C library keeps."
        )
    return header, rows, note


def _held(run: dict[str, Any] | None) -> str:
    """A cell; blank where nothing was run."""
    if run is None:
        return ""
    return f"{run['peak_gb']:.1f}" if "peak_gb" in run else str(run["left_out"])


def token_speed(s: dict[str, Any]) -> Made:
    rows = [
        ["all", f"{s['cpu_seconds']['1.0']:.1f}", "1.00"],
        ["half", f"{s['cpu_seconds']['0.5']:.1f}", f"{s['times_as_fast']:.2f}"],
    ]
    note = f"{s['size'].capitalize()} model, batch {s['batch']}, {s['pairs']} steps of each, taking turns."
    return ["tokens kept", "CPU-seconds per step", "times as fast"], rows, note


def token_store(r: dict[str, Any]) -> Made:
    rows = [
        [name, f"{r[key]['cpu_seconds']:.1f}", f"{r['recomputed']['cpu_seconds'] / r[key]['cpu_seconds']:.1f}"]
        for name, key in (("computed in every step", "recomputed"), ("from the store", "stored"))
    ]
    note = (
        f"{r['size'].capitalize()} encoders, {r['clips']} clips of the world, one thread; filling the store "
        f"({r['store_bytes'] / 1e6:.0f} MB in float32) took {r['filling_cpu_seconds']:.0f} CPU-seconds, once. Largest "
        f"relative difference of any loss in {r['steps']} steps: {r['largest_relative_difference']:.1g}."
    )
    return ["tokens of frozen encoders", "CPU-seconds per epoch", "times as fast"], rows, note


def small_step(r: dict[str, Any]) -> Made:
    names = {"world": "the demo", "own_videos": "your own videos, 8 clips"}
    rows = [
        [name, f"{r[key]['cpu_ms']:,.0f}", *(f"{ms:.1f}" for ms in r[key]["outside_ms"].values()),
         f"{100 * r[key]['share_outside']:.1f} %"]
        for key, name in names.items()
    ]  # fmt: skip
    parts = [f"{part}, ms" for part in r["world"]["outside_ms"]]
    return ["recipe of", "a step, CPU-ms", *parts, "outside the networks"], rows, "One thread."


def feeding(r: dict[str, Any]) -> Made:
    rate = r["delivered"]["clips_per_second"]
    rows = [
        ["a step takes, s", f"{r['median_step_seconds']:.2f}"],
        ["before it, waiting for data, ms", f"{r['median_wait_ms']:.1f}"],
        ["share of the time spent waiting", f"{100 * r['share_waiting']:.2f} %"],
        ["clips a second that the workers deliver alone", f"{rate:.0f}"],
        ["shortest step of 64 clips they could keep up with, s", f"{64 / rate:.2f}"],
    ]
    return [f"{r['size']} model, batch {r['batch']}, {r['workers']} loader workers", ""], rows, ""


def scaling(r: dict[str, Any]) -> Made:
    rows = []
    for stage, runs in r["stages"].items():
        held = [run["peak_mb"] for run in runs.values()]
        rows.append([f"{stage}, CPU-ms per clip", *(f"{run['cpu_ms_per_clip']:.2f}" for run in runs.values())])
        rows.append([f"{stage}, peak memory, MB", *(f"{mb:.0f} ({mb / held[0]:.2f})" for mb in held)])
    note = f"In brackets: times the memory at {r['sizes'][0]:,} clips. "
    note += "Tiny media, a tiny model, synthetic vectors of 512: the book-keeping about the work."
    return ["clips", *(f"{n:,}" for n in r["sizes"])], rows, note


def startup(r: dict[str, Any]) -> Made:
    rows = [[f"`{name}`", f"{t['cpu_seconds']:.2f}", f"{t['seconds']:.2f}"] for name, t in r["commands"].items()]
    return ["command", "CPU-seconds", "seconds"], rows, f"Medians of {r['turns']} turns."


def index(r: dict[str, Any]) -> Made:
    """`equiav index` on one core and on two."""
    names = {"index 1": "`index`, one core", "index 2": "`index`, two cores", "prepare": "`prepare`, one core"}
    work = r["without_the_start"]
    rows = [[name, *(f"{value:.1f}" for value in work[key])] for key, name in names.items()]
    apart = r["largest_difference_of_vectors"]
    same = (
        f"the same entries, and vectors that differ by at most {apart:.0e}" if apart else "the same entries and vectors"
    )
    note = (
        f"{r['videos']} videos, {r['windows']} windows of 1.4 s; medians of {r['turns']} turns, without the "
        f"{r['seconds_and_cpu_seconds']['start 1'][0]:.0f} s that Python and torch take to start. On two cores "
        f"{r['times_as_fast_on_two_cores']:.2f} times as fast, with {same}. On one core {r['cpu_against_prepare']:.2f} "
        "times the CPU time of `prepare`."
    )
    if few := r.get("fewer_frames"):
        note += (
            f" Two frames a second in place of ten a window, by a trained model: cosine {few['cosine']:.4f} on average "
            f"and {few['cosine_least']:.3f} at least; of the first ten found "
            f"{100 * few['same_among_first_ten']:.0f} % are the same."
        )
    return ["the same videos", "seconds", "CPU-seconds"], rows, note
