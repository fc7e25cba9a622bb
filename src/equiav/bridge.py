"""Text search in collections without text: a linear map from an image-text model's space (CLIP, SigLIP) into ours.

The frames of an index are embedded by that model's image tower; the index holds our vectors of the same windows. A
ridge regression on these pairs maps the one space into the other. A text goes through the other model's text tower and
the same map. Text and image vectors of such models lie apart (the modality gap), and the map has seen images only. So
each kind is taken relative to its own mean, that of the frames and that of many sentences, and a text stands for the
frames nearest to it: their mean is mapped, which is an image vector, as the map was fitted on.
"""

from __future__ import annotations

import io
import json
import shutil
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from safetensors.torch import save_file
from torch import Tensor

from equiav.checkpoint import META, resolve, same_model
from equiav.errors import DataError, EquiAVError, WeightsError
from equiav.inference import Embedder, load_model
from equiav.io import check_sums, replacing, write_sums
from equiav.media import ImageInput, square, stacked
from equiav.models import describe, read_safetensors
from equiav.randomness import generator
from equiav.search import Index, Query
from equiav.text import has_words

__all__ = ["Bridge", "BridgeFacts", "ImageText", "fit_bridge", "open_image_text"]

Vectors = NDArray[np.float32]
Progress = Callable[[str], None]
FOLDER, TENSORS, FACTS = "bridge", "bridge.safetensors", "bridge.json"  # in the folder of an index
PARTS = ("map", "image_mean", "text_mean", "our_mean", "frames")  # of a bridge, as tensors
LEAST = 16  # pairs: fewer fit anything
RIDGES = (1e-5, 1e-4, 1e-3, 1e-2, 1e-1, 1.0, 10.0)  # of the mean square of the image vectors' directions
HELD_OUT = 0.2
NEAREST = 5  # frames that a text stands for; a count and no temperature: models differ in how far cosines spread
BATCH = 32
THINGS = (
    "dog", "cat", "bird", "horse", "cow", "man", "woman", "child", "crowd", "baby", "car", "bus", "train", "airplane",
    "boat", "bicycle", "motorcycle", "guitar", "piano", "drum", "violin", "trumpet", "bell", "clock", "phone",
    "keyboard", "door", "window", "kitchen", "street", "forest", "beach", "river", "rain", "fire", "snow", "wind",
    "wave", "mountain", "field", "city", "night", "sunset", "circle", "square", "triangle", "ring", "cross", "flower",
    "food", "machine", "tool", "toy", "ball", "football", "book",
)  # fmt: skip
FRAMES = ("a photo of a {}", "a video of a {}", "{}", "a {} making a sound", "a small {} and a large {}")


@runtime_checkable
class ImageText(Protocol):
    """A model with one space for images and text: anything that gives vectors of both."""

    name: str

    def images(self, images: Sequence[NDArray[np.uint8]]) -> Vectors:
        """Unit vectors (N, D) of images (H, W, 3)."""
        ...

    def texts(self, texts: Sequence[str]) -> Vectors:
        """Unit vectors (N, D) of texts."""
        ...


class TransformersImageText:
    """A CLIP or SigLIP of the transformers library, by the name of its repository or a local folder."""

    def __init__(self, name: str) -> None:
        self.name = name
        found = describe(name)  # says in one line what is missing, or of another kind
        self.side, mean, std = found.inputs["size"], found.inputs["mean"], found.inputs["std"]
        self.inputs = ImageInput(tuple(mean), tuple(std))
        from transformers import AutoModel, AutoTokenizer

        try:
            self.model = AutoModel.from_pretrained(name, use_safetensors=True).eval()
            self.tokenizer = AutoTokenizer.from_pretrained(name)
        except (OSError, ValueError, KeyError, ImportError) as error:
            reason = (str(error).strip().splitlines() or ["not readable"])[0]
            raise WeightsError(f"{name}: cannot be used as an image-text model ({reason})") from error
        if not hasattr(self.model, "get_text_features"):
            raise WeightsError(f"{name}: encodes images only; a bridge needs a model of images and text")
        self.longest = int(self.model.config.text_config.max_position_embeddings)

    @torch.inference_mode()
    def images(self, images: Sequence[NDArray[np.uint8]]) -> Vectors:
        """The image tower; images are scaled and cut to a square as ours are."""
        frames = torch.cat([square(stacked((image,)), self.side) for image in images])
        return _unit(self.model.get_image_features(pixel_values=self.inputs.finish(self.inputs.prepare(frames))))

    @torch.inference_mode()
    def texts(self, texts: Sequence[str]) -> Vectors:
        """The text tower; what is longer than it reads is cut."""
        tokens = self.tokenizer(
            list(texts), padding="max_length", truncation=True, max_length=self.longest, return_tensors="pt"
        )
        return _unit(self.model.get_text_features(**tokens))


