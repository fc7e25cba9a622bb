"""Hostile input of every kind, and whatever is not a clean refusal.

    python tools/fuzz.py --minutes 30 [--only media,archives,checkpoints,indexes,shards,manifests,http]
        [--seed 0] [--results fuzz.json]

Makes a small file of every kind, changes it at random and hands it over, again and again. It must be refused in one
line or used; a traceback, a hang, a dead process, memory over the bound, a status of 500, or an answer other than that
of the unharmed file (of checkpoints, indexes and shards) is a finding. Findings are printed with the seed of their
case, which `--case` repeats; the exit code is 1 if there were any.
"""

from __future__ import annotations

import argparse
import json
import random
import shutil
import sys
import tarfile
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import torch
from PIL import Image
from safetensors.torch import save_file

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.serve import Server, started
from tools.corpus import SDP, concat_list, eps, film_of, huge_film, mutated, mutated_text, png, slow_jpeg

from equiav.build import build_model
from equiav.checkpoint import save_model
from equiav.config import load_config
from equiav.data import CavMaeDataset, ShardDataset, find_sources, prepare, read_cavmae, read_paired
from equiav.errors import EquiAVError
from equiav.inference import Embedder, load_model
from equiav.io import provenance, write_json
from equiav.media import Failure, Workers, excerpt, read_audio, read_image, read_windows
from equiav.models import read_state
from equiav.report import wav
from equiav.search import Index, index_folder
from equiav.web import write_film

ROOT = Path(__file__).resolve().parents[1]
SMALL = ("data.count=24", "train.batch=8", "data.test=4")
SECONDS, MEMORY = 60.0, 3 << 30
KINDS = ("media", "archives", "checkpoints", "indexes", "shards", "manifests", "http")


@dataclass(frozen=True)
class Finding:
    """What was not a clean refusal; the case can be made again from its seed."""

    kind: str
    seed: int
    what: str


def guarded(function: Callable[..., Any], *arguments: Any) -> tuple[str, Any]:
    """Called in a worker process: the answer, a refusal, or the traceback."""
    try:
        return "answer", function(*arguments)
    except EquiAVError as error:
        return "refused", str(error)
    except SystemExit as end:
        return ("answer", 0) if end.code in (0, 2, None) else ("exit", end.code)
    except MemoryError:
        return "memory", traceback.format_exc()
    except Exception:
        return "traceback", traceback.format_exc()


# What is done with each kind of file, in a worker process


def read_media(path: Path) -> None:
    """All doors through which media come in."""
    content = path.read_bytes()
    for read in (
        lambda: excerpt(path, start=0.0, seconds=2.0),
        lambda: list(read_windows(path, seconds=1.0, rate=16000)),
        lambda: read_image(path),
        lambda: read_image(content),
        lambda: read_audio(content),
    ):
        try:
            read()
        except EquiAVError as error:
            if "\n" in str(error):
                raise AssertionError(f"a refusal of several lines: {error}") from error


def embed_with(checkpoint: Path) -> list[float]:
    """A vector of the model: what a damaged checkpoint must not change."""
    tone = np.sin(np.arange(16000) / 7).astype(np.float32) / 3
    return [round(float(x), 4) for x in Embedder(load_model(checkpoint)).audio((tone, 16000))]


def ask_index(folder: Path) -> list[tuple[str, float]]:
    """What is nearest to every entry."""
    index = Index.open(folder)
    try:
        names = sorted(clip.id for clip in index.clips())
        return [(h.clip.id, round(h.score, 4)) for name in names for h in index.search(index.like(name), k=3)]
    finally:
        index.close()


def read_shards(folder: Path) -> list[float]:
    """Sums over every clip."""
    clips = ShardDataset(folder, None, size=16)
    sums = [(clips.waveform(i).double().abs().sum(), clips.video(i).double().sum()) for i in range(len(clips))]
    return [round(float(x), 3) for pair in sums for x in pair]


def read_list(path: Path) -> None:
    """A list of media, of whichever kind its ending says."""
    if path.name == "manifest.csv":
        read_paired(path.parent, size=8)
    elif path.name == "cavmae.json":
        entries = read_cavmae(path)
        CavMaeDataset(entries, size=16).sample(0, 0)
    elif path.suffix == ".yaml":
        load_config(path)
    else:
        find_sources(path)


def read_archive(path: Path) -> None:
    """A collection in a tar, or weights of others; what a change leaves whole is used."""
    if path.suffix == ".tar":
        read_paired(path, size=8)
    else:
        read_state(path)


# The files that are changed


