"""Equivariance: a predictor that knows the truth beats what ignores the vector; batches do not matter; refusals."""

import json
import math
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from equiav.augment import audio_pipeline, neutral, visual_pipeline
from equiav.build import build_bank, build_dataset, build_inputs, build_model, build_pipelines
from equiav.data import Subset, collate
from equiav.errors import ConfigError, DataError
from equiav.evaluation import (
    Equivariance,
    evenly,
    predictor_similarity,
)
from equiav.evaluation.equivariance import (
    COUNTS,
    REAL,
    approximation,
    centred_cosine,
    clip_means,
    counted,
    draw_views,
    measure,
    one_batch,
    one_clip,
    others_mean,
    paired_difference,
    part_records,
    rank_among_draws,
    rows_of,
)
from equiav.inference import LoadedModel
from equiav.media import normalise, prepare_batch
from equiav.models import mean_pool
from equiav.randomness import generator
from tests.training.small import small_config

CONFIG = small_config("data.test=6")
PIPELINES = {"audio": audio_pipeline(), "visual": visual_pipeline()}


def loaded(config=CONFIG):
    model = build_model(config).eval()
    return LoadedModel(model, config, {m: build_bank(config, m) for m in ("audio", "visual")}, {"step": 0})


@pytest.fixture(scope="module")
def clips():
    return build_dataset(CONFIG, "test")


EVALUATOR = Equivariance(seed=3, count=6, draws=3, centroid_clips=2, batch=4)


@pytest.fixture(scope="module")
def results(clips):
    return EVALUATOR(loaded(), clips)


@pytest.fixture(scope="module")
def record(results):
    return results.record


def flat(tree, path=""):
    if isinstance(tree, dict):
        return {k: v for key, value in tree.items() for k, v in flat(value, f"{path}/{key}").items()}
    return {path: tree}


@pytest.mark.parametrize("modality", ["audio", "visual"])
def test_neutral_draws_change_nothing(modality, rng):
    pipeline = PIPELINES[modality]
    x = torch.rand(3, *((1, 40, 24) if modality == "audio" else (3, 24, 24)), generator=rng)
    for part in pipeline.parts.values():
        torch.testing.assert_close(part.apply(x, neutral(part, 3)), x, atol=1e-5, rtol=0)
    crop = pipeline.slot("crop.on")
    t = pipeline.encode(pipeline.leave_out(pipeline.sample(3, rng), "crop"))
    assert t[:, crop : crop + 5].tolist() == [[1, 0, 0, 1, 1]] * 3  # as training saw it: never off


@pytest.mark.parametrize("modality", ["audio", "visual"])
def test_one_part_at_a_time(modality, rng):
    pipeline = PIPELINES[modality]
    draws = pipeline.sample(200, rng)
    columns = {name: [s.split(".")[0] == name for s in pipeline.slots] for name in pipeline.parts}
    for name in pipeline.parts:
        changed = (pipeline.encode(pipeline.redraw(draws, name, rng)) != pipeline.encode(draws)).any(dim=0)
        assert changed.any()
        assert not changed[~torch.tensor(columns[name])].any()
        alone = pipeline.alone(name, 20, rng)
        assert alone[name].on.all()
        assert not any(alone[other].on.any() for other in pipeline.parts if other not in (name, "crop"))


def test_ranks_count_ties_against_the_truth():
    assert rank_among_draws(torch.ones(2, 4, 4))["first"] == 0
    assert rank_among_draws(torch.eye(4)[None])["first"] == 100
    pairs = torch.tensor([[[0.9, 0.1], [0.8, 0.3]]])  # the second prediction is nearer to the first view
    assert rank_among_draws(pairs)["first"] == 50
    assert rank_among_draws(pairs)["reciprocal_rank"] == pytest.approx(0.75)
    assert rank_among_draws(pairs)["chance_reciprocal_rank"] == pytest.approx(0.75)
    assert others_mean(pairs).tolist() == pytest.approx([0.45])


def test_differences_are_paired_over_clips(rng):
    counted = torch.tensor([[True, False], [True, True], [False, False]])
    means = clip_means(torch.tensor([[1.0, 9.0], [2.0, 4.0], [5.0, 5.0]]), counted)
    assert means[:2].tolist() == [1, 3]
    assert math.isnan(means[2])
    level = torch.randn(400, generator=rng).double()
    gain = 0.1 * torch.randn(400, generator=rng).double() + 0.05
    found = paired_difference(level + gain, level)  # the spread of the level, ten times the gain's, must not matter
    assert found["difference"] == pytest.approx(float(gain.mean()))
    assert found["high"] - found["difference"] == pytest.approx(1.96 * float(gain.std()) / 20)
    assert found["true_is"] == "above"
    assert paired_difference(level, level + gain)["true_is"] == "below"
    assert paired_difference(level, level + gain - gain.mean())["true_is"] == "level with"
    assert paired_difference(torch.tensor([1.0, math.nan]), torch.tensor([0.5, 0.5]))["difference"] == 0.5


