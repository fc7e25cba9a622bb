"""Small random text models of the transformers library with tokenizers, saved as the Hub would serve them."""

from pathlib import Path

import torch
import transformers
from transformers.utils import logging

logging.disable_progress_bar()
WORDS = (
    "a",
    "the",
    "small",
    "large",
    "red",
    "blue",
    "ring",
    "square",
    "sound",
    "##s",
    "and",
    ";",
    "dog",
    "bark",
    "##ing",
)
SIZES = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64}
KINDS = ("bert", "distilbert", "mpnet", "roberta", "xlm-roberta", "clip_text_model", "clip")


def wordpiece(folder: Path) -> None:
    """Whole words and two endings; what else there is comes letter by letter."""
    letters = [chr(c) for c in range(ord("a"), ord("z") + 1)]
    vocabulary = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *WORDS, *letters[1:], *(f"##{x}" for x in letters)]
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "vocab.txt").write_text("\n".join(vocabulary))
    transformers.BertTokenizerFast(str(folder / "vocab.txt")).save_pretrained(folder)


def bpe(folder: Path) -> None:
    """Letters, their forms at the end of a word, and a few merges, as CLIP's."""
    letters = [chr(c) for c in range(ord("a"), ord("z") + 1)] + list(";,.'!")
    merges = [("r", "i"), ("n", "g</w>"), ("ri", "ng</w>"), ("r", "e"), ("re", "d</w>"), ("t", "h"), ("th", "e</w>")]
    tokens = [*letters, *(f"{x}</w>" for x in letters), *(a + b for a, b in merges), "<|startoftext|>", "<|endoftext|>"]
    vocabulary = {token: number for number, token in enumerate(tokens)}
    folder.mkdir(parents=True, exist_ok=True)
    transformers.CLIPTokenizer(vocab=vocabulary, merges=merges).save_pretrained(folder)


def save(kind: str, folder: Path) -> tuple[torch.nn.Module, transformers.PreTrainedTokenizerBase]:
    """Saves a random model with its tokenizer; no parameter is left at zero."""
    (bpe if kind.startswith("clip") else wordpiece)(folder)
    values = {**SIZES, "vocab_size": 96, "max_position_embeddings": 40, "pad_token_id": 0, "bos_token_id": 1,
              "eos_token_id": 2}  # fmt: skip
    torch.manual_seed(len(kind))
    match kind:
        case "bert":
            model = transformers.BertForMaskedLM(transformers.BertConfig(**values))
        case "distilbert":
            own = {"dim": 32, "n_layers": 2, "n_heads": 4, "hidden_dim": 64}
            model = transformers.DistilBertModel(
                transformers.DistilBertConfig(**own, vocab_size=96, max_position_embeddings=40)
            )
        case "mpnet":
            model = transformers.MPNetModel(transformers.MPNetConfig(**{**values, "pad_token_id": 1}))
        case "roberta":
            model = transformers.RobertaModel(transformers.RobertaConfig(**values))
        case "xlm-roberta":
            model = transformers.XLMRobertaModel(transformers.XLMRobertaConfig(**values))
        case "clip_text_model":
            model = transformers.CLIPTextModel(transformers.CLIPTextConfig(**values))
        case _:
            vision = {**SIZES, "image_size": 32, "patch_size": 8}
            model = transformers.CLIPModel(transformers.CLIPConfig(text_config=values, vision_config=vision))
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    model.eval().save_pretrained(folder)
    return model, transformers.AutoTokenizer.from_pretrained(folder)


def tower(model: torch.nn.Module) -> torch.nn.Module:
    """The part of a saved model that encodes text."""
    for name in ("text_model", "bert"):
        model = getattr(model, name, model)
    return model
