"""Encoders of the transformers library: the same numbers as theirs, from a folder or the Hub's cache, and refusals."""

import json
import shutil
import socket

import pytest
import torch
import transformers
from huggingface_hub import constants

from equiav.build import build_inputs, build_model, load_pretrained, with_encoders
from equiav.config import Config, dump_config, load_config, parse_config
from equiav.errors import ConfigError, EquiAVError, ShapeError
from equiav.models import TransformersEncoder, describe
from tests.models.foreign_encoders import ARCHITECTURES, PROCESSOR, recipe, save, tower

AST = "audio-spectrogram-transformer"


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """Folder and model of every architecture."""
    root = tmp_path_factory.mktemp("saved")
    return {kind: (root / kind, save(kind, root / kind)) for kind in ARCHITECTURES}


def encoder_of(kind, folder, **more):
    config = with_encoders(parse_config({**recipe(kind, folder), **more}, "test"))
    modality = "audio" if kind == AST else "visual"
    encoder = build_model(config)[modality].f
    load_pretrained(config, {modality: encoder})
    return config, encoder.eval()


def own_tokens(kind, model, x):
    """What transformers itself computes, without the tokens that are not patches."""
    network = tower(kind, model)
    if kind == "vit_mae":
        network.config.mask_ratio = 0.0
        noise = torch.arange(100.0)[: (x.shape[2] // 8) ** 2].expand(len(x), -1)
        out = network(x, noise=noise, interpolate_pos_encoding=True)
    elif kind == AST:
        out = network(x[:, 0])
    else:
        out = network(x, **({} if kind.startswith("dino") else {"interpolate_pos_encoding": True}))
    return out.last_hidden_state[:, ARCHITECTURES[kind][2] :]


@pytest.mark.parametrize("kind", ARCHITECTURES)
def test_tokens_equal_those_of_transformers(kind, saved, rng):
    folder, model = saved[kind]
    config, encoder = encoder_of(kind, folder)
    shape = (1, 100, 32) if kind == AST else (3, 32, 32)
    x = torch.randn(2, *shape, generator=rng)
    with torch.no_grad():
        h, expected = encoder(x), own_tokens(kind, model, x)
    assert h.shape == expected.shape == (2, encoder.tokens, 32)
    assert encoder.grid == ((2, 9) if kind == AST else (4, 4))
    torch.testing.assert_close(h, expected, rtol=0, atol=1e-5)
    assert parse_config(Config.model_validate(config.model_dump()).model_dump(mode="json"), "again") == config


@pytest.mark.parametrize("kind", ["vit", "vit_mae", "dinov2", "clip", "siglip"])
def test_another_image_size_resizes_the_positions(kind, saved, rng):
    folder, model = saved[kind]
    config, encoder = encoder_of(kind, folder, visual={"size": 48, "patch": 8})
    assert (config.visual.size, encoder.grid) == (48, (6, 6))
    x = torch.randn(1, 3, 48, 48, generator=rng)
    with torch.no_grad():
        torch.testing.assert_close(encoder(x), own_tokens(kind, model, x), rtol=0, atol=1e-5)


@pytest.mark.parametrize("kind", ARCHITECTURES)
def test_every_parameter_takes_part_and_has_its_layer(kind, saved):
    _, encoder = encoder_of(kind, saved[kind][0])
    encoder.train()(torch.randn(2, *encoder.input_shape)).square().mean().backward()
    assert not [name for name, p in encoder.named_parameters() if p.requires_grad and p.grad is None]
    groups = encoder.layers()
    assert len(groups) == 4
    assert sorted(name for group in groups for name in group) == sorted(n for n, _ in encoder.named_parameters())
    assert all("embeddings" in name or "pre_" in name for name in groups[0])
    assert all(".0." in name for name in groups[1])
    assert all("norm" in name for name in groups[3])


def test_sizes_and_statistics_come_from_the_model(saved):
    config, _ = encoder_of("dinov2", saved["dinov2"][0])
    assert (config.visual.size, config.visual.patch, config.visual.mean) == (32, 8, (0.5, 0.4, 0.3))
    black = torch.zeros(1, 3, 32, 32, dtype=torch.uint8)
    transform = build_inputs(config)["visual"]
    assert transform.finish(transform.prepare(black))[0, :, 0, 0].tolist() == pytest.approx([-2.0, -0.8, -1.5])
    audio = encoder_of(AST, saved[AST][0])[0].audio
    assert (audio.frames, audio.bins, audio.padding, audio.mean, audio.std) == (100, 32, "zero", -4.25, 9.0)


def test_spectrograms_are_those_of_the_feature_extractor(saved, rng):
    config, _ = encoder_of(AST, saved[AST][0])
    extractor = transformers.ASTFeatureExtractor(num_mel_bins=32, max_length=100, mean=-4.25, std=4.5)
    waveform = torch.randn(12000, generator=rng) * 0.1
    theirs = extractor(waveform.numpy(), sampling_rate=16000, return_tensors="pt").input_values
    ours = build_inputs(config)["audio"].prepare(waveform[None])[:, 0]
    torch.testing.assert_close(ours, theirs.float(), rtol=0, atol=2e-3)


def test_building_leaves_the_global_generator_alone(saved):
    architecture = describe(str(saved["vit"][0])).architecture
    before = torch.get_rng_state()
    first, second = (TransformersEncoder(architecture).state_dict() for _ in range(2))
    assert torch.equal(before, torch.get_rng_state())
    assert all(torch.equal(first[k], second[k]) for k in first)


def offline(monkeypatch):
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)

    def refuse(*args, **kwargs):
        raise AssertionError("the network was asked")

    monkeypatch.setattr(socket.socket, "connect", refuse)


@pytest.fixture
def cached(saved, tmp_path, monkeypatch):
    """A hub's cache that holds one repository at two revisions."""
    cache = tmp_path / "hub"
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(cache))
    repository = cache / "models--someone--small-vit"
    for commit, names in {"a" * 40: ("main",), "b" * 40: ("v2",)}.items():
        shutil.copytree(saved["vit" if names == ("main",) else "dinov2"][0], repository / "snapshots" / commit)
        for name in names:
            (repository / "refs").mkdir(exist_ok=True)
            (repository / "refs" / name).write_text(commit)
    offline(monkeypatch)
    return repository


