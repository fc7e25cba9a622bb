"""Small random models of every architecture that can stand in as an encoder, saved as the Hub would serve them."""

import json
from pathlib import Path

import torch
import transformers
from safetensors.torch import load_file
from transformers.utils import logging

from tests.inference.models import MICRO

logging.disable_progress_bar()
SIZES = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64}
IMAGES = {**SIZES, "image_size": 32, "patch_size": 8}
DINO = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "mlp_ratio": 2, "patch_size": 8}
DECODER = {"decoder_hidden_size": 32, "decoder_num_hidden_layers": 1, "decoder_num_attention_heads": 2}
TEXT = {**SIZES, "vocab_size": 64, "max_position_embeddings": 8, "bos_token_id": 1, "eos_token_id": 2}
PROCESSOR = {
    "do_normalize": True, "image_mean": [0.5, 0.4, 0.3], "image_std": [0.25, 0.5, 0.2], "do_rescale": True,
    "rescale_factor": 1 / 255, "size": {"height": 32, "width": 32},
}  # fmt: skip
CROPPED = {"size": {"shortest_edge": 40}, "do_center_crop": True, "crop_size": {"height": 32, "width": 32}}
EXTRACTOR = {"do_normalize": True, "mean": -4.25, "std": 4.5, "sampling_rate": 16000}
# model_type: class of what is saved, its configuration, tokens that are not patches, the processor's file
ARCHITECTURES = {
    "vit": (lambda c: transformers.ViTForImageClassification(transformers.ViTConfig(**c)), IMAGES, 1, PROCESSOR),
    "vit_mae": (
        lambda c: transformers.ViTMAEForPreTraining(transformers.ViTMAEConfig(**c, **DECODER)),
        IMAGES, 1, PROCESSOR,
    ),
    # As published: positions for larger images than the processor makes.
    "dinov2": (lambda c: transformers.Dinov2Model(transformers.Dinov2Config(**c)), {**DINO, "image_size": 56}, 1,
               {**PROCESSOR, **CROPPED}),
    "dinov2_with_registers": (
        lambda c: transformers.Dinov2WithRegistersModel(transformers.Dinov2WithRegistersConfig(**c)),
        {**DINO, "image_size": 32, "num_register_tokens": 3}, 4, PROCESSOR,
    ),
    "clip": (
        lambda c: transformers.CLIPModel(transformers.CLIPConfig(vision_config=c, text_config=TEXT)),
        IMAGES, 1, {**PROCESSOR, "size": 32, "crop_size": 32},
    ),
    "siglip": (
        lambda c: transformers.SiglipModel(
            transformers.SiglipConfig(vision_config=c, text_config={**TEXT, "projection_size": 32})
        ),
        IMAGES, 0, PROCESSOR,
    ),
    "audio-spectrogram-transformer": (
        lambda c: transformers.ASTForAudioClassification(transformers.ASTConfig(**c)),
        {**SIZES, "max_length": 100, "num_mel_bins": 32}, 2, EXTRACTOR,
    ),
}  # fmt: skip


def save(kind: str, folder: Path, processor: dict | None = None) -> torch.nn.Module:
    """Saves a random model of an architecture with its processor's file; no parameter is left at zero."""
    make, config, _, own = ARCHITECTURES[kind]
    torch.manual_seed(len(kind))
    model = make(config).eval()
    for p in model.parameters():
        torch.nn.init.normal_(p, std=0.3)
    model.save_pretrained(folder)
    (folder / "preprocessor_config.json").write_text(json.dumps(own if processor is None else processor))
    return model


def tower(kind: str, model: torch.nn.Module) -> torch.nn.Module:
    """The part of a saved model that encodes."""
    for name in ("vision_model", "audio_spectrogram_transformer", "vit"):
        model = getattr(model, name, model)
    return model


def recipe(kind: str, name: Path | str, **more: object) -> dict:
    """A recipe whose encoder of the fitting modality is the named one."""
    modality = "audio" if kind == "audio-spectrogram-transformer" else "visual"
    model = {**MICRO["model"], modality: {"encoder": {"kind": "transformers", "name": str(name), **more}}}
    return {**{k: v for k, v in MICRO.items() if k != modality}, "model": model}


def stored(folder: Path) -> dict[str, torch.Tensor]:
    return load_file(folder / "model.safetensors")
