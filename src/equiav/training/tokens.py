"""The token store: what frozen encoders make of every clip and of a few views of it, computed once and kept on disk."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from equiav.augment import Draw, Pipeline, PipelineDraw
from equiav.config import Config, canonical_dump
from equiav.data import Dataset, Subset, collate, evaluation_batches, evenly_spaced
from equiav.errors import ConfigError, DataError
from equiav.io import Progress, locked, replacing, write_json
from equiav.media import Inputs, prepare_batch
from equiav.models import mean_pool
from equiav.objectives import STORED_VIEW, EquiAVObjective, StepDraws
from equiav.randomness import generator
from equiav.types import AUDIO, Batch, Modality, Sample

FORMAT = 1
META, PROGRESS = "meta.json", "progress.json"
BATCH = 16  # clips encoded at a time
PROBED = 8  # clips whose content, beside the names of all, tells one dataset from another


class ViewsDataset(Subset):
    """The clips of a dataset, each in `count` ways: a sample's second number is a view and decides the frame."""

    def __init__(self, clips: Dataset, count: int, frames: int) -> None:
        super().__init__(clips, range(len(clips)))
        self.numbers = evenly_spaced(clips.frames, min(frames, count))
        self.frames = count

    def sample(self, index: int, frame: int) -> Sample:
        """The clip with the frame of a view."""
        return self.clips.sample(index, self.numbers[frame % len(self.numbers)])

    def originals(self, modality: Modality) -> int:
        """How many different inputs of a modality a clip has: one for audio, unless frames stand for other audio."""
        return 1 if modality == AUDIO and self.clips.one_to_one else len(self.numbers)


class KeptSpectrograms(Subset):
    """The clips of a dataset with their spectrograms in place of waveforms, each computed once and kept in memory.

    A clip's spectrogram does not depend on the batch it stands in, so that training sees the same numbers.
    """

    def __init__(self, clips: Dataset, inputs: Inputs) -> None:
        super().__init__(clips, range(len(clips)))
        self.inputs = inputs
        self._kept: dict[int, Tensor] = {}

    def sample(self, index: int, frame: int) -> Sample:
        """The clip's spectrogram and its frame."""
        if index not in self._kept:
            whole = self.clips.part(index, frame, self.modalities)
            if AUDIO not in whole.inputs:
                return whole
            self._kept[index] = prepare_batch(self.inputs, collate([whole]), AUDIO)[0]
        else:
            whole = self.clips.part(index, frame, [m for m in self.modalities if m != AUDIO])
        return Sample(whole.id, {**whole.inputs, AUDIO: self._kept[index]})


class Views:
    """The augmentations of every clip's views: a function of the seed, the clip and the view alone."""

    def __init__(self, pipelines: Mapping[Modality, Pipeline], clips: int, count: int, seed: int) -> None:
        self._drawn: dict[Modality, dict[str, Draw]] = {}
        for m, pipeline in pipelines.items():
            views = [pipeline.sample(clips, generator(seed, k, f"views/{m}")) for k in range(count)]
            self._drawn[m] = {
                part: Draw(torch.cat([v[part].on for v in views]), torch.cat([v[part].values for v in views]))
                for part in views[0]
            }
        self.clips = clips

    def draws(self, m: Modality, requests: Sequence[tuple[int, int]]) -> PipelineDraw:
        """Those of some (clip, view)."""
        rows = torch.tensor([view * self.clips + clip for clip, view in requests])
        return PipelineDraw({part: Draw(d.on[rows], d.values[rows]) for part, d in self._drawn[m].items()})

    def fix(self, draws: StepDraws, requests: Sequence[tuple[int, int]]) -> StepDraws:
        """The draws of a step with those of the requested (clip, view) in place of the augmentations applied."""
        return StepDraws({m: replace(d, intra=self.draws(m, requests)) for m, d in draws.of.items()})


