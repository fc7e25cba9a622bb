"""An exported folder: ONNX equal to the model, loadable, with a card; and every refusal."""

import json
import re
import shutil

import jaxtyping
import numpy as np
import pytest
import torch
import torch.nn.functional as F
import yaml

from equiav import export as graphs_module
from equiav.build import build_model
from equiav.checkpoint import save_model
from equiav.config import Config
from equiav.errors import CheckpointError, EquiAVError
from equiav.export import export, found_results, measurements, run_graph, shareable, write_graph
from equiav.inference import load_model
from tests.training.small import small_config


@pytest.fixture(scope="module", autouse=True)
def symbolic_shapes():
    """Checking the shapes of a tensor whose batch is a symbol would fix the symbol."""
    jaxtyping.config.update("jaxtyping_disable", True)
    yield
    jaxtyping.config.update("jaxtyping_disable", False)


def checkpoint(path, *overrides):
    config = small_config(*overrides)
    save_model(path, config, build_model(config).state_dict(), {"kind": "pretrained", "step": 3, "total": 3})
    return path


@pytest.fixture(scope="module")
def exported(tmp_path_factory):
    """A run's folder with a result beside its checkpoint, and what was exported of it."""
    folder = tmp_path_factory.mktemp("export")
    run = folder / "run"
    checkpoint(run / "checkpoints" / "step-3")
    record = {"task": "demo", "retrieval": {"audio_to_video": {"R@1": 12.5, "pool": 40}}, "provenance": {"cores": 2}}
    (run / "results.json").write_text(json.dumps(record))
    return run, folder / "shared", export(run, folder / "shared")


def reference(loaded, x):
    modality = "audio" if x.ndim == 2 else "visual"
    inputs = loaded.inputs[modality]
    return F.normalize(loaded.embed(modality, inputs.finish(inputs.prepare(x))), dim=1)


@pytest.mark.parametrize("batch", [1, 2, 5])
@pytest.mark.parametrize("samples", [400, 3000, 10480, 40001])
def test_audio_equals_the_model(exported, batch, samples, rng):
    loaded = load_model(exported[1])
    noise = 0.1 * torch.randn(batch, samples, generator=rng)
    tone = torch.sin(torch.arange(samples) * 0.3).expand(batch, -1).contiguous()
    for x in (noise, tone, torch.zeros(batch, samples), noise + 0.5):
        found = run_graph(exported[1] / "audio.onnx", "audio", x)
        torch.testing.assert_close(found, reference(loaded, x), atol=1e-4, rtol=0)
        torch.testing.assert_close(found.norm(dim=1), torch.ones(batch))


@pytest.mark.parametrize("batch", [1, 2, 5])
def test_pictures_equal_the_model(exported, batch, rng):
    loaded = load_model(exported[1])
    x = torch.randint(256, (batch, 3, 32, 32), generator=rng, dtype=torch.uint8)
    found = run_graph(exported[1] / "visual.onnx", "visual", x)
    torch.testing.assert_close(found, reference(loaded, x), atol=1e-4, rtol=0)


@pytest.mark.parametrize(
    ("modality", "overrides"),
    [
        ("audio", ("model.predictor.kind=linear", "audio.padding=zero")),
        ("visual", ("model.predictor.kind=hypernetwork",)),
        ("visual", ("objective.intra=none", "objective.inter=original")),
    ],
)
def test_other_kinds_of_model(tmp_path, modality, overrides):
    loaded = load_model(checkpoint(tmp_path / "model", *overrides))
    assert write_graph(loaded, modality, tmp_path / "tower.onnx").difference <= 1e-4


def test_a_graph_that_disagrees_is_refused_and_leaves_nothing(tmp_path, monkeypatch):
    monkeypatch.setattr(torch.onnx, "export", lambda *args, **options: None)
    monkeypatch.setattr(graphs_module, "run_graph", lambda *args: torch.tensor(np.nan))
    with pytest.raises(EquiAVError, match=r"audio\.onnx: its embeddings differ"):
        export(checkpoint(tmp_path / "model"), tmp_path / "out")
    assert [p.name for p in tmp_path.iterdir()] == ["model"]


