"""Maps and their agreement with boxes: known maps give known metrics, the audio decides, controls are what they say."""

import dataclasses
import json
from pathlib import Path

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from equiav.build import build_dataset
from equiav.checkpoint import save_model
from equiav.cli import app
from equiav.data import squared
from equiav.errors import ConfigError, DataError, ShapeError
from equiav.evaluation import (
    METHODS,
    Localisation,
    agreement,
    agreement_metrics,
    centre_prior,
    heat_maps,
    method_of,
    nearest_transformation,
    token_scores,
    upsample,
)
from equiav.evaluation.equivariance import check_measurable
from equiav.evaluation.localisation import partners
from equiav.evaluation.overlays import named_apart
from equiav.inference import load_model
from equiav.models import EmbeddingModel
from equiav.report import heat_overlay, wav
from equiav.types import Clip
from tests.evaluation.made import Passing, loaded, written
from tests.media.making import write_media
from tests.training.small import small_config


def loaded_small(**objective):
    config = small_config()
    if objective:
        config = config.model_copy(update={"objective": config.objective.model_copy(update=objective)})
    return loaded(config)


def box(*values):
    return torch.tensor([values], dtype=torch.float32)


def test_a_perfect_map_is_perfect_and_its_opposite_is_not():
    heat = torch.zeros(2, 20, 20)
    heat[:, 4:10, 6:16] = 1.0
    heat[:, 5, 7] = 2.0
    truth = [box(6, 4, 16, 10), box(6, 4, 16, 10)]
    good = agreement(heat, truth)
    assert agreement_metrics(good) == pytest.approx(
        {"pointing": 100, "adaptive_iou": 100, "cIoU": 100, "AUC": 100, "pictures": 2}
    )
    bad = agreement_metrics(agreement(-heat, truth))
    assert bad["pointing"] == 0
    assert bad["adaptive_iou"] < 5
    assert bad["cIoU"] == 0


def test_the_median_cut_and_its_area_by_hand():
    heat = torch.arange(16, dtype=torch.float32).view(1, 4, 4)  # upper half of values: rows 2 and 3
    found = agreement(heat, [box(0, 2, 2, 4)])  # 4 of those 8 pixels
    assert float(found[0, 2]) == pytest.approx(0.5)
    record = agreement_metrics(found)
    assert record["cIoU"] == 100
    assert record["AUC"] == pytest.approx(100 * (0.5 + 0.025), abs=1e-6)  # success 1 up to 0.5, then half a step


def test_several_boxes_count_as_one_truth():
    heat = torch.zeros(1, 8, 8)
    heat[0, 6, 6] = 1
    both = torch.tensor([[0.0, 0, 2, 2], [5, 5, 8, 8]])
    assert float(agreement(heat, [both])[0, 0]) == 1
    assert float(agreement(heat, [both[:1]])[0, 0]) == 0


def test_a_frame_without_boxes_is_refused():
    with pytest.raises(ShapeError, match="without boxes"):
        agreement(torch.zeros(1, 4, 4), [torch.zeros(0, 4)])


def test_the_centre_prior_points_at_the_centre():
    assert float(agreement(centre_prior(9, 9)[None], [box(4, 4, 5, 5)])[0, 0]) == 1


def test_boxes_follow_the_frame_into_its_square():
    shares = torch.tensor([[0.0, 0.0, 1.0, 1.0], [0.5, 0.25, 0.75, 0.5], [0.0, 0.0, 0.1, 1.0]])
    found = squared(shares, 100, 200, 50)  # the middle 100 x 100 of 200 x 100
    assert found.tolist() == [[0, 0, 50, 50], [25, 12.5, 50, 25]]  # the last lies outside


def test_boxes_of_the_world_are_those_of_the_scene():
    clips = build_dataset(small_config(), "test")
    assert torch.equal(clips.boxes(1, 3), clips.world.boxes(clips.start + 1)[3].float())