class TokenStore:
    """A folder of memory-mapped arrays, filled clip by clip; a process that is killed loses at most one batch.

    By modality: the tokens h of the originals (`sizes`: inputs of a clip, tokens of each, their width) in `dtype`, and
    the pooled h' of the views in single precision: a hundredth of it, no need to be short.
    """

    def __init__(
        self,
        folder: Path,
        facts: Mapping[str, str],
        *,
        clips: int,
        views: int,
        dtype: str,
        sizes: Mapping[Modality, tuple[int, int, int]],
    ) -> None:
        self.folder, self.facts, self.clips, self.views = folder, dict(facts), clips, views
        self.modalities = tuple(sizes)
        self.shapes: dict[str, tuple[tuple[int, ...], np.dtype[Any]]] = {}  # by name of file
        for m, (originals, tokens, width) in sizes.items():
            self.shapes[f"{m}.tokens"] = (clips, originals, tokens, width), np.dtype(dtype)
            self.shapes[f"{m}.views"] = (clips, views, width), np.dtype("float32")
        self.bytes = {name: int(np.prod(shape)) * kind.itemsize for name, (shape, kind) in self.shapes.items()}
        self.size = sum(self.bytes.values())
        self.arrays: dict[str, np.memmap[Any, Any]] = {}

    def open(self, *, write: bool = False) -> int:
        """Maps the arrays of a store that was made for the same encoders, data and views; how many clips it holds."""
        try:
            meta = json.loads((self.folder / META).read_text(encoding="utf-8"))
            done = int(json.loads((self.folder / PROGRESS).read_text(encoding="utf-8"))["done"])
            found, version = dict(meta["facts"]), meta["format"]
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise DataError(f"{self.folder}: is no token store; name another train.views.store") from error
        if other := [name for name, value in self.facts.items() if found.get(name) != value]:
            raise DataError(
                f"{self.folder}: was made with other {' and '.join(other)}; delete it or name another train.views.store"
            )
        for name, (shape, kind) in self.shapes.items():
            path = self.folder / name
            if version != FORMAT or not path.is_file() or path.stat().st_size != self.bytes[name]:
                raise DataError(f"{path}: damaged, or of another format; delete the store")
            self.arrays[name] = np.memmap(path, kind, "r+" if write else "r", shape=shape)
        return done

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "arrays": {}}  # worker processes map the files themselves

    def create(self) -> None:
        """Makes the files in their full size; where the disk is too small for them, nothing is left of it."""
        try:
            with replacing(self.folder) as draft:
                draft.mkdir()
                for name, size in self.bytes.items():
                    with (draft / name).open("wb") as file:
                        # Reserved now: a mapped write to a full disk would end the process.
                        if hasattr(os, "posix_fallocate"):
                            os.posix_fallocate(file.fileno(), 0, size)
                        else:
                            file.truncate(size)
                (draft / META).write_text(json.dumps({"format": FORMAT, "facts": self.facts}, indent=1), "utf-8")
                (draft / PROGRESS).write_text(json.dumps({"done": 0}), "utf-8")
        except OSError as error:
            if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
                raise self._too_large("more than the disk gives") from error
            raise DataError(f"{self.folder}: cannot be written ({error.strerror})") from error

    def _too_large(self, reason: str) -> DataError:
        return DataError(
            f"{self.folder}: needs {self.size / 1e9:.2f} GB for tokens, {reason}; set fewer train.views.frames, "
            "train.views.precision=float16, or another train.views.store"
        )

    def fill(
        self,
        objective: EquiAVObjective,
        clips: ViewsDataset,
        views: Views,
        report: Callable[[str], None],
        stopped: Callable[[], bool] = lambda: False,
    ) -> bool:
        """Computes what is missing; False where it was told to stop before the end."""
        if self.folder.exists():
            if self.open() == self.clips:
                return True
        else:
            place = next(p for p in self.folder.absolute().parents if p.exists())
            free = shutil.disk_usage(place).free
            if self.size > free:
                raise self._too_large(f"and only {free / 1e9:.2f} GB are free")
            size = f"{self.size / 1e9:.2f} GB in {self.folder}"
            report(f"tokens of {self.clips} clips and {self.views} views of each: {size}")
        with locked(self.folder.absolute().parent, f".{self.folder.name}.lock"):
            if not self.folder.exists():
                self.create()
            done = self.open(write=True)
            progress = Progress(self.clips, report, "tokens", start=done)
            batches = [evaluation_batches(clips.clips, batch=BATCH, first=done, frame=n) for n in clips.numbers]
            for parts in zip(*batches, strict=True):
                if stopped():
                    return False
                numbers = range(done, done + len(parts[0]))
                rows = slice(done, done + len(parts[0]))
                for m in self.modalities:
                    originals = clips.originals(m)
                    for j, batch in enumerate(parts[:originals]):
                        wanted = [[(i, k) for i in numbers] for k in range(j, clips.frames, originals)]
                        h, pooled = self._encode(objective, batch, m, [views.draws(m, of) for of in wanted])
                        self.arrays[f"{m}.tokens"][rows, j] = h
                        self.arrays[f"{m}.views"][rows, j::originals] = pooled
                for array in self.arrays.values():
                    array.flush()
                done += len(numbers)
                write_json(self.folder / PROGRESS, {"done": done})
                progress.update(done)
        return True

    @staticmethod
    @torch.no_grad()
    def _encode(
        objective: EquiAVObjective, batch: Batch, m: Modality, draws: Sequence[PipelineDraw]
    ) -> tuple[NDArray[Any], NDArray[Any]]:
        """h of a batch, and the pooled h' of some views of it."""
        net, device = objective.model[m], next(objective.parameters()).device
        x = prepare_batch(objective.inputs, batch.to(device), m)
        h = net.encode(objective.view(x, m))
        pooled = [mean_pool(net.encode(objective.view(x, m, draw))) for draw in draws]
        return h.cpu().numpy(), torch.stack(pooled, dim=1).cpu().numpy()


