"""The parts of `make release-check` that need no fresh environment: what archives must hold, and what is tried."""

import re
import sys
from pathlib import Path

import pytest
from tools.release_check import (
    INFERENCE,
    SOURCE,
    Unfit,
    commands,
    environment,
    metadata_faults,
    run,
    sdist_faults,
    wheel_faults,
)

from equiav.cli import app
from equiav.training import Trainer
from tests.training.small import small_config

HERE = Path(sys.executable)


def whole_wheel():
    package = (p for p in (SOURCE / "src/equiav").rglob("*") if p.is_file() and "__pycache__" not in p.parts)
    recipes = (p for p in (SOURCE / "configs").rglob("*") if p.is_file())
    held = {p.relative_to(SOURCE / "src").as_posix() for p in package}
    held |= {f"equiav/{p.relative_to(SOURCE).as_posix()}" for p in recipes}
    return held | {f"equiav-1.dist-info/{name}" for name in ("entry_points.txt", "licenses/LICENSE", "METADATA")}


@pytest.mark.parametrize(
    "lost",
    ["equiav/py.typed", "equiav/configs/pretrain/world.yaml", "equiav/web/server.py", "equiav-1.dist-info/METADATA"],
)
def test_a_wheel_must_be_whole(lost):
    assert wheel_faults(whole_wheel(), SOURCE) == []
    assert wheel_faults(whole_wheel() - {lost}, SOURCE) == [
        f"the wheel lacks {lost.removeprefix('equiav-1.dist-info/')}"
    ]


def test_metadata_say_what_an_index_shows():
    lines = ["Metadata-Version: 2.4", "Name: equiav", "Summary: s", "Author: a", "License-Expression: Apache-2.0",
             "Keywords: k", "Project-URL: Paper, https://arxiv.org/abs/2403.09502", "Requires-Python: >=3.10",
             "Description-Content-Type: text/markdown"]  # fmt: skip
    whole = "\n".join(lines) + "\n\n# equiav\n"
    assert metadata_faults(whole) == []
    assert metadata_faults(whole.replace(lines[6] + "\n", "")) == ["the metadata lack Project-URL"]
    assert metadata_faults(whole.replace("markdown", "plain")) == ["the metadata lack a long description in Markdown"]


@pytest.mark.skipif(sys.version_info < (3, 11), reason="Python reads TOML since 3.11")
def test_the_project_has_links_and_a_licence_file():
    import tomllib

    project = tomllib.loads((SOURCE / "pyproject.toml").read_text())["project"]
    assert all(url.startswith("https://") for url in project["urls"].values())
    assert "Paper" in project["urls"]
    assert project["readme"] == "README.md"
    assert all((SOURCE / name).is_file() for name in project["license-files"])


@pytest.mark.skipif(sys.version_info < (3, 11), reason="Python reads TOML since 3.11")
def test_the_lowest_versions_are_those_that_the_project_allows():
    """constraints-lowest.txt holds the floors of pyproject.toml: one that rises must rise there too."""
    import tomllib

    stated = tomllib.loads((SOURCE / "pyproject.toml").read_text())["project"]["dependencies"]
    lines = (SOURCE / "constraints-lowest.txt").read_text().splitlines()
    floors = {tuple(re.split(r">=|,| ;", line)[:2]) for line in stated}
    lowest = {tuple(re.split(r"==| ;", line)[:2]) for line in lines if not line.startswith("#")}
    assert {name for name, _ in floors} == {name for name, _ in lowest}
    for name, floor in floors:
        assert any(known == name and f"{version}.".startswith(f"{floor}.") for known, version in lowest), name


def test_nothing_strange_in_a_wheel():
    (fault,) = wheel_faults(whole_wheel() | {"tests/conftest.py"}, SOURCE)
    assert "tests/conftest.py, which is no part" in fault


def test_an_sdist_can_be_built_and_tested():
    names = ("pyproject.toml", "README.md", "LICENSE", "Makefile", "src/equiav/__init__.py", "tests/conftest.py",
             "configs/pretrain/world.yaml")  # fmt: skip
    held = [f"equiav-1/{name}" for name in names]
    assert sdist_faults(held, 1_000_000) == []
    assert sdist_faults(held[1:], 1_000_000) == ["the sdist lacks pyproject.toml"]
    assert sdist_faults([*held, "equiav-1/runs/demo/report.html"], 1_000_000) == [
        "the sdist holds runs/demo/report.html"
    ]
    assert sdist_faults(held, 500_000_000) == ["the sdist has 500 MB"]


def test_nothing_of_the_source_tree_is_seen(monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(SOURCE / "src"))
    assert "PYTHONPATH" not in environment()


def test_a_failure_is_told_with_its_reason(tmp_path):
    with pytest.raises(Unfit, match=r"(?s)exit code 3\n.*so it is"):
        run([HERE, "-c", "print('so it is'); raise SystemExit(3)"], tmp_path)


def test_every_command_is_asked(tmp_path):
    found = commands(HERE, tmp_path)
    assert found[0] == []  # equiav --help itself
    named = {c.name or c.callback.__name__ for c in app.registered_commands}
    groups = {g.name: {c.name or c.callback.__name__ for c in g.typer_instance.registered_commands}
              for g in app.registered_groups}  # fmt: skip
    assert {"demo", "search"} <= named
    assert "retrieval" in groups["evaluate"]
    expected = [[name] for name in (*named, *groups)] + [[g, name] for g, names in groups.items() for name in names]
    assert sorted(found[1:]) == sorted(expected)


# A library that is broken in one of these ways must not pass; z are the vectors of the two sounds or pictures.
BROKEN = [
    ("audio", "2 * z"),
    ("image", "z.astype(float)"),
    ("image", "z[:1]"),
    ("audio", "z * np.array([[1], [-1]], z.dtype)"),
]
TRIED_ON_BROKEN = f"""
import numpy as np
from equiav import Embedder
for name, how in {BROKEN!r}:
    whole = getattr(Embedder, name)
    setattr(Embedder, name, lambda self, x, **more: eval(how, {{"np": np, "z": whole(self, x, **more)}}))
    try:
        exec({INFERENCE!r}, {{}})
    except AssertionError:
        print("refused", name, how)
    setattr(Embedder, name, whole)
"""


def test_inference_as_it_is_tried(tmp_path):
    Trainer(small_config("train.steps=1", "train.evaluate_every=null"), tmp_path / "run", lambda line: None).run()
    given = [tmp_path / "run", tmp_path / "media"]
    assert run([HERE, "-c", INFERENCE, *given], tmp_path).split() == ["2", "32"]
    refused = run([HERE, "-c", TRIED_ON_BROKEN, *given], tmp_path).splitlines()
    assert refused == [f"refused {name} {how}" for name, how in BROKEN]
