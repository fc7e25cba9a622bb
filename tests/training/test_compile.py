"""`train.compile`: compiled blocks give the losses of plain ones for every method, and checkpoints as ever."""

import json

import jaxtyping
import pytest
import torch

from equiav.build import build_model
from equiav.checkpoint import load_checkpoint
from equiav.training import Trainer, optim
from tests.objectives.methods import small_method
from tests.training.test_finetune import finetuner

SHORT = ("train.steps=3", "train.evaluate_every=null", "train.log_every=1")


@pytest.fixture
def calls(monkeypatch):
    """Counts graphs of blocks that were run; they are traced and differentiated as for inductor, without its C++."""
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)  # checked shapes would break the graphs
    torch._dynamo.reset()
    found = []

    def backend(graph, inputs):
        block = "scaled_dot_product_attention" in graph.code

        def run(*arguments):
            found.extend([graph] * block)
            return graph(*arguments)

        return run

    monkeypatch.setattr(optim, "BACKEND", backend)
    yield found
    torch._dynamo.reset()


def losses(folder):
    records = map(json.loads, (folder / "log.jsonl").read_text().splitlines())
    return [record["loss"] for record in records if record["kind"] == "train"]


@pytest.mark.parametrize(
    ("kind", "overrides"),
    [
        ("equiav", ()),
        ("equiav", ("train.checkpoint_activations=true", "train.micro_batch=3")),
        ("equiav", ("optim.lora={rank: 2, alpha: 4}",)),
        ("masked", ()),
        ("cavmae", ()),
    ],
)
def test_the_same_losses(tmp_path, calls, kind, overrides):
    plain, compiled = (
        small_method(kind, *SHORT, *overrides),
        small_method(kind, *SHORT, *overrides, "train.compile=true"),
    )
    Trainer(plain, tmp_path / "plain", lambda line: None).run()
    assert not calls
    Trainer(compiled, tmp_path / "compiled", lambda line: None).run()
    assert calls
    assert losses(tmp_path / "compiled") == pytest.approx(losses(tmp_path / "plain"), rel=1e-5)
    assert load_checkpoint(tmp_path / "compiled").weights.keys() == build_model(plain).state_dict().keys()


def test_the_same_losses_of_fine_tuning(tmp_path, calls):
    for name, compiled in (("plain", "false"), ("compiled", "true")):
        finetuner(
            tmp_path / name, "train.epochs=null", "train.steps=3", "train.log_every=1", f"train.compile={compiled}"
        ).run()
        assert bool(calls) == (name == "compiled")
    assert losses(tmp_path / "compiled") == pytest.approx(losses(tmp_path / "plain"), rel=1e-5)


def test_it_is_off_unless_asked_for():
    assert not small_method("equiav").train.compile