def make_media(folder: Path) -> list[Path]:
    """One small file of every kind, good and hostile."""
    folder.mkdir(parents=True)
    rng = np.random.default_rng(0)
    pictures = rng.integers(0, 255, (6, 48, 64, 3)).astype(np.uint8)
    tone = (0.3 * np.sin(np.arange(24000) / 7)).astype(np.float32)
    for suffix in (".mp4", ".mkv", ".mov"):
        write_film(folder / f"film{suffix}", pictures, tone, rate=16000, seconds=1.5)
    (folder / "tone.wav").write_bytes(wav(tone, 16000))
    for suffix in ("png", "jpg", "bmp", "gif", "tif", "webp", "ppm"):
        Image.fromarray(pictures[0]).save(folder / f"picture.{suffix}")
    (folder / "slow.jpg").write_bytes(slow_jpeg(40, (4000, 2400)))
    film_of(folder / "slow.mkv", slow_jpeg(5, (4000, 2400)), (4000, 2400), codec="mjpeg", frames=8)
    huge_film(folder / "huge.mov")
    (folder / "bomb.png").write_bytes(png((30_000, 30_000), rows=1))
    (folder / "list.wav").write_bytes(concat_list(folder / "tone.wav"))
    (folder / "list.mp3").write_bytes(SDP)
    (folder / "drawing.png").write_bytes(eps())
    return sorted(folder.iterdir())


def make_lists(folder: Path, media: Path) -> list[Path]:
    """Lists of media in every form, and a recipe."""
    (folder / "audio").mkdir(parents=True)
    (folder / "frames" / "frame_0").mkdir(parents=True)
    shutil.copy(media / "tone.wav", folder / "audio" / "a.wav")
    shutil.copy(media / "picture.jpg", folder / "frames" / "frame_0" / "a.jpg")
    rows = [f"audio/a.wav,audio,dog,{split},,," for split in ("train", "validation", "test")]
    rows += [f"frames/frame_0/a.jpg,image,dog,{split},,," for split in ("train", "validation", "test")]
    (folder / "manifest.csv").write_text("path,kind,class,split,source,licence,duration_s\n" + "\n".join(rows) + "\n")
    entry = {"video_id": "a", "wav": "audio/a.wav", "video_path": "frames", "labels": "/m/1,/m/2"}
    (folder / "cavmae.json").write_text(json.dumps({"data": [entry]}, indent=1))
    (folder / "list.txt").write_text("audio/a.wav\nframes/frame_0/a.jpg\n")
    (folder / "table.csv").write_text('path,name,labels,split,start,seconds\naudio/a.wav,a,"dog;cat",train,0.5,1\n')
    record = {"path": "audio/a.wav", "labels": ["dog"], "fold": 1, "boxes": [[0, 0, 1, 1]]}
    (folder / "table.jsonl").write_text(json.dumps(record) + "\n")
    shutil.copy(ROOT / "configs" / "pretrain" / "smoke.yaml", folder / "recipe.yaml")
    return [folder / n for n in ("manifest.csv", "cavmae.json", "list.txt", "table.csv", "table.jsonl", "recipe.yaml")]


def make_archives(folder: Path, lists: Path) -> None:
    """A collection paired by class as a tar, and weights in every form that `convert` reads."""
    folder.mkdir()
    with tarfile.open(folder / "paired.tar", "w") as tar:
        for name in ("manifest.csv", "audio", "frames"):
            tar.add(lists / name, f"paired/{name}")
    state = {f"x{i}": torch.full((3, 5), float(i)) for i in range(4)}
    torch.save({"model": state, "epoch": 3}, folder / "new.pth")
    torch.save({"model": state}, folder / "legacy.pth", _use_new_zipfile_serialization=False)
    save_file(state, folder / "weights.safetensors")


