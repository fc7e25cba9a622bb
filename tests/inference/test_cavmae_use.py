"""Everything that takes a model takes CAV-MAE: embed, search, probe, localise, fine-tune, convert; or refuses it."""

from pathlib import Path

import jaxtyping
import numpy as np
import pytest
import torch
from typer.testing import CliRunner

import equiav
from equiav.build import build_classification, build_dataset, build_model
from equiav.checkpoint import info, load_checkpoint, save_model
from equiav.cli import app
from equiav.config import load_config
from equiav.convert import convert
from equiav.errors import CheckpointError, ConfigError, EquiAVError, WeightsError
from equiav.evaluation import Localisation, Probe, cost_of, localise, probe_splits
from equiav.export import export
from equiav.inference import load_classifier, load_model
from equiav.models import CavMae, CavMaeClassifier, CavMaeSizes, initialise_masked, read_state, write_cavmae
from equiav.search import Entry, ask
from equiav.training import Finetuner, finetune
from equiav.training.finetune import load_encoders
from equiav.types import Clip
from tests.objectives.methods import small_method

FINETUNE = Path(__file__).parents[2] / "configs/finetune/smoke.yaml"


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    place = tmp_path_factory.mktemp("cavmae") / "model"
    config = small_method("cavmae")
    save_model(place, config, build_model(config).state_dict(), {"kind": "pretrained", "step": 3, "total": 3})
    return place


@pytest.fixture(scope="module")
def model(path):
    return load_model(path)


def equiav_command(*arguments):
    return CliRunner().invoke(app, [str(a) for a in arguments])


def test_embed_index_and_search(model, tmp_path):
    embedder = equiav.Embedder(model)
    clips = build_dataset(model.config, "test")
    samples = [clips.sample(i, 0).inputs for i in range(6)]
    sounds = embedder.audio([(s["audio"].numpy(), 16000) for s in samples])
    images = embedder.image([s["visual"].numpy() for s in samples])
    assert sounds.shape == images.shape == (6, 32)
    # The mean over a modality's tokens, as the authors' retrieval takes it.
    x = model.frames(torch.stack([s["visual"] for s in samples]))
    expected = torch.nn.functional.normalize(model.model.encoder.features("visual", x), dim=1)
    np.testing.assert_allclose(images, expected.detach().numpy(), atol=1e-5)
    index = equiav.Index.create(tmp_path / "index", model)
    found = [Entry(Clip(str(i)), {"audio": sounds[i], "visual": images[i]}) for i in range(6)]
    index.add(found, made_by=model.digest)
    hits = index.search(ask(embedder, audio=(samples[2]["audio"].numpy(), 16000)), k=3, among="audio")
    assert hits[0].clip.id == "2"


def test_the_digest_knows_the_model(path, model):
    other = load_model(path)
    assert other.digest == model.digest
    with torch.no_grad():
        next(other.model.encoder.joint.parameters()).add_(1e-3)
    changed = load_model(path)
    changed.model.load_state_dict(other.model.state_dict())
    assert changed.digest != model.digest


def test_probe_and_localisation(model):
    splits, part = probe_splits(model.config)
    results = Probe(splits["train"], splits["validation"], limit=16, validation_part=part, examples=0)(
        model, splits["test"]
    )
    assert results["task"] == "probe"
    clips = build_dataset(model.config, "test")
    sample = clips.sample(0, 0).inputs
    maps, _ = localise(model, sample["audio"], sample["visual"][None])
    assert maps.shape == (1, 32, 32)  # by removal: patches are left out of the mean
    with pytest.raises(ConfigError, match="neither predictor nor heads per token; choose removal or centroid"):
        localise(model, sample["audio"], sample["visual"][None], method="attention")
    assert Localisation(method="removal")


def test_what_has_no_meaning_is_refused_in_one_line(path, model):
    for arguments, message in (
        (("evaluate", "equivariance", path), "objective.kind cavmae: equivariance asks a predictor"),
        (("evaluate", "classification", path), "holds no classifier"),
    ):
        run = equiav_command(*arguments)
        assert isinstance(run.exception, EquiAVError), run.output
        assert message in str(run.exception)
        assert "\n" not in str(run.exception)
    with pytest.raises(ConfigError, match=r"objective\.kind cavmae has no predictor"):
        cost_of(model.config, "audio", repeats=0)


def test_info_and_reconstruction_command(path, tmp_path):
    text = info(load_checkpoint(path), path)
    assert "CAV-MAE, 75% of the patches removed, standardised targets, 0.01 x contrast at 0.05, one direction" in text
    assert "predictor" not in text
    run = equiav_command("evaluate", "reconstruction", path, "--examples", 2, "--out", tmp_path)
    assert run.exit_code == 0, run.output
    assert "visual: loss" in run.output
    assert (tmp_path / "report.html").is_file()


