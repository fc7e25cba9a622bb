"""The bridge from an image-text model: text finds clips through a map fitted on frames alone."""

import json
import random
import zlib
from dataclasses import replace

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from equiav.bridge import Bridge, EquiAVImageText, fit_bridge, open_image_text
from equiav.errors import DataError, WeightsError
from equiav.inference import load_model
from equiav.io import write_sums
from equiav.search import Entry, Index, verify_index
from equiav.types import Clip
from tests.models.foreign_encoders import save
from tests.text.test_use import command

COUNT = 120


class Colours:
    """Stands for a CLIP: images by their mean colour, texts that name one; each kind of vector has its own offset."""

    name = "colours"

    def __init__(self, gap=1.5):
        rng = np.random.default_rng(0)
        self.waves, self.offsets = rng.normal(size=(3, 24)) * 2, rng.normal(size=(2, 24)) * gap

    def _unit(self, colours, offset):
        z = np.sin(np.asarray(colours) / 255 @ self.waves) + self.offsets[offset]
        return (z / np.linalg.norm(z, axis=1, keepdims=True)).astype(np.float32)

    def images(self, images):
        return self._unit([image.reshape(-1, 3).mean(axis=0) for image in images], 0)

    def texts(self, texts):
        return self._unit([[float(x) for x in text.split()] for text in texts], 1)


class Vague(Colours):
    """Its texts differ from each other in ways that its images do not, as those of people do."""

    def texts(self, texts):
        noise = [np.random.default_rng(zlib.crc32(text.encode())).normal(size=24) for text in texts]
        z = super().texts(texts) + 0.1 * np.stack(noise)
        return (z / np.linalg.norm(z, axis=1, keepdims=True)).astype(np.float32)


def said(colours):
    return [" ".join(map(str, colour)) for colour in colours]


@pytest.fixture(scope="module")
def model(silent_run):
    return load_model(silent_run)


@pytest.fixture(scope="module")
def colours():
    return np.random.default_rng(1).integers(0, 256, size=(COUNT, 3))


def made(folder, model, colours, order, run=None, cone=0.0):
    """Clips of one colour each; our vectors are another function of the colours, in `order`, all on one side."""
    rng = np.random.default_rng(2)
    y = np.cos(colours[order] / 255 @ rng.normal(size=(3, model.width)) * 2) + cone * rng.normal(size=model.width)
    y = (y / np.linalg.norm(y, axis=1, keepdims=True)).astype(np.float32)
    entries = [
        Entry(Clip(f"clip-{i}"), {"visual": y[i]}, np.tile(colours[i].astype(np.uint8), (48, 64, 1)))
        for i in range(len(colours))
    ]
    index = Index.create(folder, model, model_path=run)
    index.add(entries, made_by=model.digest)
    return index


def recall(bridge, index, colours, digest):
    """R@10 of texts that name the colours of clips."""
    found = [
        f"clip-{i}" in [hit.clip.id for hit in index.search(bridge.query(text, digest), k=10)]
        for i, text in enumerate(said(colours))
    ]
    return 100 * float(np.mean(found))


def test_text_finds_what_it_names_and_shuffled_pairs_find_nothing(tmp_path, model, colours):
    """Fitted on one collection, asked about another: nothing can be known by heart."""
    sentences = said(np.random.default_rng(3).integers(0, 256, size=(200, 3)))
    others = np.random.default_rng(5).integers(0, 256, size=(COUNT, 3))
    searched = made(tmp_path / "searched", model, others, np.arange(COUNT))
    found = {}
    for name, order in {"right": np.arange(COUNT), "wrong": np.random.default_rng(4).permutation(COUNT)}.items():
        bridge = fit_bridge(made(tmp_path / name, model, colours, order), Colours(), texts=sentences)
        found[name] = bridge.facts, recall(bridge, searched, others, model.digest)
    facts, ours = found["right"]
    assert facts.gap > 0.5
    assert facts.recall > 2 * facts.chance
    chance = 100 * 10 / COUNT
    assert ours > 8 * chance
    assert found["wrong"][1] < 2 * chance


def test_the_gap_matters(tmp_path, model, colours):
    index = made(tmp_path / "index", model, colours, np.arange(COUNT))
    sentences = said(np.random.default_rng(3).integers(0, 256, size=(200, 3)))
    bridge = fit_bridge(index, Colours(), texts=sentences)
    naive = replace(bridge, text_mean=bridge.image_mean)
    handled, ignored = (recall(b, index, colours, model.digest) for b in (bridge, naive))
    assert handled > ignored + 10


def test_our_vectors_may_lie_in_a_cone(tmp_path, model, colours):
    """As those of trained models do: without their mean the mapped vectors point elsewhere."""
    index = made(tmp_path / "index", model, colours, np.arange(COUNT), cone=1.0)
    bridge = fit_bridge(index, Colours(), texts=said(colours))
    naive = replace(bridge, our_mean=torch.zeros_like(bridge.our_mean))
    handled, ignored = (recall(b, index, colours, model.digest) for b in (bridge, naive))
    assert handled > ignored + 10


def test_a_text_stands_for_the_frames_nearest_to_it(tmp_path, model, colours):
    """A text is no image: what the map would make of the difference is noise."""
    others = np.random.default_rng(5).integers(0, 256, size=(COUNT, 3))
    searched = made(tmp_path / "searched", model, others, np.arange(COUNT))
    bridge = fit_bridge(made(tmp_path / "index", model, colours, np.arange(COUNT)), Vague(), texts=said(colours))
    naive = replace(bridge, frames=bridge.frames[:0])
    handled, ignored = (recall(b, searched, others, model.digest) for b in (bridge, naive))
    assert handled > ignored + 10