class Corpus:
    """The unharmed files, made when they are first asked for."""

    def __init__(self, home: Path) -> None:
        self.home, self.media = home, make_media(home / "media")
        self._made: dict[str, tuple[Path, Any]] = {}

    def lists(self) -> list[Path]:
        """Lists of media."""
        if not (self.home / "lists").is_dir():
            make_lists(self.home / "lists", self.home / "media")
        return sorted(p for p in (self.home / "lists").iterdir() if p.is_file())

    def archives(self) -> list[Path]:
        """Archives and weights."""
        if not (self.home / "archives").is_dir():
            make_archives(self.home / "archives", self.lists()[0].parent)
        return sorted((self.home / "archives").iterdir())

    def folder(self, kind: str) -> tuple[Path, Any]:
        """A folder of checkpoints, indexes or shards, and the right answer."""
        if kind not in self._made:
            self._made[kind] = getattr(self, f"_{kind}")()
        return self._made[kind]

    def _checkpoints(self) -> tuple[Path, Any]:
        config = load_config(ROOT / "configs" / "pretrain" / "smoke.yaml", SMALL)
        save_model(self.home / "checkpoint", config, build_model(config).state_dict(), {"kind": "pretrained"})
        return self.home / "checkpoint", embed_with(self.home / "checkpoint")

    def _films(self) -> Path:
        folder = self.home / "films"
        if not folder.is_dir():
            folder.mkdir()
            for name in ("a", "b", "c"):
                shutil.copy(self.home / "media" / "film.mp4", folder / f"{name}.mp4")
        return folder

    def _indexes(self) -> tuple[Path, Any]:
        embedder = Embedder(load_model(self.folder("checkpoints")[0]))
        index = Index.create(self.home / "index", embedder.model, model_path=self.home / "checkpoint")
        index_folder(index, embedder, self._films())
        index.close()
        return self.home / "index", ask_index(self.home / "index")

    def _shards(self) -> tuple[Path, Any]:
        prepare(find_sources(self._films()), self.home / "shards", workers=1, short_side=32, frames=2)
        return self.home / "shards", read_shards(self.home / "shards")


def of_files(kind: str, corpus: Corpus, workers: Workers, seed: int) -> Finding | None:
    """One changed file."""
    rng = random.Random(seed)
    with tempfile.TemporaryDirectory(dir=corpus.home) as place:
        expected, target = None, Path(place)
        if kind in ("media", "manifests", "archives"):
            chosen = rng.choice({"media": lambda: corpus.media, "manifests": corpus.lists}.get(kind, corpus.archives)())
            if kind == "manifests":
                shutil.copytree(chosen.parent, target / "lists")
                target = target / "lists" / chosen.name
                target.write_bytes(mutated_text(chosen.read_text(), rng))
            else:
                others = [rng.choice(corpus.media).name, "a%03d.png", "x"] if kind == "media" else []
                target = target / rng.choice([chosen.name, *others])
                content = chosen.read_bytes()
                target.write_bytes(content if rng.random() < 0.1 else mutated(content, rng))
            function: Callable[..., Any] = {"media": read_media, "manifests": read_list}.get(kind, read_archive)
        else:
            whole, expected = corpus.folder(kind)
            target = target / "changed"
            shutil.copytree(whole, target)
            chosen = rng.choice(sorted(p for p in target.rglob("*") if p.is_file() and p.name != ".lock"))
            content = chosen.read_bytes()
            text = chosen.suffix in (".json", ".yaml", ".csv", ".md") and rng.random() < 0.5
            chosen.write_bytes(mutated_text(content.decode(), rng) if text else mutated(content, rng))
            function = {"checkpoints": embed_with, "indexes": ask_index, "shards": read_shards}[kind]
        try:
            how, answer = workers.call(guarded, function, target)
        except Failure as failure:
            how, answer = "failure", failure.reason
        if how == "refused" or (how == "answer" and (expected is None or answer == expected)):
            return None
        told = f"another answer ({str(answer)[:80]})" if how == "answer" else f"{how}: {str(answer).strip()[-600:]}"
        return Finding(kind, seed, f"{chosen.name}: {told}")


ROUTES = (
    "/", "/config", "/v1/health", "/v1/embeddings", "/v1/search", "/v1/docs", "/v1/openapi.json", "/gradio_api/upload",
    "/gradio_api/queue/join", "/gradio_api/queue/data", "/gradio_api/call/search_by_sound", "/gradio_api/call/locate",
    "/gradio_api/call/map/x", "/gradio_api/file=/etc/passwd", "/clip/film", "/clip/sound", "/clip/picture",
)  # fmt: skip


