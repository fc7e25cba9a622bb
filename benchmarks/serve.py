"""The page under load and under fire: concurrent clients, then uploads of broken files.

    python benchmarks/serve.py runs/demo                # writes results/serve.json
    python benchmarks/serve.py runs/demo --hostile      # writes results/serve_hostile.json
    python benchmarks/serve.py runs/demo --api          # writes results/serve_api.json

Load: 20 clients for 30 seconds through the page's API on loopback; the only error allowed is the refusal of a full
queue, and memory must stay flat. Fire: 300 mutated sounds, pictures and films; every one must get an answer without a
traceback, afterwards the page must still work, and no upload may be left. Hostile: 50 clients for 60 seconds while four
others upload files that would take minutes or gigabytes to decode; half of the clients use the page's API, half the
HTTP API. Then the page must end within 5 seconds of SIGTERM although files are being decoded. API: 20 clients for 30
seconds on the HTTP API; the only refusal allowed is that of a full queue, stated.
"""

from __future__ import annotations

import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from tools.corpus import film_of, huge_film, mutated, slow_jpeg

from equiav.io import provenance, write_json

RESULTS = Path(__file__).parent / "results" / "serve.json"
HOSTILE = RESULTS.with_name("serve_hostile.json")
API = RESULTS.with_name("serve_api.json")
FULL = "Queue is full"
TIMEOUT = 120.0
KEEP = 15.0  # seconds that uploads stay, where it is measured that they go


@dataclass
class Server:
    """A page in a process of its own, with a temporary folder of its own."""

    process: subprocess.Popen[str]
    address: str
    temporary: Path

    def memory(self, *, decoders: bool = False) -> float:
        """Resident megabytes of the page, or of the processes that decode for it."""
        numbers = _descendants(self.process.pid) if decoders else [self.process.pid]
        total = 0
        for number in numbers:
            with suppress(OSError):  # ended by now
                total += int(Path(f"/proc/{number}/statm").read_text().split()[1])
        return total * os.sysconf("SC_PAGE_SIZE") / 1e6

    def files(self) -> set[Path]:
        """All that lies in the temporary folder."""
        return {p for p in self.temporary.rglob("*") if p.is_file()}


def _descendants(number: int) -> list[int]:
    found: list[int] = []
    for place in Path(f"/proc/{number}/task").glob("*/children"):
        with suppress(OSError):
            for child in map(int, place.read_text().split()):
                found += [child, *_descendants(child)]
    return found


@contextmanager
def started(place: Path, *options: str) -> Iterator[Server]:
    """`equiav serve PLACE` on a free port; ended like an administrator would."""
    with tempfile.TemporaryDirectory(prefix="serve-") as folder, tempfile.TemporaryFile("w+") as log:
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "TMPDIR": folder}
        command = [sys.executable, "-m", "equiav.cli", "serve", str(place), "--port", "0", *options]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True, env=environment)
        try:
            assert process.stdout is not None
            line = process.stdout.readline()
            if "http://" not in line:
                log.seek(0)
                raise RuntimeError(f"the page did not start: {log.read()}")
            server = Server(process, line.split()[-1], Path(folder))
            _until_up(server.address)
            yield server
        finally:
            process.terminate()
            process.wait(30)
        left = sorted(p.name for p in Path(folder).iterdir())
        assert not left, f"left behind: {left}"


def _until_up(address: str) -> None:
    until = time.monotonic() + TIMEOUT
    while time.monotonic() < until:
        try:
            httpx.get(f"{address}/config", timeout=TIMEOUT).raise_for_status()
            return
        except httpx.HTTPError:
            time.sleep(0.2)
    raise RuntimeError("the page did not come up")


@dataclass(frozen=True)
class Answer:
    """How a request ended: complete, error, refused (queue full), or what else."""

    outcome: str
    text: str


def upload(client: httpx.Client, name: str, content: bytes) -> httpx.Response:
    """One file, as the page's own components send it."""
    return client.post("/gradio_api/upload", files={"files": (name, content)})


