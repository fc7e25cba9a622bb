"""Weights from elsewhere: safe reading, strict loading, MAE's ViT, and the authors' released EquiAV checkpoints.

Released checkpoints (pre-training and fine-tuning) come into our names and go back: the same function either way.
"""

from __future__ import annotations

import io
import pickle
import re
import warnings
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeVar

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from equiav.errors import WeightsError
from equiav.models.classifier import Mode
from equiav.models.encoder import Size, sincos_positions
from equiav.models.predictor import in_residual_form

State = dict[str, Tensor]
M = TypeVar("M", bound=nn.Module)
SHOWN = 8
# Bounds on files from strangers, far above what any model needs: each is checked before anything is expanded.
LONGEST_NAMES = 1 << 22  # bytes of the part of a file that names its tensors: some 30,000 of them, read in seconds
MOST_READS = 500_000  # of a pickle in the format before torch 1.6, where that part has no stated length
EXPANSION = 8  # bytes of tensors for each byte of the file; only tensors that share storage, or compression, exceed 1

NUMBERS = (torch.float32, torch.float64, torch.float16, torch.bfloat16)
_MAE_EXTRA = re.compile(r"^(cls_token|pos_embed|mask_token|decoder_\w+|head|fc_norm)(\.|$)")


def read_state(path: Path) -> State:
    """Tensors of a .safetensors or torch file; nothing in it is ever executed."""
    if not path.is_file():
        raise WeightsError(f"{path}: no such file")
    loaded: object = read_safetensors(path) if path.suffix == ".safetensors" else _read_torch(path)
    for wrapper in ("model", "state_dict"):
        if isinstance(loaded, dict) and isinstance(loaded.get(wrapper), dict):
            loaded = loaded[wrapper]
    if (
        not isinstance(loaded, dict)
        or not loaded
        or not all(
            isinstance(v, Tensor) and v.layout == torch.strided and not v.is_quantized and not v.is_meta
            for v in loaded.values()
        )
    ):
        raise WeightsError(f"{path}: not a plain dictionary of tensors")
    _bound(sum(v.numel() * v.element_size() for v in loaded.values()), path)
    return {str(key): value for key, value in loaded.items()}


def read_safetensors(path: Path) -> State:
    """Tensors of a .safetensors file; one with too many of them is refused before it is read."""
    try:
        with path.open("rb") as file:
            length = int.from_bytes(file.read(8), "little")
        if length > LONGEST_NAMES:
            raise WeightsError(f"{path}: names too many tensors ({length} bytes of names)")
        return load_file(path)
    except (SafetensorError, OSError, ValueError) as error:
        raise WeightsError(f"{path}: not a readable file of weights ({str(error).splitlines()[0]})") from error


def _read_torch(path: Path) -> object:
    try:
        if zipfile.is_zipfile(path):
            with zipfile.ZipFile(path) as archive:
                sizes = {item.filename: item.file_size for item in archive.infolist()}
            _bound(sum(sizes.values()), path)
            if len(sizes) > LONGEST_NAMES // 64 or any(
                size > LONGEST_NAMES for name, size in sizes.items() if name.endswith(".pkl")
            ):
                raise WeightsError(f"{path}: names too many tensors ({len(sizes)} parts)")
        with _CountedReader(io.FileIO(path)) as file, warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about the pickle protocols of damaged files
            return torch.load(file, map_location="cpu", weights_only=True)
    except WeightsError:
        raise
    except pickle.UnpicklingError as error:
        raise WeightsError(f"{path}: holds more than tensors and was not opened; ask for safetensors") from error
    except Exception as error:  # a damaged pickle is a random program: it can end in any exception
        raise WeightsError(f"{path}: not a readable file of weights ({type(error).__name__})") from error


class _CountedReader(io.BufferedReader):
    """A file that ends its reader after so many reads: the unpickler makes at least one for every instruction."""

    reads = 0

    def read(self, size: int | None = -1, /) -> bytes:
        self.reads += 1
        if self.reads > MOST_READS:
            raise WeightsError(f"{self.raw.name}: names too many tensors")  # type: ignore[attr-defined]
        return super().read(size)


def _bound(size: int, path: Path) -> None:
    """Refuses a file that would grow to far more than it takes on disk."""
    if size > EXPANSION * path.stat().st_size + (1 << 20):
        raise WeightsError(f"{path}: {path.stat().st_size} bytes that would become {size}; not opened")