class EquiAVImageText:
    """A model of ours that has learnt text, in the place of a CLIP."""

    def __init__(self, path: Path) -> None:
        self.name, self.embedder = str(path.resolve()), Embedder(load_model(path))
        self.embedder.text(["a"])  # refused in one line if it has no text

    def images(self, images: Sequence[NDArray[np.uint8]]) -> Vectors:
        """As its embedder does."""
        return self.embedder.image(list(images))

    def texts(self, texts: Sequence[str]) -> Vectors:
        """As its embedder does."""
        return self.embedder.text(list(texts))


def open_image_text(name: str) -> ImageText:
    """A CLIP or SigLIP by name or folder, or a checkpoint of ours that has learnt text."""
    path = Path(name)
    if path.is_dir() and (resolve(path) / META).is_file():
        return EquiAVImageText(path)
    return TransformersImageText(name)


def _unit(found: Any) -> Vectors:
    z = getattr(found, "pooler_output", found)
    unit: Vectors = torch.nn.functional.normalize(z.float(), dim=1).cpu().numpy()
    return unit


@dataclass(frozen=True)
class BridgeFacts:
    """What is known of a bridge, for people: how many pairs it was fitted on, the gap, and how well it held.

    `gap` is the distance between the means of text and image vectors of the other model, whose vectors have length 1.
    `recall` is R@10 in per cent of held-out frames, each looked for among them by its mapped image vector; `chance` is
    that of guessing.
    """

    image_text: str
    made_for: str  # digest of our model
    pairs: int
    sentences: int
    gap: float
    ridge: float
    recall: float
    chance: float
    held_out: int

    def lines(self) -> list[str]:
        """For a terminal."""
        return [
            f"bridge from {self.image_text}: {self.pairs} frames, {self.sentences} sentences",
            f"gap between its text and image vectors: {self.gap:.2f}; taken out by centring each at its own mean",
            f"a text stands for the {NEAREST} frames nearest to it",
            f"held-out frames: R@10 {self.recall:.1f} % among {self.held_out} (chance {self.chance:.1f} %)",
        ]


@dataclass(frozen=True)
class Bridge:
    """The map, the means of either side, the frames it was fitted on, and the model whose texts go through it."""

    model: ImageText
    map: Tensor  # (D of the other model, D of ours)
    image_mean: Tensor
    text_mean: Tensor
    our_mean: Tensor  # of our vectors: embeddings lie in a narrow cone, not around the origin
    frames: Tensor  # (N, D of the other model); none in bridges of format 1, whose texts are mapped as they are
    facts: BridgeFacts

    def text(self, items: str | list[str]) -> Vectors:
        """One text as a vector (D,) in our space, a list as (N, D), of unit length."""
        texts = items if isinstance(items, list) else [items]
        if any(not has_words(text) for text in texts):
            raise DataError("an empty text has no words to embed; write what you look for")
        rows = torch.from_numpy(self.model.texts(texts)) - self.text_mean
        if len(self.frames):
            frames = self.frames - self.image_mean
            rows = frames[(rows @ frames.T).topk(min(NEAREST, len(frames))).indices].mean(dim=1)
        found = _unit(rows @ self.map + self.our_mean)
        return found if isinstance(items, list) else found[0]

    def query(self, text: str, digest: str) -> Query:
        """A text as a query to the index that the bridge was fitted for."""
        self.check_model(digest)
        return Query(self.text(text), "text", digest)

    def check_model(self, digest: str) -> None:
        """Refuses a bridge into the space of another checkpoint."""
        if not same_model(digest, self.facts.made_for):
            raise DataError(
                f"this bridge leads to checkpoint {self.facts.made_for[:12]}, not to {digest[:12]}; "
                "fit it again (equiav bridge)"
            )

    def save(self, index: str | Path) -> Path:
        """Writes the bridge into the folder of an index, which remembers it from then on."""
        place = Path(index) / FOLDER
        tensors = {name: getattr(self, name) for name in PARTS}
        with replacing(place) as draft:
            draft.mkdir()
            save_file({name: value.contiguous() for name, value in tensors.items()}, draft / TENSORS)
            record = {"format": 2, **asdict(self.facts)}
            (draft / FACTS).write_text(json.dumps(record, indent=1), encoding="utf-8")
            shutil.copymode(draft / FACTS, draft / TENSORS)  # safetensors lets nobody but the owner read
            write_sums(draft)
        return place

    @classmethod
    def open(cls, index: str | Path, image_text: str | None = None) -> Bridge:
        """The bridge of an index; `image_text` says where the other model is, if it is no longer where it was."""
        place = Path(index) / FOLDER
        if not place.is_dir():
            raise DataError(f"{index} has no bridge, and its model has learnt no text; fit one: equiav bridge {index}")
        try:
            for problem in check_sums(place, (TENSORS, FACTS)):
                raise ValueError(problem)
            record = json.loads((place / FACTS).read_text(encoding="utf-8"))
            tensors = read_safetensors(place / TENSORS)
            if (version := record.pop("format")) not in (1, 2):
                raise ValueError("of another format")
            if version == 1:
                del record["scale"]  # of texts, which changes no direction where no mean is added
                tensors |= {"our_mean": torch.zeros(tensors["map"].shape[1]), "frames": tensors["map"].new_empty(0)}
            facts = BridgeFacts(**record)
            found = {name: tensors[name] for name in PARTS}
        except (OSError, ValueError, KeyError, TypeError, EquiAVError) as error:
            raise DataError(f"{place} is damaged ({error}); fit the bridge again (equiav bridge {index})") from error
        return cls(open_image_text(image_text or facts.image_text), facts=facts, **found)

    @staticmethod
    def there(index: str | Path) -> bool:
        """Whether an index has a bridge."""
        return (Path(index) / FOLDER / FACTS).is_file()


