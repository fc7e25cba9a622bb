"""Encoders of the transformers library: ViT, ViT-MAE, DINOv2, CLIP's and SigLIP's vision towers, and AST for audio."""

from __future__ import annotations

import contextlib
import json
import logging
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor, nn

from equiav.errors import ConfigError, ShapeError, WeightsError
from equiav.models.encoder import Encoder, groups_by_block
from equiav.models.layers import Chosen, Tokens
from equiav.types import AUDIO, VISUAL, Modality

CONFIG = "config.json"
PROCESSORS = ("preprocessor_config.json", "processor_config.json")
PARTS = ("image_processor", "feature_extractor")  # of a processor file that describes several
FILES = (CONFIG, *PROCESSORS, "model.safetensors", "model-*-of-*.safetensors", "model.safetensors.index.json")
# What decides the network. Dropout is not among it: nothing in training is drawn inside a network here.
ARCHITECTURE = (
    "hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size", "hidden_act", "layer_norm_eps",
    "image_size", "patch_size", "num_channels", "qkv_bias", "mlp_ratio", "layerscale_value", "use_swiglu_ffn",
    "num_register_tokens", "frequency_stride", "time_stride", "max_length", "num_mel_bins",
)  # fmt: skip
TOWERS = {"clip": "clip_vision_model", "siglip": "siglip_vision_model"}  # models of images and text: their vision part
MOST_TOKENS = 65_536


@dataclass(frozen=True)
class _Family:
    """One architecture: its class, what it encodes, and how many tokens stand before those of the patches."""

    model: str
    modality: Modality = VISUAL
    before: int = 1  # class token; register tokens come on top
    settings: tuple[tuple[str, Any], ...] = ()  # of its configuration: no masking, no pooling head
    arguments: tuple[tuple[str, Any], ...] = ()  # of its class


FAMILIES = {
    "vit": _Family("ViTModel", arguments=(("add_pooling_layer", False),)),
    "vit_mae": _Family("ViTMAEModel", settings=(("mask_ratio", 0.0),)),
    "dinov2": _Family("Dinov2Model"),
    "dinov2_with_registers": _Family("Dinov2WithRegistersModel"),
    "clip_vision_model": _Family("CLIPVisionModel"),
    "siglip_vision_model": _Family("SiglipVisionModel", before=0, settings=(("vision_use_head", False),)),
    "audio-spectrogram-transformer": _Family("ASTModel", AUDIO, before=2),  # class and distillation tokens
}


@dataclass(frozen=True)
class ForeignEncoder:
    """What a repository or folder says of its encoder.

    `architecture` builds the network; `inputs` are what it wants of its modality, under the names that the recipe's
    section (`visual` or `audio`) has for them.
    """

    modality: Modality
    architecture: dict[str, Any]
    inputs: dict[str, Any]


def describe(name: str, revision: str | None = None) -> ForeignEncoder:
    """Architecture, size and statistics of an encoder on the Hub or in a local folder; no weights are read."""
    folder = locate(name, revision)
    kind, config = foreign_config(name, folder, FAMILIES, TOWERS)
    architecture = {key: getattr(config, key) for key in ARCHITECTURE if hasattr(config, key)}
    for key, value in architecture.items():
        if not isinstance(value, str | int | float | bool):  # sides that differ are lists
            raise ConfigError(f"{name}: its {key} is {value}, and only square patches and images are supported")
    modality = FAMILIES[kind].modality
    file = next((folder / file for file in PROCESSORS if (folder / file).is_file()), None)
    if file is None:
        raise WeightsError(f"{name}: has no {PROCESSORS[0]}, which says how its inputs are normalised")
    whole = _json(file, name)
    processor = next((whole[key] for key in PARTS if isinstance(whole.get(key), dict)), whole)
    inputs = _audio_inputs if modality == AUDIO else _image_inputs
    return ForeignEncoder(modality, {"model_type": kind, **architecture}, inputs(processor, architecture, name))


def foreign_config(name: str, folder: Path, known: Iterable[str], towers: Mapping[str, str]) -> tuple[str, Any]:
    """The kind of a saved model, of one with several `towers` that of its tower; and its configuration."""
    kind = str(_json(folder / CONFIG, name).get("model_type"))
    kind = towers.get(kind, kind)
    if kind not in known:
        raise ConfigError(f"{name}: is of the kind {kind}; encoders can be {', '.join([*known, *towers])}")
    return kind, _config_class(kind).from_pretrained(folder, local_files_only=True)


