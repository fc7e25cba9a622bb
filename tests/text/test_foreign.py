"""Text encoders of the transformers library: the same numbers as theirs, checkpoints that are whole, refusals."""

import shutil
import socket

import pytest
import torch
from huggingface_hub import constants

from equiav.build import build_model, load_pretrained, with_encoders
from equiav.config import parse_config
from equiav.errors import ConfigError, EquiAVError, ShapeError, WeightsError
from equiav.export import shareable
from equiav.inference import Embedder, load_model
from equiav.text import TextInput, TransformersTextEncoder, describe_text, text_options
from equiav.training import Trainer
from tests.models.foreign_encoders import save as save_images
from tests.text.foreign_texts import KINDS, save, tower
from tests.training.small import small_config

TEXTS = ["A small red ring; the dogs barking", "ring", "the unknown zebra sounds, a blue square", "the ring " * 40]


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """Folder, model and tokenizer of every architecture."""
    root = tmp_path_factory.mktemp("saved")
    return {kind: (root / kind, *save(kind, root / kind)) for kind in KINDS}


def encoder_of(folder, words=16, **more):
    encoder = TransformersTextEncoder(describe_text(str(folder)), words=words, **more)
    encoder.load_pretrained(str(folder))
    return encoder.eval()


def read(texts, words=16):
    grid = TextInput(words, 32)
    return grid.prepare(torch.stack([grid.read(text) for text in texts]))


@pytest.mark.parametrize("kind", KINDS)
def test_tokens_equal_those_of_transformers(kind, saved):
    folder, model, tokenizer = saved[kind]
    encoder = encoder_of(folder)
    with torch.no_grad():
        h = encoder(read(TEXTS))
        assert h.shape == (4, encoder.tokens, 32)
        for row, text in enumerate(TEXTS):
            kept = " ".join(text.split()[:16]) if row == 3 else text  # as many words as are read
            own = tokenizer(kept, return_tensors="pt", truncation=True, max_length=encoder.longest)
            expected = tower(model)(input_ids=own.input_ids, attention_mask=own.attention_mask)
            expected = expected.last_hidden_state[0, 1:-1]  # without the special tokens at either end
            torch.testing.assert_close(h[row, : len(expected)], expected, rtol=0, atol=1e-5)
            torch.testing.assert_close(h[row].mean(dim=0), expected.mean(dim=0), rtol=0, atol=1e-5)


@pytest.mark.parametrize("kind", KINDS)
def test_every_parameter_takes_part_and_has_its_layer(kind, saved):
    encoder = encoder_of(saved[kind][0]).train()
    x = read(TEXTS)
    encoder(x).square().mean().backward()
    assert not [name for name, p in encoder.named_parameters() if p.grad is None]
    assert torch.equal(encoder(x), encoder(x))  # no dropout
    groups = encoder.layers()
    assert sorted(name for group in groups for name in group) == sorted(n for n, _ in encoder.named_parameters())
    assert all("embed" in name or "relative" in name for name in groups[0])
    assert all(".0." in name for name in groups[1])
    assert not [p for p in encoder_of(saved[kind][0], frozen=True).parameters() if p.requires_grad]


@pytest.mark.parametrize("kind", ["bert", "clip"])
def test_no_words_is_no_nan(kind, saved):
    encoder = encoder_of(saved[kind][0])
    h = encoder(TextInput(16, 32).prepare(TextInput(16, 32).blank(2, torch.device("cpu"))))
    assert h.isfinite().all()
    with pytest.raises(ShapeError, match="the text encoder wants"):
        encoder(torch.zeros(1, 1, 3, 3))
    with pytest.raises(ConfigError, match=r"objective\.keep_tokens"):
        encoder(read(["ring"]), torch.zeros(1, 2, dtype=torch.long))


def config_of(folder, *overrides, **options):
    base = small_config("train.steps=2", "train.evaluate_every=null", *overrides).model_dump(mode="json")
    text = {"kind": "text", "options": {"name": str(folder), "words": 16, **options}}
    return parse_config({**base, "modalities": {"text": text}}, "test")


