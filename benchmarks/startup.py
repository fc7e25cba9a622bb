"""How long `equiav --help` takes, beside Python alone and beside importing torch.

python benchmarks/startup.py        # half a minute; writes results/startup.json
"""

from __future__ import annotations

import resource
import statistics
import subprocess
import sys
import time
from pathlib import Path

from equiav.io import provenance, write_json

RESULTS = Path(__file__).parent / "results" / "startup.json"
TURNS = 9
COMMANDS = {
    "python alone": ["-c", "pass"],
    "equiav --help": ["-m", "equiav.cli", "--help"],
    "import torch": ["-c", "import torch"],
}


def once(command: list[str]) -> tuple[float, float]:
    """CPU seconds and seconds of a process."""
    before, start = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    subprocess.run([sys.executable, *command], check=True, stdout=subprocess.DEVNULL)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime
    return cpu, time.perf_counter() - start


def main() -> None:
    times: dict[str, list[tuple[float, float]]] = {name: [] for name in COMMANDS}
    for _ in range(TURNS):
        for name, command in COMMANDS.items():
            times[name].append(once(command))
    medians = {
        name: {"cpu_seconds": statistics.median(t[0] for t in runs), "seconds": statistics.median(t[1] for t in runs)}
        for name, runs in times.items()
    }
    write_json(RESULTS, {"turns": TURNS, "commands": medians, "provenance": provenance()})
    print(medians)


if __name__ == "__main__":
    main()