def locate(name: str, revision: str | None = None, files: Iterable[str] = FILES) -> Path:
    """The folder of an encoder: a local one as it is, else a snapshot in the Hub's cache, fetched where possible."""
    _library()
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import (
        GatedRepoError,
        HfHubHTTPError,
        HFValidationError,
        RepositoryNotFoundError,
        RevisionNotFoundError,
    )

    if Path(name).is_dir():
        if revision is not None:
            raise ConfigError(f"{name}: is a folder, which has no revision; leave revision out")
        return Path(name)
    where = name if revision is None else f"{name} at revision {revision}"
    try:
        with _quiet():
            return Path(snapshot_download(name, revision=revision, allow_patterns=list(files)))
    except HFValidationError as error:
        raise ConfigError(f"{name}: no such folder, and no name of a repository on the Hub (owner/name)") from error
    except GatedRepoError as error:
        raise WeightsError(f"{where}: asks for a consent; give it on the Hub, then `hf auth login`") from error
    except RevisionNotFoundError as error:
        raise WeightsError(f"{where}: the Hub has no such revision") from error
    except RepositoryNotFoundError as error:
        raise WeightsError(f"{where}: no such folder here, no such repository on the Hub") from error
    except (HfHubHTTPError, OSError, RuntimeError) as error:  # offline: LocalEntryNotFoundError, an OSError
        wanted = f"hf download {name}" + ("" if revision is None else f" --revision {revision}")
        raise WeightsError(
            f"{where}: not in the local cache, and the Hub cannot be reached; where there is a network run `{wanted}`, "
            "or give a local folder as the name"
        ) from error


class TransformersEncoder(Encoder):
    """A network of the transformers library as an encoder: h are the tokens of its patches, in row-major order.

    Class, register and distillation tokens are left out. `architecture` is what `describe` found, and all that
    building needs: the weights come from `load_pretrained` or from a checkpoint. Inputs have one size.
    """

    def __init__(self, architecture: Mapping[str, Any], *, checkpoint_activations: bool = False) -> None:
        super().__init__()
        self.architecture = dict(architecture)
        kind = str(architecture.get("model_type"))
        if kind not in FAMILIES:
            raise ConfigError(f"model_type {kind[:80]!r}: encoders can be {', '.join(FAMILIES)}")
        self.family = family = FAMILIES[kind]
        self.before = family.before + int(architecture.get("num_register_tokens", 0))
        self.grid, self.input_shape = _grid(architecture)
        self.network = _network(self.architecture)
        self.width = int(architecture["hidden_size"])
        self.blocks = next(
            name
            for name, part in self.network.named_modules()
            if isinstance(part, nn.ModuleList) and len(part) == architecture["num_hidden_layers"]
        )
        # What the tokens of patches do not depend on is no parameter: DDP would wait for its gradient.
        for name, parameter in self.network.named_parameters():
            if name.endswith("mask_token") or (kind == "clip_vision_model" and name.startswith("post_layernorm")):
                parameter.requires_grad_(False)
        if checkpoint_activations:
            self.network.gradient_checkpointing_enable({"use_reentrant": False})

    def forward(self, x: Tensor, tokens: Chosen | None = None, paths: Tensor | None = None) -> Tokens:
        """The last hidden state of the patches, Eq. (3)."""
        if tokens is not None or paths is not None:
            raise ConfigError(
                "objective.keep_tokens and finetune.drop_path are for encoders of kind vit, not for transformers"
            )
        if tuple(x.shape[1:]) != self.input_shape:
            raise ShapeError(
                f"the encoder wants (batch, {', '.join(map(str, self.input_shape))}), got {tuple(x.shape)}"
            )
        more = {}
        if self.architecture["model_type"] == "vit_mae":  # it sorts tokens by noise: this keeps their order
            more["noise"] = torch.arange(self.tokens, dtype=x.dtype, device=x.device).expand(x.shape[0], -1)
        hidden = self.network(x[:, 0] if self.family.modality == AUDIO else x, **more).last_hidden_state
        return cast(Tensor, hidden[:, self.before :])

    def layers(self) -> list[list[str]]:
        """Embeddings, then one group a block, then the final norm."""
        names = (name for name, _ in self.named_parameters())
        depth = int(self.architecture["num_hidden_layers"])
        return groups_by_block(names, f"network.{self.blocks}.", depth, ("network.embeddings", "network.pre_"))

    def load_pretrained(self, name: str, revision: str | None = None) -> None:
        """Takes the published weights; where the input size is another, positions are resized as transformers does."""
        folder = locate(name, revision)
        kind = self.architecture["model_type"]
        config = _config_class(kind).from_pretrained(folder, local_files_only=True)
        for key, value in self.family.settings:
            setattr(config, key, value)
        found = published_network(name, folder, self.family.model, config, **dict(self.family.arguments))
        state = found.state_dict()
        for key in ("embeddings.position_embeddings", "embeddings.position_embedding.weight"):
            own = self.network.state_dict().get(key)
            if own is not None and own.shape != state[key].shape:
                side = int(self.architecture["image_size"])
                like = own.new_zeros(1, self.tokens + (self.family.before > 0), self.width)
                state[key] = found.embeddings.interpolate_pos_encoding(like, side, side).detach().reshape(own.shape)
        try:
            self.network.load_state_dict(state)
        except RuntimeError as error:
            raise WeightsError(f"{name}: its weights are of another architecture ({_one_line(error)})") from error


