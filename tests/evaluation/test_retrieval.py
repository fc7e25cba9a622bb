"""Ranks against a slow count; ties do not help; all directions; what a page shows stands in the record."""

import json
import re

import pytest
import torch
import torch.nn.functional as F

from equiav.build import build_dataset, with_data
from equiav.data import evenly_spaced
from equiav.errors import DataError, ShapeError
from equiav.evaluation import (
    Retrieval,
    both_ranks,
    class_metrics,
    class_scores,
    embed_with_banks,
    further_banks,
    rank_metrics,
    ranks,
)
from equiav.evaluation.retrieval import spread
from tests.evaluation.made import Vectors, loaded, make_collection, passing_model, written
from tests.training.small import small_config

CONFIG = small_config("data.test=20")
LOADED = loaded(CONFIG)


@pytest.fixture(scope="module")
def world():
    return build_dataset(CONFIG, "test")


@pytest.mark.parametrize("chunk", [1, 7, 50, 1000])
def test_ranks_are_one_plus_the_number_strictly_greater(chunk, rng):
    a, v = torch.randn(50, 8, generator=rng), torch.randn(50, 8, generator=rng)
    cosine = F.cosine_similarity(a[:, None].double(), v[None].double(), dim=-1)
    slow = torch.tensor([1 + sum(int(cosine[i, j] > cosine[i, i]) for j in range(50)) for i in range(50)])
    assert torch.equal(ranks(a.double(), v.double(), chunk), slow)


def test_ties_count_once():
    v = torch.eye(4).repeat(2, 1)  # every image stands twice
    assert ranks(v, v).tolist() == [1] * 8
    collapsed = torch.ones(6, 4)
    assert ranks(collapsed, collapsed).tolist() == [1] * 6  # why runs log the effective rank


def test_perfect_and_reversed(rng):
    z = F.normalize(torch.randn(30, 16, generator=rng), dim=1)
    assert rank_metrics(ranks(z, z))["R@1"] == 100.0
    assert rank_metrics(ranks(z, -z))["R@1"] == 0.0


def test_class_metrics_against_a_slow_count(rng):
    q, g = torch.randn(20, 8, generator=rng), torch.randn(30, 8, generator=rng)
    qc, gc = torch.arange(20) % 4, torch.arange(30) % 4
    result = class_metrics(q, qc, g, gc)
    cosine = F.cosine_similarity(q[:, None], g[None], dim=-1)
    p5, ap = [], []
    for i in range(20):
        order = sorted(range(30), key=lambda j, i=i: -float(cosine[i, j]))
        same = [int(gc[j] == qc[i]) for j in order]
        p5.append(sum(same[:5]) / 5)
        ap.append(sum(sum(same[: k + 1]) / (k + 1) for k in range(30) if same[k]) / sum(same))
    assert result["P@5"] == pytest.approx(100 * sum(p5) / 20)
    assert result["mAP"] == pytest.approx(100 * sum(ap) / 20)
    assert result["chance"] == pytest.approx(100 * sum(float((gc == c).float().mean()) for c in qc) / 20)
    small = class_scores(q, qc, g, gc, chunk=7)
    torch.testing.assert_close(small["mAP"], class_scores(q, qc, g, gc)["mAP"])
    with pytest.raises(ShapeError, match="does not hold"):
        class_metrics(q, qc + 1, g, gc)


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
    result = class_metrics(q, classes, g, classes)
    cosine = F.cosine_similarity(q[:, None], g[None], dim=-1)
    first = [bool((classes[i] * classes[int(cosine[i].argmax())]).any()) for i in range(15)]
    assert result["P@1"] == pytest.approx(100 * sum(first) / 15)
    share = [float(((classes @ classes[i]) > 0).float().mean()) for i in range(15)]
    assert result["chance"] == pytest.approx(100 * sum(share) / 15)


