"""Writes the tables of README.md and docs/ from the results files: no figure there is typed by hand.

python benchmarks/tables.py           # rewrites the blocks between <!-- table:NAME --> and <!-- /table -->
python benchmarks/tables.py --check   # only says whether they are up to date
"""

from __future__ import annotations

import inspect
import json
import re
import statistics
import sys
import types
import typing
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import ablation_tables
import estimates
import robustness_tables
import speed_tables

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks" / "results"
MARKS = {"above": " ↑", "below": " ↓", "level with": " ="}
BLOCK = re.compile(r"(<!-- table:(\w+) -->\n).*?(<!-- /table -->)", re.DOTALL)


def markdown(header: list[str], rows: list[list[str]]) -> str:
    lines = ["| " + " | ".join(header) + " |", "|" + "---|" * len(header)]
    return "\n".join([*lines, *("| " + " | ".join(row) + " |" for row in rows)])


def label(name: str) -> str:
    """A key of older results files in the words of the pages."""
    for old, new in (("picture", "frame"), ("sound", "audio"), ("things", "objects")):
        name = name.replace(old, new)
    return name


def origin(record: dict[str, Any]) -> str:
    made = record["provenance"]
    return f"{made['cores']} cores of {made['cpu']}, torch {made['torch']}, commit {made['commit']}, {made['utc'][:10]}"


def together(records: list[dict[str, Any]]) -> str:
    """Where many records come from, what they share said once."""
    made = [record["provenance"] for record in records]
    machines = sorted({f"{m['cores']} cores of {m['cpu']}, torch {m['torch']}" for m in made})
    days, commits = sorted({m["utc"][:10] for m in made}), sorted({m["commit"] for m in made})
    many = "s" if len(commits) > 1 else ""
    return f"{'; '.join(machines)}, commit{many} {', '.join(commits)}, {' to '.join(sorted({days[0], days[-1]}))}"


def origins(records: dict[str, dict[str, Any]]) -> str:
    """Where several records come from: one origin each, or one for all where they agree."""
    found = {name: origin(record) for name, record in records.items()}
    alike = len(set(found.values())) == 1
    return next(iter(found.values())) if alike else "; ".join(f"{name}: {text}" for name, text in found.items())


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
    released = r["released"]
    slow = "-".join(f"{v:g}" for v in released["cpu_seconds"])
    rows = [
        ["CPU-seconds per step", f"{r['cpu_seconds']['16']:.1f}", slow],
        ["share of a plain matrix product's speed", f"{r['share_of_gemm']:.2f}", ""],
        ["peak memory, GB", f"{r['peak_gb']:.1f}", f"{released['peak_gb']}"],
        ["cost of S = 16 beside S = 1, the branch alone", f"{r['cost_of_s16_percent']:+.2f} % of a step", ""],
    ]
    if "activations_gb" in r:
        rows.insert(3, ["of that, kept for the gradient", f"{r['activations_gb']:.2f}", ""])
    return markdown(["base model, batch 4, float32", "equiav", "released code"], rows) + f"\n\n{origin(r)}."


def variants(name: str) -> str:
    header, rows, note, records = ablation_tables.variants(name)
    made = together(records)
    return markdown(header, rows) + f"\n\n{note} {made}." if rows else "Not run yet."


def hypotheses() -> str:
    header, rows, note = ablation_tables.hypotheses()
    return markdown(header, rows) + f"\n\n{note}"


def ratios() -> str:
    header, rows, note = ablation_tables.ratios()
    return markdown(header, rows) + f"\n\n{note}"