def _library() -> None:
    try:
        import transformers  # noqa: F401
    except ImportError as error:
        raise ConfigError("encoders of kind transformers need `pip install 'equiav[transformers]'`") from error


def _config_class(kind: str) -> Any:
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    return CONFIG_MAPPING[kind]


def _network(architecture: Mapping[str, Any]) -> Any:
    """The network with weights that depend on nothing; only keys that decide the architecture are passed on."""
    kind = str(architecture["model_type"])
    family = FAMILIES[kind]
    values = {key: architecture[key] for key in ARCHITECTURE if key in architecture}
    return foreign_network(kind, family.model, {**values, **dict(family.settings)}, **dict(family.arguments))


def foreign_network(kind: str, model: str, values: Mapping[str, Any], **arguments: Any) -> Any:
    """A network of the class `model` with these values in its configuration, and weights that depend on nothing."""
    _library()
    import transformers

    try:
        config = _config_class(kind)(**{"attn_implementation": "sdpa", **values})
        with torch.random.fork_rng(devices=[]):  # its constructor draws from the global generator
            torch.manual_seed(0)
            return getattr(transformers, model)(config, **arguments)
    except Exception as error:  # whatever its constructors make of impossible values
        raise ConfigError(f"encoder of kind {kind}: cannot be built ({_one_line(error)})") from error


def published_network(name: str, folder: Path, model: str, config: Any, **arguments: Any) -> Any:
    """A network of the class `model` with the weights of a folder, all of them and from safetensors only."""
    import transformers

    if not any(folder.glob("model*.safetensors")):
        raise WeightsError(
            f"{name}: holds no model.safetensors; pickled weights (pytorch_model.bin) are not opened, because they "
            "can run code; look for a revision or a copy with safetensors"
        )
    with _quiet():
        try:
            found, report = getattr(transformers, model).from_pretrained(
                folder, config=config, use_safetensors=True, local_files_only=True, dtype=torch.float32,
                output_loading_info=True, ignore_mismatched_sizes=True, **arguments,
            )  # fmt: skip
        except Exception as error:  # whatever its readers make of a damaged or foreign file
            raise WeightsError(f"{name}: its weights cannot be read ({_one_line(error)})") from error
    if lacking := sorted({*report["missing_keys"], *(key for key, *_ in report["mismatched_keys"])}):
        raise WeightsError(
            f"{name}: its weights lack {lacking[0]} or have it in another shape ({len(lacking)} tensors in all)"
        )
    return found