@pytest.mark.parametrize(("kind", "frozen"), [("bert", True), ("clip", False)])
def test_a_run_starts_from_their_weights_and_its_checkpoint_is_whole(kind, frozen, saved, tmp_path):
    folder = tmp_path / "encoder"
    shutil.copytree(saved[kind][0], folder)
    config = config_of(folder, "train.ema=0.5", frozen=frozen)
    Trainer(config, tmp_path / "run", lambda line: None).run()
    shutil.rmtree(folder)
    loaded = load_model(tmp_path / "run")
    theirs, ours = tower(saved[kind][1]).state_dict(), loaded.model["text"].f.network.state_dict()
    moved = max(float((ours[key] - theirs[key]).abs().max()) for key in ours)
    assert (moved == 0) if frozen else (0 < moved < 5e-3)
    vectors = Embedder(loaded).text(TEXTS)
    assert vectors.shape[0] == 4
    assert Embedder(load_model(tmp_path / "run")).text(TEXTS[0]) == pytest.approx(vectors[0], abs=1e-6)
    options = shareable(loaded.config).modalities["text"].options
    assert options["name"] == "encoder"  # not where it lay
    with pytest.raises(EquiAVError, match="no such folder"):  # a new run would need it
        Trainer(config, tmp_path / "other", lambda line: None)


def test_where_weights_came_from_is_no_part_of_the_digest(saved, tmp_path):
    from equiav.checkpoint import model_digest

    shutil.copytree(saved["bert"][0], tmp_path / "copy")
    digests = set()
    for folder in (saved["bert"][0], tmp_path / "copy"):
        config = with_encoders(config_of(folder))
        model = build_model(config)
        load_pretrained(config, {"text": model["text"].f})
        digests.add(str(model_digest(config, model.state_dict(), {})))
    assert len(digests) == 1


def test_offline_is_one_line(monkeypatch, tmp_path):
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(socket.socket, "connect", lambda *_: pytest.fail("the network was asked"))
    with pytest.raises(WeightsError) as caught:
        build_model(config_of("someone/bert", revision="v1"))
    assert "someone/bert at revision v1: not in the local cache" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_name_is_found_in_the_hubs_cache(saved, monkeypatch, tmp_path):
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    repository = tmp_path / "models--someone--bert"
    shutil.copytree(saved["bert"][0], repository / "snapshots" / ("a" * 40))
    (repository / "refs").mkdir()
    (repository / "refs/main").write_text("a" * 40)
    assert describe_text("someone/bert") == describe_text(str(saved["bert"][0]))


def test_what_does_not_fit_is_one_line(saved, tmp_path):
    folder = tmp_path / "copy"
    shutil.copytree(saved["bert"][0], folder)
    encoder = encoder_of(folder)
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")
    with pytest.raises(WeightsError, match=r"holds no model.safetensors; pickled weights .* are not opened"):
        encoder.load_pretrained(str(folder))
    (folder / "tokenizer.json").write_text("{")
    with pytest.raises(WeightsError, match="its tokenizer cannot be read") as caught:
        describe_text(str(folder))
    assert "\n" not in str(caught.value)
    for name in ("tokenizer.json", "vocab.txt"):
        (folder / name).unlink(missing_ok=True)
    with pytest.raises(WeightsError, match="has no tokenizer"):
        describe_text(str(folder))
    save_images("vit", tmp_path / "vit")
    with pytest.raises(ConfigError, match=r"is of the kind vit; encoders can be bert, .*clip"):
        describe_text(str(tmp_path / "vit"))
    bare = TransformersTextEncoder(describe_text(str(saved["bert"][0])))
    with pytest.raises(WeightsError, match="has no tokenizer yet"):
        bare(read(["ring"], 32))
    bare.tokenizer.fill_(7)
    with pytest.raises(WeightsError, match="its tokenizer cannot be read"):
        bare(read(["ring"], 32))
    few = TransformersTextEncoder({**describe_text(str(saved["bert"][0])), "vocab_size": 8})
    few.tokenizer.copy_(encoder.tokenizer)
    with pytest.raises(WeightsError, match="more tokens than the network knows"):
        few(read(["ring"], 32))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"frozen": True}, "are for a text encoder by name"),
        ({"revision": "v1"}, "are for a text encoder by name"),
        ({"name": "a/b", "width": 32, "depth": 1, "heads": 2}, "brings its own size"),
        ({"name": "a/b", "architecture": {"hidden_size": 10**6}}, "architecture.hidden_size: 1000000 is too much"),
    ],
)
def test_refused_options(options, message):
    with pytest.raises(ConfigError, match=message):
        text_options(options)
    assert (text_options({"name": "a/b"}).letters, text_options({}).letters) == (32, 12)


@pytest.mark.parametrize(
    "change",
    [{"model_type": "vit"}, {"hidden_act": "nothing"}, {"max_position_embeddings": 2}, {"special_tokens": "x"}],
)
def test_an_impossible_architecture_is_one_line(change, saved):
    with pytest.raises(ConfigError) as caught:
        TransformersTextEncoder({**describe_text(str(saved["bert"][0])), **change})
    assert "\n" not in str(caught.value)
