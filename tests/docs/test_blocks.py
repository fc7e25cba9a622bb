"""No block of README and docs is left to chance: each is run, read by the program it names, or compared."""

from __future__ import annotations

import csv
import os
import re
import shlex
import subprocess
from pathlib import Path

import pytest

from equiav.data import find_sources, read_manifest
from equiav.errors import EquiAVError
from tests.docs.blocks import ROOT, Block, blocks, fenced_kind, indented_kind, pages
from tests.docs.commands import check

BLOCKS = [block for page in pages() for block in blocks(page)]
SBATCH = {"job-name", "nodes", "ntasks-per-node", "gpus-per-node", "cpus-per-task", "time", "signal"}


def of(*kinds: str) -> list[Block]:
    return [block for block in BLOCKS if block.kind in kinds]


@pytest.mark.parametrize("block", of("console"), ids=str)
def test_commands_exist(block):
    for command in block.commands():
        check(command)


@pytest.mark.parametrize("block", of("bash"), ids=str)
def test_scripts(block, tmp_path):
    """Run with programs in place of SLURM's that only say what they were asked to start."""
    options = re.findall(r"^#SBATCH --([\w-]+)=", block.text, re.MULTILINE)
    assert options
    assert set(options) <= SBATCH
    for name, prints in {"srun": '"$@"', "scontrol": "first-machine second-machine"}.items():
        (tmp_path / name).write_text(f"#!/bin/bash\nprintf '%s\\n' {prints}\n")
        (tmp_path / name).chmod(0o755)
    run = "equiav ablate configs/ablation/variants.yaml --scale paper --only 0123456789ab"
    (tmp_path / "runs.txt").write_text(f"equiav nothing\n{run}\nequiav nothing\n")
    asked = {"SLURM_JOB_NODELIST": "x", "SLURM_NNODES": "2", "SLURM_JOB_ID": "7", "SLURM_ARRAY_TASK_ID": "2"}
    path = f"{tmp_path}:{os.environ['PATH']}"
    done = subprocess.run(
        ["bash", "-eu"], input=block.text, cwd=tmp_path, env={**asked, "PATH": path}, text=True, capture_output=True
    )
    assert done.stderr == ""
    words = done.stdout.splitlines()
    started = words[2] if words[:2] == ["bash", "-c"] else shlex.join(words)
    assert started == run or "--nnodes 2 --nproc-per-node 8" in started
    check(started)


@pytest.mark.parametrize("block", of("csv"), ids=str)
def test_tables_that_are_read(block, tmp_path):
    rows = list(csv.DictReader(block.text.splitlines()))
    if "kind" in rows[0]:
        assert len(read_manifest(block.text.encode(), tmp_path)) == len(rows)
        return
    (tmp_path / "videos.csv").write_text(block.text)
    found = find_sources(tmp_path / "videos.csv")
    assert len(found) == len(rows)
    assert not any(clip.metadata for clip in found), "a column that nothing reads"


@pytest.mark.parametrize("block", of("map"), ids=str)
def test_the_map_names_what_is_there(block):
    """Indentation nests: a folder's lines belong to it."""
    folders: dict[int, Path] = {}
    for line in block.text.splitlines():
        depth = len(line) - len(line.lstrip())
        inside = [folder for at, folder in sorted(folders.items()) if at < depth]
        place = inside[-1] if inside else ROOT
        # Names come first, two spaces apart from each other and from what is said of them.
        names = [
            part for part in re.split(r"\s{2,}|, ", line.strip().partition(": ")[0]) if re.fullmatch(r"[\w./]+", part)
        ]
        assert names, line
        for name in [n for n in names if "." in n or n.endswith("/")]:
            assert (place / name).exists(), f"{block}: {place / name} is not there"
        if names[0].endswith("/"):
            folders = {at: f for at, f in folders.items() if at < depth} | {depth: place / names[0]}


def test_output_follows_what_prints_it():
    for before, block in zip([None, *BLOCKS], BLOCKS, strict=False):
        if block.kind == "output":
            assert before is not None
            assert before.page == block.page
            assert before.kind in ("python", "console"), f"{block}: the output of nothing"


def test_a_strange_block_is_refused():
    for language, mark in (("ruby", ""), ("", ""), ("console", "skip"), ("text", "run")):
        with pytest.raises(AssertionError, match="nothing checks it"):
            fenced_kind(language, mark, Path("page.md"), 1)
    with pytest.raises(AssertionError, match="nothing checks it"):
        indented_kind("rm -rf x", Path("page.md"), 1)


@pytest.mark.parametrize(
    "command",
    ["equiav nonsense", "equiav search x --no-such", "equiav pretrain configs/pretrain/none.yaml", "rm x",
     "equiav pretrain configs/pretrain/smoke.yaml train.stepz=1", "make nothing", "pip install 'equiav[none]'",
     "torchrun --nproc 2 -m equiav.cli pretrain", "ray start --tail"],
)  # fmt: skip
def test_a_wrong_command_is_noticed(command):
    with pytest.raises((AssertionError, SystemExit, EquiAVError)):
        check(command)


def test_every_page_is_read():
    names = {block.page.name for block in BLOCKS}
    assert {"README.md", "quickstart.md", "method.md", "scale.md", "extend.md", "table-5.md"} <= names
    assert len(of("python")) >= 10
