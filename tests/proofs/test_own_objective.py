"""A training method of one's own, in one file: contrast of pooled tokens with a margin, trained from a recipe."""

import torch
import torch.nn.functional as F

from equiav.build import build_inputs
from equiav.distributed import gather
from equiav.inference import load_model
from equiav.media import encoder_inputs
from equiav.objectives import NoDraws, Objective
from equiav.training import Trainer
from tests.training.small import small_config


class TripletContrast(Objective):
    """Each clip's own partner must be nearer than the next clip's, by a margin."""

    def __init__(self, config, model, margin=0.2):
        super().__init__()
        self.model, self.inputs, self.margin = model, build_inputs(config), margin
        for m in model.modalities:
            model[m].u.requires_grad_(False)
            model[m].g_intra.requires_grad_(False)

    def draw(self, count, seed, step):
        return NoDraws()

    def forward(self, batch, draws):
        x = encoder_inputs(self.inputs, batch)
        return {m: F.normalize(self.model[m].inter_pooled(self.model[m].encode(x[m])), dim=1) for m in x}

    def losses(self, outputs, step, total):
        audio, visual = gather(outputs["audio"]), gather(outputs["visual"])
        own, other = (audio * visual).sum(dim=1), (audio * visual.roll(1, dims=0)).sum(dim=1)
        return {"total": F.relu(self.margin - own + other).mean()}


def test_an_objective_of_ones_own_trains_from_a_recipe(tmp_path):
    options = (f"objective.kind={__name__}:TripletContrast", "objective.options={margin: 0.5}")
    variant = ("objective.intra=none", "objective.inter=original", "train.evaluate_every=2", "train.steps=4")
    lines = []
    trainer = Trainer(small_config(*options, *variant), tmp_path, lines.append)
    assert isinstance(trainer.objective, TripletContrast)
    assert trainer.objective.margin == 0.5
    before = {k: v.clone() for k, v in trainer.model.state_dict().items()}
    trainer.run()
    assert any(line.startswith("validation at step 4") for line in lines)
    after = trainer.model.state_dict()
    assert any(not torch.equal(before[k], after[k]) for k in after if ".f." in k)
    assert load_model(tmp_path).meta["step"] == 4


def test_its_micro_batches_give_the_same_gradients(tmp_path):
    options = (f"objective.kind={__name__}:TripletContrast", "objective.intra=none", "objective.inter=original")
    whole, parts = (
        Trainer(small_config(*options, "train.evaluate_every=null", "train.steps=1", micro), tmp_path / micro, str)
        for micro in ("train.micro_batch=null", "train.micro_batch=3")
    )
    whole.run()
    parts.run()
    for (name, a), b in zip(whole.objective.named_parameters(), parts.objective.parameters(), strict=True):
        if a.requires_grad:
            torch.testing.assert_close(b.grad, a.grad, rtol=1e-3, atol=1e-6, msg=name)