def test_a_name_is_found_in_the_hubs_cache(cached, saved, rng):
    x = torch.randn(1, 3, 32, 32, generator=rng)
    with torch.no_grad():
        assert torch.equal(encoder_of("vit", "someone/small-vit")[1](x), encoder_of("vit", saved["vit"][0])[1](x))
    assert describe("someone/small-vit", "v2").architecture["model_type"] == "dinov2"
    assert describe("someone/small-vit", "a" * 40).architecture["model_type"] == "vit"


def test_offline_says_how_to_fetch(cached):
    with pytest.raises(EquiAVError) as caught:
        describe("someone/other", "v3")
    message = str(caught.value)
    assert "someone/other at revision v3: not in the local cache" in message
    assert "`hf download someone/other --revision v3`" in message
    assert "\n" not in message


def edited(folder, tmp_path, file, change):
    copy = tmp_path / "copy"
    shutil.copytree(folder, copy)
    tree = json.loads((copy / file).read_text())
    change(tree)
    (copy / file).write_text(json.dumps(tree))
    return copy


@pytest.mark.parametrize(
    ("file", "change", "message"),
    [
        ("preprocessor_config.json", lambda t: t.pop("image_mean"), "its image processor has no statistics"),
        ("preprocessor_config.json", lambda t: t.update(image_std=[0, 0, 0]), "has no statistics"),
        ("preprocessor_config.json", lambda t: t.update(do_rescale=False), "does not scale images to [0, 1]"),
        ("preprocessor_config.json", lambda t: t.update(size={"height": 32, "width": 64}), "not square"),
        ("preprocessor_config.json", lambda t: t.update(size=30), "30 is not a multiple of the patch 8"),
        ("config.json", lambda t: t.update(model_type="bert"), "is of the kind bert; encoders can be vit, vit_mae"),
        ("config.json", lambda t: t.update(patch_size=[8, 4]), "only square patches"),
    ],
)
def test_a_folder_that_does_not_fit_is_one_line(saved, tmp_path, file, change, message):
    folder = edited(saved["vit"][0], tmp_path, file, change)
    with pytest.raises(EquiAVError) as caught:
        build_model(parse_config(recipe("vit", folder), "test"))
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_missing_files_are_one_line(saved, tmp_path):
    folder = tmp_path / "copy"
    shutil.copytree(saved["vit"][0], folder)
    config = with_encoders(parse_config(recipe("vit", folder), "test"))
    encoders = {"visual": build_model(config)["visual"].f}
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")
    with pytest.raises(EquiAVError, match=r"holds no model.safetensors; pickled weights .* are not opened"):
        load_pretrained(config, encoders)
    (folder / "model.safetensors").write_bytes(b"no tensors")
    with pytest.raises(EquiAVError, match="its weights cannot be read"):
        load_pretrained(config, encoders)
    shutil.copy(saved["dinov2"][0] / "model.safetensors", folder)
    with pytest.raises(EquiAVError, match=r"its weights lack .* tensors in all"):
        load_pretrained(config, encoders)
    (folder / "preprocessor_config.json").unlink()
    with pytest.raises(EquiAVError, match=r"has no preprocessor_config.json"):
        describe(str(folder))
    with pytest.raises(EquiAVError, match="no such folder, and no name of a repository"):
        describe(str(tmp_path / "nowhere"))
    with pytest.raises(EquiAVError, match="has no revision"):
        describe(str(folder), "main")


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"visual": {"size": 36, "patch": 4}}, "visual.patch is 4, but"),
        ({"visual": {"size": 20, "patch": 5}}, "visual.patch is 5, but"),
        ({"visual": {"size": 32, "patch": 8, "mean": [0.1, 0.1, 0.1]}}, "visual.mean is (0.1, 0.1, 0.1), but"),
    ],
)
def test_what_the_recipe_says_must_agree(saved, more, message):
    with pytest.raises(ConfigError) as caught:
        with_encoders(parse_config({**recipe("vit", saved["vit"][0]), **more}, "test"))
    assert message in str(caught.value)


