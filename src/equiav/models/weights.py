"""Foreign weights: safe reading, strict loading, and MAE's ViT; the authors' checkpoints are in released.py."""

from __future__ import annotations

import pickle
import re
import zipfile
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn

from equiav.errors import WeightsError

State = dict[str, Tensor]
SHOWN = 8

_MAE_EXTRA = re.compile(r"^(cls_token|pos_embed|mask_token|decoder_\w+|head|fc_norm)(\.|$)")


def read_state(path: Path) -> State:
    """Tensors of a .safetensors or torch file; nothing in it is ever executed."""
    if not path.is_file():
        raise WeightsError(f"{path}: no such file")
    try:
        if path.suffix == ".safetensors":
            loaded: object = load_file(path)
        else:
            loaded = torch.load(path, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        raise WeightsError(f"{path}: holds more than tensors and was not opened; ask for safetensors") from error
    except (SafetensorError, RuntimeError, EOFError, zipfile.BadZipFile, ValueError, KeyError, OSError) as error:
        raise WeightsError(f"{path}: not a readable file of weights ({type(error).__name__})") from error
    for wrapper in ("model", "state_dict"):
        if isinstance(loaded, dict) and isinstance(loaded.get(wrapper), dict):
            loaded = loaded[wrapper]
    if not isinstance(loaded, dict) or not loaded or not all(isinstance(v, Tensor) for v in loaded.values()):
        raise WeightsError(f"{path}: not a plain dictionary of tensors")
    return {str(key): value for key, value in loaded.items()}


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
        elif not bool(value.isfinite().all()):
            problems.append(f"{key} holds values that are not finite")
    if problems:
        more = f" and {len(problems) - SHOWN} more" if len(problems) > SHOWN else ""
        raise WeightsError(f"{what} does not fit this model: {'; '.join(problems[:SHOWN])}{more}")


def load_strict(module: nn.Module, state: State, what: str) -> None:
    """Loads `state` into `module`, or refuses it as a whole."""
    refuse_mismatch(state, module.state_dict(), what)
    module.load_state_dict(state)


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
