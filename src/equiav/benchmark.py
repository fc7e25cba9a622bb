"""`equiav benchmark`: how fast this machine trains, what limits it, and what to change."""

from __future__ import annotations

import math
import os
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import av
import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.flop_counter import FlopCounterMode, sdpa_backward_flop_count, sdpa_flop_count

from equiav.build import build_model, build_objective
from equiav.config import Config
from equiav.data import Dataset, Schedule, ShardDataset, prepare, training_batches
from equiav.distributed import everyone, first_rank, gather, rank, world_size
from equiav.errors import EquiAVError
from equiav.io import cores, duration, provenance
from equiav.randomness import generator
from equiav.training import Step, adamw, autocast_type, choose_device, compile_blocks
from equiav.types import AUDIO, VISUAL, Batch, Clip

SECONDS = 10  # of audio in a clip
VIDEO_SECONDS, OVERLAP = 25, 9.0  # the generated video gives a clip a second
MATRIX = {"cpu": 2048, "mps": 4096, "cuda": 8192}  # side of the matrices multiplied
DISK_MB = 256
SPARE = 1.2  # workers should be able to do this much more than is needed
EPOCH = 100_000  # clips, for the estimate of an epoch
# Shares that call for a word of advice; a step hides much of the all-reduce.
LITTLE_MATRIX, MUCH_GATHER, MUCH_REDUCE, MUCH_MEMORY = 0.25, 0.1, 0.3, 0.8