def paired(*records: dict[str, Any]) -> str:
    rows = []
    for r in records:
        for seed, run in r["seeds"].items():
            ways = [run["test"][way] for way in ("audio_to_video", "video_to_audio")]
            values = [f"{w[k]:.1f}" for w in ways for k in ("P@1", "P@10", "mAP", "chance")]
            rows.append([Path(r["recipe"]).stem, seed, f"{run['seconds'] / 60:.1f}", *values])
    header = ["recipe", "seed", "minutes"]
    header += [f"{way} {k}" for way in ("A->V", "V->A") for k in ("P@1", "P@10", "mAP", "chance")]
    made = origins({Path(r["recipe"]).stem: r for r in records})
    return markdown(header, rows) + f"\n\nHeld-out sounds and images, per cent, by class. {made}."


def prepare(r: dict[str, Any]) -> str:
    rows = [
        [name, f"{rate:.1f}", f"{r['times_as_fast'][name]:.2f}"] for name, rate in r["clips_per_cpu_second"].items()
    ]
    header = [f"{r['clips']} clips of real videos", "clips per CPU-second", "CPU time beside equiav's"]
    return markdown(header, rows) + f"\n\n{origin(r)}."


def loader(r: dict[str, Any]) -> str:
    rows = [[label(name), f"{value:.2f}"] for name, value in r["pieces"].items()]
    rows += [["**all**", f"**{r['total']:.1f}**"], ["released loader", f"{r['released']:.0f}"]]
    others = r.get("other_filter_banks", {})
    rows += [[f"the filter bank alone: {name}", f"{other['cpu_ms']:.1f}"] for name, other in others.items()]
    apart = max((other["largest_difference"] for other in others.values()), default=0.0)
    note = f"Sounds of {r['seconds_of_sound']:.1f} s on average. "
    note += f"The filter banks differ by at most {apart:.0e} in log energies. " if others else ""
    return markdown(["from shards to encoder inputs", "CPU-ms per sample"], rows) + f"\n\n{note}{origin(r)}."


def retrieval(r: dict[str, Any]) -> str:
    slow = r["one_by_one"]
    rows = [
        ["equiav", f"{r['cpu']:.3f}", f"{r['wall']:.3f}"],
        [f"one pair at a time, same run, scaled from {slow['clips']} clips", f"{slow['scaled_to_all']:.0f}", ""],
        ["released code", f"{r['released']:.0f}", ""],
    ]
    header = [f"ranks of {r['clips']} x {r['clips']} embeddings, both directions", "CPU-seconds", "seconds, quickest"]
    return markdown(header, rows) + f"\n\nEmbeddings {r['width']} wide, one thread. {origin(r)}."


def search(*records: dict[str, Any]) -> str:
    rows = []
    for r, noise, run in ((one, *item) for one in records for item in one["noise"].items()):
        made, default = run["build"], run["search"]["default"]
        rows.append([
            f"{r['count']:,}", noise, f"{made['cpu_seconds'] / 60:.1f}", f"{made['peak_anonymous_mb']:.0f}",
            f"{made['compressed_mb']:.0f}",
            f"{default['p50_ms']:.1f}", f"{default['p95_ms']:.1f}", f"{default['p50_cpu_ms']:.1f}",
            f"{default['recall_at_10']:.3f}",
        ])  # fmt: skip
    header = ["vectors", "noise", "build, CPU-min", "memory while building, MB", "compressed index, MB"]
    header += ["p50, ms", "p95, ms", "CPU p50, ms", "recall@10"]
    return markdown(header, rows) + (
        f"\n\nVectors of {r['width']} ({records[0]['raw_mb']:.0f} MB a million as float32) in clusters of about "
        f"{r['per_cluster']}, default settings, searched on one core. Memory is the process's anonymous resident "
        "memory; the compressed index is what a search holds, beside what it looks up; p50 and p95 are by the clock. "
        f"FAISS {r['provenance']['faiss']}, {origins({format(r['count'], ','): r for r in records})}."
    )


def search_sizes(r: dict[str, Any]) -> str:
    rows = [
        [f"{int(count):,}", *(f"{found[way]['p50_cpu_ms']:.1f}" for way in ("exact", "compressed")),
         f"{found['compressed']['recall_at_10']:.3f}"]
        for count, found in r.get("sizes", {}).items()
    ]  # fmt: skip
    if not rows:
        return "Not run yet."
    header = ["vectors", "every vector compared, CPU p50, ms", "compressed index, CPU p50, ms", "its recall@10"]
    return markdown(header, rows) + f"\n\nNoise {list(r['noise'])[-1]}, otherwise as above. {origin(r)}."


