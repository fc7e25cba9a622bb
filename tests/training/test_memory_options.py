"""Activation checkpointing and token dropping in training: same gradients, same choice in every pass and process."""

import copy
import json

import pytest
import torch

from equiav.build import build_dataset, build_inputs, build_model, build_pipelines
from equiav.checkpoint import load_checkpoint
from equiav.data import collate
from equiav.errors import ConfigError
from equiav.media import prepare_batch
from equiav.models import encoder as vit
from equiav.objectives import EquiAVObjective
from equiav.objectives.equiav import VIEWS
from equiav.training import Step, Trainer, finetune
from tests.training.small import small_config

N, S, SEED = 6, 3, 5
CONFIG = small_config()
CHECKPOINTED = small_config("train.checkpoint_activations=true")


@pytest.fixture(scope="module")
def batch():
    clips = build_dataset(CONFIG, "train")
    return collate([clips.sample(i, i % clips.frames) for i in range(N)])


def objective(config=CONFIG, **choices):
    choices = {"representations": S, **choices}
    return EquiAVObjective(build_model(config), build_pipelines(config), build_inputs(config), **choices)


def draws(o, keep=1.0, step=1):
    o.keep_tokens = keep
    return o.draw(N, SEED, step)


def gradients(o, batch, d, micro=None):
    Step(o, o, micro, None)(batch, d, 1, 10)
    return {name: p.grad for name, p in o.named_parameters() if p.requires_grad}


@pytest.fixture
def counted(monkeypatch):
    """How many blocks were checkpointed."""
    calls = []
    real = vit.checkpoint

    def spy(*args, **options):
        calls.append(args)
        return real(*args, **options)

    monkeypatch.setattr(vit, "checkpoint", spy)
    return calls


