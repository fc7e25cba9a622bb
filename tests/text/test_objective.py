"""Three modalities, some clips without text: every term over the clips that have what it compares."""

import dataclasses

import pytest
import torch

from equiav.build import build_dataset, build_model, build_objective
from equiav.data import collate
from equiav.errors import ConfigError
from equiav.losses import equimod, info_nce, nt_xent
from equiav.objectives import EquiAVObjective
from equiav.text import TEXT, PartialObjective, intra_among
from equiav.training import Trainer
from equiav.training.step import Step
from tests.text.small import text_config

PAIRS = ("inter_audio_visual", "inter_audio_text", "inter_visual_text")
TERMS = {*PAIRS, "intra_audio", "intra_visual", "intra_text", "total"}


def pieces(share, *overrides):
    config = text_config(*overrides, share=share)
    clips = build_dataset(config, "train")
    objective = build_objective(config, build_model(config))
    batch = collate([clips.sample(i, i % 3) for i in range(12)])
    return objective, batch, objective.draw(12, 0, 0)


@pytest.mark.parametrize("loss", [nt_xent, equimod])
def test_losses_over_rows_are_the_losses_of_those_rows(loss, rng):
    a, b = (torch.randn(9, 5, generator=rng) for _ in range(2))
    rows = torch.tensor([True, True, False] * 3)
    torch.testing.assert_close(info_nce(a, b, 0.1, rows), info_nce(a[rows], b[rows], 0.1))
    torch.testing.assert_close(intra_among(loss, a, b, rows, 0.1), loss(a[rows], b[rows], 0.1))


def test_a_loss_of_ones_own_needs_every_clip():
    rows = torch.tensor([True, False])
    with pytest.raises(ConfigError, match="lack a modality"):
        intra_among(lambda a, b, tau: a.sum(), torch.ones(2, 2), torch.ones(2, 2), rows, 0.1)


def test_complete_batches_are_algorithm_1():
    objective, batch, draws = pieces(1.0)
    assert isinstance(objective, PartialObjective)
    algorithm = EquiAVObjective(
        objective.model, objective.augment, objective.inputs, tau=objective.tau, weights=objective.weights
    )
    plain = algorithm.losses(algorithm(batch, draws), 1, 10)
    ours = objective.losses(objective(batch, draws), 1, 10)
    assert set(ours) == TERMS
    assert all(torch.equal(ours[name], plain[name]) for name in plain)


def test_clips_without_text_take_part_in_the_other_terms():
    objective, batch, draws = pieces(0.5)
    there = batch.present[TEXT]
    assert 2 <= int(there.sum()) < len(there)
    outputs = objective(batch, draws)
    terms = objective.losses(outputs, 1, 10)
    z = {m: outputs[f"inter/{m}"] for m in ("audio", "visual", TEXT)}
    torch.testing.assert_close(terms["inter_audio_visual"], info_nce(z["audio"], z["visual"], 0.07))
    for m in ("audio", "visual"):
        torch.testing.assert_close(terms[f"inter_{m}_text"], info_nce(z[m][there], z[TEXT][there], 0.07))
    hat, aug = (outputs[f"intra/text/{side}"][there] for side in ("predicted", "augmented"))
    torch.testing.assert_close(terms["intra_text"], nt_xent(hat, aug, 0.07))
    assert "effective_rank_text" in objective.health(outputs)


def test_what_stands_in_for_missing_text_changes_nothing():
    objective, batch, draws = pieces(0.5)
    there = batch.present[TEXT]
    noise = torch.where(there[:, None, None], batch.inputs[TEXT], torch.full_like(batch.inputs[TEXT], 65))
    other = dataclasses.replace(batch, inputs={**batch.inputs, TEXT: noise})
    one, two = (objective.losses(objective(b, draws), 1, 10) for b in (batch, other))
    assert all(torch.equal(one[name], two[name]) for name in one)


def test_a_batch_without_any_text():
    objective, batch, draws = pieces(0.5)
    rows = (~batch.present[TEXT]).nonzero()[:, 0].tolist()
    clips = build_dataset(text_config(share=0.5), "train")
    bare = collate([clips.sample(i, 0) for i in rows])
    assert TEXT not in bare.inputs
    outputs = objective(bare, draws.rows(0, len(rows)))
    terms = objective.losses(outputs, 1, 10)
    assert terms["inter_audio_text"] == terms["intra_text"] == 0
    terms["total"].backward()
    text = [p.grad for p in objective.model[TEXT].parameters() if p.requires_grad]
    assert all(grad is not None and not grad.any() for grad in text), "DDP would wait for gradients that never come"
    assert "effective_rank_text" not in objective.health(outputs)


def test_weights_by_term():
    names = {"inter_audio_text": 0.0, "inter_visual_text": 0.5, "intra_text": 0.25}
    objective, batch, draws = pieces(0.5, *(f"objective.weights.{name}={value}" for name, value in names.items()))
    terms = objective.losses(objective(batch, draws), 1, 10)
    total = terms["inter_audio_visual"] + 0.5 * terms["inter_visual_text"] + 0.25 * terms["intra_text"]
    torch.testing.assert_close(terms["total"], total + terms["intra_audio"] + terms["intra_visual"])


def test_micro_batches_give_the_same_gradient():
    found = []
    for size in (None, 5):
        objective, batch, draws = pieces(0.4)
        Step(objective, objective, size, None)(batch, draws, 1, 10)
        found.append({name: p.grad for name, p in objective.named_parameters() if p.grad is not None})
    assert found[0].keys() == found[1].keys()
    for name, grad in found[0].items():
        torch.testing.assert_close(found[1][name], grad, rtol=1e-3, atol=1e-6, msg=name)


@pytest.mark.parametrize("intra", ["invariant", "none"])
def test_other_variants(intra):
    objective, batch, draws = pieces(0.5, f"objective.intra={intra}", "objective.inter=original")
    terms = objective.losses(objective(batch, draws), 1, 10)
    assert set(terms) == TERMS
    assert terms["total"].isfinite()


def test_resumed_equals_uninterrupted(tmp_path):
    config = text_config("train.steps=6", "train.checkpoint_every=3", "train.evaluate_every=6", share=0.5)
    whole = Trainer(config, tmp_path / "whole", str)
    whole.run()
    part = Trainer(config, tmp_path / "part", str)
    take = part._take

    def stop(*args):
        take(*args)
        part._stop = part.step == 3

    part._take = stop
    assert part.run().interrupted
    again = Trainer(config, tmp_path / "part", str)
    assert again.step == 3
    again.run()
    one, two = whole.model.state_dict(), again.model.state_dict()
    assert all(torch.equal(one[name], two[name]) for name in one)
    logs = [(tmp_path / run / "log.jsonl").read_text() for run in ("whole", "part")]
    assert logs[0] == logs[1]
    assert "text_to_audio/R@10" in logs[0]
