"""The same work on a Ray cluster, where one machine is not enough; OUT must be on storage all machines share."""

from __future__ import annotations

from collections.abc import Iterator
from importlib import import_module
from typing import Any

from equiav.data.cutting import Cutter, Outcome
from equiav.data.manifest import Source
from equiav.data.pool import CRASHED
from equiav.errors import DataError

IN_FLIGHT = 4  # tasks waiting for each processor: enough to keep it busy, few enough to hold in memory


def run_on_ray(cutter: Cutter, jobs: list[tuple[int, Source]]) -> Iterator[Outcome]:
    """Outcomes in the order of completion; a task whose process died twice is a file left out."""
    try:
        ray: Any = import_module("ray")
    except ImportError:
        raise DataError("engine='ray' needs Ray: pip install 'equiav[ray]', or leave the engine out") from None
    if not ray.is_initialized():
        ray.init(log_to_driver=False)
    remote: Any = ray.remote(max_retries=1)(_cut)
    waiting = list(reversed(jobs))
    running: dict[Any, int] = {}
    limit = IN_FLIGHT * max(1, int(ray.cluster_resources().get("CPU", 1)))
    while waiting or running:
        while waiting and len(running) < limit:
            job = waiting.pop()
            running[remote.remote(cutter, job)] = job[0]
        ready, _ = ray.wait(list(running))
        for reference in ready:
            number = running.pop(reference)
            try:
                outcome: Outcome = ray.get(reference)
            except ray.exceptions.WorkerCrashedError:
                outcome = Outcome(number, CRASHED)
            yield outcome


def _cut(cutter: Cutter, job: tuple[int, Source]) -> Outcome:
    return cutter(job, lambda: None)