def test_a_size_that_the_patch_does_not_divide_is_one_line(saved, tmp_path):
    config = parse_config({**recipe("vit", saved["vit"][0]), "visual": {"size": 48}}, "test")
    folder = edited(saved["vit"][0], tmp_path, "config.json", lambda t: t.update(patch_size=14, image_size=28))
    config = parse_config({**recipe("vit", folder), "visual": {"size": 48}}, "test")
    with pytest.raises(ConfigError, match=r"visual.size is 48, which the patch 14 of .* does not divide; give a multi"):
        with_encoders(config)


def test_an_encoder_of_the_other_modality_is_one_line(saved):
    tree = recipe("vit", saved["vit"][0])
    tree["model"]["audio"] = tree["model"].pop("visual")
    with pytest.raises(ConfigError, match=r"model.audio.encoder: .* encodes visual input"):
        with_encoders(parse_config(tree, "test"))
    shards = {**recipe(AST, saved[AST][0]), "data": {"kind": "shards", "path": "p", "statistics": "data"}}
    with pytest.raises(ConfigError, match=r"brings its own statistics; set data.statistics=recipe"):
        with_encoders(parse_config(shards, "test"))


@pytest.mark.parametrize(
    ("encoder", "message"),
    [
        ({"kind": "transformers"}, "kind transformers and a name belong together"),
        ({"name": "a/b"}, "kind transformers and a name belong together"),
        ({"revision": "main"}, "revision and architecture are for kind transformers"),
        ({"kind": "transformers", "name": "a/b", "architecture": {"hidden_size": 10**9}}, "architecture.hidden_size"),
    ],
)
def test_refused_recipes(encoder, message):
    with pytest.raises(ConfigError, match=message):
        parse_config({"model": {"visual": {"encoder": encoder}}}, "test")
    with pytest.raises(ConfigError, match=r"for one modality: model.visual.encoder"):
        parse_config({"model": {"encoder": {"kind": "transformers", "name": "a/b"}}}, "test")


@pytest.mark.parametrize(
    "change",
    [
        {"model_type": "bert"},
        {"hidden_act": "no such thing"},
        {"patch_size": 0},
        {"image_size": 65536, "patch_size": 1},
        {"num_channels": 7},
    ],
)
def test_a_hostile_architecture_is_one_line(saved, change):
    """A checkpoint's recipe may come from a stranger."""
    architecture = {**describe(str(saved["vit"][0])).architecture, **change}
    with pytest.raises(EquiAVError) as caught:
        TransformersEncoder(architecture)
    assert "\n" not in str(caught.value)
    harmless = {
        **describe(str(saved["vit"][0])).architecture,
        "attn_implementation": "someone/kernels",
        "auto_map": "x",
    }
    assert TransformersEncoder(harmless).network.config._attn_implementation == "sdpa"


def test_inputs_of_another_shape_are_refused(saved):
    _, encoder = encoder_of("vit", saved["vit"][0])
    with pytest.raises(ShapeError, match=r"the encoder wants \(batch, 3, 32, 32\)"):
        encoder(torch.zeros(1, 3, 40, 40))
    with pytest.raises(ConfigError, match=r"objective.keep_tokens"):
        encoder(torch.zeros(1, 3, 32, 32), torch.zeros(1, 2, dtype=torch.long))


def test_overrides_name_an_encoder(saved, tmp_path):
    path = tmp_path / "recipe.yaml"
    path.write_text(dump_config(parse_config({"visual": {"size": 32, "patch": 8}}, "test")))
    name = saved["vit"][0]
    config = load_config(path, (f"model.visual.encoder={{kind: transformers, name: {name}}}", "visual={}"))
    assert with_encoders(config).visual.mean == tuple(PROCESSOR["image_mean"])