def benchmark_device(name: str | None = None) -> torch.device:
    """The device by its name, or the one that training takes; one that is not there is refused."""
    own = choose_device()
    kinds = {"cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available(), "cpu": True}
    there = [kind for kind, present in kinds.items() if present]
    if name not in (None, *there):
        raise EquiAVError(f"--device {name}: torch finds none here; there is {', '.join(there)}")
    if name in (None, own.type):
        return own
    if world_size() > 1:
        raise EquiAVError(f"--device {name}: several processes exchange by {own.type} here; start one process")
    return torch.device(name)


def _ranks_here() -> int:
    """Ranks on this machine."""
    return int(os.environ.get("LOCAL_WORLD_SIZE", world_size()))


def benchmark_config(
    device: torch.device,
    *,
    size: str,
    batch: int | None = None,
    precision: str = "auto",
    workers: int | None = None,
    compiled: bool = False,
) -> Config:
    """The paper's recipe with encoders of this size; the batch counts all ranks."""
    batch = batch or (4 if device.type == "cpu" else 64) * world_size()
    workers = workers or max(1, cores() // _ranks_here())
    train = {"steps": 1, "batch": batch, "precision": precision, "workers": workers, "compile": compiled}
    return Config.model_validate({"model": {"encoder": {"size": size}}, "train": train})


def run_benchmark(
    config: Config,
    *,
    device: torch.device,
    steps: int = 3,
    data: Path | None = None,
    folder: Path = Path(),
    report: Callable[[str], None] = lambda line: None,
) -> dict[str, Any]:
    """Measures steps of a recipe, its loader, what ranks exchange and the disk of `folder`; advice included.

    `data` is a prepared folder for the loader, a generated video without it. Under torchrun every rank calls this and
    takes its share of the batch; disk and loader, with the workers of all ranks of its machine, are measured by the
    first rank alone, whose record is the whole one.
    """
    if config.train.batch % world_size():
        raise EquiAVError(
            f"a batch of {config.train.batch} cannot be shared by {world_size()} processes; make it a multiple"
        )
    if not folder.is_dir():
        raise EquiAVError(f"--folder {folder}: {'is a file, not a folder' if folder.exists() else 'no such folder'}")
    attempt = _writing(folder)(lambda: tempfile.TemporaryFile(dir=folder).close())
    first_rank(attempt, f"--folder {folder}: cannot be written")
    if data is not None:
        ShardDataset(data, None)  # refused now rather than after the step
    autocast = autocast_type(config.train.precision, device)
    precision = str(autocast or torch.float32).removeprefix("torch.")
    report("matrix product")
    record: dict[str, Any] = {
        "task": "benchmark",
        "machine": machine(),
        "device": str(device),
        "training_device": choose_device().type,
        "precision": precision,
        "compiled": config.train.compile,
        "ranks": world_size(),
        "ranks_here": _ranks_here(),
        "matrix": matrix_product(device, autocast or torch.float32),
    }
    report("training step")
    record["step"] = training_step(config, device, autocast, steps)
    record["step"]["share_of_matrix"] = record["step"]["gflops"] / record["matrix"]["gflops"]
    report("exchange between ranks")
    record |= exchange(config, record["step"]["parameters_million"], device)
    if rank() == 0:
        report("disk")
        record["disk"] = disk(folder, data)
        with tempfile.TemporaryDirectory(dir=folder, prefix=".benchmark-") as place:
            report("loader")
            workers = config.train.workers * record["ranks_here"]
            record["loader"] = loader(config, data or generated_clips(Path(place)), workers)
        record["advice"] = advice(record)
        record["provenance"] = provenance()
    everyone([0])  # the others wait for the first
    return record


def machine() -> dict[str, Any]:
    """What there is to compute with."""
    gpus = []
    for i in range(torch.cuda.device_count()):
        found = torch.cuda.get_device_properties(i)
        gpus.append({"name": found.name, "memory_gb": found.total_memory / 1e9})
    memory = None
    if hasattr(os, "sysconf") and "SC_PHYS_PAGES" in os.sysconf_names:
        memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 1e9
    return {
        "cores": cores(),
        "threads": torch.get_num_threads(),
        "memory_gb": memory,
        "gpus": gpus,
        "bfloat16": torch.cuda.is_available() and torch.cuda.is_bf16_supported(including_emulation=False),
        "mps": torch.backends.mps.is_available(),
    }


def matrix_product(device: torch.device, dtype: torch.dtype, seconds: float = 1.0) -> dict[str, Any]:
    """10^9 floating-point operations a second of a plain product of square matrices: what a step is compared with."""
    side = MATRIX[device.type]
    a = torch.randn(side, side, device=device, dtype=dtype)
    best, began = math.inf, time.perf_counter()
    for number in range(1000):
        start = _now(device)
        a @ a
        best = min(best, _now(device) - start) if number else math.inf  # the first one warms up
        if number and time.perf_counter() - began > seconds:
            break
    return {"side": side, "gflops": 2 * side**3 / best / 1e9}


def _attention(*shapes: Any, **_: Any) -> Any:
    return sdpa_flop_count(*shapes[:3])  # type: ignore[no-untyped-call]


def _attention_gradient(*shapes: Any, **_: Any) -> Any:
    return sdpa_backward_flop_count(*shapes[:4])  # type: ignore[no-untyped-call]


# Attention that torch's counter does not know: on a CPU, and on a Mac's GPU where no gradient is wanted.
ATTENTION: dict[Any, Callable[..., Any]] = {
    torch.ops.aten._scaled_dot_product_flash_attention_for_cpu: _attention,
    torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward: _attention_gradient,
    torch.ops.aten._scaled_dot_product_attention_math_for_mps: _attention,
}


def training_step(config: Config, device: torch.device, autocast: torch.dtype | None, steps: int) -> dict[str, Any]:
    """A step as in training (both views, losses, gradient, AdamW) on clips of noise; the fastest of `steps`."""
    share = config.train.batch // world_size()
    objective = build_objective(config, build_model(config)).to(device)
    if config.train.compile:
        compile_blocks(objective.model)
    optimiser = adamw(objective, lr=1e-5, weight_decay=1e-5, betas=(0.9, 0.95))
    batch = noise(config, share).to(device)

    def take(module: nn.Module, number: int) -> None:
        draws = objective.draw(config.train.batch, config.seed, number)
        optimiser.zero_grad(set_to_none=True)
        step = Step(objective, module, config.train.micro_batch, autocast)
        step(batch, draws.rows(rank() * share, (rank() + 1) * share), number + 1, steps + 1)
        optimiser.step()

    # Warms up as well; what a compiler fuses could not be counted.
    with torch.compiler.set_stance("force_eager"), FlopCounterMode(display=False, custom_mapping=ATTENTION) as counter:
        take(objective, 0)
    gflop = counter.get_total_flops() / 1e9
    module: nn.Module = objective
    if world_size() > 1:
        module = DistributedDataParallel(objective, [device.index] if device.type == "cuda" else None)
    if module is not objective or config.train.compile:
        take(module, 0)  # warms up once more
    taken = []
    for number in range(1, steps + 1):
        start = _now(device)
        take(module, number)
        taken.append(_now(device) - start)
    seconds = max(everyone([min(taken)]))  # the slowest rank sets the pace
    return {
        "batch": config.train.batch,
        "parameters_million": sum(p.numel() for p in objective.parameters()) / 1e6,
        "seconds": seconds,
        "clips_per_second": config.train.batch / seconds,
        "gflop": gflop,  # of this rank
        "gflops": gflop / seconds,
        "peak_gb": _peak_gb(device),  # of this rank
        "allocated_gb": torch.mps.driver_allocated_memory() / 1e9 if device.type == "mps" else None,
    }


def noise(config: Config, clips: int) -> Batch:
    """Seconds of noise and a frame of noise per clip."""
    rng = generator(0, 0, "benchmark")
    samples, side = SECONDS * config.audio.sample_rate, config.visual.size
    frames = torch.randint(256, (clips, 3, side, side), generator=rng, dtype=torch.uint8)
    waveforms = torch.randn(clips, samples, generator=rng) * 0.1
    lengths = {AUDIO: torch.full((clips,), samples)}
    return Batch(tuple(map(str, range(clips))), {AUDIO: waveforms, VISUAL: frames}, lengths)


def exchange(config: Config, parameters_million: float, device: torch.device, repeats: int = 10) -> dict[str, Any]:
    """Seconds in which ranks exchange what a step needs: embeddings with their gradient, and the weights' gradient.

    DDP hides some of the second behind the computation of the gradient.
    """
    if world_size() == 1:
        return {"gather": None, "all_reduce": None}
    rows, heads = config.train.batch // world_size(), config.model.heads
    widths = [heads.inter] * 2 + [heads.intra] * 4  # both sides of each of the three losses
    gradient = torch.zeros(round(parameters_million * 1e6), device=device)

    def embeddings() -> None:
        for width in widths:
            total = gather(torch.ones(rows, width, device=device, requires_grad=True)).sum()
            total.backward()  # type: ignore[no-untyped-call]

    def median(work: Callable[[], object]) -> float:
        taken = []
        for _ in range(repeats):
            start = _now(device)
            work()
            taken.append(_now(device) - start)
        return max(everyone([sorted(taken)[repeats // 2]]))

    return {
        "gather": {"rows": config.train.batch, "widths": widths, "seconds": median(embeddings)},
        "all_reduce": {"megabytes": gradient.nbytes / 1e6, "seconds": median(lambda: dist.all_reduce(gradient))},
    }


@contextmanager
def _writing(folder: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise EquiAVError(
            f"--folder {folder}: cannot be written ({error.strerror}); name one with room for files of {DISK_MB} MB"
        ) from error


def disk(folder: Path, data: Path | None = None) -> dict[str, Any]:
    """10^6 bytes a second written in `folder` until they are on the disk, and read: there, or of the shards of `data`.

    Reading goes past the system's cache where that can be asked for.
    """
    portion = os.urandom(1 << 20)
    with _writing(folder), tempfile.NamedTemporaryFile(dir=folder, prefix=".benchmark-") as out:
        start = time.perf_counter()
        for _ in range(DISK_MB):
            out.write(portion)
        out.flush()
        os.fsync(out.fileno())
        written = time.perf_counter() - start
        read = _read([Path(out.name)])
    return {
        "write_mb_per_second": DISK_MB * (1 << 20) / 1e6 / written,
        "read_mb_per_second": read if data is None else _read(data.rglob("*.tar")),
        "read_from_cache": not hasattr(os, "posix_fadvise"),
    }


def _read(files: Iterable[Path]) -> float:
    """10^6 bytes a second read of these files, of DISK_MB at most."""
    size, seconds = 0, 0.0
    for file in files:
        with file.open("rb") as source:
            if hasattr(os, "posix_fadvise"):
                os.posix_fadvise(source.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
            start = time.perf_counter()
            while size < DISK_MB << 20 and (portion := source.read(1 << 20)):
                size += len(portion)
            seconds += time.perf_counter() - start
        if size >= DISK_MB << 20:
            break
    return size / 1e6 / seconds


def generated_clips(folder: Path) -> Path:
    """A prepared folder of one generated video, 640 x 360 at 25 frames a second, cut into overlapping clips."""
    video, rng = folder / "video.mp4", np.random.default_rng(0)
    coarse = rng.integers(0, 256, (VIDEO_SECONDS, 18, 32, 3), dtype=np.uint8)
    with av.open(str(video), "w") as container:
        pictures = container.add_stream("mpeg4", rate=25, options={"qscale": "5"})
        pictures.width, pictures.height, pictures.pix_fmt = 640, 360, "yuv420p"
        sound = container.add_stream("aac", rate=16000, layout="mono")
        for number in range(VIDEO_SECONDS * 25):
            image = np.roll(coarse[number // 25], number, axis=1).repeat(20, 0).repeat(20, 1)
            container.mux(pictures.encode(av.VideoFrame.from_ndarray(image, format="rgb24")))
        for _ in range(VIDEO_SECONDS * 16):
            part = av.AudioFrame.from_ndarray(
                rng.normal(0, 0.1, (1, 1000)).astype(np.float32), format="fltp", layout="mono"
            )
            part.sample_rate = 16000
            container.mux(sound.encode(part))
        for stream in (pictures, sound):
            container.mux(stream.encode(None))
    prepare([Clip("video", path=video)], folder / "prepared", workers=1, overlap=OVERLAP)
    return folder / "prepared"


def loader(config: Config, folder: Path, workers: int, seconds: float = 2.0) -> dict[str, Any]:
    """Clips a second that one worker delivers, and that `workers` do, when no step is taken meanwhile."""
    clips = ShardDataset(folder, None, size=config.visual.size)
    size = sum(file.stat().st_size for file in folder.rglob("*.tar")) / len(clips)
    found = {count: _delivered(clips, count, seconds) for count in sorted({1, workers})}
    return {
        "clips": len(clips),
        "clip_megabytes": size / 1e6,
        "workers": workers,
        "clips_per_second": found[workers],
        "one_worker_clips_per_second": found[1],
    }


def _delivered(clips: Dataset, workers: int, seconds: float) -> float:
    batch = min(16, len(clips))
    schedule = Schedule(len(clips), max(1, clips.frames), batch, 0)
    batches = training_batches(clips, schedule, start=0, stop=10**6, rank=0, world_size=1, workers=workers)
    for _ in range(2 * workers):  # what was fetched ahead while workers started
        next(batches)
    count, start = 0, time.perf_counter()
    while count == 0 or time.perf_counter() - start < seconds:
        count += len(next(batches))
    return count / (time.perf_counter() - start)


def advice(record: dict[str, Any]) -> list[str]:
    """What limits training here and what to change, a sentence each."""
    step, load, machine = record["step"], record["loader"], record["machine"]
    local = record["ranks_here"]
    needed = step["clips_per_second"] * local / record["ranks"]  # of the loaders of this machine
    limited = load["clips_per_second"] < needed
    # Several workers may get in each other's way: where they are too few, what each gave beside the others counts.
    each = load["clips_per_second"] / load["workers"] if limited else load["one_worker_clips_per_second"]
    workers = max(1, math.ceil(SPARE * needed / each / local))  # of a rank
    rates = (
        f"a step takes {needed:.3g} clips/s, the loader gives {load['clips_per_second']:.3g} "
        f"with {_count(load['workers'], 'worker')}{f' of {local} ranks' if local > 1 else ''}"
    )
    lines = []
    kind, training = record["device"].partition(":")[0], record["training_device"]
    if kind != training:
        lines.append(f"Training takes {training} here, not {kind}: leave --device out to measure what it would do.")
    if not limited:
        lines.append(f"The step limits: {rates}. train.workers={min(workers, load['workers'] // local)} is enough.")
    elif workers * local <= machine["cores"]:
        lines.append(f"The loader limits: {rates}. Set train.workers={workers}.")
    else:
        lines.append(
            f"The loader limits: {rates}. {_count(workers * local, 'worker')} would be needed, and the machine has "
            f"{_count(machine['cores'], 'core')}. Use one with more; a larger model would train at the same pace here."
        )
    if kind == "cpu":
        lines[-1] += " On a CPU, workers take cores from the step, which was measured without them."
        if record["ranks"] == 1 and machine["threads"] > 1:
            lines.append(
                "One process with one thread per core may be faster on a CPU: compare with torchrun --nproc-per-node "
                f"{machine['cores']} -m equiav.cli benchmark, other options as here."
            )
    if step["share_of_matrix"] < LITTLE_MATRIX:
        how = "raise train.batch" if kind != "cpu" else "raise train.batch, or take a larger model"
        lines.append(f"A step reaches {step['share_of_matrix']:.0%} of a plain matrix product: {how}.")
    if kind == "cuda" and machine["bfloat16"] and record["precision"] == "float32":
        lines.append("This GPU computes in bfloat16: set train.precision=bfloat16.")
    taken, whole = step["peak_gb"] or step["allocated_gb"], machine["memory_gb"]
    if kind == "cuda":
        whole = machine["gpus"][0]["memory_gb"]
    elif taken:
        taken *= local  # ranks share what the machine has
    if whole and taken and taken > MUCH_MEMORY * whole:
        lines.append(
            f"Memory is nearly full ({taken:.1f} of {whole:.1f} GB): set train.micro_batch, which keeps the "
            "batch, or train.checkpoint_activations=true."
        )
    if record["gather"] and record["gather"]["seconds"] > MUCH_GATHER * step["seconds"]:
        share = record["gather"]["seconds"] / step["seconds"]
        lines.append(f"The gather takes {share:.0%} of a step: the connection between ranks limits. Use a faster one.")
    if record["all_reduce"] and record["all_reduce"]["seconds"] > MUCH_REDUCE * step["seconds"]:
        share = record["all_reduce"]["seconds"] / step["seconds"]
        lines.append(
            f"The all-reduce of gradients alone takes {share:.0%} of the time of a step: the connection between ranks "
            "limits. Use a faster one, or raise train.batch, which needs fewer steps."
        )
    if needed * load["clip_megabytes"] > record["disk"]["read_mb_per_second"]:
        lines.append(
            f"The disk limits: steps read {needed * load['clip_megabytes']:.3g} MB/s, it gives "
            f"{record['disk']['read_mb_per_second']:.3g}. Put the shards on a faster one."
        )
    pace = min(needed, load["clips_per_second"]) * record["ranks"] / local
    lines.append(f"An epoch of {EPOCH:,} clips takes about {duration(EPOCH / pace)} at this pace.")
    return lines


def table(record: dict[str, Any]) -> list[str]:
    """The record for people: what was measured, line by line."""
    step, load, found, machine = record["step"], record["loader"], record["disk"], record["machine"]
    gpus = [f"{gpu['name']} ({gpu['memory_gb']:.0f} GB)" for gpu in machine["gpus"]]
    gpus += ["GPU of this Mac (mps)"] * machine["mps"]
    all_ranks, per_rank = (" of all ranks", " per rank") if record["ranks"] > 1 else ("", "")
    memory = "not known here"
    if step["peak_gb"]:
        memory = f"{step['peak_gb']:.2f} GB at the peak{per_rank}"
    elif step["allocated_gb"]:
        memory = f"{step['allocated_gb']:.2f} GB after the steps; the peak is not known here"
    gathered = reduced = "one rank: none"
    if between := record["gather"]:
        gathered = f"{between['seconds'] * 1000:.3g} ms for the embeddings of {_count(between['rows'], 'clip')}"
    if between := record["all_reduce"]:
        reduced = f"{between['seconds'] * 1000:.3g} ms for {between['megabytes']:.4g} MB of gradients"
    clips = f"{_count(step['batch'], 'clip')}{all_ranks}"
    together = " of this machine's ranks" if record["ranks_here"] > 1 else ""
    cached = " (from the system's cache)" if found["read_from_cache"] else ""
    used = [record["device"], record["precision"], *["compiled"] * record["compiled"], _count(record["ranks"], "rank")]
    rows = [
        ("devices", ", ".join([record["provenance"]["cpu"], _count(machine["cores"], "core"), *gpus])),
        ("used", ", ".join([*used, _count(machine["threads"], "thread") + per_rank])),
        ("matrix product", f"{record['matrix']['gflops']:.4g} GFLOP/s{per_rank} ({record['matrix']['side']} x same)"),
        ("model", f"{step['parameters_million']:.1f} M parameters"),
        ("step", f"{step['seconds']:.3g} s for {clips}: {step['clips_per_second']:.3g} clips/s"),
        ("", f"{step['gflops']:.4g} GFLOP/s{per_rank}, {step['share_of_matrix']:.0%} of the matrix product"),
        ("memory", memory),
        ("loader", f"{load['clips_per_second']:.3g} clips/s, {_count(load['workers'], 'worker')}{together}"),
        ("", f"{load['one_worker_clips_per_second']:.3g} clips/s, 1 worker"),
        ("gather", gathered),
        ("all-reduce", reduced),
        (
            "disk",
            f"{found['read_mb_per_second']:.4g} MB/s read{cached}, {found['write_mb_per_second']:.4g} MB/s written",
        ),
    ]
    return [f"{name:<15} {value}" for name, value in rows]


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"


def _now(device: torch.device) -> float:
    """The clock, after all that was asked of the device is done."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    elif device.type == "mps":
        torch.mps.synchronize()
    return time.perf_counter()


def _peak_gb(device: torch.device) -> float | None:
    """10^9 bytes at the peak: of the device, or of this process where that is the CPU; Metal does not tell."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device) / 1e9
    if device.type == "mps":
        return None
    # Not getrusage where there is this: it would count what the process held that became this one.
    with suppress(OSError, IndexError):
        return int(Path("/proc/self/status").read_text().split("VmHWM:")[1].split()[0]) * 1024 / 1e9
    try:
        import resource
    except ImportError:  # Windows
        return None
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / 1e9 if os.uname().sysname == "Darwin" else peak * 1024 / 1e9