def is_mae(state: State) -> bool:
    """Whether these are a MAE ViT's weights, by their names."""
    return "patch_embed.proj.weight" in state and "blocks.0.attn.qkv.weight" in state


def cast(state: State, dtype: torch.dtype | None) -> State:
    """All tensors in `dtype`; comes before anything is added up, so that sums round once."""
    return {key: value.to(dtype) for key, value in state.items()} if dtype else dict(state)


def refuse_mismatch(given: State, expected: State, what: str) -> None:
    """Lists what is missing, unexpected, mis-shaped or not finite in `given`, and refuses it."""
    problems = [f"missing {key}" for key in expected if key not in given]
    problems += [f"unexpected {key}" for key in given if key not in expected]
    for key, value in given.items():
        if key not in expected:
            continue
        if value.shape != expected[key].shape:
            problems.append(f"{key} is {tuple(value.shape)}, not {tuple(expected[key].shape)}")
        elif value.dtype not in (*NUMBERS, expected[key].dtype):
            problems.append(f"{key} is of type {value.dtype}")
        elif not bool(value.isfinite().all()):
            problems.append(f"{key} holds values that are not finite")
    if problems:
        more = f" and {len(problems) - SHOWN} more" if len(problems) > SHOWN else ""
        raise WeightsError(f"{what} does not fit this model: {'; '.join(problems[:SHOWN])}{more}")


def load_strict(module: nn.Module, state: State, what: str) -> None:
    """Loads `state` into `module`, or refuses it as a whole."""
    state = in_residual_form(state)
    refuse_mismatch(state, module.state_dict(), what)
    module.load_state_dict(state)


def load_fitting(build: Callable[[], M], state: State, what: str) -> M:
    """Builds a module and loads `state` into it; shapes are compared before anything is allocated.

    The sizes that `build` uses may come from the same stranger as the weights.
    """
    try:
        with torch.device("meta"), _Undrawn():
            refuse_mismatch(state, build().state_dict(), what)
    except (RuntimeError, TypeError):  # a part of the user's own that cannot be built without its data
        refuse_mismatch(state, build().state_dict(), what)
    with _Undrawn():
        module = build()
    module.load_state_dict(state)
    return module


class _Undrawn(TorchFunctionMode):
    """Leaves parameters as they are allocated: drawing what is about to be loaded would take most of the time."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if getattr(func, "__name__", "") in ("uniform_", "normal_", "kaiming_uniform_", "kaiming_normal_"):
            tensor = args[0] if args else kwargs["tensor"]
            if isinstance(tensor, nn.Parameter) or isinstance(tensor._base, nn.Parameter):
                return tensor
        return func(*args, **kwargs)


def from_mae(state: State, target: State, dtype: torch.dtype | None = None) -> State:
    """MAE's ViT in both encoders of `target` (our state), everything else as it is there.

    The class token has no home and the position table is rebuilt; the audio kernel is the sum over the channels,
    which is what three equal channels would see.
    """
    encoder = {key: value for key, value in cast(state, dtype).items() if not _MAE_EXTRA.match(key)}
    wanted = {k.removeprefix("visual.f."): v for k, v in target.items() if k.startswith("visual.f.")}
    refuse_mismatch(encoder, wanted, "the MAE checkpoint")
    out = dict(target)
    for key, value in encoder.items():
        out[f"visual.f.{key}"] = value
        out[f"audio.f.{key}"] = value.sum(dim=1, keepdim=True) if key == "patch_embed.proj.weight" else value
    return out


PREFIX = "__M__."
PATCH = 16
FREQUENCY_ROWS = 8  # fixed in the released code: 128 mel bins
HEAD_WIDTH = 64
PREDICTOR_HEADS = (8, 64)  # number and width, fixed in the released code
BRANCHES = {"a": "audio", "v": "visual"}

# Beginnings of released names and of ours within a branch; {m} is the modality's letter.
_NAMES = (
    ("patch_embed_{m}.", "f.patch_embed."),
    ("blocks_{m}.", "f.blocks."),
    ("norm_{m}.", "f.norm."),
    ("norm_{m}_aug.", "f.norm_augmented."),
    ("aug_encoder_{m}.", "u.f_t."),
    ("cross_attn_{m}.norm_aug.", "u.norm_t."),
    ("cross_attn_{m}.attn.to_", "u.to_"),
    ("cross_attn_{m}.norm.", "u.norm."),
    ("cross_attn_{m}.mlp.", "u.mlp."),
    ("pred_{m}_intra.", "g_intra."),
    ("pred_{m}_inter.", "g_inter."),
)
_UNUSED = re.compile(r"^(blocks_[av]\.\d+\.norm[12]_[av]\.(weight|bias)|__L_(inter|intra)__\.tau)$")


@dataclass(frozen=True)
class ReleasedSizes:
    """What the shapes of a released checkpoint say about the model it belongs to."""

    encoder: Size
    frames: int
    image: int
    mlp_ratio: float
    query_width: int = 256
    head_hidden: int = 2048
    inter_out: int = 512
    intra_out: int = 512
    classes: int = 0
    projection: Literal["none", "linear", "mlp"] = "none"


def kind_of_released(state: State) -> Literal["pretrained", "finetuned"] | None:
    """Which of the authors' two models wrote these weights; None if neither."""
    names = {key.removeprefix(PREFIX) for key in state}
    if "patch_embed_a.proj.weight" not in names:
        return None
    return "finetuned" if "mlp_head.0.weight" in names else "pretrained"


