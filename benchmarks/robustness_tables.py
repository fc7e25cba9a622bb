"""Tables of docs/security.md: what was tried against the program, and what protection costs."""

from __future__ import annotations

from typing import Any

Made = tuple[list[str], list[list[str]], str]


def flips(r: dict[str, Any]) -> Made:
    """Single bits flipped in every file."""
    names = ("flips", "files", "refused", "warned", "silently_wrong", "tracebacks")
    rows = [[kind, *(f"{one.get(name, 0):,}" for name in names)] for kind, one in r["folders"].items()]
    header = ["folder", "flips", "files", "refused", "warned of", "silently wrong", "tracebacks"]
    return header, rows, "The others changed nothing that is read, or `equiav verify` alone looks at it."


def kills(r: dict[str, Any]) -> Made:
    """Kills and power cuts of what writes."""
    rows = [
        [name.replace("-", " "), str(one["kills"]), str(one["power_cuts"]), str(len(one["faults"]))]
        for name, one in r["operations"].items()
    ]
    return ["what was interrupted", "SIGKILLs", "power cuts", "lost, doubled or half-written"], rows, ""


def fuzz(r: dict[str, Any]) -> Made:
    """Cases of the fuzzer by kind."""
    findings = [finding["kind"] for finding in r["findings"]]
    rows = [[kind, f"{count:,}", str(findings.count(kind))] for kind, count in r["cases"].items()]
    return ["what was changed at random", "cases", "not refused cleanly"], rows, f"{r['minutes']:g} minutes."


def hostile(r: dict[str, Any]) -> Made:
    """The page beside hostile uploads."""
    outcomes, memory, seconds = r["outcomes"], r["memory_mb"], r["answer_seconds"]
    rows = [
        [f"{r['clients']} clients for {r['seconds']} s: answered", str(outcomes.get("complete", 0))],
        ["refused because the queue was full, as stated", str(outcomes.get("refused", 0))],
        ["any other error", str(len(r["bad"]))],
        ["seconds to an answer, p50 and p95", f"{seconds['p50']:.1f} and {seconds['p95']:.1f}"],
        [
            "memory, MB: most of the page, and of its decoders",
            f"{memory['most']:.0f}, {memory['most_of_decoders']:.0f}",
        ],
        ["seconds from SIGTERM to the end", f"{r['seconds_from_sigterm_to_end']:.1f}"],
    ]
    return ["the page beside hostile uploads", ""], rows, ""


def protections(r: dict[str, Any]) -> Made:
    """Time and memory with protections and without."""
    rows = []
    for name, one in r["paths"].items():
        ways = [value for value in one.values() if isinstance(value, dict)]
        columns = (("seconds", 3), ("cpu_seconds", 2), ("memory_mb", 0))
        pairs = [" / ".join(f"{way[key]:.{digits}f}" for way in ways) for key, digits in columns]
        more = f"{one['more_cpu_seconds']:+.1%}" if min(way["cpu_seconds"] for way in ways) >= 1 else ""
        rows.append([name.replace("_", " "), *pairs, more])
    note = (
        f"A model of size {r['size']}, {r['films']} videos of 10 s; medians of {r['turns']} turns, taken alternately."
    )
    return ["with / without", "seconds", "CPU-seconds", "memory, MB", "more CPU time"], rows, note