def test_a_bridge_of_the_first_format_opens(tmp_path, model, colours, monkeypatch):
    index = made(tmp_path / "index", model, colours, np.arange(COUNT))
    place = fit_bridge(index, Colours(), texts=said(colours)).save(index.folder)
    facts = json.loads((place / "bridge.json").read_text())
    (place / "bridge.json").write_text(json.dumps({**facts, "format": 1, "scale": 1.7}))
    rng = torch.Generator().manual_seed(0)
    shapes = {"map": (24, model.width), "image_mean": (24,), "text_mean": (24,)}
    tensors = {name: torch.randn(shape, generator=rng) for name, shape in shapes.items()}
    save_file(tensors, place / "bridge.safetensors")
    write_sums(place)
    monkeypatch.setattr("equiav.bridge.open_image_text", lambda name: Colours())
    z = (Colours().texts(["1 2 3"])[0] - tensors["text_mean"].numpy()) * 1.7 @ tensors["map"].numpy()
    np.testing.assert_allclose(Bridge.open(index.folder).text("1 2 3"), z / np.linalg.norm(z), atol=1e-6)


def test_the_index_remembers_it(tmp_path, run, silent_run, model, colours):
    index = made(tmp_path / "index", model, colours, np.arange(COUNT), silent_run)
    index.close()
    assert "has no bridge" in command("search", tmp_path / "index", "--text", "a dog")
    told = command("bridge", tmp_path / "index", "--with", run, "--most", "60")
    assert "gap between its text and image vectors" in told
    assert "60 frames" in told
    hits = json.loads(command("search", tmp_path / "index", "--text", "a red ring", "--k", "3", "--json"))
    opened, other = Bridge.open(tmp_path / "index"), Index.open(tmp_path / "index")
    assert isinstance(opened.model, EquiAVImageText)
    expected = other.search(opened.query("a red ring", model.digest), k=3)
    assert [hit["id"] for hit in hits] == [hit.clip.id for hit in expected]
    assert "no words" in command("search", tmp_path / "index", "--text", "")
    out = ("--out", tmp_path / "zeroshot", "--limit", "4")
    assert "chance" in command("evaluate", "zeroshot", silent_run, "--bridge", tmp_path / "index", *out)
    assert "leads to checkpoint" in command("evaluate", "zeroshot", run, "--bridge", tmp_path / "index", *out)
    with pytest.raises(DataError, match="leads to checkpoint"):
        opened.check_model("another")
    facts = tmp_path / "index/bridge/bridge.json"
    facts.write_text(facts.read_text()[:-20])
    assert "is damaged" in command("search", tmp_path / "index", "--text", "a dog")


def test_no_flipped_bit_goes_unnoticed(tmp_path, model, colours, monkeypatch):
    """Another map would find other clips without a word."""
    index, dice = made(tmp_path / "index", model, colours, np.arange(COUNT)), random.Random(0)
    fit_bridge(index, Colours(), texts=said(colours)).save(index.folder)
    monkeypatch.setattr("equiav.bridge.open_image_text", lambda name: Colours())
    assert verify_index(index.folder) == []
    for path in sorted((index.folder / "bridge").iterdir()) * 7:
        content = path.read_bytes()
        place = dice.randrange(len(content))
        path.write_bytes(content[:place] + bytes([content[place] ^ 1 << dice.randrange(8)]) + content[place + 1 :])
        with pytest.raises(DataError, match="is damaged") as refused:
            Bridge.open(index.folder)
        assert "\n" not in str(refused.value)
        assert "fit the bridge again" in verify_index(index.folder)[0]
        path.write_bytes(content)
    assert Bridge.open(index.folder).facts.pairs == COUNT


def test_too_few_frames(tmp_path, model, colours):
    index = made(tmp_path / "index", model, colours[:5], np.arange(5))
    with pytest.raises(DataError, match="at least 16"):
        fit_bridge(index, Colours())


@pytest.mark.parametrize("kind", ["clip", "siglip"])
def test_models_of_transformers(tmp_path, kind):
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    save(kind, tmp_path / kind)
    words = {"<pad>": 0, "<s>": 1, "</s>": 2, "<unk>": 3, "a": 4, "dog": 5, "ring": 6}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, pad_token="<pad>", unk_token="<unk>", eos_token="</s>")
    fast.save_pretrained(tmp_path / kind)
    model = open_image_text(str(tmp_path / kind))
    texts = model.texts(["a dog </s>", "a ring </s>", "dog " * 100])
    images = model.images([np.full((40, 60, 3), v, np.uint8) for v in (10, 200)])
    assert texts.shape[1] == images.shape[1]
    for rows in (texts, images):
        np.testing.assert_allclose(np.linalg.norm(rows, axis=1), 1, atol=1e-5)
    assert not np.allclose(images[0], images[1])
    assert not np.allclose(texts[0], texts[1])
    torch.testing.assert_close(torch.from_numpy(model.texts(["a dog </s>"])[0]), torch.from_numpy(texts[0]))


def test_a_model_of_images_only(tmp_path):
    save("dinov2", tmp_path / "dino")
    with pytest.raises(WeightsError, match=r"cannot be used as an image-text model|encodes images only"):
        open_image_text(str(tmp_path / "dino"))
