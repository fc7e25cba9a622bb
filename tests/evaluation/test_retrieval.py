"""Ranks against a slow count; ties do not help; neither chunks nor batches matter; banks and pages."""

import json

import pytest
import torch
import torch.nn.functional as F

from equiav.build import build_bank, build_inputs, build_model
from equiav.build_data import build_clips, with_data
from equiav.data import evenly_spaced
from equiav.errors import DataError, ShapeError
from equiav.evaluation import (
    Sides,
    both_ranks,
    class_figures,
    class_retrieval,
    embed_dataset,
    embed_sides,
    evaluate_retrieval,
    figures,
    further_banks,
    ranks,
    recall,
    retrieval_lines,
    retrieval_page,
    retrieve,
    run_record,
    small_picture,
    spread,
    write_evaluation,
)
from equiav.inference import LoadedModel
from equiav.types import Modality
from tests.data.test_paired import make_collection
from tests.training.small import small_config

CONFIG = small_config("data.test=20")
MODEL = build_model(CONFIG).eval()
BANKS = {m: build_bank(CONFIG, m) for m in Modality}
LOADED = LoadedModel(MODEL, CONFIG, BANKS, {"step": 0})


@pytest.mark.parametrize("chunk", [1, 7, 50, 1000])
def test_ranks_are_one_plus_the_number_strictly_greater(chunk, rng):
    a, v = torch.randn(50, 8, generator=rng), torch.randn(50, 8, generator=rng)
    cosine = F.cosine_similarity(a[:, None].double(), v[None].double(), dim=-1)
    slow = torch.tensor([1 + sum(int(cosine[i, j] > cosine[i, i]) for j in range(50)) for i in range(50)])
    assert torch.equal(ranks(a.double(), v.double(), chunk), slow)


def test_ties_count_once():
    v = torch.eye(4).repeat(2, 1)  # every picture stands twice
    assert ranks(v, v).tolist() == [1] * 8
    collapsed = torch.ones(6, 4)
    assert ranks(collapsed, collapsed).tolist() == [1] * 6  # why runs log the effective rank


def test_perfect_and_reversed(rng):
    z = F.normalize(torch.randn(30, 16, generator=rng), dim=1)
    assert recall(ranks(z, z)).r1 == 100.0
    assert recall(ranks(z, -z)).r1 == 0.0


def test_class_retrieval_against_a_slow_count(rng):
    q, g = torch.randn(20, 8, generator=rng), torch.randn(30, 8, generator=rng)
    qc, gc = torch.arange(20) % 4, torch.arange(30) % 4
    result = class_retrieval(q, qc, g, gc, chunk=7)
    cosine = F.cosine_similarity(q[:, None], g[None], dim=-1)
    p5, ap = [], []
    for i in range(20):
        order = sorted(range(30), key=lambda j, i=i: -float(cosine[i, j]))
        same = [int(gc[j] == qc[i]) for j in order]
        p5.append(sum(same[:5]) / 5)
        ap.append(sum(sum(same[: k + 1]) / (k + 1) for k in range(30) if same[k]) / sum(same))
    assert result.p5 == pytest.approx(100 * sum(p5) / 20)
    assert result.mean_average_precision == pytest.approx(100 * sum(ap) / 20)
    assert result.chance == pytest.approx(100 * sum(float((gc == c).float().mean()) for c in qc) / 20)
    with pytest.raises(ShapeError, match="does not hold"):
        class_retrieval(q, qc + 1, g, gc)


@pytest.mark.parametrize("chunk", [3, 20, 64])
def test_both_ranks_are_each_by_itself(chunk, rng):
    a, v = (torch.randn(20, 6, generator=rng).double() for _ in range(2))
    forth, back = both_ranks(a, v, chunk)
    assert torch.equal(forth, ranks(a, v))
    assert torch.equal(back, ranks(v, a))
    assert not torch.equal(forth, back)


def test_several_classes_each_against_a_slow_count(rng):
    q, g = torch.randn(15, 8, generator=rng), torch.randn(15, 8, generator=rng)
    classes = (torch.rand(15, 3, generator=rng) < 0.4).float()
    classes[:, 0] = torch.maximum(classes[:, 0], (classes.sum(dim=1) == 0).float())
    result = class_retrieval(q, classes, g, classes, chunk=4)
    cosine = F.cosine_similarity(q[:, None], g[None], dim=-1)
    first = [bool((classes[i] * classes[int(cosine[i].argmax())]).any()) for i in range(15)]
    assert result.p1 == pytest.approx(100 * sum(first) / 15)
    share = [float(((classes @ classes[i]) > 0).float().mean()) for i in range(15)]
    assert result.chance == pytest.approx(100 * sum(share) / 15)


def test_batches_do_not_change_either_direction():
    clips, inputs = build_clips(CONFIG, "test"), build_inputs(CONFIG.audio)
    found = [retrieve(embed_dataset(MODEL, clips, inputs, BANKS, "centroid", batch=batch)) for batch in (1, 7, 64)]
    assert found[0] == found[1] == found[2]
    assert found[0].audio_to_video != found[0].video_to_audio