def rivals(r: dict[str, Any]) -> str:
    return "\n\n".join(one_size_of_rivals(r[count]) for count in sorted(r, key=int, reverse=True))


def one_size_of_rivals(r: dict[str, Any]) -> str:
    rows = []
    for noise, libraries in r["noise"].items():
        for name, found in libraries.items():
            ways = [(name, found["held_out"])]
            if "default" in found:
                ways.append((f"{name}, default settings", found["default"]))
            for way, of in ways:
                rows.append([
                    noise, way, f"{found['build']['cpu_seconds'] / 60:.1f}", f"{found['memory_mb']:.0f}",
                    f"{of['p50_cpu_ms']:.2f}", f"{of['p95_cpu_ms']:.2f}", f"{of['p50_ms']:.2f}", f"{of['p95_ms']:.2f}",
                    f"{of['recall_at_10']:.3f}" + ("" if found["reached"] else " (not reached)"),
                ])  # fmt: skip
    header = ["noise", "library", "build, CPU-min", "memory while searching, MB"]
    header += ["CPU p50, ms", "CPU p95, ms", "p50, ms", "p95, ms", "recall@10"]
    every = {name: row for libraries in r["noise"].values() for name, row in libraries.items()}
    graphs = "; ".join(f"{name} {g[0]} links, effort {g[1]}" for name, row in every.items() if (g := row["graph"]))
    made = next(iter(every.values()))["provenance"]
    return markdown(header, rows) + (
        f"\n\n{r['count']:,} vectors of {r['width']} ({r['raw_mb']:.0f} MB as float32), one core. Each library looks "
        f"as far as the first power of two that gives a recall of {r['wanted_recall']} on tuning queries, unless "
        f"default settings are named; stated is what other queries gave. Graphs: {graphs}. A search of equiav includes "
        "reading what is known of the results. "
        f"hnswlib {made['hnswlib']}, usearch {made['usearch']}, FAISS {made['faiss-cpu']}, "
        f"{together([row for libraries in r['noise'].values() for row in libraries.values()])}."
    )


def glance(
    step: dict[str, Any],
    inputs: dict[str, Any],
    made: dict[str, Any],
    searched: dict[str, Any] | None = None,
) -> str:
    """What a reader wants to know first: equiav beside what they would use instead."""
    cpu, slow = step["cpu_seconds"]["16"], step["released"]["cpu_seconds"]
    name, released = "ffmpeg, one call", "released code"
    ratios = [f"{seconds / cpu:.1f}" for seconds in (min(slow), max(slow))]
    rows = [
        ["a training step, base model, batch 4", f"{cpu:.1f} CPU-s", released, " to ".join(ratios)],
        ["a training sample, from shards to encoder inputs", f"{inputs['total']:.1f} CPU-ms", released,
         f"{inputs['released'] / inputs['total']:.0f}"],
        ["a clip cut from a video, ready for training, start-up not counted",
         f"{1000 / made['clips_per_cpu_second']['equiav']:.0f} CPU-ms", name, f"{made['times_as_fast'][name]:.1f}"],
    ]  # fmt: skip
    for size in sorted((searched or {}).values(), key=lambda size: int(size["count"]), reverse=True):
        reached = {noise: {k: v for k, v in of.items() if v["reached"]} for noise, of in size["noise"].items()}
        shared = {noise: of for noise, of in reached.items() if "equiav" in of}
        for rival in dict.fromkeys(name for of in shared.values() for name in of if name != "equiav"):
            met = {noise: of for noise, of in shared.items() if rival in of}
            ours, theirs = ([of[name] for of in met.values()] for name in ("equiav", rival))
            ways = {"tuned": "held_out", "default": "default"}
            found = {name: [row[way]["p50_cpu_ms"] for row in ours] for name, way in ways.items()}
            times = [row["held_out"]["p50_cpu_ms"] for row in theirs]
            faster = {name: [b / a for a, b in zip(of, times, strict=True)] for name, of in found.items()}
            noises = f"noise {' and '.join(met)}"
            rows.append([
                f"a search of {size['count']:,} vectors, {noises}: tuned / default",
                " / ".join(_span(of, 2) for of in found.values()) + " CPU-ms",
                f"{rival}, tuned: {_span(times, 2)} CPU-ms", " / ".join(_span(of, 1) for of in faster.values()),
            ])  # fmt: skip
    return markdown(["", "equiav", "compared with", "times as fast"], rows)