def test_several_banks_cost_one_pass_of_the_encoder(world):
    others, seeds = further_banks(LOADED, 2)
    assert seeds == (1, 2)
    alone = [embed_with_banks(LOADED, world, [bank])[0] for bank in (LOADED.banks, *others)]
    seen = []
    hook = LOADED.model["audio"].f.register_forward_hook(lambda module, given, out: seen.append(len(given[0])))
    together = embed_with_banks(LOADED, world, [LOADED.banks, *others])
    hook.remove()
    assert sum(seen) == len(world)
    for one, all_at_once in zip(alone, together, strict=True):
        for m in ("audio", "visual"):
            torch.testing.assert_close(one[m], all_at_once[m])
    assert not torch.equal(together[0]["audio"], together[1]["audio"])


def test_spread_over_banks():
    made = spread([{"way": {"R@1": 1.0, "pool": 9}}, {"way": {"R@1": 3.0, "pool": 9}}])
    assert made == {"way": {"R@1": {"mean": 2.0, "std": 1.0, "min": 1.0, "max": 3.0}}}


def test_pooled_embeddings_use_no_bank(world):
    config = CONFIG.model_copy(update={"objective": CONFIG.objective.model_copy(update={"inter": "original"})})
    results = Retrieval(banks=3, examples=0)(loaded(config), world)
    assert (results["further_bank_seeds"], results["spread_over_banks"]) == ([], {})


# Three modalities of which everything is known


def three(rng, count=12, **more):
    vectors = {m: torch.randn(count, 6, generator=rng) for m in ("touch", "smell", "taste")}
    return Vectors(vectors, **more), {m: F.normalize(x, dim=1) for m, x in vectors.items()}


def test_all_directions_between_any_modalities(rng):
    dataset, z = three(rng)
    results = Retrieval(ks=(1, 3))(passing_model(z, 6), dataset)
    assert len(results["retrieval"]) == 6
    for a in z:
        for b in set(z) - {a}:
            found = ranks(z[a], z[b])
            values = results[f"retrieval/{a}_to_{b}"]
            assert values["R@3"] == pytest.approx(100 * float((found <= 3).double().mean()))
            assert set(values) == {"R@1", "R@3", "MRR", "median_rank", "pool"}
            assert values["MRR"] == pytest.approx(100 * float((1 / found.double()).mean()))
            share = results[f"rank_histogram/{a}_to_{b}"]
            assert share["1"] == pytest.approx(values["R@1"])
            assert sum(share.values()) == pytest.approx(100)
    assert results.primary == "retrieval/touch_to_smell/R@3"
    assert results["chance"] == {"R@1": pytest.approx(100 / 12), "R@3": 25.0}


def test_examples_say_what_a_slow_count_says(rng):
    """Ranks, order, scores and which answer is right, of every query that is shown."""
    dataset, z = three(rng)
    results = Retrieval(examples=6)(passing_model(z, 6), dataset)
    rights = []
    for section in results["examples"]:
        a, b = section["direction"].split("_to_")
        cosine = z[a] @ z[b].T
        for asked in section["queries"]:
            i = int(asked["query"]["id"].removeprefix("clip "))
            assert asked["rank"] == 1 + sum(float(cosine[i, j]) > float(cosine[i, i]) for j in range(12))
            assert asked["own"]["id"] == asked["query"]["id"]
            order = sorted(range(12), key=lambda j, i=i, cosine=cosine: -float(cosine[i, j]))[:5]
            assert [found["id"] for found in asked["found"]] == [f"clip {j}" for j in order]
            for found, j in zip(asked["found"], order, strict=True):
                assert found["score"] == pytest.approx(float(cosine[i, j]), abs=1e-4)
                assert found["right"] == (j == i)
                rights.append(found["right"])
    assert {True, False} == set(rights)


def test_which_queries_are_shown(rng):
    dataset, z = three(rng)
    sections = Retrieval(examples=6)(passing_model(z, 6), dataset)["examples"]
    assert [(s["choice"], len(s["queries"])) for s in sections] == [
        ("evenly spaced", 6), ("worst", 3), *[("evenly spaced", 3)] * 5,
    ]  # fmt: skip
    assert [q["query"]["id"] for q in sections[0]["queries"]] == [f"clip {i}" for i in evenly_spaced(12, 6)]
    found = ranks(z["touch"], z["smell"])
    assert [q["rank"] for q in sections[1]["queries"]] == sorted(found.tolist(), reverse=True)[:3]


