"""What is released works without its source tree: build, install into a fresh environment, use.

    make release-check        # or: python tools/release_check.py [--folder KEPT]

Builds sdist and wheel, the wheel from the sdist; looks at what is in them; installs the wheel into a new environment
in a folder of its own, and there asks every command for its help, runs the demo for a few steps, embeds with the model
it trained, and searches. Needs only Python 3.10+; what pip has downloaded before comes from pip's cache.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tarfile
import tempfile
import time
import zipfile
from collections.abc import Iterable
from pathlib import Path

SOURCE = Path(__file__).resolve().parents[1]
SDIST_MB = 30  # far above what belongs in it: data or runs got in
SMALL = (
    "train.steps=4", "train.batch=16", "train.evaluate_every=2",
    "data.count=64", "data.validation=16", "data.test=24",
)  # fmt: skip

COMMANDS = """
import json, typer
from equiav.cli import app

def walk(command, path):
    if not hasattr(command, "commands"):
        return [path]
    return [path] + [found for name, part in command.commands.items() for found in walk(part, [*path, name])]

print(json.dumps(walk(typer.main.get_command(app), [])))
"""

INFERENCE = """
import sys, wave
from pathlib import Path
import numpy as np
from PIL import Image
from equiav import Embedder, Index, load_model

model, media = sys.argv[1], Path(sys.argv[2])
media.mkdir(exist_ok=True)
tone = np.sin(2 * np.pi * 440 * np.arange(32_000) / 16_000)
with wave.open(str(media / "tone.wav"), "wb") as file:
    file.setparams((1, 2, 16_000, 0, "NONE", ""))
    file.writeframes((tone * 20_000).astype("<i2").tobytes())
Image.new("RGB", (120, 90), (200, 40, 40)).save(media / "red.png")

embedder = Embedder(load_model(model))
sounds = embedder.audio([media / "tone.wav", (tone.astype(np.float32), 16_000)])
pictures = embedder.image([media / "red.png", np.zeros((64, 64, 3), np.uint8)])
for vectors in (sounds, pictures):
    assert vectors.shape == (2, embedder.model.width) and vectors.dtype == np.float32, vectors.shape
    assert np.allclose(np.linalg.norm(vectors, axis=1), 1, atol=1e-5)
assert sounds[0] @ sounds[1] > 0.99, "a file and the same samples"
assert callable(Index.open)
print(*sounds.shape)
"""


class Unfit(Exception):
    """What keeps this from being released."""


def say(line: str) -> None:
    print(f"{time.strftime('%H:%M:%S')}  {line}", flush=True)


def environment() -> dict[str, str]:
    """Nothing of the source tree or of the user's own packages; one thread, unless more are asked for."""
    dropped = ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV")
    kept = {key: value for key, value in os.environ.items() if key not in dropped}
    return {"OMP_NUM_THREADS": "1", **kept, "PYTHONNOUSERSITE": "1", "PIP_DISABLE_PIP_VERSION_CHECK": "1"}


def run(command: list[str | Path], folder: Path) -> str:
    """Its output; what failed is told with its last lines."""
    done = subprocess.run([str(c) for c in command], cwd=folder, env=environment(), capture_output=True, text=True)
    if done.returncode:
        told = "\n".join((done.stdout + done.stderr).strip().splitlines()[-25:])
        raise Unfit(f"{' '.join(str(c) for c in command)[:300]}: exit code {done.returncode}\n{told}")
    return done.stdout


def new_environment(folder: Path) -> Path:
    """Its folder of programs."""
    run([sys.executable, "-m", "venv", folder], folder.parent)
    return folder / ("Scripts" if os.name == "nt" else "bin")


def build(source: Path, folder: Path) -> tuple[Path, Path]:
    """Sdist and wheel."""
    programs = new_environment(folder / "builder")
    run([programs / "python", "-m", "pip", "install", "--quiet", "build", "twine"], folder)
    run([programs / "python", "-m", "build", "--outdir", folder / "dist", source], folder)
    run([programs / "python", "-m", "twine", "check", "--strict", *sorted((folder / "dist").iterdir())], folder)
    (sdist,), (wheel,) = ((folder / "dist").glob(pattern) for pattern in ("*.tar.gz", "*.whl"))
    return sdist, wheel