def _span(values: list[float], digits: int) -> str:
    return " to ".join(sorted({f"{value:.{digits}f}" for value in (min(values), max(values))}, key=float))


def before_after(r: dict[str, Any]) -> str:
    """CPU time beside the first complete version."""
    rows = []
    for name, of in r["compared"].items():
        what, _, unit = name.replace("p50 ms", "p50, ms").rpartition(", ")
        values = [statistics.median(of["values"][side]) for side in ("before", "after")]
        turns = str(len(of["values"]["after"]))
        rows.append([f"{what}, CPU-{unit}", *(f"{value:.2f}" for value in values), f"{of['ratio']:.2f}", turns])
    (before,) = {of["before"] for of in r["compared"].values()}
    note = f"Medians. Before: commit {before}; after: {together(list(r['compared'].values()))}. Both in one run."
    return markdown(["", "before", "after", "ratio", "turns"], rows) + f"\n\n{note}"


def bridge(r: dict[str, Any]) -> str:
    names = {
        ("trained along", "text"): "a text branch, trained along",
        ("bridge", "text"): "a bridge",
        ("searched scenes", "text"): "a bridge, fitted on the searched scenes",
        ("model with text", "text"): "a bridge to the model that was trained with text",
        ("shuffled", "text"): "a bridge, pairs shuffled",
        ("frame", "frame"): "bound: the scene's own frame in the place of the text",
        ("bridge", "frame"): "bound: the same frame through the small CLIP and the map",
        ("small CLIP itself", "text"): "bound: the small CLIP's own text and frames",
    }
    ways = {"text_to_audio": "text to audio R@10", "text_to_visual": "text to video R@10"}
    rows = []
    for (key, kind), name in names.items():
        found = [r["mean"].get(key, {}).get(f"{kind}_to_{m}") for m in ("audio", "visual")]
        if found != [None, None]:
            rows.append([name, *("" if value is None else f"{value:.1f}" for value in found)])
    chance = f"{r['seeds'][0]['chance']:.1f}"
    rows.append(["chance", chance, chance])
    share = " and ".join(f"{100 * r['share'][way]:.0f} %" for way in ways)
    return markdown(["", *ways.values()], rows) + (
        f"\n\nMeans of {len(r['seeds'])} seeds, among {r['seeds'][0]['clips']:,} unseen scenes; the bridge was fitted "
        f"on {r['settings']['own']:,} others, and reaches {share} of what the branch does. {origin(r)}."
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
    """Means over seeds; marks say how many seeds have the true vector ahead, level, behind."""
    runs = list(r["seeds"].values())

    def mean(pick: Callable[[dict[str, Any]], float]) -> str:
        return f"{sum(pick(run) for run in runs) / len(runs):.3f}"

    def beside(m: str, name: str, k: str) -> str:
        marks = "".join(MARKS[run["augmentations"][m][name][k]["true_is"]].strip() for run in runs)
        return f"{mean(lambda run: run['augmentations'][m][name][k]['mean'])} {marks}"

    rows = []
    for m, parts in runs[0]["augmentations"].items():
        whole = [
            mean(lambda run, m=m, k=k: run["similarity"][m][k]["mean"]) for k in ("true", "identity", "another_draw")
        ]
        first = ", ".join(f"{run['ranking'][m]['first']:.0f}" for run in runs)
        rows.append([f"**{m}, all together**", f"**{whole[0]}**", *whole[1:], "", first])
        for name in parts:
            true = mean(lambda run, m=m, name=name: run["augmentations"][m][name]["true"])
            rows.append([f"{m}, {name}", true, *(beside(m, name, k) for k in ("identity", "redrawn", "left_out")), ""])
    header = ["augmentation", "true vector", "identity", "redrawn", "left out", "finds its view first, %"]
    return markdown(header, rows) + (
        f"\n\nMean cosines of {len(runs)} seeds, {runs[0]['clips']} held-out clips each, "
        f"{runs[0]['draws']} draws a clip; chance of finding the view first "
        f"{runs[0]['ranking']['audio']['chance_first']:.1f} %. One mark per seed: ↑ the true vector is ahead, "
        f"↓ behind, = level within the 95 % interval. {origin(r)}."
    )


def localisation(r: dict[str, Any]) -> str:
    rows = []
    for seed, run in r["seeds"].items():
        for subset, found in run["test"].items():
            ahead = found["ahead_of_other_sound"]
            points = [f"{found[name]['pointing']:.1f}" for name in ("sound", "other sound", "centre")]
            ious = [f"{found[name]['adaptive_iou']:.1f}" for name in ("sound", "other sound", "centre")]
            told = f"{ahead['mean']:+.1f} ({ahead['low']:+.1f} to {ahead['high']:+.1f})"
            rows.append([seed, f"{label(subset)} ({found['sound']['pictures']})", *points, told, *ious])
    header = ["seed", "held-out scenes", "points into the box, %: own audio", "another scene's audio", "centre prior"]
    header += ["own above other (95 %)", "area-adaptive IoU, %: own", "another's", "centre"]
    method = next(iter(r["seeds"].values()))["method"]
    said = f"The demo's recipe at that commit, method {method}, test scenes of the world. {origin(r)}."
    return f"{markdown(header, rows)}\n\n{said}"


def methods(r: dict[str, Any]) -> str:
    rows = []
    for method in next(iter(r["seeds"].values()))["validation"]:
        for subset in ("all", "with silent things"):
            found = [run["validation"][method][subset] for run in r["seeds"].values()]
            values = [", ".join(f"{f[name]['pointing']:.1f}" for f in found) for name in ("sound", "other sound")]
            rows.append([method, label(subset), *values])
    header = ["method", "validation scenes", "points into the box, %: own audio", "another scene's audio"]
    return markdown(header, rows) + f"\n\nOne figure per seed. {origin(r)}."


def finetune(r: dict[str, Any]) -> str:
    rows = []
    for name, part in r.items():
        groups: dict[str, list[float]] = {}
        for key, run in sorted(part["runs"].items()):
            groups.setdefault(key.rpartition("/")[0], []).append(run["metrics"][part["metric"]])
        for key, values in groups.items():
            start, mode = key.split("/")
            mean = sum(values) / len(values)
            rows.append([name, mode, start, part["metric"], ", ".join(f"{v:.1f}" for v in values), f"{mean:.1f}"])
    header = ["data", "classifier", "start", "metric, test", "by seed", "mean"]
    return markdown(header, rows) + f"\n\nEqual epochs from a checkpoint and from scratch. {origins(r)}."


def library(r: dict[str, Any]) -> str:
    rows = []
    for way in ("sound to picture", "picture to sound", "sound to sound", "picture to picture"):
        found = [run[way] for run in r["seeds"].values()]
        rows.append(
            [
                label(way),
                *(", ".join(f"{f[k]:.1f}" for f in found) for k in ("P@1", "P@5")),
                f"{found[0]['chance']:.1f}",
            ]
        )
    some = next(iter(r["seeds"].values()))["sound to picture"]
    return markdown(["query and what is searched", "P@1, % by seed", "P@5, % by seed", "chance"], rows) + (
        f"\n\n{some['queries']} queries among {some['labelled']} labelled videos, {some['classes']} classes with more "
        f"than one. {origin(r)}."
    )


def serve(page: dict[str, Any], api: dict[str, Any]) -> str:
    loads, fuzz = (page["load"], api), page["fuzz"]
    rows = [
        ["answered", *(f"{load['outcomes']['complete']:,}" for load in loads)],
        ["refused because the queue was full, as stated", *(str(load["outcomes"].get("refused", 0)) for load in loads)],
        ["any other error", *(str(len(load["bad"])) for load in loads)],
        ["seconds to an answer, p50", *(f"{load['answer_seconds']['p50']:.1f}" for load in loads)],
        ["seconds to an answer, p95", *(f"{load['answer_seconds']['p95']:.1f}" for load in loads)],
        ["memory in the middle, MB", *(f"{load['memory_mb']['middle_third']:.0f}" for load in loads)],
        ["memory at the end, MB", *(f"{load['memory_mb']['last_third']:.0f}" for load in loads)],
        [f"{fuzz['uploads']} fuzzed uploads: tracebacks to the client", str(fuzz["tracebacks"]), ""],
        ["files left behind", str(fuzz["files_left"]), ""],
    ]
    header = [f"{api['clients']} clients for {api['seconds']} s", "page", "HTTP API"]
    return markdown(header, rows) + f"\n\n{origins({'page': page, 'HTTP API': api})}."


def estimate_training(*records: dict[str, Any]) -> str:
    return markdown(["AudioSet-2M, base model", "arithmetic", ""], estimates.training(*records))


def estimate_collection(*records: dict[str, Any]) -> str:
    return markdown(["a hundred million clips", "arithmetic", ""], estimates.collection(*records))


def about_speed(make: Callable[..., speed_tables.Made]) -> Callable[..., str]:
    """A table of speed_tables, with the origin of its first record."""

    def table(r: dict[str, Any], *others: dict[str, Any]) -> str:
        header, rows, note = make(r, *others)
        if not rows:
            return "Not run yet."
        picture = speed_tables.PICTURES.get(make.__name__)
        said = f"{note} {origin(r)}.".lstrip()
        return "\n\n".join([markdown(header, rows), said, *([picture] if picture else [])])

    return table


def recipe_keys() -> str:
    """Every section of a recipe: what it is for, its keys, their values and defaults."""
    from equiav import config

    places: dict[str, list[type[config.Section]]] = {}
    for section in typing.get_args(typing.get_args(config.DataConfig)[0]):
        places.setdefault("data", []).append(typing.get_args(section)[0])
    places["modalities.NAME"] = [config.ModalityConfig]
    for place, section in nested(config.Config):
        if all(section not in known for known in places.values()):  # encoders of one modality are like the shared one
            places[place] = [section]
    parts = []
    for place, sections in places.items():
        for section in sections:
            kind = section.model_fields["kind"].default if len(sections) > 1 else ""
            title = f"## {place}" + (f", kind {kind if isinstance(kind, str) else 'module:attribute'}" if kind else "")
            rows = [
                [f"`{key}`", values_of(field.annotation), default_of(field)]
                for key, field in section.model_fields.items() if not isinstance(field.default, config.Section)
            ]  # fmt: skip
            parts += [title, inspect.getdoc(section) or "", markdown(["key", "values", "default"], rows)]
    return "\n\n".join(parts)


def nested(section: Any, place: str = "") -> Iterator[tuple[str, Any]]:
    """The sections inside a section, with their places, data and further modalities apart."""
    from equiav.config import Section

    for key, field in section.model_fields.items():
        for part in (field.annotation, *typing.get_args(field.annotation)):
            if key not in ("data", "modalities") and isinstance(part, type) and issubclass(part, Section):
                if not all(isinstance(inner.default, Section) for inner in part.model_fields.values()):
                    yield f"{place}{key}", part
                yield from nested(part, f"{place}{key}.")


def values_of(annotation: Any) -> str:
    """The values of a key, in words."""
    if isinstance(annotation, types.UnionType) or typing.get_origin(annotation) is typing.Union:
        return " or ".join(values_of(part) for part in typing.get_args(annotation))
    if typing.get_origin(annotation) is typing.Annotated:
        return values_of(typing.get_args(annotation)[0])
    if typing.get_origin(annotation) is typing.Literal:
        return ", ".join(f"`{value}`" for value in typing.get_args(annotation))
    if typing.get_origin(annotation) is tuple:
        first, *others = typing.get_args(annotation)
        return f"list of {values_of(first)}" if others == [...] else f"{1 + len(others)} numbers"
    words = {bool: "`true`, `false`", int: "integer", float: "number", str: "text", type(None): "`null`"}
    return words.get(annotation, "mapping")


def default_of(field: Any) -> str:
    if field.is_required():
        return "needed"
    value = field.get_default(call_default_factory=True)
    return f"`{value}`" if isinstance(value, str) else f"`{json.dumps(value)}`"


TABLES: dict[str, tuple[tuple[str, ...], Callable[..., str]]] = {
    "augment": (("augment.json",), augment),
    "training_step": (("training_step.json",), training_step),
    "step_parts": (("training_step.json",), about_speed(speed_tables.step_parts)),
    "compile": (("compile.json",), about_speed(speed_tables.compiled)),
    "memory": (("memory.json", "memory_cached.json"), about_speed(speed_tables.memory)),
    "small_step": (("small_step.json",), about_speed(speed_tables.small_step)),
    "token_speed": (("token_dropping.json",), about_speed(speed_tables.token_speed)),
    "token_store": (("token_store.json",), about_speed(speed_tables.token_store)),
    "feeding": (("feeding.json",), about_speed(speed_tables.feeding)),
    "scaling": (("scaling.json",), about_speed(speed_tables.scaling)),
    "index": (("index.json",), about_speed(speed_tables.index)),
    "startup": (("startup.json",), about_speed(speed_tables.startup)),
    "cost": (("cost.json",), cost),
    "prepare": (("prepare.json",), prepare),
    "loader": (("loader.json",), loader),
    "search": (("search.json", "search_large.json"), search),
    "search_sizes": (("search.json",), search_sizes),
    "bridge": (("bridge.json",), bridge),
    "rivals": (("rivals.json",), rivals),
    "glance": (("training_step.json", "loader.json", "prepare.json", "rivals.json"), glance),
    "retrieval": (("retrieval.json",), retrieval),
    "before_after": (("before_after.json",), before_after),
    "recipe_keys": ((), recipe_keys),  # from the code
    "chosen": ((), lambda: variants("rate_chosen")),
    "demo": ((), lambda: variants("demo")),
    "hypotheses": ((), hypotheses),
    "ratios": ((), ratios),
    "paired": (("class_paired.json", "av_mnist.json"), paired),
    "equivariance": (("equivariance_world.json",), equivariance),
    "equivariance_digits": (("equivariance_digits.json",), equivariance),
    "localisation": (("localisation.json",), localisation),
    "methods": (("localisation.json",), methods),
    "finetune": (("finetune.json",), finetune),
    "library": (("library.json",), library),
    "serve": (("serve.json", "serve_api.json"), serve),
    "serve_hostile": (("serve_hostile.json",), about_speed(robustness_tables.hostile)),
    "flips": (("flips.json",), about_speed(robustness_tables.flips)),
    "kills": (("kills.json",), about_speed(robustness_tables.kills)),
    "fuzz": (("fuzz.json",), about_speed(robustness_tables.fuzz)),
    "protections": (("protections.json",), about_speed(robustness_tables.protections)),
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
        body = make(*records) if records or not files else "Not run yet."
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