def test_several_banks_cost_one_pass_of_the_encoder(monkeypatch):
    clips, inputs = build_clips(CONFIG, "test"), build_inputs(CONFIG.audio)
    others, seeds = further_banks(CONFIG, 2)
    assert seeds == (1, 2)
    alone = [embed_sides(MODEL, clips, inputs, [bank], "centroid")[0] for bank in (BANKS, *others)]
    seen = []
    encode = MODEL.audio.encode
    monkeypatch.setattr(MODEL.audio, "encode", lambda x: seen.append(len(x)) or encode(x))
    together = embed_sides(MODEL, clips, inputs, [BANKS, *others], "centroid")
    assert sum(seen) == len(clips)
    for one, all_at_once in zip(alone, together, strict=True):
        torch.testing.assert_close(one.audio, all_at_once.audio)
        torch.testing.assert_close(one.visual, all_at_once.visual)
    assert not torch.equal(together[0].audio, together[1].audio)


def test_spread_over_banks():
    clips, inputs = build_clips(CONFIG, "test"), build_inputs(CONFIG.audio)
    same = [figures(clips, s) for s in embed_sides(MODEL, clips, inputs, [BANKS] * 3, "centroid")]
    for values in spread(same).values():
        assert all(v["std"] == 0 and v["min"] == v["max"] == v["mean"] for v in values.values())
    made = spread([{"way": {"R@1": 1.0, "pool": 9}}, {"way": {"R@1": 3.0, "pool": 9}}])
    assert made == {"way": {"R@1": {"mean": 2.0, "std": 1.0, "min": 1.0, "max": 3.0}}}


def test_pooled_embeddings_use_no_bank():
    config = CONFIG.model_copy(update={"objective": CONFIG.objective.model_copy(update={"inter": "original"})})
    assert config.objective.representation == "pooled"
    run = evaluate_retrieval(LOADED, config, build_clips(config, "test"), banks=3)
    assert (run.seeds, run.spread) == ((), {})


def test_page_of_clips(tmp_path):
    clips = build_clips(CONFIG, "test")
    run = evaluate_retrieval(LOADED, CONFIG, clips, banks=2)
    assert run.figures["audio_to_video"]["pool"] == 20
    assert run.by_class["audio_to_video"]["queries"] == 20
    assert "(" in retrieval_lines(run)[0]
    record = {"task": "retrieval", **run_record(run)}
    html = write_evaluation(tmp_path, record, retrieval_page(clips, CONFIG, run)).read_text()
    assert html.count("<audio") == 8 + 4  # evenly spaced, and the worst
    assert html.count("its own, rank") == 2 * (8 + 4 + 4)  # caption and alternative text
    assert "mean of 3 banks" in html
    assert "the seeds 1, 2" in html
    worst = int(ranks(run.sides.audio, run.sides.visual).max())
    assert f"its own, rank {worst}" in html
    stored = json.loads((tmp_path / "results.json").read_text())
    assert stored["spread_over_banks"]["video_to_audio"]["R@1"]["max"] >= stored["retrieval"]["video_to_audio"]["R@1"]


def test_page_of_sounds_and_images_joined_by_class(tmp_path):
    config = with_data(CONFIG, make_collection(tmp_path / "made", classes=3, sounds=8, images=10))
    clips = build_clips(config, "test")
    run = evaluate_retrieval(LOADED, config, clips, banks=1)
    assert run.by_class == {}
    assert run.figures["audio_to_video"]["gallery"] == 6
    html = retrieval_page(clips, config, run).html()
    assert html.count("<audio") == 3 + 3
    assert "its own" not in html
    assert "rank of the true partner" not in html
    with pytest.raises(DataError, match="leave --all-frames out"):
        evaluate_retrieval(LOADED, config, clips, all_frames=True)


def test_clips_without_labels_stand_aside(monkeypatch, rng):
    clips, sides = build_clips(CONFIG, "test"), Sides(*(torch.randn(20, 4, generator=rng) for _ in range(2)))
    monkeypatch.setattr("equiav.evaluation.benchmark.label_names", lambda clips: [("a",)] * 5 + [()] * 15)
    assert class_figures(clips, sides)["audio_to_video"]["gallery"] == 5
    monkeypatch.setattr("equiav.evaluation.benchmark.label_names", lambda clips: [()] * 20)
    assert class_figures(clips, sides) == {}


def test_examples_are_evenly_spaced_and_small():
    assert evenly_spaced(100, 4) == [0, 25, 50, 75]
    assert evenly_spaced(2, 4) == [0, 1]
    large = small_picture(torch.zeros(3, 224, 224, dtype=torch.uint8), "large")
    assert "pixel" not in large
    assert len(large) < 2000
    assert "pixel" in small_picture(torch.zeros(3, 32, 32, dtype=torch.uint8), "small")