@pytest.mark.parametrize("method", METHODS)
def test_scores_of_every_method(method):
    loaded = loaded_small()
    config = loaded.config
    rng = torch.Generator().manual_seed(0)
    x = torch.randn(3, 3, config.visual.size, config.visual.size, generator=rng)
    z = torch.randn(3, config.model.heads.inter, generator=rng)
    maps = heat_maps(loaded, x, z, method)
    assert maps.shape == (3, config.visual.size, config.visual.size)
    alone = heat_maps(loaded, x[1:2], z[1:2], method)
    torch.testing.assert_close(maps[1:2], alone, atol=1e-5, rtol=1e-4)  # neighbours in a batch change nothing
    other = heat_maps(loaded, x, z.flip(0), method)
    assert torch.equal(maps, other) == (method == "attention")  # only attention is deaf


@torch.inference_mode()
def test_removal_is_what_the_similarity_loses():
    loaded = loaded_small()
    branch, bank = loaded.model["visual"], loaded.banks["visual"][:16]
    rng = torch.Generator().manual_seed(1)
    h = torch.randn(1, 9, branch.f.width, generator=rng)
    z = torch.randn(1, loaded.config.model.heads.inter, generator=rng)
    scores = token_scores(loaded, h, z, "removal")
    whole = torch.cosine_similarity(branch.inter_centroid(h, bank[None]), z)
    for j in (0, 4, 8):
        rest = torch.cat([h[:, :j], h[:, j + 1 :]], dim=1)
        lost = whole - torch.cosine_similarity(branch.inter_centroid(rest, bank[None]), z)
        assert float(scores[0, j]) == pytest.approx(float(lost), abs=1e-6)


@torch.inference_mode()
def test_the_centroid_method_is_the_pipeline_on_one_token():
    loaded = loaded_small()
    branch, bank = loaded.model["visual"], loaded.banks["visual"]
    rng = torch.Generator().manual_seed(2)
    h, z = torch.randn(2, 4, branch.f.width, generator=rng), torch.randn(2, loaded.config.model.heads.inter)
    scores = token_scores(loaded, h, z, "centroid")
    token = branch.g_inter(branch.u(h[1:, 2:3], bank[None]).mean(dim=1))
    assert float(scores[1, 2]) == pytest.approx(float(torch.cosine_similarity(token, z[1:])), abs=1e-6)


def test_models_without_attention_say_so_and_have_another_default():
    loaded = loaded_small(inter="original", intra="none")
    assert method_of(loaded) == "removal"
    assert method_of(loaded_small()) == "blend"
    x = torch.zeros(1, 3, loaded.config.visual.size, loaded.config.visual.size)
    with pytest.raises(ConfigError, match="choose removal"):
        heat_maps(loaded, x, torch.ones(1, loaded.config.model.heads.inter), "attention")


class OfOnesOwn(EmbeddingModel):
    """A model that is no EquiAV and has what it consists of."""

    def __init__(self, inner):
        super().__init__()
        self.inner, self.modalities, self.width = inner, inner.modalities, inner.width

    def encode(self, modality, x):
        return self.inner.encode(modality, x)

    def embed_tokens(self, modality, h, bank=None):
        return self.inner.embed_tokens(modality, h, bank)

    def equivariant_branch(self, modality):
        return self.inner.equivariant_branch(modality)


def test_what_a_model_has_decides_and_not_its_class():
    model = loaded_small()
    own = dataclasses.replace(model, model=OfOnesOwn(model.model))
    assert method_of(own) == "blend"
    check_measurable(own)
    h, z_a = torch.randn(1, 16, model.model["visual"].f.width), torch.randn(1, model.width)
    for method in ("projection", "attention"):
        assert torch.equal(token_scores(own, h, z_a, method), token_scores(model, h, z_a, method))
    bare = dataclasses.replace(model, model=Passing(model.modalities, model.width))
    assert method_of(bare) == "removal"
    with pytest.raises(ConfigError, match="neither predictor nor heads per token; choose removal or centroid"):
        token_scores(bare, h, z_a, "projection")
    with pytest.raises(ConfigError, match="equivariance asks a predictor, this model has none"):
        check_measurable(bare)


