"""A model with encoders of other people: trained, resumed, stored whole, evaluated and exported like any other."""

import shutil

import jaxtyping
import pytest

from equiav.build import build_dataset
from equiav.checkpoint import load_checkpoint
from equiav.config import parse_config
from equiav.errors import EquiAVError
from equiav.evaluation import Equivariance, Localisation, Probe, Retrieval
from equiav.export import export
from equiav.inference import load_model
from equiav.training import Trainer
from tests.models.foreign_encoders import recipe, save
from tests.training.small import small_config

AST = "audio-spectrogram-transformer"


def config_of(root, *overrides):
    base = small_config("train.steps=2", "train.evaluate_every=null", *overrides).model_dump(mode="json")
    own = recipe("clip", root / "clip")["model"]["visual"], recipe(AST, root / "ast")["model"]["audio"]
    return parse_config(
        {**base, "model": {**base["model"], "visual": own[0], "audio": own[1]}, "audio": {}, "visual": {}}, "test"
    )


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A run from two folders of transformers that are gone afterwards."""
    root = tmp_path_factory.mktemp("foreign")
    towers = {m: save(kind, root / name) for m, kind, name in (("visual", "clip", "clip"), ("audio", AST, "ast"))}
    config = config_of(root)
    Trainer(config, root / "run", lambda line: None).run()
    for name in ("clip", "ast"):
        shutil.rmtree(root / name)
    return root / "run", towers


def test_training_starts_from_their_weights_and_the_checkpoint_is_whole(run, monkeypatch):
    out, towers = run
    loaded = load_model(out)
    key = "visual.f.network.encoder.layers.0.mlp.fc1.weight"
    theirs = towers["visual"].vision_model.encoder.layers[0].mlp.fc1.weight
    ours = loaded.model.state_dict()[key]
    assert 0 < float((ours - theirs).detach().abs().max()) < 5e-3  # two small steps away
    assert loaded.config.model.visual.encoder.architecture["model_type"] == "clip_vision_model"
    with pytest.raises(EquiAVError):  # a new run would need them
        Trainer(config_of(out.parent), out.parent / "other", lambda line: None)
    assert load_checkpoint(out).config.visual.size == 32


def test_evaluators_work(run):
    loaded = load_model(run[0])
    clips = build_dataset(loaded.config, "test")
    assert 0 <= Retrieval(examples=0)(loaded, clips)["retrieval"]["audio_to_video"]["R@1"] <= 100
    found = Localisation(examples=0)(loaded, clips)
    assert found.record["task"] == "localisation"
    x = loaded.frames(clips.sample(0, 0).inputs["visual"][None])
    h = loaded.model.encode("visual", x)
    assert loaded.model.grid("visual", x, h) == (4, 4)
    assert Equivariance(count=4, draws=2, centroid_clips=2, examples=0)(loaded, clips).record["task"] == "equivariance"
    parts = (build_dataset(loaded.config, split) for split in ("train", "validation"))
    assert Probe(*parts, neighbours=False, examples=0)(loaded, clips).record["task"] == "probe"


def test_export_to_onnx(run, tmp_path, monkeypatch):
    pytest.importorskip("onnxscript")
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)  # checked shapes would fix the symbolic batch
    graphs = export(run[0], tmp_path / "shared")
    assert {g.modality for g in graphs} == {"audio", "visual"}
    assert all(g.difference < 1e-4 for g in graphs)
    shared = load_model(tmp_path / "shared")
    assert shared.config.model.visual.encoder.name == "clip"  # not where it lay
    assert shared.digest == load_model(run[0]).digest
    assert "clip" in (tmp_path / "shared/README.md").read_text()