@pytest.mark.parametrize("micro", [None, 2])
@pytest.mark.parametrize("keep", [1.0, 0.5])
def test_checkpointing_gives_the_same_gradients(batch, micro, keep, counted):
    plain, checkpointed = objective(), objective(CHECKPOINTED)
    d = draws(plain, keep)
    expected = gradients(plain, batch, d, micro)
    assert not counted
    found = gradients(checkpointed, batch, d, micro)
    assert len(counted) == 2 * 2 * (1 if micro is None else N // micro)  # modalities, blocks, portions; not twice
    assert all(torch.equal(found[name], expected[name]) for name in expected)


def test_checkpointing_holds_less(batch):
    """What the graph keeps of the encoders shrinks to the inputs of blocks."""

    def held(config):
        o, seen = objective(config), {}

        def pack(x):
            seen[x.untyped_storage().data_ptr()] = x.untyped_storage().nbytes()
            return x

        with torch.autograd.graph.saved_tensors_hooks(pack, lambda x: x):
            z = o(batch, draws(o))
        assert z["inter/audio"].requires_grad
        return sum(seen.values()) - sum(p.numel() * 4 for p in o.parameters())

    assert held(CHECKPOINTED) < 0.6 * held(CONFIG)


def test_only_training_is_checkpointed(counted):
    model = build_model(CHECKPOINTED)
    x = torch.zeros(1, 3, 32, 32)
    with torch.no_grad():
        model.visual.encode(x)
    model.eval().visual.encode(x)
    assert not counted
    model.train().visual.encode(x)
    assert len(counted) == 2


def test_a_checkpointed_run_is_the_same_run(tmp_path):
    options = ("train.steps=3", "train.evaluate_every=null")
    Trainer(small_config(*options), tmp_path / "plain", str).run()
    Trainer(small_config(*options, "train.checkpoint_activations=true"), tmp_path / "less", str).run()
    plain, less = (load_checkpoint(tmp_path / name).weights for name in ("plain", "less"))
    assert all(torch.equal(plain[name], less[name]) for name in plain)


def test_a_classifier_is_checkpointed_too(tmp_path, counted):
    from equiav.config import load_config, shipped_recipes

    recipe = shipped_recipes()["finetune/smoke"]
    config = load_config(recipe, ("train.steps=1", "train.epochs=null", "train.checkpoint_activations=true"))
    finetune(config, tmp_path, lambda line: None)
    assert counted


def test_tokens_are_drawn_per_view_and_cut_by_rows(batch):
    o = objective()
    d = draws(o, 0.5)
    for m in ("audio", "visual"):
        tokens = d[m].tokens
        assert tokens.shape == (N, len(VIEWS), o.model[m].f.tokens // 2)
        assert not torch.equal(tokens[:, 0], tokens[:, 1])
        assert torch.equal(d.rows(2, 5)[m].tokens, tokens[2:5])
        assert torch.equal(d[m].tokens_of("intra", "second"), torch.cat([tokens[:, 1], tokens[:, 2]]))
        assert torch.equal(draws(o, 0.5)[m].tokens, tokens)
        assert not torch.equal(draws(o, 0.5, step=2)[m].tokens, tokens)
        assert draws(o)[m].tokens is None
        assert torch.equal(draws(o)[m].inter, d[m].inter)  # a stream of its own: nothing else is drawn differently


@pytest.mark.parametrize(
    "choices",
    [{}, {"intra": "invariant", "inter": "original"}, {"intra": "invariant", "inter": "augmented"},
     {"intra": "none", "inter": "original"}, {"intra": "none", "inter": "augmented"}],
)  # fmt: skip
def test_encoders_see_the_drawn_tokens(batch, choices):
    """Embeddings from the kept tokens alone, view by view."""
    o = objective(**choices)
    d = draws(o, 0.5)
    z = o(batch, d)
    for m in ("audio", "visual"):
        inter, intra = z[f"inter/{m}"], [z.get(f"intra/{m}/{side}") for side in ("predicted", "augmented")]
        net, x = o.model[m], prepare_batch(o.inputs, batch, m)

        def seen(view, net=net, x=x, m=m):
            drawn = {"original": None, "intra": d[m].intra, "second": d[m].second}[view]
            return net.encode(o.view(x, m, drawn), d[m].tokens[:, VIEWS.index(view)])

        if not choices:
            torch.testing.assert_close(inter, net.inter_centroid(seen("original"), d[m].inter), atol=1e-5, rtol=1e-4)
            torch.testing.assert_close(intra[1], net.augmented(seen("intra")), atol=1e-5, rtol=1e-4)
            continue
        view = "intra" if choices["inter"] == "augmented" else "original"
        torch.testing.assert_close(inter, net.inter_pooled(seen(view)), atol=1e-5, rtol=1e-4)
        if intra[0] is not None:
            torch.testing.assert_close(intra[0], net.augmented(seen("intra")), atol=1e-5, rtol=1e-4)
            torch.testing.assert_close(intra[1], net.augmented(seen("second")), atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("micro", [1, 4])
def test_gradient_cache_sees_the_same_tokens_twice(batch, micro):
    whole = objective()
    cached = copy.deepcopy(whole)
    d = draws(whole, 0.5)
    expected, found = gradients(whole, batch, d), gradients(cached, batch, d, micro)
    for name, grad in expected.items():
        assert (found[name] - grad).norm() <= 1e-4 * grad.norm() + 1e-6, name


def test_two_halves_of_a_batch_see_what_the_whole_sees(batch):
    """What each of two processes computes of its rows."""
    o = objective()
    d = draws(o, 0.5)
    with torch.no_grad():
        whole = o(batch, d)
        halves = [o(batch.rows(*r), d.rows(*r)) for r in ((0, 3), (3, 6))]
    for name, z in whole.items():
        torch.testing.assert_close(torch.cat([half[name] for half in halves]), z, atol=1e-5, rtol=1e-4)


def test_a_run_that_drops_tokens(tmp_path):
    options = ("train.steps=4", "train.checkpoint_every=2", "train.evaluate_every=null", "objective.keep_tokens=0.5")
    config = small_config(*options)
    Trainer(config, tmp_path / "whole", str).run()
    first = Trainer(config, tmp_path / "parts", str)
    first.total = 2
    first.run()
    Trainer(config, tmp_path / "parts", str).run()
    whole, parts = (load_checkpoint(tmp_path / name).weights for name in ("whole", "parts"))
    assert all(torch.equal(whole[name], parts[name]) for name in whole)
    Trainer(small_config(*options[:3]), tmp_path / "all", str).run()
    logs = [json.loads((tmp_path / name / "log.jsonl").read_text().splitlines()[0]) for name in ("whole", "all")]
    assert logs[0]["loss"] != logs[1]["loss"]


@pytest.mark.parametrize("share", [0, 1.5, -0.5])
def test_a_share_must_be_one(share):
    with pytest.raises(ConfigError, match=r"objective\.keep_tokens"):
        small_config(f"objective.keep_tokens={share}")