def test_maps_keep_the_order_of_the_grid():
    maps = upsample(torch.tensor([[0.0, 0, 0, 1, 0, 0]]), (2, 3), (20, 30))
    assert maps[0].argmax().item() in range(10 * 30, 20 * 30)  # second row of patches
    assert maps[0].argmax().item() % 30 < 10  # first column


def test_nobody_is_given_their_own_sound():
    partner = partners(50, seed=3)
    assert sorted(partner.tolist()) == list(range(50))
    assert not (partner == torch.arange(50)).any()


def test_the_record_of_a_world(tmp_path):
    loaded = loaded_small()
    clips = build_dataset(loaded.config, "test")
    results = Localisation()(loaded, clips)
    found = results["localisation"]
    assert found["all"]["sound"]["pictures"] == len(clips)
    assert set(found["all"]) >= {"sound", "other sound", "centre", "ahead_of_other_sound"}
    silent = [i for i in range(len(clips)) if len(clips.scene(i).sounding) < len(clips.scene(i).objects)]
    assert found["with silent things"]["sound"]["pictures"] == len(silent)
    assert Localisation()(loaded, clips).record == results.record
    record, html = written(results, tmp_path)
    assert [e["id"] for e in record["examples"]] == [clips.clip(i).id for i in silent][: len(record["examples"])]
    assert html.count("<audio") == len(record["examples"])


def test_examples_say_whether_the_maximum_lies_in_a_box(tmp_path):
    loaded = loaded_small()
    clips = build_dataset(small_config("data.test=24"), "test")
    frame = clips.frames // 2
    results = Localisation(examples=24)(loaded, clips)
    places = {clips.clip(i).id: i for i in range(len(clips))}
    hits = []
    for example in results["examples"]:
        i = places[example["id"]]
        sample = clips.sample(i, frame)
        assert example["boxes"] == clips.boxes(i, frame).tolist()
        transform = loaded.inputs["audio"]
        z = loaded.embed("audio", transform.finish(transform.prepare(sample.inputs["audio"][None])))
        heat = heat_maps(loaded, loaded.frames(sample.inputs["visual"][None]), z)[0]
        y, x = divmod(int(heat.argmax()), heat.shape[1])
        inside = any(x0 <= x + 0.5 <= x1 and y0 <= y + 0.5 <= y1 for x0, y0, x1, y1 in example["boxes"])
        assert example["maps"]["sound"]["hit"] == inside
        hits.append(inside)
    assert {True, False} == set(hits)


def test_the_nearest_transformation_is_the_nearest():
    loaded = loaded_small()
    frame = build_dataset(loaded.config, "test").sample(0, 0).inputs["visual"]
    z = torch.ones(loaded.config.model.heads.inter)
    _, _, cosine = nearest_transformation(loaded, frame, z, vectors=1)
    assert cosine == pytest.approx(1.0, abs=1e-5)  # the centroid of one vector is that vector
    both, maps, cosine = nearest_transformation(loaded, frame, z, vectors=200)
    assert -1 <= cosine <= 1 + 1e-6
    assert maps.shape == (2, *frame.shape[1:])
    assert not torch.equal(both[0], both[1])


def test_an_overlay_marks_what_is_hot():
    picture = np.full((20, 20, 3), 100, np.uint8)
    heat = np.zeros((20, 20), np.float32)
    heat[3, 4] = 1
    drawn = heat_overlay(picture, heat)
    changed = np.argwhere((drawn != picture).any(axis=2))
    assert changed.tolist() == [[3, 4]]


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    folder = tmp_path_factory.mktemp("model")
    loaded = loaded_small()
    save_model(folder / "model", loaded.config, loaded.model.state_dict(), {"kind": "pretrained", "step": 0})
    return folder / "model"


def test_the_command_measures_and_writes(checkpoint, tmp_path):
    result = CliRunner().invoke(app, ["evaluate", "localisation", str(checkpoint), "--out", str(tmp_path / "out")])
    assert result.exit_code == 0, result.output
    record = json.loads((tmp_path / "out/results.json").read_text())
    assert record["localisation"]["all"]["centre"]["pictures"] > 0
    assert record["provenance"]["commit"]
    assert "another clip&#39;s audio" in (tmp_path / "out/report.html").read_text()
    own = Localisation(split="test")(load_model(checkpoint), build_dataset(small_config(), "test"))
    assert {k: v for k, v in record.items() if k != "provenance"} == json.loads(json.dumps(own.record))


