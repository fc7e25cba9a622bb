"""Text encoders of the transformers library by name: BERT and its kin, and CLIP's text tower.

Words of bytes are written out as text, which the model's own tokenizer reads. The tokenizer lies in a checkpoint beside
the weights, as a tensor of bytes, so that a checkpoint needs nothing but itself.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from equiav.errors import ConfigError, ShapeError, WeightsError
from equiav.models import (
    FILES,
    Chosen,
    Encoder,
    Tokens,
    foreign_config,
    foreign_network,
    groups_by_block,
    locate,
    published_network,
)
from equiav.text.encoder import filled
from equiav.text.words import written

VOCABULARIES = ("tokenizer.json", "vocab.txt", "vocab.json", "sentencepiece.bpe.model")
TEXT_FILES = (*FILES, *VOCABULARIES, "merges.txt", "tokenizer_config.json", "special_tokens_map.json",
              "added_tokens.json")  # fmt: skip
ARCHITECTURE = (
    "vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size", "hidden_act",
    "layer_norm_eps", "max_position_embeddings", "type_vocab_size", "pad_token_id", "relative_attention_num_buckets",
    "dim", "n_layers", "n_heads", "hidden_dim", "activation", "sinusoidal_pos_embds",
)  # fmt: skip
TOWERS = {"clip": "clip_text_model"}
NO_DROPOUT = (("hidden_dropout_prob", 0.0), ("attention_probs_dropout_prob", 0.0))
PIECES = 2  # of the model for each word that is read: longer texts are cut


@dataclass(frozen=True)
class _Family:
    """One architecture: its class, what switches dropout off, and whether positions count from behind that of padding.

    Nothing in training is drawn inside a network here, hence no dropout.
    """

    model: str
    settings: tuple[tuple[str, Any], ...] = NO_DROPOUT
    arguments: tuple[tuple[str, Any], ...] = (("add_pooling_layer", False),)
    behind_padding: bool = False


FAMILIES = {
    "bert": _Family("BertModel"),
    "distilbert": _Family("DistilBertModel", (("dropout", 0.0), ("attention_dropout", 0.0)), ()),
    "roberta": _Family("RobertaModel", behind_padding=True),
    "xlm-roberta": _Family("XLMRobertaModel", behind_padding=True),
    "mpnet": _Family("MPNetModel", (*NO_DROPOUT, ("attn_implementation", "eager")), behind_padding=True),
    "clip_text_model": _Family("CLIPTextModel", (("attention_dropout", 0.0),), ()),
}


def describe_text(name: str, revision: str | None = None) -> dict[str, Any]:
    """The architecture of a text encoder on the Hub or in a local folder; no weights are read.

    Beside what builds the network it has the size of its tokenizer in bytes and how many special tokens that adds.
    """
    folder = locate(name, revision, TEXT_FILES)
    kind, config = foreign_config(name, folder, FAMILIES, TOWERS)
    found = {key: getattr(config, key) for key in ARCHITECTURE if getattr(config, key, None) is not None}
    content = _tokenizer_of(name, folder)
    specials = _opened(content, name).num_special_tokens_to_add(is_pair=False)
    return {"model_type": kind, **found, "special_tokens": specials, "tokenizer_bytes": len(content)}


def _tokenizer_of(name: str, folder: Path) -> bytes:
    """A model's tokenizer in the format of the tokenizers library."""
    if not any((folder / file).is_file() for file in VOCABULARIES):
        raise WeightsError(f"{name}: has no tokenizer ({', '.join(VOCABULARIES)})")
    from transformers import AutoTokenizer

    try:
        found = AutoTokenizer.from_pretrained(folder, local_files_only=True, use_fast=True)
        return str(found.backend_tokenizer.to_str()).encode()
    except Exception as error:  # whatever its readers make of a damaged or foreign file
        raise WeightsError(f"{name}: its tokenizer cannot be read ({_one_line(error)})") from error


def _opened(content: bytes, name: str) -> Any:
    from tokenizers import Tokenizer

    try:
        return Tokenizer.from_str(content.decode())
    except Exception as error:  # of no class of its own
        raise WeightsError(f"{name}: its tokenizer cannot be read ({_one_line(error)})") from error