class StoredDataset(ViewsDataset):
    """Clips as the tokens of a store: h of a modality under its name, the pooled h' of the view under `.../view`."""

    def __init__(self, clips: ViewsDataset, store: TokenStore) -> None:
        super().__init__(clips.clips, clips.frames, len(clips.numbers))
        self.store = store
        self.ids = [clips.clip(i).id for i in range(len(clips))]

    def sample(self, index: int, frame: int) -> Sample:
        """The tokens of a clip and of one view of it."""
        inputs = {}
        if not self.store.arrays:
            self.store.open()
        arrays = self.store.arrays
        for m in self.store.modalities:
            h = arrays[f"{m}.tokens"][index, frame % self.originals(m)]
            inputs[m] = torch.from_numpy(np.array(h))
            inputs[m + STORED_VIEW] = torch.from_numpy(np.array(arrays[f"{m}.views"][index, frame])[None])
        return Sample(self.ids[index], inputs)


def check_views(config: Config) -> None:
    """Refuses recipes for which a fixed number of views, or a store of tokens, has no meaning."""
    views, objective = config.train.views, config.objective
    if views is None:
        return
    if objective.kind != "equiav" or config.classifier is not None:
        raise ConfigError("train.views: is for pre-training with objective.kind equiav")
    if objective.intra == "invariant":
        raise ConfigError("train.views: objective.intra=invariant compares two new views in every step; leave it out")
    if views.store is None:
        return
    frozen = config.optim.freeze
    modalities = ("audio", "visual", *config.modalities)
    if frozen.get("encoder") != "all" and any(frozen.get(f"{m}.encoder") != "all" for m in modalities):
        raise ConfigError("train.views.store: needs frozen encoders; set optim.freeze={encoder: all}")
    if objective.keep_tokens < 1:
        raise ConfigError("train.views.store: holds all tokens; set objective.keep_tokens=1")
    if any(config.model.encoder_for(m).norm_augmented for m in modalities):
        raise ConfigError("train.views.store: is not for encoders with norm_augmented")


def token_store(config: Config, objective: EquiAVObjective, clips: ViewsDataset) -> TokenStore:
    """The store of a recipe, bound to the encoders, the data and the views that it must have been made with."""
    views = config.train.views
    assert views is not None
    assert views.store is not None
    sizes = {}
    weights = hashlib.sha256()
    for m in objective.model.modalities:
        f = objective.model[m].f
        sizes[m] = (clips.originals(m), f.tokens, f.width)
        for name, tensor in sorted(f.state_dict().items()):
            weights.update(f"{m}.{name}".encode())
            weights.update(tensor.detach().cpu().contiguous().numpy().tobytes())
        weights.update(repr(config.model.encoder_for(m).model_dump(exclude={"name", "revision"})).encode())
    tree = canonical_dump(config)
    facts = {
        "encoders": weights.hexdigest(),
        "inputs": _digest([tree["audio"], tree["visual"], tree.get("modalities")]),
        "clips": _data_digest(clips.clips),
        "views": _digest([tree["augment"], views.model_dump(exclude={"store", "precision"})]),
        "precision": views.precision,
    }
    return TokenStore(Path(views.store), facts, clips=len(clips), views=views.count, dtype=views.precision, sizes=sizes)


def _digest(facts: Any) -> str:
    return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()


def _data_digest(clips: Dataset) -> str:
    digest = hashlib.sha256(_digest([clips.clip(i).id for i in range(len(clips))]).encode())
    for i in evenly_spaced(len(clips), PROBED):
        for m, x in sorted(clips.sample(i, 0).inputs.items()):
            digest.update(m.encode() + x.contiguous().numpy().tobytes())
    return digest.hexdigest()