def _stripped(state: State, dtype: torch.dtype | None = None) -> State:
    """Without prefix and never-used keys."""
    kept = {key.removeprefix(PREFIX): value for key, value in state.items()}
    return cast({key: value for key, value in kept.items() if not _UNUSED.match(key)}, dtype)


def released_sizes(state: State, heads: int | None = None) -> ReleasedSizes:
    """Sizes read off the shapes; attention heads leave no trace there and are 64 wide unless given."""
    state = _stripped(state)
    try:
        _, tokens_a, width = state["pos_embed_a"].shape
        _, tokens_v, _ = state["pos_embed_v"].shape
        ratio = len(state["blocks_a.0.mlp.fc1.weight"]) / width
    except (KeyError, ValueError, TypeError, ZeroDivisionError) as error:
        raise WeightsError(
            f"a released checkpoint must hold pos_embed_a, pos_embed_v and blocks_a ({error})"
        ) from error
    depth = 1 + max(int(m[1]) for m in (re.match(r"blocks_a\.(\d+)\.", key) for key in state) if m)
    heads_mlp, finetuned = "pred_a_inter.fc3.weight" in state, "mlp_head.0.weight" in state

    def rows(key: str, default: int) -> int:
        return len(state[key]) if key in state and state[key].ndim else default

    return ReleasedSizes(
        encoder=Size(width, depth, heads or max(1, width // HEAD_WIDTH)),
        frames=tokens_a // FREQUENCY_ROWS * PATCH,
        image=round(tokens_v**0.5) * PATCH,
        mlp_ratio=ratio,
        query_width=rows("aug_encoder_a.0.weight", ReleasedSizes.query_width),
        head_hidden=rows("pred_a_inter.fc1.weight", ReleasedSizes.head_hidden),
        inter_out=rows("pred_a_inter.fc3.weight", rows("pred_a_inter.weight", ReleasedSizes.inter_out)),
        intra_out=rows("pred_a_intra.fc3.weight", ReleasedSizes.intra_out),
        classes=rows("mlp_head.0.weight", 0),
        projection=("mlp" if heads_mlp else "linear") if finetuned else "none",
    )


def _fold_patches(state: State, letter: str) -> None:
    """Takes the modality vector into the patch bias; sums the audio kernel over its three equal channels."""
    patch = f"patch_embed_{letter}.proj."
    weight, bias, modality = f"{patch}weight", f"{patch}bias", f"modality_{letter}"
    lacking = [key for key in (weight, bias, modality) if key not in state]
    if lacking:
        raise WeightsError(f"the released checkpoint does not fit this model: missing {', '.join(lacking)}")
    state[bias] = state[bias] + state.pop(modality).flatten()
    if letter == "a":
        if state[weight].ndim != 4 or state[weight].shape[1] != 3:
            raise WeightsError(f"{weight} is {tuple(state[weight].shape)}; released spectrograms have three channels")
        state[weight] = state[weight].sum(dim=1, keepdim=True)


def _check_positions(state: State, letter: str) -> None:
    """The released table is fixed; ours is rebuilt, so it must be the same one."""
    table = state.pop(f"pos_embed_{letter}")[0].double()
    tokens, width = table.shape
    rows = FREQUENCY_ROWS if letter == "a" else round(tokens**0.5)
    fits = tokens % rows == 0 and width % 4 == 0
    if not fits or not torch.allclose(table, sincos_positions(width, rows, tokens // rows).double(), atol=1e-5):
        raise WeightsError(f"pos_embed_{letter} is not the fixed sine-cosine table that released checkpoints have")


def from_released(state: State, dtype: torch.dtype | None = None) -> State:
    """A released checkpoint under our names: the same function, with one-channel audio patches."""
    state = _stripped(state, dtype)
    for letter in BRANCHES:
        _fold_patches(state, letter)
        _check_positions(state, letter)
    return {_our_name(key): value for key, value in state.items()}


def _our_name(key: str) -> str:
    for letter, branch in BRANCHES.items():
        for theirs, ours in _NAMES:
            start = theirs.replace("{m}", letter)
            if key.startswith(start):
                return f"{branch}.{ours}{key.removeprefix(start)}"
    return key


def to_released(state: State, frames: int, image: int) -> State:
    """Our weights under the released names, never-used keys and position tables included: the same function.

    The one-channel audio kernel is spread as a third over three channels; the modality vectors become zero, their
    effect being part of the patch bias.
    """
    out: State = {}
    for letter, branch in BRANCHES.items():
        own = {k.removeprefix(f"{branch}."): v for k, v in state.items() if k.startswith(f"{branch}.")}
        if "u.to_q.weight" not in own:
            raise WeightsError("only models with the attention predictor can be written in the released format")
        if own["f.patch_embed.proj.weight"].shape[-1] != PATCH:
            raise WeightsError(f"released models have patches of {PATCH} x {PATCH}; this model has others")
        # A model without a norm of its own for augmented views gets a copy.
        own = {"f.norm_augmented.weight": own["f.norm.weight"], "f.norm_augmented.bias": own["f.norm.bias"], **own}
        if letter == "a":
            own["f.patch_embed.proj.weight"] = own["f.patch_embed.proj.weight"].repeat(1, 3, 1, 1) / 3
        for key, value in own.items():
            theirs, ours = next(((theirs, ours) for theirs, ours in _NAMES if key.startswith(ours)), ("", ""))
            if not ours:
                raise WeightsError(f"{key} has no place in the released format")
            name = theirs.replace("{m}", letter) + key.removeprefix(ours)
            out[name] = value
            if re.match(r"f\.blocks\.\d+\.norm[12]\.", key):
                # The released blocks carry twins of these norms that nothing reads; its loader asks for them.
                twin = torch.ones_like(value) if key.endswith("weight") else torch.zeros_like(value)
                out |= {re.sub(r"\.(norm[12])\.", rf".\1_{m}.", name): twin.clone() for m in BRANCHES}
        width = len(own["f.norm.weight"])
        grid = (FREQUENCY_ROWS, frames // PATCH) if letter == "a" else (image // PATCH, image // PATCH)
        out[f"pos_embed_{letter}"] = sincos_positions(width, *grid)[None]
        out[f"modality_{letter}"] = torch.zeros(1, 1, width)
    return {PREFIX + key: value.contiguous() for key, value in out.items()}


def finetuned_from_released(state: State, mode: Mode, dtype: torch.dtype | None = None) -> State:
    """A released fine-tuning checkpoint under the names of `Classifier`; what `mode` never uses is left out."""
    out: State = {}
    for key, value in from_released(state, dtype).items():
        branch, _, rest = key.partition(".")
        if branch == "mlp_head":
            out[key.replace("mlp_head.0.", "head.")] = value
        elif branch not in BRANCHES.values():
            out[key] = value
        elif mode not in (branch, "audiovisual"):
            continue
        elif rest.startswith("f."):
            out[f"encoders.{branch}.{rest.removeprefix('f.')}"] = value
        elif mode != "visual":  # visual-only classifies the pooled tokens directly
            out[f"projections.{branch}.{rest.removeprefix('g_inter.')}"] = value
    return out