def of_requests(corpus: Corpus, server: Server, seed: int) -> Finding | None:
    """One odd request; the server must answer it, without a status of 500."""
    rng = random.Random(seed)
    route = rng.choice(ROUTES) if rng.random() < 0.9 else "/" + mutated_text("gradio_api/v1/x", rng).decode("latin-1")
    chosen = rng.choice([path for path in corpus.media if path.stat().st_size < 2_000_000])
    content = chosen.read_bytes() if rng.random() < 0.3 else mutated(chosen.read_bytes(), rng)
    fields = {"kind": rng.choice(("audio", "image", "video", "x")), "k": rng.choice(("3", "0", "x"))}
    record = {
        "data": [{"path": rng.choice(("/etc/passwd", "x", "..")), "meta": {"_type": "gradio.FileData"}}],
        **fields,
    }
    more: dict[str, Any] = {}
    match rng.randrange(5):
        case 0:
            more = {"files": {"file": (chosen.name, content)}, "data": fields}
        case 1:
            more = {"files": {"files": (chosen.name, content)}}
        case 2:
            body = mutated_text(json.dumps(record), rng)
            more = {"content": body, "headers": {"content-type": "application/json"}}
        case 3:
            kinds = ("multipart/form-data", "multipart/form-data; boundary=x", "application/json", "text/plain", "")
            more = {"content": content[:50_000], "headers": {"content-type": rng.choice(kinds)}}
        case 4:
            more = {"params": {"id": rng.choice(("x", "../../etc/passwd", "\0")), "session_hash": "x", "token": "x"}}
    method = rng.choice(("GET", "POST", "POST", "POST", "PUT", "HEAD", "OPTIONS"))
    if method == "GET" and route.startswith("/gradio_api/queue/data"):
        return None  # a stream that stays open by design
    try:
        with httpx.Client(base_url=server.address, timeout=SECONDS) as client:
            answer = client.request(method, route, **more)
    except (httpx.InvalidURL, UnicodeError, ValueError):  # cannot be sent at all
        return None
    except httpx.HTTPError as error:
        ended = httpx.RemoteProtocolError | httpx.WriteError | httpx.ReadError
        if server.process.poll() is None and isinstance(error, ended):
            return None  # the connection was ended: a refusal too
        return Finding("http", seed, f"{method} {route}: {type(error).__name__} {error}")
    if answer.status_code == 500 or "Traceback" in answer.text or "site-packages" in answer.text:
        return Finding("http", seed, f"{method} {route}: {answer.status_code} {answer.text[:300]}")
    if server.memory() > MEMORY / 1e6:
        return Finding("http", seed, f"{method} {route}: the server takes {server.memory():.0f} MB")
    return None


@contextmanager
def fuzzer(kinds: tuple[str, ...], home: Path) -> Iterator[Callable[[str, int], Finding | None]]:
    """A function that makes and tries one case, by kind and seed."""
    corpus = Corpus(home)
    with ExitStack() as stack:
        workers = stack.enter_context(Workers(1, patience=SECONDS, memory=MEMORY, preload=("equiav.search",)))
        server = None
        if "http" in kinds:
            limits = ["--megabytes", "4", "--waiting", "4", "--keep", "20"]
            server = stack.enter_context(started(corpus.folder("indexes")[0], *limits))

        def tried(kind: str, seed: int) -> Finding | None:
            if kind != "http":
                return of_files(kind, corpus, workers, seed)
            assert server is not None
            return of_requests(corpus, server, seed)

        yield tried


def fuzz(
    kinds: tuple[str, ...], *, minutes: float, seed: int, most: int | None = None
) -> tuple[Counter[str], list[Finding]]:
    """Cases of all kinds in turn until the time is over; how many there were, and the findings."""
    tried, findings = Counter[str](), []
    with tempfile.TemporaryDirectory(prefix="fuzz-") as home, fuzzer(kinds, Path(home).resolve()) as attempt:
        until = time.monotonic() + 60 * minutes
        while time.monotonic() < until and (most is None or sum(tried.values()) < most):
            for kind in kinds:
                finding = attempt(kind, seed)
                tried[kind] += 1
                if finding is not None:
                    findings.append(finding)
                    print(f"{finding.kind} --case {finding.seed}: {finding.what}", flush=True)
            seed += 1
    return tried, findings


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=1.0)
    parser.add_argument("--only", default=",".join(KINDS), help="kinds, separated by commas")
    parser.add_argument("--seed", type=int, default=0, help="of the first case")
    parser.add_argument("--case", type=int, help="only the case of this seed")
    parser.add_argument("--results", type=Path, help="a JSON file to write")
    given = parser.parse_args()
    kinds = tuple(given.only.split(","))
    if unknown := sorted(set(kinds) - set(KINDS)):
        parser.error(f"--only: no kind {', '.join(unknown)}; there are {', '.join(KINDS)}")
    if given.case is not None:
        tried, findings = fuzz(kinds, minutes=60.0, seed=given.case, most=1)
    else:
        tried, findings = fuzz(kinds, minutes=given.minutes, seed=given.seed)
    if given.results:
        record = {"minutes": given.minutes, "seed": given.seed, "cases": dict(tried)}
        found = [asdict(finding) for finding in findings]
        write_json(given.results, {**record, "findings": found, "provenance": provenance()})
    print(f"{dict(tried)} cases, {len(findings)} findings")
    sys.exit(1 if findings else 0)


if __name__ == "__main__":
    main()
