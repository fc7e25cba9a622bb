"""`train.compile`: compiled blocks give the losses of plain ones for every method, and checkpoints as ever."""

import json

import jaxtyping
import pytest
import torch

from equiav.build import build_model
from equiav.checkpoint import load_checkpoint
from equiav.training import Trainer, optim
from tests.objectives.methods import small_method

SHORT = ("train.steps=3", "train.evaluate_every=null", "train.log_every=1")


@pytest.fixture
def calls(monkeypatch):
    """Counts graphs that were run; they are traced and differentiated as for inductor, without its C++."""
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)  # checked shapes would break the graphs
    torch._dynamo.reset()
    found = []

    def backend(graph, inputs):
        def run(*arguments):
            found.append(graph)
            return graph(*arguments)

        return run

    monkeypatch.setattr(optim, "BACKEND", backend)
    yield found
    torch._dynamo.reset()


def losses(folder):
    return [json.loads(line)["loss"] for line in (folder / "log.jsonl").read_text().splitlines()]


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


def test_it_is_off_unless_asked_for():
    assert not small_method("equiav").train.compile