def ask(client: httpx.Client, api: str, *paths: str) -> Answer:
    """One question about uploaded files, through the queue."""
    data = [{"path": path, "meta": {"_type": "gradio.FileData"}} for path in paths]
    put = client.post(f"/gradio_api/call/{api}", json={"data": data})
    if put.status_code != 200:
        return Answer(
            "refused" if put.status_code == 503 and FULL in put.text else f"status {put.status_code}", put.text
        )
    answer = client.get(f"/gradio_api/call/{api}/{put.json()['event_id']}").text
    event = answer.partition("event: ")[2].partition("\n")[0] if "event: heartbeat" not in answer else ""
    for part in answer.split("\n\n"):
        if part.startswith(("event: complete", "event: error")):
            event = part.splitlines()[0].removeprefix("event: ")
    return Answer(event or "no answer", answer)


def send(client: httpx.Client, api: str, name: str, content: bytes) -> Answer:
    """An upload and the question about it."""
    put = upload(client, name, content)
    if put.status_code != 200:
        return Answer("not taken" if put.status_code in (400, 413, 503) else f"status {put.status_code}", put.text)
    return ask(client, api, put.json()[0])


@dataclass
class Load:
    """What many clients saw."""

    outcomes: Counter[str] = field(default_factory=Counter)
    seconds: list[float] = field(default_factory=list)
    bad: list[str] = field(default_factory=list)


def call(client: httpx.Client, api: str, name: str, content: bytes) -> Answer:
    """The same question through the HTTP API."""
    kind = {"search_by_sound": "audio", "search_by_picture": "image"}.get(api, "video")
    answer = client.post("/v1/search", data={"kind": kind}, files={"file": (name, content)})
    refused = answer.status_code == 503 and (FULL in answer.text or "Too many uploads" in answer.text)
    outcomes = {200: "complete", 422: "error"}
    return Answer(
        "refused" if refused else outcomes.get(answer.status_code, f"status {answer.status_code}"), answer.text
    )