def test_a_clip_without_sound_is_one_line(checkpoint, tmp_path):
    from PIL import Image

    picture = tmp_path / "silent.png"
    Image.new("RGB", (64, 64), (200, 10, 10)).save(picture)
    result = CliRunner().invoke(app, ["localise", str(checkpoint), str(picture), "--out", str(tmp_path / "out")])
    assert isinstance(result.exception, DataError)
    assert "has no sound to look for; give one with --audio" in str(result.exception)


def test_a_picture_and_a_sound_of_ones_own(checkpoint, tmp_path):
    from PIL import Image

    Image.new("RGB", (80, 64), (200, 10, 10)).save(tmp_path / "thing.png")
    rng = np.random.default_rng(0)
    (tmp_path / "noise.wav").write_bytes(wav(rng.uniform(-0.1, 0.1, 16000).astype(np.float32), 16000))
    arguments = ["localise", str(checkpoint), str(tmp_path / "thing.png"), "--audio", str(tmp_path / "noise.wav")]
    result = CliRunner().invoke(app, [*arguments, "--nearest", "--out", str(tmp_path / "out")])
    assert result.exit_code == 0, result.output
    assert (tmp_path / "out/thing-0.png").is_file()
    assert "nearest to the centroid" in (tmp_path / "out/report.html").read_text()
    record = json.loads((tmp_path / "out/results.json").read_text())
    assert record["clips"][0]["frames"][0]["overlay"] == "thing-0.png"
    assert -1 <= record["clips"][0]["nearest"]["cosine"] <= 1


def test_a_folder_skips_what_it_cannot_use(checkpoint, tmp_path):
    folder = tmp_path / "folder"
    for part in ("a", "b"):
        (folder / part).mkdir(parents=True)
        write_media(folder / part / "x.mp4", seconds=1.0, audio=False)
    (folder / "broken.mp4").write_bytes(b"not a video")
    (tmp_path / "noise.wav").write_bytes(wav(np.full(16000, 0.1, np.float32), 16000))
    arguments = ["localise", str(checkpoint), str(folder), "--out", str(tmp_path / "out")]
    result = CliRunner().invoke(app, [*arguments, "--frames", "1", "--audio", str(tmp_path / "noise.wav")])
    assert result.exit_code == 0, result.output
    assert "2 clips, 1 skipped" in result.output
    assert sorted(p.name for p in (tmp_path / "out").glob("*.png")) == ["a-x-0.png", "b-x-0.png"]
    page = (tmp_path / "out/report.html").read_text()
    assert "<h2>b/x.mp4</h2>" in page
    assert "<h2>broken.mp4</h2>" not in page
    record = json.loads((tmp_path / "out/results.json").read_text())
    assert [Path(of["path"]).name for of in record["skipped"]] == ["broken.mp4"]
    result = CliRunner().invoke(app, [*arguments[:-1], str(tmp_path / "other")])  # videos without a sound
    assert isinstance(result.exception, DataError)
    assert "none of its 3 files can be used; " in str(result.exception)
    assert not (tmp_path / "other/report.html").exists()


def test_names_of_overlays_differ():
    sources = [Clip(name, path=Path(name)) for name in ("a/x.mp4", "a/x.avi", "b/x.mp4", "a-x.mp4")]
    assert list(named_apart(sources)) == ["a-x", "a-x (2)", "b-x", "a-x (3)"]


def test_real_videos_are_localised(checkpoint, tmp_path, shared):
    first = sorted((shared / "media/library").glob("*.mp4"))[0]
    result = CliRunner().invoke(app, ["localise", str(checkpoint), str(first), "--out", str(tmp_path / "out")])
    assert result.exit_code == 0, result.output
    assert len(list((tmp_path / "out").glob("*.png"))) == 3