def test_where_only_classes_pair_a_shared_class_is_right(rng):
    labels = [("a", "b")[i % 2 : i % 2 + 1] for i in range(12)]
    dataset, z = three(rng, labels=labels, one_to_one=False)
    results = Retrieval()(passing_model(z, 6), dataset)
    assert set(results["retrieval/touch_to_smell"]) == {"P@1", "P@5", "P@10", "mAP", "chance", "queries", "gallery"}
    shown = [(q["query"], found) for s in results["examples"] for q in s["queries"] for found in q["found"]]
    assert all(found["right"] == (query["labels"] == found["labels"]) for query, found in shown)
    assert {True, False} == {found["right"] for _, found in shown}
    assert "own" not in results["examples"][0]["queries"][0]
    scores = class_scores(z["touch"], torch.arange(12) % 2, z["smell"], torch.arange(12) % 2)["mAP"]
    worst = results["examples"][1]["queries"][0]["query"]["id"]
    assert worst == f"clip {int(scores.argmin())}"


def test_clips_without_labels_stand_aside(rng):
    dataset, z = three(rng, labels=[("a",)] * 5 + [()] * 7)
    assert Retrieval(examples=0)(passing_model(z, 6), dataset)["by_class/touch_to_smell/gallery"] == 5
    dataset, z = three(rng)
    assert Retrieval(examples=0)(passing_model(z, 6), dataset)["by_class"] == {}


def test_one_modality_is_refused(rng):
    with pytest.raises(DataError, match="retrieval needs two modalities; these clips hold only touch"):
        Retrieval()(passing_model(["touch", "smell"], 6), Vectors({"touch": torch.randn(4, 6, generator=rng)}))


def test_what_a_page_shows_is_escaped(rng, tmp_path):
    dataset, z = three(rng, ids=[f"<script>{i}</script>" for i in range(12)])
    record, html = written(Retrieval()(passing_model(z, 6), dataset), tmp_path)
    assert record["examples"][0]["queries"][0]["query"]["id"] == "<script>0</script>"
    assert "<script>" not in html
    assert "&lt;script&gt;0&lt;/script&gt;" in html


# The world, and sounds and images that only classes pair


def test_page_of_clips(tmp_path, world):
    results = Retrieval(banks=2, split="test")(LOADED, world)
    assert results["retrieval/audio_to_video/pool"] == 20
    assert results["by_class/audio_to_video/queries"] == 20
    assert "(" in results.lines[0]
    record, html = written(results, tmp_path)
    assert {k: v for k, v in record.items() if k != "provenance"} == json.loads(json.dumps(results.record))
    assert html.count("<audio") == 8 + 4  # evenly spaced, and the worst
    for section in record["examples"]:
        for asked in section["queries"]:
            shown = f"its own, rank {asked['rank']}"
            assert re.search(rf"{shown}\b", html)
            for item in (asked["query"], asked["own"], *asked["found"]):
                assert (tmp_path / item["image"]).is_file()
    assert html.count("its own, rank") == 2 * (8 + 4 + 4)  # caption and alternative text
    assert html.count('class="cell hit"') == sum(
        1 + sum(found["right"] for found in asked["found"]) for s in record["examples"] for asked in s["queries"]
    )
    assert "mean of 3 banks" in html
    assert "the seeds 1, 2" in html
    assert not re.search(r'(src|href)="(?!data:)', html)
    over = record["spread_over_banks"]["video_to_audio"]["R@1"]
    assert over["max"] >= record["retrieval"]["video_to_audio"]["R@1"]


def test_page_of_sounds_and_images_joined_by_class(tmp_path):
    config = with_data(CONFIG, make_collection(tmp_path / "made"))
    clips = build_dataset(config, "test")
    results = Retrieval(banks=1)(LOADED, clips)
    assert results["by_class"] == {}
    assert results["retrieval/audio_to_video/gallery"] == 6
    _, html = written(results, tmp_path / "out")
    assert html.count("<audio") == 3 + 3
    assert "its own" not in html
    assert "rank of the true partner" not in html
    with pytest.raises(DataError, match="leave --all-frames out"):
        Retrieval(all_frames=True)(LOADED, clips)


def test_examples_are_evenly_spaced():
    assert evenly_spaced(100, 4) == [0, 25, 50, 75]
    assert evenly_spaced(2, 4) == [0, 1]