def _grid(architecture: Mapping[str, Any]) -> tuple[tuple[int, int], tuple[int, int, int]]:
    """Rows and columns of the patches, and the shape of an input, checked."""
    try:
        patch = int(architecture["patch_size"])
        if "max_length" in architecture:
            frames, bins = int(architecture["max_length"]), int(architecture["num_mel_bins"])
            strides = int(architecture["frequency_stride"]), int(architecture["time_stride"])
            rows, columns = ((n - patch) // s + 1 for n, s in zip((bins, frames), strides, strict=True))
            shape = (1, frames, bins)
        else:
            side = int(architecture["image_size"])
            rows = columns = side // patch
            if side % patch:
                raise ShapeError(f"an image of {side} x {side} cannot be cut into patches of {patch} x {patch}")
            shape = (int(architecture.get("num_channels", 3)), side, side)
    except (KeyError, TypeError, ZeroDivisionError) as error:
        raise ConfigError(f"the architecture of an encoder is incomplete ({_one_line(error)})") from error
    if not (0 < rows * columns <= MOST_TOKENS and rows > 0 and shape[0] in (1, 3)):
        raise ConfigError(f"an encoder of {rows} x {columns} patches and {shape[0]} channels is not supported")
    return (rows, columns), shape


def _json(path: Path, name: str) -> dict[str, Any]:
    try:
        tree = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise WeightsError(f"{name}: has no {path.name}") from error
    except (OSError, ValueError, RecursionError) as error:
        raise WeightsError(f"{name}: its {path.name} cannot be read ({_one_line(error)})") from error
    if not isinstance(tree, dict):
        raise WeightsError(f"{name}: its {path.name} is no mapping")
    return tree


def _image_inputs(processor: Mapping[str, Any], architecture: Mapping[str, Any], name: str) -> dict[str, Any]:
    """Side, patch and statistics, from an image processor's file."""
    mean, std = processor.get("image_mean"), processor.get("image_std")
    if processor.get("do_normalize") is False:
        mean, std = (0.0, 0.0, 0.0), (1.0, 1.0, 1.0)
    numbers = [v for v in (mean, std) if isinstance(v, list | tuple) and len(v) == 3]
    if len(numbers) < 2 or not all(isinstance(x, int | float) for v in numbers for x in v) or min(numbers[1]) <= 0:
        raise WeightsError(f"{name}: its image processor has no statistics (image_mean, image_std: three numbers each)")
    factor = processor.get("rescale_factor", 1 / 255)
    if processor.get("do_rescale") is False or abs(factor * 255 - 1) > 1e-3:
        raise WeightsError(f"{name}: its image processor does not scale images to [0, 1]")
    crop = processor.get("crop_size") if processor.get("do_center_crop", True) else None
    size = crop or processor.get("size") or architecture["image_size"]
    sides = [int(v) for v in size.values() if v] if isinstance(size, dict) else [int(size)]
    if len(set(sides)) != 1:
        raise WeightsError(f"{name}: its image processor makes images that are not square ({size})")
    mean, std = (tuple(float(x) for x in v) for v in numbers)
    return {"patch": architecture["patch_size"], "size": sides[0], "mean": mean, "std": std}


def _audio_inputs(processor: Mapping[str, Any], architecture: Mapping[str, Any], name: str) -> dict[str, Any]:
    """Sampling rate, frames, bins and statistics, from AST's feature extractor; it divides by twice the std."""
    mean, std = processor.get("mean"), processor.get("std")
    if processor.get("do_normalize") is False:
        mean, std = 0.0, 0.5
    if not isinstance(mean, int | float) or not isinstance(std, int | float) or std <= 0:
        raise WeightsError(f"{name}: its feature extractor has no statistics (mean, std)")
    return {
        "sample_rate": int(processor.get("sampling_rate", 16000)),
        "frames": architecture["max_length"],
        "bins": architecture["num_mel_bins"],
        "padding": "zero",
        "mean": float(mean),
        "std": 2 * float(std),
    }


def _one_line(error: BaseException) -> str:
    return " ".join(str(error).split())[:200] or type(error).__name__


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Neither progress bars nor reports of the parts of a model that are left out."""
    from transformers.utils import logging as module

    library: Any = module  # untyped
    level, bars = library.get_verbosity(), library.is_progress_bar_enabled()
    library.set_verbosity(logging.CRITICAL)
    library.disable_progress_bar()  # the Hub's own as well
    try:
        yield
    finally:
        library.set_verbosity(level)
        if bars:
            library.enable_progress_bar()