def test_folder_loads_and_gives_the_same_embeddings(exported, rng):
    run, out, _ = exported
    assert sorted(p.name for p in out.iterdir()) == [
        "README.md", "SHA256SUMS", "audio.onnx", "config.yaml", "meta.json", "visual.onnx", "weights.safetensors",
    ]  # fmt: skip
    x = 0.1 * torch.randn(2, 8000, generator=rng)
    assert torch.equal(reference(load_model(out), x), reference(load_model(run), x))


def test_card(exported):
    _, out, graphs = exported
    text = (out / "README.md").read_text()
    header = yaml.safe_load(text.split("---")[1])
    assert header["library_name"] == "equiav"
    assert header["license"] == "apache-2.0"
    assert "onnx" in header["tags"]
    assert "retrieval, audio to video, R@1 | 12.5" in text
    assert "generated world" in text
    for graph in graphs:
        assert f"{graph.difference:.1e} over {graph.compared} embeddings" in text
    code = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    assert len(code) == 2
    for block in code:
        compile(block, "card", "exec")


def test_code_of_the_card_runs(exported, monkeypatch):
    monkeypatch.chdir(exported[1])
    code = re.findall(r"```python\n(.*?)```", (exported[1] / "README.md").read_text(), re.DOTALL)[1]
    names = {}
    exec(code, names)
    assert names["embeddings"].shape == (1, 32)


def test_without_onnx(tmp_path, monkeypatch):
    monkeypatch.setattr(graphs_module, "NEEDED", ("onnx", "no_such_package"))
    model = checkpoint(tmp_path / "model")
    with pytest.raises(EquiAVError, match=r"ONNX needs no_such_package: pip install 'equiav\[onnx\]'"):
        export(model, tmp_path / "out")
    assert export(model, tmp_path / "out", onnx=False) == []
    assert not list((tmp_path / "out").glob("*.onnx"))
    assert "None were stored" in (tmp_path / "out" / "README.md").read_text()
    load_model(tmp_path / "out")


def test_card_of_a_model_that_says_nothing_of_itself(tmp_path):
    config = small_config()
    save_model(tmp_path / "model", config, build_model(config).state_dict(), {})
    export(tmp_path / "model", tmp_path / "out", onnx=False)
    text = (tmp_path / "out" / "README.md").read_text()
    assert "Imported weights (source unknown)" in text
    assert "Kind of checkpoint: unknown." in text


def test_card_of_a_model_trained_on_a_dataset_of_ones_own(tmp_path):
    model = checkpoint(tmp_path / "model", "data={kind: 'my_clips:Clips'}")
    export(model, tmp_path / "out", onnx=False)
    assert "A dataset of its author's own, `my_clips:Clips`." in (tmp_path / "out" / "README.md").read_text()


def test_refusals(tmp_path):
    model = checkpoint(tmp_path / "model")
    with pytest.raises(EquiAVError, match="exists already"):
        export(model, model, onnx=False)
    shutil.copytree(model, tmp_path / "broken")
    (tmp_path / "broken" / "weights.safetensors").write_bytes(b"no weights")
    with pytest.raises(CheckpointError, match="damaged"):
        export(tmp_path / "broken", tmp_path / "out", onnx=False)
    (tmp_path / "file").write_text("")
    with pytest.raises(EquiAVError, match="cannot be written"):
        export(model, tmp_path / "file" / "out", onnx=False)


def test_a_shared_recipe_names_no_folder_of_this_machine():
    config = Config.model_validate({"data": {"kind": "shards", "path": "/home/somebody/videos"}, "weights": "/a/mae"})
    shared = shareable(config)
    assert shared.data.path == "videos"
    assert shared.weights == "mae"


def test_results_of_a_run_are_found_from_its_checkpoint(tmp_path):
    for name, value in (("evaluation/retrieval", 1.0), ("evaluation/broken", None)):
        folder = tmp_path / name
        folder.mkdir(parents=True)
        record = json.dumps({"task": "retrieval", "R@1": value, "seed": 4}) if value else "{"
        (folder / "results.json").write_text(record)
    found = found_results(tmp_path / "checkpoints" / "step-3")
    assert list(found) == ["retrieval"]
    assert list(measurements(found["retrieval"])) == [("R@1", 1.0)]