def test_export_with_onnx(path, tmp_path):
    jaxtyping.config.update("jaxtyping_disable", True)  # checking symbolic shapes would fix them
    try:
        graphs = export(path, tmp_path / "shared")
    finally:
        jaxtyping.config.update("jaxtyping_disable", False)
    assert [g.modality for g in graphs] == ["audio", "visual"]
    assert max(g.difference for g in graphs) < 1e-4
    card = (tmp_path / "shared" / "README.md").read_text()
    assert "CAV-MAE (ICLR 2023)" in card
    assert "32 numbers" in card
    assert "bank of" not in card.split("## Without equiav")[0]
    assert load_model(tmp_path / "shared").digest == load_model(path).digest
    config = small_method("masked")
    save_model(tmp_path / "masked", config, build_model(config).state_dict(), {})
    with pytest.raises(CheckpointError, match="no shared space; `equiav convert` writes MAE's format"):
        export(tmp_path / "masked", tmp_path / "no", onnx=False)


def finetuning(*overrides):
    common = ("objective.kind=cavmae", "finetune.drop_path=0", "model.joint_depth=1")
    return load_config(FINETUNE, (*common, *overrides))


def test_fine_tuning(path, tmp_path):
    decoder = "objective={kind: cavmae}"
    done = finetune(finetuning(decoder, f"weights={path}", "train.steps=2", "train.evaluate_every=2"), tmp_path / "run")
    assert done.results["metrics"]["clips"] == 19
    loaded = load_classifier(tmp_path / "run")
    assert isinstance(loaded.model, CavMaeClassifier)
    with pytest.raises(CheckpointError, match=r"set objective\.kind=cavmae to fine-tune them"):
        finetune(load_config(FINETUNE, (f"weights={path}",)), tmp_path / "other", lambda line: None)
    with pytest.raises(ConfigError, match=r"finetune\.drop_path: CAV-MAE has none"):
        build_classification(finetuning("finetune.drop_path=0.1", "classifier.classes=8"))


@pytest.mark.parametrize("mode", ["audio", "visual", "audiovisual"])
def test_every_trained_weight_reaches_the_logits(mode, path):
    config = finetuning(f"classifier.mode={mode}", "classifier.classes=8")
    objective = build_classification(config)
    load_encoders(objective.model, config, (), path)
    x = {"audio": torch.randn(2, 1, 64, 32), "visual": torch.randn(2, 3, 32, 32)}
    objective.model(x).sum().backward()
    trained = {name for name, p in objective.model.named_parameters() if p.requires_grad}
    assert trained == {name for name, p in objective.model.named_parameters() if p.grad is not None}
    # Layer by layer, none forgotten: what is not among the layers is the head.
    named = {name for chain in objective.model.layers() for group in chain for name in group}
    assert {name for name in trained if name not in named} == {n for n in trained if n.startswith("head.")}
    assert len(objective.model.layers()) == len(objective.model.modalities)
    assert Finetuner.kind == "finetuned"


@pytest.mark.parametrize("classes", [0, 7])
def test_the_authors_files_come_in_and_go_out_the_same(tmp_path, classes, rng):
    sizes = CavMaeSizes(width=64, depth=2, heads=1, decoder_width=32, decoder_depth=1, decoder_heads=1, frames=64,
                        image=32, classes=classes)  # fmt: skip
    source = CavMaeClassifier(sizes) if classes else CavMae(sizes)
    initialise_masked(source, rng)
    state = write_cavmae(source.state_dict())
    torch.save(state, tmp_path / "theirs.pth")
    line = convert(tmp_path / "theirs.pth", tmp_path / "ours")
    assert ("audiovisual classifier of 7 classes" if classes else "CAV-MAE pre-training checkpoint") in line
    config = load_checkpoint(tmp_path / "ours").config
    assert (config.model.encoder.depth, config.model.joint_depth, config.audio.padding) == (3, 1, "zero")
    if classes:
        assert load_classifier(tmp_path / "ours").model.classes == 7
    else:
        assert load_model(tmp_path / "ours").width == 64
    convert(tmp_path / "ours", tmp_path / "back.safetensors")
    back = read_state(tmp_path / "back.safetensors")
    assert back.keys() == state.keys()
    assert all(torch.equal(back[k], state[k]) for k in state)
    torch.save({k: v for k, v in state.items() if k != "module.norm.bias"}, tmp_path / "less.pth")
    with pytest.raises(WeightsError, match=r"missing norm\.bias"):
        convert(tmp_path / "less.pth", tmp_path / "no")
    assert not (tmp_path / "no").exists()


def test_a_model_of_other_patches_does_not_fit_the_authors_format(path, tmp_path):
    with pytest.raises(CheckpointError, match="patches of 16 and 8 and 32 mel bins"):
        convert(path, tmp_path / "out.pth")