def press(
    server: Server,
    media: dict[str, tuple[str, bytes]],
    *,
    clients: int,
    seconds: float,
    ways: Sequence[Callable[..., Answer]] = (send,),
) -> dict[str, Any]:
    """`clients` ask as fast as they get answers, for `seconds`, each in one of the `ways`; memory is sampled."""
    seen, lock = Load(), threading.Lock()
    until = time.monotonic() + seconds
    memory: list[float] = []
    decoders: list[float] = []

    def one(number: int) -> None:
        with httpx.Client(base_url=server.address, timeout=TIMEOUT) as client:
            turn = number
            while time.monotonic() < until:
                api = list(media)[turn % len(media)]
                turn += 1
                began = time.monotonic()
                try:
                    answer = ways[number % len(ways)](client, api, *media[api])
                except httpx.HTTPError as error:
                    answer = Answer(type(error).__name__, str(error))
                with lock:
                    seen.outcomes[answer.outcome] += 1
                    if answer.outcome == "complete":
                        seen.seconds.append(time.monotonic() - began)
                    elif answer.outcome != "refused":
                        seen.bad.append(answer.text[:200])
                if answer.outcome == "refused":
                    time.sleep(0.2)

    threads = [threading.Thread(target=one, args=(i,)) for i in range(clients)]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        memory.append(server.memory())
        decoders.append(server.memory(decoders=True))
        time.sleep(0.25)
    third = max(1, len(memory) // 3)
    ordered = sorted(seen.seconds) or [float("nan")]
    return {
        "clients": clients,
        "seconds": seconds,
        "outcomes": dict(seen.outcomes),
        "bad": seen.bad[:5],
        "answer_seconds": {
            "p50": statistics.median(ordered),
            "p95": ordered[min(len(ordered) - 1, int(0.95 * len(ordered)))],
        },
        "memory_mb": {
            "middle_third": statistics.median(memory[third : 2 * third] or memory),
            "last_third": statistics.median(memory[-third:]),
            "most": max(memory),
            "most_of_decoders": max(decoders),
        },
    }


def hostile(place: Path, *, clients: int, seconds: float) -> dict[str, Any]:
    """Good clients beside four that upload what takes for ever; then the end, while such files are being decoded."""
    outcomes: Counter[str] = Counter()
    done = threading.Event()
    with tempfile.TemporaryDirectory() as folder, started(place) as server:
        film = film_of(Path(folder) / "slow.mkv", slow_jpeg(20), (8000, 4800), codec="mjpeg", frames=30)
        huge = huge_film(Path(folder) / "huge.mov")
        files = [
            ("search_by_picture", "slow.jpg", slow_jpeg()),
            ("search_by_video", film.name, film.read_bytes()),
            ("search_by_video", huge.name, huge.read_bytes()),
        ]

        def attack(number: int) -> None:
            with httpx.Client(base_url=server.address, timeout=TIMEOUT) as client:
                while not done.is_set():
                    with suppress(httpx.HTTPError):  # the page has ended
                        outcomes[send(client, *files[number % len(files)]).outcome] += 1
                    number += 1
                    time.sleep(0.2)

        threads = [threading.Thread(target=attack, args=(i,), daemon=True) for i in range(4)]
        for thread in threads:
            thread.start()
        time.sleep(2)
        load = press(server, media_of(server), clients=clients, seconds=seconds, ways=(send, call))
        time.sleep(2)
        began = time.monotonic()
        server.process.terminate()
        done.set()
        server.process.wait(30)
        ended = time.monotonic() - began
        for thread in threads:
            thread.join(TIMEOUT)
    return {**load, "hostile_outcomes": dict(outcomes), "seconds_from_sigterm_to_end": ended}


def fire(server: Server, media: dict[str, tuple[str, bytes]], *, count: int, seed: int = 0) -> dict[str, Any]:
    """Broken uploads one after another; then one good one of every kind."""
    rng = random.Random(seed)
    outcomes: Counter[str] = Counter()
    tracebacks, slowest = 0, 0.0
    names = [name for name, _ in media.values()]
    with httpx.Client(base_url=server.address, timeout=TIMEOUT) as client:
        for _ in range(count):
            api = rng.choice(list(media))
            name, content = media[api]
            began = time.monotonic()
            answer = send(client, api, rng.choice([name, *names, "x", "a b.wav"]), mutated(content, rng))
            slowest = max(slowest, time.monotonic() - began)
            outcomes[answer.outcome] += 1
            tracebacks += "Traceback" in answer.text or 'File "' in answer.text or "site-packages" in answer.text
        after = {api: send(client, api, *media[api]).outcome for api in media}
    return {
        "uploads": count,
        "seed": seed,
        "outcomes": dict(outcomes),
        "tracebacks": tracebacks,
        "slowest_answer_seconds": slowest,
        "good_uploads_afterwards": after,
    }


def files_left(server: Server, before: set[Path], patience: float) -> int:
    """How many files there are beyond those of `before`, once there are none or `patience` seconds have passed."""
    until = time.monotonic() + patience
    while (left := server.files() - before) and time.monotonic() < until:
        time.sleep(0.5)
    return len(left)


def media_of(server: Server) -> dict[str, tuple[str, bytes]]:
    """A good upload for every question, taken from the page's own examples."""
    found: dict[str, tuple[str, bytes]] = {}
    for suffix, apis in (("wav", ["sound"]), ("png", ["picture"]), ("mp4", ["video"])):
        file = next(p for p in sorted(server.files()) if p.suffix == f".{suffix}")
        for api in apis:
            found[f"search_by_{api}"] = (f"example.{suffix}", file.read_bytes())
    found["locate_in_video"] = found["search_by_video"]
    return found


def main() -> None:
    if "--hostile" in sys.argv:
        record = hostile(Path(sys.argv[1]), clients=50, seconds=60)
        print(json.dumps(record, indent=1))
        write_json(HOSTILE, {**record, "waiting": 16, "at_once": 4, "provenance": provenance()})
        return
    if "--api" in sys.argv:
        with started(Path(sys.argv[1])) as server:
            record = press(server, media_of(server), clients=20, seconds=30, ways=(call,))
        print(json.dumps(record, indent=1))
        write_json(API, {**record, "waiting": 16, "at_once": 4, "provenance": provenance()})
        return
    with started(Path(sys.argv[1])) as server:
        load = press(server, media_of(server), clients=20, seconds=30)
        print(json.dumps(load, indent=1))
    with started(Path(sys.argv[1]), "--keep", str(KEEP)) as server:
        before = server.files()
        fuzz = fire(server, media_of(server), count=300)
        fuzz["files_left"] = files_left(server, before, patience=10 * KEEP)
        print(json.dumps(fuzz, indent=1))
    write_json(RESULTS, {"load": load, "fuzz": fuzz, "waiting": 16, "at_once": 4, "provenance": provenance()})


if __name__ == "__main__":
    main()
