"""The digest of a model: of weights, banks and what decides the embedding; older indexes know their model again."""

import hashlib
import json
import pickle

import pytest
from pydantic import create_model

import equiav
from equiav.build import build_model
from equiav.config import AudioConfig, Config, ModelConfig, VisualConfig, parse_config
from equiav.errors import DataError
from equiav.inference import LoadedModel
from equiav.search.index import read_about, write_about
from tests.inference.models import MICRO, random_model


def changed(tree=None, weight=None, bank=None):
    """The micro model with something else in its recipe, its weights or its banks."""
    config = parse_config({**MICRO, **(tree or {})}, "test")
    same = random_model()
    weights = {k: v.clone() for k, v in same.model.state_dict().items()}
    banks = {m: v.clone() for m, v in same.banks.items()}
    if weight:
        weights[weight].view(-1)[0] += 1e-3
    if bank:
        banks[bank][0, 0] += 1e-3
    model = build_model(config)
    model.load_state_dict(weights)
    return LoadedModel(model.eval(), config, banks, {})


def test_the_digest_depends_on_what_decides_the_embedding():
    digest = random_model().digest
    assert changed().digest == digest
    unused = [{"optim": {"lr": 0.5}}, {"train": {"steps": 3}}, {"seed": 7}, {"bank": {"size": 4, "seed": 3}},
              {"augment": {"visual": {"blur_sigma": [0.5, 1.0]}}}, {"objective": {"temperature": 0.1}},
              {"audio": {**MICRO["audio"], "std": 4.332}}]  # fmt: skip
    assert {changed(tree).digest for tree in unused} == {digest}
    audio = MICRO["audio"]
    others = [
        changed({"audio": {**audio, "mean": -4.0}}),
        changed({"audio": {**audio, "padding": "zero"}}),
        changed({"audio": {**audio, "sample_rate": 8000}}),
        changed({"objective": {"intra": "none", "inter": "original"}}),
        changed({"model": {**MICRO["model"], "encoder": {**MICRO["model"]["encoder"], "norm_eps": 1e-5}}}),
        changed({"model": {**MICRO["model"], "encoder": {**MICRO["model"]["encoder"], "heads": 4}}}),
        changed(weight="audio.f.patch_embed.proj.weight"),
        changed(bank="visual"),
    ]
    found = {digest, *(model.digest for model in others)}
    assert len(found) == len(others) + 1
    assert len({random_model().digest.legacy, *(model.digest.legacy for model in others)}) == len(found)


def test_a_key_added_with_a_default_changes_no_digest():
    """A later release has more keys in these sections: its models keep their names."""
    before = random_model().digest
    sections = {"audio": AudioConfig, "visual": VisualConfig, "model": ModelConfig}
    wider = {
        name: create_model(f"Later{name}", __base__=section, surprise=(int, 3)) for name, section in sections.items()
    }
    later = create_model("Later", __base__=Config, **{name: (section, section()) for name, section in wider.items()})
    config = later.model_validate(MICRO)
    assert config.audio.surprise == 3
    same = random_model()
    assert LoadedModel(same.model, config, same.banks, {}).digest == before
    other = later.model_validate({**MICRO, "audio": {**MICRO["audio"], "surprise": 4}})
    assert LoadedModel(same.model, other, same.banks, {}).digest != before


# What the first format's recipe said of the micro model: its digest was a hash of this, the weights and the banks.
FIRST = [
    {"encoder": {"size": None, "width": 32, "depth": 1, "heads": 2, "mlp_ratio": 4.0, "norm_eps": 1e-06,
                 "norm_augmented": False},
     "predictor": {"kind": "attention", "query_width": 16, "heads": 2, "head_width": 8, "bases": 16},
     "heads": {"hidden": 32, "inter": 16, "intra": 16}},
    {"sample_rate": 16000, "frames": 192, "bins": 32, "patch": 16, "padding": "floor", "mean": -4.346, "std": 4.332},
    {"size": 32, "patch": 16},
]  # fmt: skip


def first_digest(loaded):
    digest = hashlib.sha256(json.dumps(FIRST).encode())
    digest.update(b"centroid")
    banks = {f"bank.{m}": bank for m, bank in loaded.banks.items()}
    for name, tensor in sorted({**loaded.model.state_dict(), **banks}.items()):
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        digest.update(tensor.numpy().tobytes())
    return digest.hexdigest()


def test_indexes_that_recorded_the_first_digest_are_accepted(tmp_path):
    model = random_model()
    assert model.digest.legacy == first_digest(model) != model.digest
    equiav.Index.create(tmp_path / "index", model).close()
    about = read_about(tmp_path / "index")
    write_about(tmp_path / "index", {**about, "digest": first_digest(model)})
    index = equiav.Index.open(tmp_path / "index")
    index.check_model(model.digest)
    with pytest.raises(DataError, match="made by checkpoint"):
        index.check_model(random_model(seed=1).digest)
    with pytest.raises(DataError, match="made by checkpoint"):
        index.check_model(str(model.digest))  # a bare name does not say what it was by the first rule
    index.close()


def test_a_digest_travels_as_a_plain_name():
    digest = random_model().digest
    assert type(pickle.loads(pickle.dumps(digest))) is str
    assert pickle.loads(pickle.dumps(digest)) == digest == json.loads(json.dumps(digest))