class TransformersTextEncoder(Encoder):
    """A network of the transformers library as text encoder: h are the tokens of its tokenizer, without special ones.

    `architecture` is what `describe_text` found, and all that building needs: weights and tokenizer come from
    `load_pretrained` or from a checkpoint. Input is a grid of bytes (B, 1, words, letters). Places without a token hold
    the mean of the others, as those of `TextEncoder`.
    """

    tokenizer: Tensor

    def __init__(
        self, architecture: Mapping[str, Any], *, words: int = 32, letters: int = 32, frozen: bool = False
    ) -> None:
        super().__init__()
        self.architecture, self.input_shape = dict(architecture), (1, words, letters)
        kind = str(architecture.get("model_type"))
        if kind not in FAMILIES:
            raise ConfigError(f"model_type {kind[:80]!r}: encoders of text can be {', '.join(FAMILIES)}")
        self.family = family = FAMILIES[kind]
        values = {key: architecture[key] for key in ARCHITECTURE if key in architecture}
        self.network = foreign_network(
            kind, family.model, {**values, **dict(family.settings)}, **dict(family.arguments)
        )
        config = self.network.config
        self.width, self.depth = int(config.hidden_size), int(config.num_hidden_layers)
        self.padding = int(config.pad_token_id or 0)
        positions = int(config.max_position_embeddings) - (self.padding + 1 if family.behind_padding else 0)
        try:
            specials, size = int(architecture["special_tokens"]), int(architecture["tokenizer_bytes"])
        except (KeyError, TypeError, ValueError) as error:
            raise ConfigError("the architecture of a text encoder lacks special_tokens or tokenizer_bytes") from error
        if positions <= specials:
            raise ConfigError(f"a text encoder of {positions} positions has no room for text")
        self.grid = (1, min(PIECES * words, positions - specials))
        self.longest = self.grid[1] + specials
        self.register_buffer("tokenizer", torch.zeros(size, dtype=torch.uint8))
        self.register_load_state_dict_post_hook(_forget)  # type: ignore[no-untyped-call]
        if frozen:
            self.requires_grad_(False)

    @cached_property
    def reader(self) -> Any:
        """The tokenizer, which pads and cuts to one length."""
        content = self.tokenizer.cpu().numpy().tobytes()
        if not any(content):
            raise WeightsError("the text encoder has no tokenizer yet; load its weights first")
        found = _opened(content, "the text encoder")
        if max(found.get_vocab().values(), default=0) >= int(self.architecture["vocab_size"]):
            raise WeightsError("the text encoder: its tokenizer has more tokens than the network knows")
        found.enable_truncation(self.longest)
        found.enable_padding(pad_id=self.padding, length=self.longest)
        return found

    def forward(
        self, x: Float[Tensor, "b 1 words letters"], tokens: Chosen | None = None, paths: Tensor | None = None
    ) -> Tokens:
        """The last hidden state of the text's tokens, Eq. (3)."""
        if tokens is not None or paths is not None:
            raise ConfigError("objective.keep_tokens is for encoders of our own, not for a text encoder by name")
        if tuple(x.shape[1:]) != self.input_shape:
            wanted = f"(batch, {', '.join(map(str, self.input_shape))})"
            raise ShapeError(f"the text encoder wants {wanted}, got {tuple(x.shape)}")
        ids, mask, special = (part.to(x.device) for part in self.tokenise([written(row) for row in x.cpu()]))
        hidden = self.network(input_ids=ids, attention_mask=mask).last_hidden_state
        order = special.long().argsort(dim=1, stable=True)[:, : self.grid[1]]  # the text's own tokens come first
        return filled(hidden.gather(1, order[..., None].expand(-1, -1, self.width)), ~special.gather(1, order))

    def tokenise(self, texts: list[str]) -> tuple[Int[Tensor, "b l"], Int[Tensor, "b l"], Bool[Tensor, "b l"]]:
        """Numbers of tokens, where the network may look, and which are special or padding."""
        found = self.reader.encode_batch(texts)
        ids, mask, special = (
            torch.tensor([getattr(one, key) for one in found])
            for key in ("ids", "attention_mask", "special_tokens_mask")
        )
        return ids, mask, special.bool()

    def layers(self) -> list[list[str]]:
        """Embeddings, then one group a block, then the final norm."""
        blocks = next(
            name
            for name, part in self.network.named_modules()
            if isinstance(part, nn.ModuleList) and len(part) == self.depth
        )
        names = (name for name, _ in self.named_parameters())
        first = ("network.embeddings", "network.encoder.relative")
        return groups_by_block(names, f"network.{blocks}.", self.depth, first)

    def load_pretrained(self, name: str, revision: str | None = None) -> None:
        """Takes the published weights and the tokenizer."""
        folder = locate(name, revision, TEXT_FILES)
        _, config = foreign_config(name, folder, FAMILIES, TOWERS)
        found = published_network(name, folder, self.family.model, config, **dict(self.family.arguments))
        content = _tokenizer_of(name, folder)
        if len(content) != len(self.tokenizer):
            raise WeightsError(f"{name}: its tokenizer is another than when the run began")
        try:
            self.network.load_state_dict(found.state_dict())
        except RuntimeError as error:
            raise WeightsError(f"{name}: its weights are of another architecture ({_one_line(error)})") from error
        self.tokenizer.copy_(torch.frombuffer(bytearray(content), dtype=torch.uint8))
        _forget(self)


def _forget(encoder: nn.Module, _: Any = None) -> None:
    """The tokenizer is read again from its bytes."""
    encoder.__dict__.pop("reader", None)


def _one_line(error: BaseException) -> str:
    return " ".join(str(error).split())[:200] or type(error).__name__