def sentences() -> list[str]:
    """Plain sentences about many things, whose mean stands for that of text."""
    return [frame.replace("{}", thing) for frame in FRAMES for thing in THINGS]


def fit_bridge(
    index: Index,
    model: ImageText,
    *,
    most: int = 5000,
    texts: Sequence[str] | None = None,
    seed: int = 0,
    progress: Progress = lambda line: None,
) -> Bridge:
    """Fits the map on the thumbnails of an index and its visual vectors.

    Args:
        index: its entries with a thumbnail are used.
        model: the image-text model.
        most: entries to use at most, drawn by `seed`.
        texts: sentences whose mean stands for that of text; without them plain ones about many things.
        seed: of the draw, and of the frames held out to choose the ridge, and others to state how well the map holds.
        progress: is told how far it is.
    """
    ids, ours = index.vectors("visual")
    order = torch.randperm(len(ids), generator=generator(seed, 0, "bridge")).tolist()
    pairs = [(row, place) for row in order if (place := index.thumbnail(ids[row])) is not None][:most]
    if len(pairs) < LEAST:
        raise DataError(f"{index.folder}: {len(pairs)} entries have a frame; a bridge needs at least {LEAST}")
    seen = []
    for start in range(0, len(pairs), BATCH):
        seen.append(model.images([_picture(place) for _, place in pairs[start : start + BATCH]]))
        progress(f"embedded {min(start + BATCH, len(pairs))} of {len(pairs)} frames")
    x = torch.from_numpy(np.concatenate(seen)).double()
    y = torch.from_numpy(np.stack([ours[row] for row, _ in pairs])).double()
    said = list(texts) if texts else sentences()
    t = torch.from_numpy(
        np.concatenate([model.texts(said[i : i + BATCH]) for i in range(0, len(said), BATCH)])
    ).double()
    held = max(2, round(HELD_OUT * len(pairs)))
    # The ridge is chosen without the frames that the stated recall is measured on. The smallest of equals is safe:
    # what is mapped later lies among the frames.
    ridge = max(RIDGES, key=lambda ridge: _recall(x[held:], y[held:], held, ridge))
    image_mean, text_mean = x.mean(dim=0), t.mean(dim=0)
    facts = BridgeFacts(
        image_text=model.name,
        made_for=index.digest,
        pairs=len(pairs),
        sentences=len(said),
        gap=float((image_mean - text_mean).norm()),
        ridge=ridge,
        recall=_recall(x, y, held, ridge),
        chance=100 * min(1.0, 10 / held),
        held_out=held,
    )
    found = zip(PARTS, (_ridge(x, y, ridge), image_mean, text_mean, y.mean(dim=0), x), strict=True)
    return Bridge(model, facts=facts, **{name: part.float() for name, part in found})


def _picture(place: Path) -> NDArray[np.uint8]:
    with Image.open(io.BytesIO(place.read_bytes()), formats=("JPEG",)) as image:
        return np.asarray(image.convert("RGB"))


def _ridge(x: Tensor, y: Tensor, ridge: float) -> Tensor:
    """argmin |(x - mean) W - (y - mean)|^2 + lambda |W|^2, lambda as a share of the mean square of a direction of x."""
    a, b = x - x.mean(dim=0), y - y.mean(dim=0)
    gram = a.T @ a
    weight = ridge * float(gram.diagonal().mean())
    solved: Tensor = torch.linalg.solve(gram + max(weight, 1e-9) * torch.eye(len(gram), dtype=gram.dtype), a.T @ b)
    return solved


def _recall(x: Tensor, y: Tensor, held: int, ridge: float) -> float:
    """R@10 of the first rows, each looked for among their own vectors of ours through a map fitted on the others."""
    w = _ridge(x[held:], y[held:], ridge)
    mapped = (x[:held] - x[held:].mean(dim=0)) @ w + y[held:].mean(dim=0)
    scores = mapped @ torch.nn.functional.normalize(y[:held], dim=1).T
    ranks = 1 + (scores > scores.diagonal()[:, None]).sum(dim=1)
    return 100 * float((ranks <= 10).double().mean())
