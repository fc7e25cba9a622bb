"""Flips single bits in every file of a checkpoint, an index and a prepared folder, and looks whether it is noticed.

    python tools/flips.py [--flips 1000] [--only checkpoint index prepared] [--seed 0] [--results flips.json]

After each flip the whole folder is read and verified in a worker process, and the bit is put back. Right is an error
of one line, a warning, or the answer of the unharmed folder; a finding is any other answer, a traceback, a crash, or
damage that reading notices and `verify` does not. Half of the flips are in a file's first kilobyte, where headers are.
Run it from the root of the source tree: it uses the small models and media of the tests. Exit code 1: findings.
"""

from __future__ import annotations

import argparse
import hashlib
import logging
import random
import sys
import tempfile
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from tools.fuzz import guarded

from equiav.build import build_model
from equiav.checkpoint import load_checkpoint, load_state, save_model, verify_checkpoint
from equiav.config import dump_config
from equiav.data import find_sources, prepare, verify_prepared
from equiav.errors import EquiAVError
from equiav.io import provenance, write_json
from equiav.media import Failure, Workers
from equiav.search import Entry, Index, store, verify_index
from tests.data.test_damage import SMALL, everything
from tests.inference.models import random_model
from tests.media.making import sine, write_media
from tests.search.making import entries
from tests.search.test_checksums import answers
from tests.training.small import small_config


def make_checkpoint(folder: Path) -> None:
    config = small_config()
    weights = build_model(config).state_dict()
    state = {f"state.{name}": value for name, value in weights.items()}
    save_model(folder, config, weights, {"kind": "pretrained", "step": 3, "total": 9}, state=state)


def read_checkpoint(folder: Path) -> str:
    """A digest of recipe, facts, weights, banks and state."""
    checkpoint, digest = load_checkpoint(folder), hashlib.sha256()
    digest.update(repr((dump_config(checkpoint.config), checkpoint.meta)).encode())
    for tensors in (checkpoint.weights, checkpoint.banks, load_state(folder)):
        for name, value in sorted(tensors.items()):
            digest.update(name.encode() + value.numpy().tobytes())
    return digest.hexdigest()


def make_index(folder: Path) -> None:
    """With all that an index may hold: two modalities, removed entries, compressed vectors, thumbnails."""
    index = Index.create(folder, random_model())
    index.store.limit = 40
    picture = np.random.default_rng(0).integers(0, 255, (24, 32, 3), np.uint8)
    added = [Entry(e.clip, e.vectors, picture if i % 10 == 0 else None) for i, e in enumerate(entries(60))]
    index.add(added, made_by=index.digest)
    index.remove(["clip-7", "clip-31"])
    index.add(entries(5, first=60, seed=3), made_by=index.digest)
    index.close()


def read_index(folder: Path) -> str:
    """All that an index can be asked; the compressed vectors are used although there are few."""
    store.FEW = 10
    return hashlib.sha256(answers(folder).encode()).hexdigest()


def make_prepared(folder: Path) -> None:
    media = folder.with_name("media")
    for number in range(3):
        write_media(media / f"video{number}.mp4", seconds=1, fps=10, sound=sine(1, 16000, 300 + 50 * number))
    write_media(media / "silent.mp4", seconds=1, audio=False)
    prepare(find_sources(media), folder, **SMALL)


KINDS: dict[str, tuple[Callable[[Path], None], Callable[[Path], str], Callable[[Path], list[str]]]] = {
    "checkpoint": (make_checkpoint, read_checkpoint, verify_checkpoint),
    "index": (make_index, read_index, verify_index),
    "prepared": (make_prepared, everything, verify_prepared),
}


class Heard(logging.Handler):
    """Warnings, for whoever runs the command to see."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        """Called by the logger."""
        self.lines.append(record.getMessage())


def examined(kind: str, folder: Path) -> tuple[str | None, list[str], list[str]]:
    """In a worker process: the answer or None, what was said meanwhile, and what verification says."""
    _, read, verify = KINDS[kind]
    heard = Heard()
    logging.getLogger().addHandler(heard)
    try:
        answer = read(folder)
    except EquiAVError as error:
        answer, heard.lines = None, [str(error)]
    finally:
        logging.getLogger().removeHandler(heard)
    return answer, heard.lines, verify(folder)


def judged(outcome: tuple[str, Any], truth: str) -> tuple[str, str]:
    """How a flip was met, and what is wrong with that, if anything."""
    how, found = outcome
    if how != "answer":
        return "tracebacks", f"{how}: {str(found).strip()[-300:]}"
    answer, said, problems = found
    if any("\n" in line for line in (*said, *problems)):
        return "tracebacks", f"several lines: {said} {problems}"
    if answer is None or said:
        met = "refused" if answer is None else "warned"
        return met, "" if problems else f"verify did not notice what was {met}: {said}"
    if answer != truth:
        return "silently_wrong", "another answer without a word"
    return "noticed_by_verify_alone" if problems else "without_effect", ""


def tried(kind: str, flips: int, dice: random.Random, folder: Path, workers: Workers) -> dict[str, Any]:
    """Counts of what became of the flips, in all and by file, and the findings."""
    KINDS[kind][0](folder)
    truth = examined(kind, folder)
    if truth[0] is None or truth[1] or truth[2]:
        return {"findings": [f"the unharmed {kind}: {truth}"]}
    files = sorted(path for path in folder.rglob("*") if path.is_file() and path.stat().st_size)
    counts, findings = Counter[str](), []
    for number in range(flips):
        path = files[number % len(files)]
        content = path.read_bytes()
        place, bit = dice.randrange(min(len(content), 1024) if number % 2 else len(content)), dice.randrange(8)
        path.write_bytes(content[:place] + bytes([content[place] ^ 1 << bit]) + content[place + 1 :])
        try:
            outcome = workers.call(guarded, examined, kind, folder)
        except Failure as failure:
            outcome = "failure", failure.reason
        met, wrong = judged(outcome, truth[0])
        counts[met] += 1
        if wrong:
            findings.append(f"bit {bit} of byte {place} of {path.relative_to(folder)}: {wrong}")
            print(f"{kind}: {findings[-1]}", flush=True)
        path.write_bytes(content)
    if examined(kind, folder) != truth:
        findings.append(f"the {kind} is not as it was before, although every bit was put back")
    zeros = dict.fromkeys(("refused", "warned", "silently_wrong", "tracebacks"), 0)
    return {"flips": flips, "files": len(files), **zeros, **counts, "findings": findings}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--flips", type=int, default=1000, help="in each kind of folder")
    parser.add_argument("--only", nargs="*", choices=KINDS, default=list(KINDS))
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--results", type=Path, help="a JSON file to write")
    arguments = parser.parse_args()
    found = {}
    with (
        tempfile.TemporaryDirectory(prefix="flips-") as home,
        Workers(1, patience=60.0, preload=("tools.flips",)) as workers,
    ):
        for kind in arguments.only:
            dice = random.Random(f"{arguments.seed} {kind}")
            found[kind] = tried(kind, arguments.flips, dice, Path(home).resolve() / kind, workers)
            print(f"{kind}: { {name: value for name, value in found[kind].items() if name != 'findings'} }", flush=True)
    if arguments.results:
        write_json(arguments.results, {"seed": arguments.seed, "folders": found, "provenance": provenance()})
    count = sum(len(one["findings"]) for one in found.values())
    print(f"{count} findings")
    sys.exit(bool(count))


if __name__ == "__main__":
    main()