def wheel_faults(names: Iterable[str], source: Path) -> list[str]:
    """What a wheel lacks of the package and its recipes, and what does not belong in it."""
    held = set(names)
    parts = {"equiav": source / "src" / "equiav", "equiav/configs": source / "configs"}
    wanted = {
        f"{inside}/{path.relative_to(place).as_posix()}"
        for inside, place in parts.items()
        for path in place.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    faults = [f"the wheel lacks {name}" for name in sorted(wanted - held)]
    for end in ("entry_points.txt", "licenses/LICENSE", "METADATA"):
        if not any(".dist-info/" in name and name.endswith(end) for name in held):
            faults.append(f"the wheel lacks {end}")
    strange = sorted(n for n in held if not n.startswith("equiav/") and ".dist-info/" not in n)
    return faults + [f"the wheel holds {name}, which is no part of the package" for name in strange]


def sdist_faults(names: Iterable[str], size: int) -> list[str]:
    """What an sdist lacks to build and test from, and whether it is far too large."""
    held = {name.partition("/")[2] for name in names}
    wanted = ("pyproject.toml", "README.md", "LICENSE", "Makefile", "src/equiav/__init__.py", "tests/conftest.py",
              "configs/pretrain/world.yaml")  # fmt: skip
    faults = [f"the sdist lacks {name}" for name in wanted if name not in held]
    faults += [f"the sdist holds {n}" for n in sorted(held) if n.startswith((".venv/", "runs/", "dist/", ".git/"))]
    return faults + ([f"the sdist has {size / 1e6:.0f} MB"] if size > SDIST_MB * 1e6 else [])


def metadata_faults(text: str) -> list[str]:
    """What a package index would show nothing of."""
    wanted = ("Summary", "Author", "License-Expression", "Keywords", "Project-URL", "Requires-Python")
    head = text.partition("\n\n")[0].splitlines()
    faults = [f"the metadata lack {name}" for name in wanted if not any(line.startswith(f"{name}: ") for line in head)]
    if "Description-Content-Type: text/markdown" not in head or "# equiav" not in text:
        faults.append("the metadata lack a long description in Markdown")
    return faults


def look_inside(sdist: Path, wheel: Path, source: Path) -> None:
    """Refuses archives with something missing or something strange."""
    with zipfile.ZipFile(wheel) as archive, tarfile.open(sdist) as tar:
        faults = wheel_faults(archive.namelist(), source) + sdist_faults(tar.getnames(), sdist.stat().st_size)
        for name in archive.namelist():
            if name.endswith(".dist-info/METADATA"):
                faults += metadata_faults(archive.read(name).decode())
    if faults:
        raise Unfit("\n".join(faults))
    say(f"{sdist.name}: {sdist.stat().st_size / 1e6:.1f} MB; {wheel.name}: {wheel.stat().st_size / 1e6:.1f} MB")


def commands(python: Path, folder: Path) -> list[list[str]]:
    """Every command and group of commands, as words behind `equiav`."""
    found: list[list[str]] = json.loads(run([python, "-c", COMMANDS], folder))
    return found


def use(programs: Path, folder: Path) -> None:
    """What a newcomer does: help, demo, embedding, search."""
    python, equiav = programs / "python", programs / "equiav"
    where = run([python, "-c", "import equiav; print(equiav.__file__)"], folder).strip()
    if not Path(where).is_relative_to(programs.parent):
        raise Unfit(f"{where} is imported, not what was installed")
    say(run([equiav, "--version"], folder).strip())
    every = commands(python, folder)
    for words in every:
        if "Usage" not in run([equiav, *words, "--help"], folder):
            raise Unfit(f"equiav {' '.join(words)} --help says nothing")
    say(f"help of {len(every)} commands and groups")
    run([equiav, "demo", *SMALL, "--out", "demo"], folder)
    for name in ("results.json", "report.html"):
        if not (folder / "demo" / name).stat().st_size:
            raise Unfit(f"the demo's {name} is empty")
    say("demo: trained, measured, report written")
    shape = run([python, "-c", INFERENCE, folder / "demo", folder / "media"], folder).split()
    say(f"inference: {shape[0]} sounds and pictures as vectors of {shape[1]}")
    run([equiav, "index", "media", "library", "--model", "demo"], folder)
    hits = json.loads(run([equiav, "search", "library", "--audio", "media/tone.wav", "--json"], folder))
    if not hits:
        raise Unfit("the search finds nothing")
    say("index and search: a picture found for a sound")


def check(source: Path, folder: Path) -> None:
    """All of it, in `folder`."""
    say("building sdist and wheel")
    sdist, wheel = build(source, folder)
    look_inside(sdist, wheel, source)
    say("installing the wheel into a fresh environment")
    programs = new_environment(folder / "fresh")
    run([programs / "python", "-m", "pip", "install", "--quiet", wheel], folder)
    (folder / "elsewhere").mkdir()
    use(programs, folder / "elsewhere")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, help="an empty folder to work in, which is then kept")
    kept = parser.parse_args().folder
    if kept:
        kept.mkdir(parents=True, exist_ok=True)
        if any(kept.iterdir()):
            sys.exit(f"release-check: {kept} is not empty")
    start = time.monotonic()
    try:
        with tempfile.TemporaryDirectory(prefix="equiav-release-") as folder:
            check(SOURCE, kept.resolve() if kept else Path(folder))
    except Unfit as error:
        sys.exit(f"release-check: {error}")
    say(f"fit for release, in {time.monotonic() - start:.0f} s")


if __name__ == "__main__":
    main()