def test_centring_takes_away_what_all_share(rng):
    a, b = torch.randn(200, 16, generator=rng), torch.randn(200, 16, generator=rng)
    offset = torch.full((16,), 50.0)
    assert torch.cosine_similarity(a + offset, b + offset).mean() > 0.99
    assert centred_cosine(a + offset, b + offset, (b + offset).mean(dim=0)).mean().abs() < 0.1


class Oracle(nn.Module):
    """A predictor that was shown the inputs: it looks up the real representation of the vector it is given."""

    def __init__(self, model, m, pipeline, x, draws):
        super().__init__()
        views = pipeline.apply(x.repeat_interleave(draws.batch // len(x), dim=0), draws)
        self.known, self.t = mean_pool(model.model[m].encode(model.inputs[m].finish(views))), pipeline.encode(draws)

    def forward(self, h, t):
        per_clip = len(self.known) // len(h)
        known, of = (v.view(len(h), per_clip, -1) for v in (self.known, self.t))
        nearest = torch.cdist(t.expand(len(h), -1, -1), of).argmin(dim=2)
        found = known.gather(1, nearest[:, :, None].expand(-1, -1, known.shape[2]))
        right = (of.gather(1, nearest[:, :, None].expand(-1, -1, of.shape[2])) - t).abs().amax(dim=2) < 1e-6
        return torch.where(right[:, :, None], found, -found)  # told of something else, it answers something else


@pytest.mark.parametrize("modality", ["audio", "visual"])
@torch.inference_mode()
def test_who_knows_the_truth_scores_one(modality, clips):
    model, pipeline = loaded(), build_pipelines(CONFIG)[modality]
    batch = collate([clips.sample(i, 0) for i in range(6)])
    x = prepare_batch(build_inputs(CONFIG), batch, modality)
    drawn = draw_views(pipeline, modality, clips=6, draws=4, seed=0)
    model.model[modality].u = Oracle(model, modality, pipeline, x, drawn["full"])
    scores = one_batch(model, modality, pipeline, drawn, x)
    torch.testing.assert_close(scores["pairs"].diagonal(dim1=1, dim2=2), torch.ones(6, 4).double(), atol=1e-5, rtol=0)
    assert rank_among_draws(scores["pairs"])["first"] == 100
    for row in part_records(scores, pipeline, drawn)[0].values():
        assert row["true"] == pytest.approx(1, abs=1e-5)
        assert row["redrawn"]["true_is"] == row["left_out"]["true_is"] == "above"
        assert 0 < row["draws"] <= 24
        assert row["clips"] <= 6


@torch.inference_mode()
def test_rows_that_count_are_on_and_differ():
    pipeline = PIPELINES["visual"]
    drawn = draw_views(pipeline, "visual", clips=50, draws=8, seed=1)

    def count(name, of):
        return counted(pipeline, name, of["full"], of[f"redrawn.{name}"])

    flip, again = drawn["full"]["flip"].on, drawn["redrawn.flip"]["flip"].on
    assert torch.equal(count("flip", drawn), flip & ~again)
    assert count("crop", drawn).all()
    part = rows_of(drawn, 50, 7, 9)
    assert torch.equal(count("grey", part), count("grey", drawn)[56:72])
    assert torch.equal(pipeline.encode(part["full"]), pipeline.encode(drawn["full"])[56:72])
    alone = part["alone.grey"]
    assert torch.equal(pipeline.encode(alone), pipeline.encode(drawn["alone.grey"])[7:9])


@torch.inference_mode()
def test_record_by_hand(record, clips):
    """The first clip's cosines, transcribed: Eqs. (6), (7) and the identity."""
    model = loaded().model
    for m, pipeline in build_pipelines(CONFIG).items():
        full = draw_views(pipeline, m, clips=6, draws=3, seed=3)["full"]
        true, identity = [], []
        for i in range(6):
            batch = collate([clips.sample(i, clips.frames // 2)])
            x = prepare_batch(build_inputs(CONFIG), batch, m)
            for d in range(3):
                draw = full.rows(3 * i + d, 3 * i + d + 1)
                x_aug = pipeline.apply(x, draw)
                h, h_aug = (model[m].encode(normalise(v) if m == "visual" else v) for v in (x, x_aug))
                z_hat = model[m].g_intra(model[m].u(h, pipeline.encode(draw)[:, None])[:, 0])
                z_aug, z = model[m].g_intra(h_aug.mean(dim=1)), model[m].g_intra(h.mean(dim=1))
                true.append(float(F.cosine_similarity(z_hat, z_aug)))
                identity.append(float(F.cosine_similarity(z, z_aug)))
        found = record["similarity"][m]
        assert found["true"]["mean"] == pytest.approx(sum(true) / 18, abs=1e-5)
        assert found["identity"]["mean"] == pytest.approx(sum(identity) / 18, abs=1e-5)


def test_batches_do_not_matter(record, clips):
    again = replace(EVALUATOR, batch=1, examples=0)(loaded(), clips).record
    one, other = flat(record), flat(again)
    assert one.keys() == other.keys()
    for key, value in one.items():
        if isinstance(value, float) and "ranking" not in key:
            assert other[key] == pytest.approx(value, abs=2e-5, nan_ok=True), key
    similarity = predictor_similarity(loaded(), clips, seed=3, count=6, draws=3)
    assert similarity["audio"] == pytest.approx(record["similarity"]["audio"]["true"]["mean"], abs=1e-5)
    assert similarity["visual"] == pytest.approx(record["similarity"]["visual"]["true"]["mean"], abs=1e-5)


def test_the_seed_decides(clips):
    drawn = {m: draw_views(p, m, clips=6, draws=2, seed=4) for m, p in build_pipelines(CONFIG).items()}
    first, again = (measure(loaded(), clips, drawn, batch=6) for _ in range(2))
    assert all(torch.equal(first[m]["pairs"], again[m]["pairs"]) for m in ("audio", "visual"))
    other = predictor_similarity(loaded(), clips, seed=5, count=6, draws=2)
    assert other != predictor_similarity(loaded(), clips, seed=4, count=6, draws=2)


@torch.inference_mode()
def test_centroid_and_real_mean_of_one_clip(clips):
    model, pipeline = loaded(), build_pipelines(CONFIG)["visual"]
    branch = model.model.visual
    batch = collate([clips.sample(0, clips.frames // 2)])
    x = prepare_batch(build_inputs(CONFIG), batch, "visual")
    rows = one_clip(model, "visual", pipeline, x, generator(0, 0, "test"))
    rng = generator(0, 0, "test")
    draws = pipeline.sample(REAL + COUNTS[-1], rng)
    real = [branch.encode(normalise(pipeline.apply(x, draws.rows(i, i + 1)))).mean(dim=1) for i in range(draws.batch)]
    torch.testing.assert_close(rows[:1], torch.stack(real[:REAL]).mean(dim=0), atol=1e-4, rtol=1e-4)  # Eq. (11)
    h = branch.encode(normalise(x))
    torch.testing.assert_close(rows[1:2], h.mean(dim=1))
    h_hat = [branch.u(h, t[None, None])[:, 0] for t in pipeline.vectors(1, COUNTS[-1], rng)[0]]
    for k, s in enumerate(COUNTS):
        torch.testing.assert_close(rows[2 + k : 3 + k], sum(h_hat[:s]) / s, atol=1e-4, rtol=1e-4)  # Eq. (12)
        expected = sum(real[REAL : REAL + s]) / s
        torch.testing.assert_close(rows[2 + len(COUNTS) + k][None], expected, atol=1e-4, rtol=1e-4)


def test_real_means_approach_the_real_mean(clips):
    found = approximation(loaded(), evenly(clips, 3))
    for m in ("audio", "visual"):
        real = found[m]["representation"]["plain"]["real"]
        assert real["1"]["mean"] < real["8"]["mean"] < real["64"]["mean"] <= 1


def test_page_and_lines(results, tmp_path):
    html = results.write(tmp_path).read_text()
    stored = json.loads((tmp_path / "results.json").read_text())
    shown = stored["examples"]
    assert {e["modality"] for e in shown} == {"audio", "visual"}
    assert html.count("data:image/png") == 2 + 2 + sum(1 + len(e["views"]) for e in shown)
    assert all(name in html for name in ("specaugment", "grey", "S = 64", "attention, paper"))
    assert len(results.lines) == 2 + 6 + 5


def test_examples_show_what_was_measured(record, clips):
    drawn = {m: draw_views(p, m, clips=6, draws=3, seed=3) for m, p in build_pipelines(CONFIG).items()}
    scores = measure(loaded(), clips, drawn)
    shown = [e for e in record["examples"] if e["modality"] == "audio"]
    for example, i in zip(shown, (0, 2, 4), strict=True):
        pairs = scores["audio"]["pairs"][i]
        assert example["id"] == clips.clip(i).id
        assert [view["true"] for view in example["views"]] == pytest.approx(pairs.diagonal().tolist(), abs=1e-4)
        assert example["views"][0]["another"] == pytest.approx(float(pairs[1:, 0].mean()), abs=1e-4)
        assert example["views"][1]["identity"] == pytest.approx(float(scores["audio"]["identity"][i, 1]), abs=1e-4)


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (("objective.intra=none", "objective.inter=original"), "predictor was never trained"),
        (("objective.intra=invariant", "objective.inter=original"), "objective.intra invariant"),
        (("augment.layout=released",), "is not reproduced"),
    ],
)
def test_models_that_cannot_be_measured(overrides, message, clips):
    config = small_config("data.test=6", *overrides)
    for ask in (Equivariance(count=2), predictor_similarity):
        with pytest.raises(ConfigError, match=message):
            ask(loaded(config), clips)


def test_no_clips(clips):
    with pytest.raises(DataError, match="no clips"):
        evenly(Subset(clips, ()), 5)
    assert [evenly(clips, 3).clip(i).id for i in range(3)] == [clips.clip(i).id for i in (0, 2, 4)]
