"""Writes the tables of README.md and docs/ from the results files: no figure there is typed by hand.

python benchmarks/tables.py           # rewrites the blocks between <!-- table:NAME --> and <!-- /table -->
python benchmarks/tables.py --check   # only says whether they are up to date
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import estimates

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks" / "results"
MARKS = {"above": " ↑", "below": " ↓", "level with": " ="}
BLOCK = re.compile(r"(<!-- table:(\w+) -->\n).*?(<!-- /table -->)", re.DOTALL)


def markdown(header: list[str], rows: list[list[str]]) -> str:
    lines = ["| " + " | ".join(header) + " |", "|" + "---|" * len(header)]
    return "\n".join([*lines, *("| " + " | ".join(row) + " |" for row in rows)])


def origin(record: dict[str, Any]) -> str:
    made = record["provenance"]
    return f"{made['cores']} cores of {made['cpu']}, torch {made['torch']}, commit {made['commit']}, {made['utc'][:10]}"


def augment(r: dict[str, Any]) -> str:
    rows = [
        ["draw 16 vectors, both modalities", f"{r['draw']['batched']:.3f}", f"{r['draw']['one_by_one']:.1f}",
         f"{r['draw']['released']:.1f}"],
        ["apply both augmentations", f"{sum(r['apply']['batched'].values()):.1f}",
         f"{sum(r['apply']['one_by_one'].values()):.1f}", f"{r['apply']['released']:.1f}"],
    ]  # fmt: skip
    header = ["CPU-ms per sample, batch 64", "batched", "one by one, same run", "released code"]
    return markdown(header, rows) + f"\n\n{origin(r)}."


def training_step(r: dict[str, Any]) -> str:
    rows = [
        ["CPU-seconds per step", f"{r['cpu_seconds']['16']:.1f}", "46.6-55"],
        ["share of a plain matrix product's speed", f"{r['share_of_gemm']:.2f}", "0.56-0.59"],
        ["peak memory, GB", f"{r['peak_gb']:.1f}", f"{r['released']['peak_gb']}"],
        ["cost of S = 16 beside S = 1, branch alone", f"{r['cost_of_s16_percent']:+.2f} % of a step", ""],
        ["the same, whole steps", f"{r['cost_of_s16_percent_whole_steps']:+.1f} %", ""],
    ]
    return markdown(["base model, batch 4, float32", "equiav", "released code"], rows) + f"\n\n{origin(r)}."


def world(r: dict[str, Any]) -> str:
    rows = []
    for name, run in r["runs"].items():
        values = [f"{run[f'{way}/R@{k}'][-1]:.1f}" for way in ("audio_to_video", "video_to_audio") for k in (1, 5, 10)]
        rows.append([name, str(run["step"][-1]), f"{run['seconds'] / 60:.1f}", *values])
    ways = [f"{way} R@{k}" for way in ("A->V", "V->A") for k in (1, 5, 10)]
    return markdown(["objective", "steps", "minutes", *ways], rows) + f"\n\nOne seed. {origin(r)}."


def paired(*records: dict[str, Any]) -> str:
    rows = []
    for r in records:
        for seed, run in r["seeds"].items():
            ways = [run["test"][way] for way in ("audio_to_video", "video_to_audio")]
            values = [f"{w[k]:.1f}" for w in ways for k in ("P@1", "P@10", "mAP", "chance")]
            rows.append([Path(r["recipe"]).stem, seed, f"{run['seconds'] / 60:.1f}", *values])
    header = ["recipe", "seed", "minutes"]
    header += [f"{way} {k}" for way in ("A->V", "V->A") for k in ("P@1", "P@10", "mAP", "chance")]
    return markdown(header, rows) + f"\n\nHeld-out sounds and images, per cent, by class. {origin(records[0])}."


def prepare(r: dict[str, Any]) -> str:
    rows = [
        [name, f"{rate:.1f}", f"{r['times_as_fast'][name]:.2f}"] for name, rate in r["clips_per_cpu_second"].items()
    ]
    header = [f"{r['clips']} clips of real videos", "clips per CPU-second", "CPU time beside equiav's"]
    return markdown(header, rows) + f"\n\n{origin(r)}."


def loader(r: dict[str, Any]) -> str:
    rows = [[name, f"{value:.2f}"] for name, value in r["pieces"].items()]
    rows += [["**all**", f"**{r['total']:.1f}**"], ["released loader", f"{r['released']:.0f}"]]
    return markdown(["from shards to encoder inputs", "CPU-ms per sample"], rows) + f"\n\n{origin(r)}."


def retrieval(r: dict[str, Any]) -> str:
    slow = r["one_by_one"]
    rows = [
        ["equiav", f"{r['cpu']:.3f}", f"{r['wall']:.3f}"],
        [f"one pair at a time, same run, scaled from {slow['clips']} clips", f"{slow['scaled_to_all']:.0f}", ""],
        ["released code", f"{r['released']:.0f}", ""],
    ]
    header = [f"ranks of {r['clips']} x {r['clips']} embeddings, both directions", "CPU-seconds", "seconds, quickest"]
    return markdown(header, rows) + f"\n\nEmbeddings {r['width']} wide, one thread. {origin(r)}."


def search(r: dict[str, Any]) -> str:
    rows = []
    for noise, run in r["noise"].items():
        made, found, default = run["build"], run["search"], run["search"]["default"]
        rows.append([
            noise, f"{made['cpu_seconds'] / 60:.1f}", f"{made['peak_anonymous_mb']:.0f}",
            f"{found['anonymous_mb']:.0f}",
            f"{default['p50_ms']:.1f}", f"{default['p95_ms']:.1f}", f"{default['p50_cpu_ms']:.1f}",
            f"{default['recall_at_10']:.3f}",
        ])  # fmt: skip
    header = ["noise", "build, CPU-min", "memory while building, MB", "memory while searching, MB"]
    header += ["p50, ms", "p95, ms", "CPU p50, ms", "recall@10"]
    return markdown(header, rows) + (
        f"\n\n{r['count']:,} vectors of {r['width']} ({r['raw_mb']:.0f} MB as float32) in clusters of about "
        f"{r['per_cluster']}, default settings, one core. Memory is the process's anonymous resident memory; p50 and "
        f"p95 are by the clock. FAISS {r['provenance']['faiss']}, {origin(r)}."
    )


def cost(r: dict[str, Any]) -> str:
    rows = []
    for m in r["modalities"]:
        paper = r["paper"]["baseline"][m["modality"]]
        rows.append([m["modality"], "baseline", f"{m['baseline_gmac']:.2f}", f"{paper:.2f}"])
        for s, value in m["increase_gmac"].items():
            theirs = r["paper"]["increase"][m["modality"]][s]
            rows.append([m["modality"], f"S = {s}", f"+{value:.2f}", f"+{theirs:.2f}"])
    return markdown(["modality", "row", "10^9 multiply-adds", "paper"], rows) + f"\n\n{r['convention']}."


def equivariance(r: dict[str, Any]) -> str:
    rows = []
    for m, parts in r["augmentations"].items():
        rank, whole = r["ranking"][m], r["similarity"][m]
        rows.append([f"**{m}, all together**", f"**{whole['true']['mean']:.3f}**", f"{whole['identity']['mean']:.3f}",
                     f"{whole['another_draw']['mean']:.3f}", "", f"{rank['first']:.1f}"])  # fmt: skip
        for name, part in parts.items():
            given = [f"{part[k]['mean']:.3f}{MARKS[part[k]['true_is']]}" for k in ("identity", "redrawn", "left_out")]
            rows.append([f"{m}, {name}", f"{part['true']:.3f}", *given, ""])
    header = ["augmentation", "true vector", "identity", "redrawn", "left out", "finds its view first, %"]
    return markdown(header, rows) + (
        f"\n\nCosines over {r['clips']} held-out scenes of the world, {r['draws']} draws each; chance of finding the "
        f"view first {r['ranking']['audio']['chance_first']:.1f} %. ↑ the true vector is ahead, ↓ behind, = level "
        f"within the 95 % interval. {origin(r)}."
    )


def localisation(r: dict[str, Any]) -> str:
    rows = []
    for subset, found in r["localisation"].items():
        for name in ("sound", "other sound", "centre"):
            ahead = found.get(f"ahead_of_{name.replace(' ', '_')}")
            told = f"{ahead['mean']:+.1f} ({ahead['low']:+.1f} to {ahead['high']:+.1f})" if ahead else ""
            rows.append([f"{subset}, {found[name]['pictures']} scenes", name, f"{found[name]['pointing']:.1f}", told])
    header = ["scenes", "map made of", "points into the box, %", "its own sound is ahead by (95 %)"]
    return markdown(header, rows) + f"\n\nMethod {r['method']}, {r['split']} scenes of the world. {origin(r)}."


def estimate_training(*records: dict[str, Any]) -> str:
    return markdown(["AudioSet-2M, base model", "arithmetic", ""], estimates.training(*records))


def estimate_collection(*records: dict[str, Any]) -> str:
    return markdown(["a hundred million clips", "arithmetic", ""], estimates.collection(*records))


TABLES: dict[str, tuple[tuple[str, ...], Callable[..., str]]] = {
    "augment": (("augment.json",), augment),
    "training_step": (("training_step.json",), training_step),
    "world": (("world_curves.json",), world),
    "cost": (("cost.json",), cost),
    "prepare": (("prepare.json",), prepare),
    "loader": (("loader.json",), loader),
    "search": (("search.json",), search),
    "retrieval": (("retrieval.json",), retrieval),
    "paired": (("class_paired.json", "av_mnist.json"), paired),
    "equivariance": (("equivariance_world.json",), equivariance),
    "localisation": (("localisation_world.json",), localisation),
    "estimate_training": (
        ("training_step.json", "loader.json", "prepare.json", "storage.json"),
        estimate_training,
    ),
    "estimate_collection": (("cost.json", "prepare.json", "storage.json"), estimate_collection),
}


def rendered(text: str) -> str:
    """The text with every block made anew; blocks without results say so."""

    def block(match: re.Match[str]) -> str:
        files, make = TABLES[match[2]]
        records = [json.loads((RESULTS / file).read_text()) for file in files if (RESULTS / file).exists()]
        body = make(*records) if records else "Not run yet."
        return f"{match[1]}{body}\n{match[3]}"

    return BLOCK.sub(block, text)


def pages() -> list[Path]:
    return [ROOT / "README.md", ROOT / "PAPER.md", *sorted((ROOT / "docs").rglob("*.md"))]


def main() -> None:
    stale = [path for path in pages() if rendered(path.read_text()) != path.read_text()]
    if "--check" in sys.argv:
        print("\n".join(f"out of date: {path.relative_to(ROOT)}" for path in stale) or "tables are up to date")
        sys.exit(bool(stale))
    for path in stale:
        path.write_text(rendered(path.read_text()))
        print(f"written: {path.relative_to(ROOT)}")


if __name__ == "__main__":
    main()
